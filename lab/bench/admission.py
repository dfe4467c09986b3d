"""How many pods `/webhook` admits over TLS, and how long each takes, as the API server sees it.

The webhook runs in a process of its own. Three requests take turns: a pod that asks for a share of a card, a pod that asks for none
(`plain`), and the first pod again on a route that decodes it and gives a fixed answer (`floor`). Each is sent as fast as the connections
take it, then at a fixed rate, whatever the answers take.
"""

import asyncio
import gc
import ssl
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Final

import orjson

from certs.files import write_pair
from certs.pki import create_ca, issue_serving
from lab.bench.connection import Connection, connected, post
from lab.bench.figures import cpu_s, histogram_ms, latencies, rss_mib
from lab.bench.process import BenchError, apart, first_of, served
from lab.bench.reviews import review_body
from serving.server import run

__all__ = ["AdmissionBench", "bench_admission"]

KINDS: Final = ("admission", "floor", "plain")
WARM_UP_S: Final = 0.5


@dataclass(frozen=True)
class AdmissionBench:
    """What is measured."""

    connections: int = 8
    size_bytes: int = 5000
    """Of the whole review."""
    rate: int = 1000
    """Requests a second while latency is measured."""
    rounds: int = 2
    seconds: float = 2.0
    """Of each part of a round."""


@dataclass(slots=True)
class _Taken:
    """What one kind of call took."""

    flat_out: list[float] = field(default_factory=list)
    """Calls a second, one figure a round."""
    cpu_ms: list[float] = field(default_factory=list)
    """Of the server, for a call, one figure a round."""
    seconds: list[float] = field(default_factory=list)
    """Of single calls at the fixed rate."""


@dataclass(frozen=True, slots=True)
class _Call:
    """One kind of call: the request, and the body every answer ends in."""

    request: bytes
    answer: bytes
    taken: _Taken = field(default_factory=_Taken)

    def check(self, answer: bytes) -> None:
        if not answer.endswith(self.answer):
            raise BenchError(f"a pod was answered {answer.decode(errors='replace')[-300:]}")


@asynccontextmanager
async def _awake() -> AsyncIterator[None]:
    """Keep this process from sleeping: waking it would cost the server more than an answer does, on a virtual machine."""
    over = False

    async def turn() -> None:
        while not over:  # noqa: ASYNC110 - not to sleep is what it is for
            await asyncio.sleep(0)

    turning = asyncio.create_task(turn())
    try:
        yield
    finally:
        over = True
        await turning


class _Load:
    def __init__(self, connections: list[Connection], pid: int) -> None:
        self._connections = connections
        self._pid = pid

    async def flat_out(self, call: _Call, seconds: float) -> None:
        """Every connection sends its next request as soon as it has its answer."""
        done = 0
        cpu_before, began = cpu_s(self._pid), perf_counter()
        ends_at = began + seconds

        async def one(connection: Connection) -> None:
            nonlocal done
            while perf_counter() < ends_at:
                call.check(await connection.ask(call.request))
                done += 1

        async with _awake():
            await asyncio.gather(*(one(connection) for connection in self._connections))
        call.taken.flat_out.append(done / (perf_counter() - began))
        call.taken.cpu_ms.append(1000 * (cpu_s(self._pid) - cpu_before) / done)

    async def at_rate(self, call: _Call, rate: int, seconds: float) -> None:
        """A request is due every `1 / rate` seconds and timed from then, also while it waits for a connection."""
        free = deque(self._connections)
        waiting: deque[float] = deque()

        async def one(connection: Connection, due: float) -> None:
            while True:
                call.check(await connection.ask(call.request))
                call.taken.seconds.append(perf_counter() - due)
                if not waiting:
                    free.append(connection)
                    return
                due = waiting.popleft()

        async with asyncio.TaskGroup() as running:
            began = perf_counter()
            for number in range(max(1, int(rate * seconds))):
                due = began + number / rate
                while perf_counter() < due:  # noqa: ASYNC110 - timers of the event loop are too coarse
                    await asyncio.sleep(0)
                if free:
                    running.create_task(one(free.popleft(), due))
                else:
                    waiting.append(due)


