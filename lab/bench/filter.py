"""How long `POST /filter` takes with names only, as the caller sees it, beside two yardsticks of the same run.

The floor is a route of the same process that reads the same request and gives a fixed answer: what no decision can be faster than.
The plain algorithm remembers nothing and counts all pods in every call. Calls and floor calls take turns by the dozen, so that whatever
else the machine does is in both.
"""

import http.client
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from random import Random
from statistics import fmean, median
from time import perf_counter

import orjson

from lab.bench.figures import cpu_s, histogram_ms, latencies, rss_mib
from lab.bench.process import BenchError, apart, served
from lab.bench.synthetic import (
    LIMITED,
    TIGHT,
    TIGHT_MIB,
    JsonObject,
    Size,
    container_document,
    documents,
    node_name,
    pod_document,
)

__all__ = ["CASES", "BenchError", "FilterBench", "bench_filter", "bench_growth", "extender", "probe"]

CASES = ("seen", "shuffled", "new", "chain", "nofit", "nofit-retried", "nofit-quota", "nofit-containers", "nofit-numa")
WARM_UP_CALLS = 96
"""As many as there are shapes in `nofit-retried`: each has then been refused once."""
_PROBES = 32
_PLAIN_CALLS = 3
_FLOOR_EVERY = 25
_SIZES_MIB = (500, 1000, 2000, 3000, 4000, 6000, 8000, 12000)
_POLICIES = ("", "binpack", "mutex,binpack,numa")
_TOO_MUCH_MIB = 15361
"""One more than a card has."""
_HEADERS = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True)
class FilterBench:
    """What is measured: a cluster of this size, so many calls, and which of `CASES` they are.

    - `seen`: eight sizes and three policies, again and again
    - `shuffled`: as `seen`, the names in another order in every call
    - `new`: a size that never came before, in every call
    - `chain`: `mutex,binpack,numa`, four cards, an init container and a sidecar, nodes with pair scores
    - `nofit`: more than any card has, never the same size twice
    - `nofit-retried`: more than any card has, again and again, while other pods are placed in between
    - `nofit-quota`: two cards for which the namespace's quota has room once, never the same size twice
    - `nofit-containers`: sidecar and init container would fit, the app on no card, never the same size twice
    - `nofit-numa`: more cards of one NUMA node than a node has, never the same size twice
    """

    size: Size
    calls: int
    case: str = "seen"


@contextmanager
def extender(size: Size, linked: bool = False) -> Iterator[tuple[int, int]]:
    """The extender in a process of its own; its port and process id."""
    numbers = (size.nodes, size.cards, size.pods, int(linked))
    with served("lab.bench.server", *numbers) as server:
        yield server.ports["port"], server.pid


def _probe(number: int, memory_mib: int) -> JsonObject:
    """One of a few pods that are filtered again and again, every other one under quota."""
    turn = number % _PROBES
    namespace = LIMITED if turn % 2 else "default"
    return pod_document(f"probe-{turn}", memory_mib, policy=_POLICIES[number % len(_POLICIES)], namespace=namespace)


def _chained(number: int, memory_mib: int = 4000) -> JsonObject:
    pod = pod_document(f"probe-{number % _PROBES}", memory_mib, count=4, policy=_POLICIES[2])
    init = container_document("init", 8000)
    sidecar = {**container_document("sidecar", 1000), "restartPolicy": "Always"}
    spec = pod["spec"]
    assert isinstance(spec, dict)
    spec["initContainers"] = [sidecar, init]
    return pod


def _on_one_numa_node(number: int) -> JsonObject:
    pod = pod_document(f"probe-{number % _PROBES}", 1000 + number, count=5, policy="binpack")
    metadata = pod["metadata"]
    assert isinstance(metadata, dict)
    metadata["annotations"]["nvidia.com/numa-bind"] = "true"
    return pod


def probe(case: str, number: int) -> JsonObject:
    """The pod of one call of a case."""
    if case == "new":
        return _probe(number, 500 + number * 37 % 11_500)
    if case == "chain":
        return _chained(number)
    if case == "nofit":
        return _probe(number, _TOO_MUCH_MIB + number)
    if case == "nofit-retried":
        return _probe(number, _TOO_MUCH_MIB + number % _PROBES)
    if case == "nofit-quota":
        half = TIGHT_MIB // 2 + 1
        return pod_document(f"probe-{number % _PROBES}", half + number % half, count=2, namespace=TIGHT)
    if case == "nofit-containers":
        return _chained(number, _TOO_MUCH_MIB + number)
    if case == "nofit-numa":
        return _on_one_numa_node(number)
    return _probe(number, _SIZES_MIB[number % len(_SIZES_MIB)])


@dataclass(frozen=True, slots=True)
class _Times:
    """Calls as the caller sees them, and what each cost the server's process: only the mean counts, the kernel books it late."""

    seconds: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)


