"""How long `POST /filter` takes with names only, as the caller sees it."""

import http.client
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

import orjson

from lab.bench.figures import latencies, rss_mib
from lab.bench.synthetic import Size, node_name, pod_document

__all__ = ["BenchError", "FilterBench", "bench_filter", "extender"]

WARM_UP_CALLS = 50
_PROBES = 32
_HEADERS = {"Content-Type": "application/json"}


class BenchError(Exception):
    """The measurement could not be made, or measured something else than it says."""


@dataclass(frozen=True, slots=True)
class FilterBench:
    """What is measured: a cluster of this size, so many calls."""

    size: Size
    calls: int


@contextmanager
def extender(size: Size) -> Iterator[tuple[int, int]]:
    """The extender in a process of its own, pinned to one core where there are two; its port and process id."""
    command = [sys.executable, "-m", "lab.bench.server", str(size.nodes), str(size.cards), str(size.pods)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise BenchError(f"the extender's process ended with status {process.wait()} before it listened")
            yield json.loads(line)["port"], process.pid
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()


@contextmanager
def _apart(pid: int) -> Iterator[bool]:
    """Server and client on a core each, so that neither waits for the other; on one core they share it."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        yield False
        return
    os.sched_setaffinity(pid, {cores[0]})
    os.sched_setaffinity(0, {cores[1]})
    try:
        yield True
    finally:
        os.sched_setaffinity(0, set(cores))


def _bodies(size: Size) -> list[bytes]:
    names = [node_name(number) for number in range(size.nodes)]
    memory = (500, 1000, 2000, 3000, 4000, 6000, 8000, 12000)
    policies = ("", "binpack", "mutex,binpack,numa")
    pods = (
        pod_document(f"probe-{n}", memory[n % len(memory)], policy=policies[n % len(policies)]) for n in range(_PROBES)
    )
    return [orjson.dumps({"Pod": pod, "Nodes": None, "NodeNames": names}) for pod in pods]


def bench_filter(bench: FilterBench) -> dict[str, object]:
    """The figures of one run. Each call reserves and replaces the reservation of its pod's call before, as retries do.

    Raises `BenchError` when a call answers anything but one node.
    """
    bodies = _bodies(bench.size)
    times: list[float] = []
    with extender(bench.size) as (port, pid), _apart(pid) as apart:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        began = perf_counter()
        for number in range(WARM_UP_CALLS + bench.calls):
            if number == WARM_UP_CALLS:
                began = perf_counter()
            sent = perf_counter()
            connection.request("POST", "/filter", bodies[number % len(bodies)], _HEADERS)
            answer = connection.getresponse().read()
            times.append(perf_counter() - sent)
            if len(orjson.loads(answer)["NodeNames"] or ()) != 1:
                raise BenchError(f"call {number} was answered {answer.decode(errors='replace')[:300]}")
        elapsed_s = perf_counter() - began
        memory = rss_mib(pid)
        connection.close()
    size = bench.size
    return {
        "bench": "filter",
        "nodes": size.nodes,
        "cards": size.cards,
        "pods": size.pods,
        "calls": bench.calls,
        "core_each": apart,
        **latencies(times[WARM_UP_CALLS:], elapsed_s),
        "rss_mib": memory,
    }