async def _calls(connection: Connection, size_bytes: int) -> dict[str, _Call]:
    """Every kind of call with its answer, as the first of them is answered. Raises `BenchError` for one that it must not have."""
    device, none = (review_body(size_bytes, gpu=gpu) for gpu in (True, False))
    requests = {"admission": post("/webhook", device), "floor": post("/floor", device), "plain": post("/webhook", none)}
    found = {}
    for kind in KINDS:
        answer = await connection.ask(requests[kind])
        body = answer.partition(b"\r\n\r\n")[2]
        found[kind] = _Call(requests[kind], body)
        response = orjson.loads(body).get("response", {}) if answer.startswith(b"HTTP/1.1 200 ") else {}
        if response.get("allowed") is not True or ("patch" in response) is not (kind == "admission"):
            raise BenchError(f"{kind}: the pod was answered {answer.decode(errors='replace')[-300:]}")
    return found


def _certificates(folder: Path) -> tuple[Path, Path, ssl.SSLContext]:
    """Certificate and key of a server, and a client's context that trusts it."""
    now = datetime.now(UTC)
    ca = create_ca("bench", now=now, days=1)
    certificate, key = folder / "tls.crt", folder / "tls.key"
    write_pair(issue_serving(ca, ["127.0.0.1"], now=now, days=1), certificate, key)
    return certificate, key, ssl.create_default_context(cadata=ca.certificate_pem().decode())


async def _measure(bench: AdmissionBench, port: int, pid: int, context: ssl.SSLContext) -> dict[str, _Call]:
    connections = [await connected(port, context) for _ in range(bench.connections)]
    try:
        calls = await _calls(connections[0], bench.size_bytes)
        load = _Load(connections, pid)
        for call in calls.values():
            await load.flat_out(_Call(call.request, call.answer), WARM_UP_S)
        for _ in range(bench.rounds):
            for call in calls.values():
                await load.flat_out(call, bench.seconds)
                await load.at_rate(call, bench.rate, bench.seconds)
    finally:
        for connection in connections:
            connection.close()
    return calls


def bench_admission(bench: AdmissionBench) -> dict[str, object]:
    """The figures of one run.

    Raises `BenchError` when a pod is answered anything but what its kind says, and `ValueError` for a pod that cannot be so small.
    """
    review_body(bench.size_bytes, gpu=True)  # says what is wrong with the size before anything starts
    with TemporaryDirectory() as folder:
        certificate, key, context = _certificates(Path(folder))
        with served("lab.bench.admission_server", certificate, key, log=False) as server, apart(server.pid) as is_apart:
            gc.collect()
            gc.disable()  # pauses of the load are not what is measured
            try:
                calls = run(_measure(bench, server.ports["port"], server.pid, context))
            except* ConnectionError as errors:
                raise BenchError(f"the webhook's connection broke: {first_of(errors)}") from errors
            except* BenchError as errors:
                raise BenchError(str(first_of(errors))) from errors
            finally:
                gc.enable()
            memory = rss_mib(server.pid)
    return _figures(bench, {kind: call.taken for kind, call in calls.items()}, is_apart, memory)


def _figures(bench: AdmissionBench, taken: dict[str, _Taken], is_apart: bool, memory: float) -> dict[str, object]:
    admission, floor, plain = (taken[kind] for kind in KINDS)
    at_rate = latencies(admission.seconds, bench.rounds * bench.seconds)
    cpu_ms = {kind: median(taken[kind].cpu_ms) for kind in KINDS}
    return {
        "bench": "admission",
        "connections": bench.connections,
        "size_bytes": bench.size_bytes,
        "rate": bench.rate,
        "rounds": bench.rounds,
        "round_seconds": bench.seconds,
        "core_each": is_apart,
        **at_rate,
        "per_second": round(median(admission.flat_out), 1),
        "floor_per_second": round(median(floor.flat_out), 1),
        "plain_per_second": round(median(plain.flat_out), 1),
        "floor_p50_ms": round(median(floor.seconds) * 1000, 3),
        "plain_p50_ms": round(median(plain.seconds) * 1000, 3),
        "cpu_ms": round(cpu_ms["admission"], 4),
        "floor_cpu_ms": round(cpu_ms["floor"], 4),
        "plain_cpu_ms": round(cpu_ms["plain"], 4),
        "cpu_times_floor": round(cpu_ms["admission"] / cpu_ms["floor"], 2),
        "plain_cpu_times_floor": round(cpu_ms["plain"] / cpu_ms["floor"], 2),
        "rss_mib": memory,
        "histogram_ms": histogram_ms(admission.seconds),
    }