class _Caller:
    """One connection, as kube-scheduler keeps it."""

    def __init__(self, port: int, size: Size) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._order = [node_name(number) for number in range(size.nodes)]
        self._names = orjson.dumps(self._order)

    def shuffle(self, random: Random) -> None:
        """Send the names in another order from now on."""
        random.shuffle(self._order)
        self._names = orjson.dumps(self._order)

    def close(self) -> None:
        self._http.close()

    def body(self, pod: JsonObject) -> bytes:
        return b'{"Pod":%s,"Nodes":null,"NodeNames":%s}' % (orjson.dumps(pod), self._names)

    def call(self, path: str, body: bytes) -> tuple[float, bytes]:
        """Seconds from sending to the last byte, and the answer."""
        sent = perf_counter()
        self._http.request("POST", path, body, _HEADERS)
        answer = self._http.getresponse().read()
        return perf_counter() - sent, answer


def _checked(case: str, number: int, answer: bytes, nodes: int) -> None:
    document = orjson.loads(answer)
    chosen, failed = document["NodeNames"] or (), document["FailedNodes"] or ()
    expected = (0, nodes) if case.startswith("nofit") else (1, 0)
    if document["Error"] or (len(chosen), len(failed)) != expected:
        raise BenchError(f"call {number} was answered {answer.decode(errors='replace')[:300]}")


def bench_filter(bench: FilterBench) -> dict[str, object]:
    """The figures of one run. Each call reserves and replaces the reservation of its pod's call before, as retries do.

    Raises `BenchError` when a call answers anything but what its case says, and `ValueError` for a case there is not or more pods
    than there is room for.
    """
    size, case = bench.size, bench.case
    if case not in CASES:
        raise ValueError(f"case {case!r}: expected one of {', '.join(CASES)}")
    documents(size)  # says what does not fit here, not in the other process
    calls, floor = _Times(), _Times()
    with extender(size, linked=case == "chain") as (port, pid), apart(pid) as is_apart:
        caller, random = _Caller(port, size), Random(1)
        for number in range(WARM_UP_CALLS + bench.calls):
            if case == "nofit-retried":
                caller.call("/filter", caller.body(_placed_between(number)))
            if case == "shuffled":
                caller.shuffle(random)
            body = caller.body(probe(case, number))
            if number % _FLOOR_EVERY == 0:
                # Several at once: the first of them still waits for what the extender does after its answers.
                for turn in range(_FLOOR_EVERY):
                    _measured(caller, pid, "/floor", body, floor if turn else _Times())
            answer = _measured(caller, pid, "/filter", body, calls if number >= WARM_UP_CALLS else _Times())
            _checked(case, number, answer, size.nodes)
        plain = _Times()
        for number in range(_PLAIN_CALLS):
            _measured(caller, pid, "/plain", caller.body(probe(case, number)), plain)
        memory = rss_mib(pid)
        caller.close()
    figures = latencies(calls.seconds, sum(calls.seconds))
    floor_ms, plain_ms = median(floor.seconds) * 1000, median(plain.seconds) * 1000
    cpu_ms, floor_cpu_ms = fmean(calls.cpu_s) * 1000, fmean(floor.cpu_s) * 1000
    return {
        "bench": "filter",
        "case": case,
        "nodes": size.nodes,
        "cards": size.cards,
        "pods": size.pods,
        "calls": bench.calls,
        "core_each": is_apart,
        **figures,
        "floor_p50_ms": round(floor_ms, 3),
        "plain_p50_ms": round(plain_ms, 3),
        "times_floor": round(figures["p50_ms"] / floor_ms, 2),
        "plain_times": round(plain_ms / figures["p50_ms"], 1),
        "cpu_ms": round(cpu_ms, 3),
        "floor_cpu_ms": round(floor_cpu_ms, 3),
        "cpu_times_floor": round(cpu_ms / floor_cpu_ms, 2),
        "plain_cpu_times": round(fmean(plain.cpu_s) * 1000 / cpu_ms, 1),
        "rss_mib": memory,
        "histogram_ms": histogram_ms(calls.seconds),
    }


def _measured(caller: _Caller, pid: int, path: str, body: bytes, times: _Times) -> bytes:
    before = cpu_s(pid)
    seconds, answer = caller.call(path, body)
    times.seconds.append(seconds)
    times.cpu_s.append(cpu_s(pid) - before)
    return answer


def _placed_between(number: int) -> JsonObject:
    """A pod that fits, and so changes a node."""
    pod = _probe(number, _SIZES_MIB[number % len(_SIZES_MIB)])
    metadata = pod["metadata"]
    assert isinstance(metadata, dict)
    metadata["uid"] = f"between-{number % _PROBES}"
    return pod


def bench_growth(bench: FilterBench, times: int = 10) -> dict[str, object]:
    """The same bench on a cluster of a tenth of the size as well; `growth`: the times of both, each less its floor."""
    size = bench.size
    small = Size(max(size.nodes // times, 1), size.cards, size.pods // times)
    large, little = bench_filter(bench), bench_filter(replace(bench, size=small))

    def own(figures: dict[str, object], what: str) -> float:
        return float(str(figures[what])) - float(str(figures[f"floor_{what}"]))

    return {
        **large,
        "small_nodes": small.nodes,
        "small_p50_ms": little["p50_ms"],
        "small_floor_p50_ms": little["floor_p50_ms"],
        "growth": round(own(large, "p50_ms") / max(own(little, "p50_ms"), 1e-6), 2),
        "small_cpu_ms": little["cpu_ms"],
        "small_floor_cpu_ms": little["floor_cpu_ms"],
        "cpu_growth": round(own(large, "cpu_ms") / max(own(little, "cpu_ms"), 1e-6), 2),
    }
