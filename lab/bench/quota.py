"""How fast `/validate` admits pods under quota, as the API server sees it, and how large the records grow.

The webhook runs in a process of its own. Here are the load and the embedded API server, whose answers about the records are held
back so that they take a millisecond; every pod let in appears there, and in the webhook's watch, at once.
"""

import asyncio
import gc
import json
import sys
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Final

import orjson

from lab.apiserver.documents import JsonObject
from lab.apiserver.server import ApiServer
from lab.bench.figures import latencies
from lab.bench.process import BenchError
from lab.bench.synthetic import node_document, pod_document
from webhook.admitted.store import record_name
from webhook.config import DEFAULT_NAMESPACE

__all__ = ["QuotaBench", "bench_quota"]

_PLENTY: Final = 10**9
_ALIVE: Final = 40
"""Pods that live in a namespace at a time; the oldest goes when a new one comes."""
_CONNECTIONS: Final = 128


@dataclass(frozen=True)
class QuotaBench:
    """What is measured: latency at a fixed rate over several namespaces, the most that one namespace takes, the record's size."""

    namespaces: int = 20
    rate: int = 500
    """Requests a second while latency is measured."""
    seconds: float = 10.0
    burst_seconds: float = 5.0
    """One namespace, as many at once as there are connections."""
    size_rate: int = 300
    size_seconds: float = 10.0
    """How long the record of one namespace is watched at `size_rate` admissions a second."""
    api_delay_s: float = 0.0006
    """On top of the 0.4 ms that the embedded API server takes itself."""


class _Connection:
    """One keep-alive connection; requests go one after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def post(self, body: bytes) -> bytes:
        """The body of the answer to `POST /validate`."""
        head = f"POST /validate HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode() + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1]) for line in answer.split(b"\r\n") if line.lower().startswith(b"content-length:")
        )
        return await self._reader.readexactly(length)

    def close(self) -> None:
        """Close it."""
        self._writer.close()


class _Load:
    """Pods created as the API server would: asked first, stored if allowed, and ended when newer ones have come."""

    def __init__(self, api: ApiServer, connections: list[_Connection]) -> None:
        self._api = api
        self._free: asyncio.LifoQueue[_Connection] = asyncio.LifoQueue()
        for connection in connections:
            self._free.put_nowait(connection)
        self._alive: dict[str, deque[str]] = {}
        self._number = 0
        self.largest_bytes = 0

    async def create(self, namespace: str) -> float:
        """Create a pod; the seconds of its admission. Raises `BenchError` for one that is refused."""
        self._number += 1
        name = f"bench-{self._number:07d}"
        pod = pod_document(name, 1000)
        metadata = pod["metadata"]
        assert isinstance(metadata, dict)
        metadata.update(namespace=namespace, uid=f"{self._number:08x}-0000-4000-8000-000000000000")
        review = {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {
                "uid": name,
                "kind": {"kind": "Pod"},
                "operation": "CREATE",
                "namespace": namespace,
                "object": pod,
            },
        }
        body = orjson.dumps(review)
        connection = await self._free.get()
        began = perf_counter()
        try:
            answer = await connection.post(body)
        finally:
            self._free.put_nowait(connection)
        took = perf_counter() - began
        if not orjson.loads(answer)["response"]["allowed"]:
            raise BenchError(f"pod {self._number} was answered {answer.decode(errors='replace')[:300]}")
        self.measure(namespace)
        self._api.put("pods", pod)
        alive = self._alive.setdefault(namespace, deque())
        alive.append(name)
        if len(alive) > _ALIVE:
            self._api.remove("pods", namespace, alive.popleft())
        return took

    def measure(self, namespace: str) -> None:
        """Look at the size of the namespace's record."""
        stored = self._api.get("configmaps", DEFAULT_NAMESPACE, record_name(namespace))
        if stored is not None:
            self.largest_bytes = max(self.largest_bytes, len(orjson.dumps(stored)))

    async def at_rate(self, namespaces: list[str], rate: int, seconds: float) -> list[float]:
        """Create pods at a fixed rate, whatever the answers take, in each namespace in turn."""
        tasks: list[asyncio.Task[float]] = []
        began = perf_counter()
        for number in range(int(rate * seconds)):
            wait_s = began + number / rate - perf_counter()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            namespace = namespaces[number % len(namespaces)]
            tasks.append(asyncio.create_task(self.create(namespace)))
        return await asyncio.gather(*tasks)

    async def flat_out(self, namespace: str, seconds: float) -> float:
        """Admissions a second with every connection busy."""
        ends_at = perf_counter() + seconds
        done = 0

        async def one() -> None:
            nonlocal done
            while perf_counter() < ends_at:
                await self.create(namespace)
                done += 1

        began = perf_counter()
        await asyncio.gather(*(one() for _ in range(_CONNECTIONS)))
        return done / (perf_counter() - began)


