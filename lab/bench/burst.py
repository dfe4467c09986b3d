"""How many pods a second the extender places through real HTTP: `/filter` and `/bind`, with an API server that takes its time.

As kube-scheduler does it: one pod after the other is filtered, with the names of all nodes; its bind goes out while the next is filtered.
"""

import asyncio
from collections import deque
from dataclasses import dataclass
from time import perf_counter
from typing import Final

import orjson

from lab.bench.connection import Connection, connected, post
from lab.bench.figures import cpu_s, histogram_ms, latencies, rss_mib
from lab.bench.process import BenchError, apart, first_of, served
from lab.bench.synthetic import (
    CARD_SLOTS,
    LIMITED,
    JsonObject,
    Size,
    documents,
    node_name,
    pod_document,
)
from serving.server import run

__all__ = ["PlacementBench", "bench_burst"]

_WARM_UP: Final = 50
_BINDERS: Final = 32
"""Binds under way at most."""
_SIZES_MIB: Final = (500, 1000, 2000, 3000, 4000, 6000, 8000, 12000)
_POLICIES: Final = ("", "binpack", "mutex,binpack,numa")


@dataclass(frozen=True)
class PlacementBench:
    """What is measured: so many placements in a cluster of this size, with an API server that answers in so many milliseconds."""

    size: Size
    placements: int = 2000
    api_ms: float = 2.0


@dataclass(frozen=True, slots=True)
class _Pod:
    name: str
    namespace: str
    uid: str
    document: JsonObject


def _pod(number: int) -> _Pod:
    """One of the sizes and policies in turn, every other one under quota."""
    name, namespace = f"burst-{number:06d}", LIMITED if number % 2 else "default"
    memory_mib, policy = _SIZES_MIB[number % len(_SIZES_MIB)], _POLICIES[number % len(_POLICIES)]
    document = pod_document(name, memory_mib, policy=policy, namespace=namespace)
    return _Pod(name, namespace, f"uid-{name}", document)


class _KubeScheduler:
    """One connection to filter on, several to bind on."""

    def __init__(self, filtering: Connection, binding: list[Connection], nodes: int) -> None:
        self._filtering = filtering
        self._free = deque(binding)
        self._freed = asyncio.Event()
        self._names = orjson.dumps([node_name(number) for number in range(nodes)])
        self.filter_s: list[float] = []
        self.placed_s: list[float] = []

    async def place(self, numbers: range) -> float:
        """Placements a second of these pods. Raises `BenchError` for one that is not placed."""
        began = perf_counter()
        async with asyncio.TaskGroup() as binds:
            for number in numbers:
                pod = _pod(number)
                asked = perf_counter()
                node = await self._filter(pod)
                while not self._free:
                    self._freed.clear()
                    await self._freed.wait()
                binds.create_task(self._bind(self._free.popleft(), pod, node, asked))
        return len(numbers) / (perf_counter() - began)

    async def _filter(self, pod: _Pod) -> str:
        body = b'{"Pod":%s,"Nodes":null,"NodeNames":%s}' % (orjson.dumps(pod.document), self._names)
        began = perf_counter()
        answer = await self._filtering.ask(post("/filter", body))
        self.filter_s.append(perf_counter() - began)
        names = orjson.loads(answer.partition(b"\r\n\r\n")[2])["NodeNames"]
        if not names:
            raise BenchError(f"pod {pod.name} fits nowhere: {answer.decode(errors='replace')[-300:]}")
        return str(names[0])

    async def _bind(self, connection: Connection, pod: _Pod, node: str, asked: float) -> None:
        body = {"PodName": pod.name, "PodNamespace": pod.namespace, "PodUID": pod.uid, "Node": node}
        answer = await connection.ask(post("/bind", orjson.dumps(body)))
        error = orjson.loads(answer.partition(b"\r\n\r\n")[2])["Error"]
        if error:
            raise BenchError(f"pod {pod.name} was not bound: {error}")
        self.placed_s.append(perf_counter() - asked)
        self._free.append(connection)
        self._freed.set()


async def _counts(port: int) -> dict[str, int]:
    connection = await connected(port)
    try:
        answer = await connection.ask(b"GET /counts HTTP/1.1\r\nHost: bench\r\n\r\n")
    finally:
        connection.close()
    return {str(key): int(value) for key, value in orjson.loads(answer.partition(b"\r\n\r\n")[2]).items()}


async def _measure(bench: PlacementBench, port: int, pid: int, api_port: int) -> dict[str, object]:
    connections = [await connected(port) for _ in range(1 + _BINDERS)]
    try:
        caller = _KubeScheduler(connections[0], connections[1:], bench.size.nodes)
        await caller.place(range(_WARM_UP))
        caller.filter_s.clear()
        caller.placed_s.clear()
        before = await _counts(api_port)
        began, cpu_before_s = perf_counter(), cpu_s(pid)
        per_second = await caller.place(range(_WARM_UP, _WARM_UP + bench.placements))
        elapsed_s, spent_s = perf_counter() - began, cpu_s(pid) - cpu_before_s
        after = await _counts(api_port)
    finally:
        for connection in connections:
            connection.close()
    written = {resource: after.get(resource, 0) - before.get(resource, 0) for resource in after}
    filtered = latencies(caller.filter_s, sum(caller.filter_s))
    return {
        **latencies(caller.placed_s, elapsed_s),
        "per_second": round(per_second, 1),
        "filter_p50_ms": filtered["p50_ms"],
        "filter_p99_ms": filtered["p99_ms"],
        "writes_per_pod": round((sum(written.values()) - written.get("events", 0)) / bench.placements, 3),
        "events_per_pod": round(written.get("events", 0) / bench.placements, 3),
        "seconds": round(elapsed_s, 3),
        "cpu_ms": round(spent_s / bench.placements * 1000, 3),
        "histogram_ms": histogram_ms(caller.placed_s),
    }


def bench_burst(bench: PlacementBench) -> dict[str, object]:
    """The figures of one run. Raises `BenchError` for a pod that is not placed, `ValueError` for pods that cannot all have room."""
    size = bench.size
    documents(size)
    if size.pods + bench.placements + _WARM_UP > size.nodes * size.cards * CARD_SLOTS:
        raise ValueError(
            f"{bench.placements} placements beside {size.pods} pods: {size.nodes} nodes of {size.cards} cards have "
            f"{size.nodes * size.cards * CARD_SLOTS} slots"
        )
    with (
        served("lab.bench.slow_api", bench.api_ms) as api,
        served(
            "lab.bench.burst_server", size.nodes, size.cards, size.pods, f"http://127.0.0.1:{api.ports['port']}"
        ) as server,
        apart(server.pid, api.pid) as is_apart,
    ):
        try:
            figures = run(_measure(bench, server.ports["port"], server.pid, api.ports["port"]))
        except* ConnectionError as errors:
            raise BenchError(f"the extender's connection broke: {first_of(errors)}") from errors
        except* BenchError as errors:
            raise BenchError(str(first_of(errors))) from errors
        memory = rss_mib(server.pid)
    return {
        "bench": "burst",
        "nodes": size.nodes,
        "cards": size.cards,
        "pods": size.pods,
        "placements": bench.placements,
        "api_ms": bench.api_ms,
        "core_each": is_apart,
        **figures,
        "rss_mib": memory,
    }