async def _precisely(seconds: float) -> None:
    """A sleep below a millisecond, which the event loop's timers cannot keep."""
    ends_at = perf_counter() + seconds
    while True:
        if perf_counter() >= ends_at:
            return
        await asyncio.sleep(0)


@asynccontextmanager
async def _webhook(url: str) -> AsyncIterator[int]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "lab.bench.quota_server", url),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        line = await process.stdout.readline()
        if not line:
            raise BenchError(f"the webhook's process ended with status {await process.wait()} before it listened")
        yield json.loads(line)["port"]
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(10):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


def _prepare(api: ApiServer, names: list[str]) -> None:
    api.put("namespaces", {"metadata": {"name": DEFAULT_NAMESPACE}})
    node: JsonObject = node_document(0, 8)
    api.put("nodes", node)
    for name in names:
        api.put("namespaces", {"metadata": {"name": name}})
        hard = {"limits.nvidia.com/gpumem": str(_PLENTY), "limits.nvidia.com/gpu": str(_PLENTY)}
        api.put("resourcequotas", {"metadata": {"name": "gpu", "namespace": name}, "spec": {"hard": hard}})


async def bench_quota(bench: QuotaBench) -> dict[str, object]:
    """The figures of one run: `p50_ms` … of admissions at the fixed rate, `per_second` of one namespace flat out.

    Raises `BenchError` when a pod is refused: there is room for all.
    """
    gc.collect()
    gc.disable()  # pauses of the load are not what is measured
    names = [f"team-{number:02d}" for number in range(bench.namespaces)]
    api = ApiServer(sleep=_precisely)
    _prepare(api, [*names, "flat-out", "size"])
    await api.start()
    connections: list[_Connection] = []
    try:
        api.faults.slow(bench.api_delay_s, resource="configmaps", count=_PLENTY)
        async with _webhook(api.url) as port:
            for _ in range(_CONNECTIONS):
                connections.append(_Connection(*await asyncio.open_connection("127.0.0.1", port)))
            load = _Load(api, connections)
            await load.at_rate(names, bench.rate, 1.0)  # warm up: records are created, connections opened
            began = perf_counter()
            times = await load.at_rate(names, bench.rate, bench.seconds)
            elapsed_s = perf_counter() - began
            before = _writes(api)
            per_second = await load.flat_out("flat-out", bench.burst_seconds)
            together = per_second * bench.burst_seconds / max(1, _writes(api) - before)
            load.largest_bytes = 0
            await load.at_rate(["size"], bench.size_rate, bench.size_seconds)
    finally:
        for connection in connections:
            connection.close()
        await api.stop()
        gc.enable()
    figures = latencies(times, elapsed_s)
    return {
        "bench": "quota",
        "namespaces": bench.namespaces,
        "rate": bench.rate,
        "calls": len(times),
        "api_delay_ms": bench.api_delay_s * 1000,
        **figures,
        "per_second": round(per_second, 1),
        "admissions_per_write": round(together, 1),
        "size_rate": bench.size_rate,
        "size_seconds": bench.size_seconds,
        "largest_record_bytes": load.largest_bytes,
    }


def _writes(api: ApiServer) -> int:
    counts: Counter[str] = Counter()
    for key, count in api.requests.written.items():
        counts[key.resource] += count
    return counts["configmaps"]
