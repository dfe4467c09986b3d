"""A day of a cluster in seconds: pods come, are placed, end and go, nodes come and go; memory and times by tenths of the history.

The extender has a process of its own; its API server is told there what happens. A filter goes after the other on one connection, as
kube-scheduler's do, while the bind of the pod before is under way on another. Before the first tenth as many pods come and go by events
alone as the extender remembers of the past, so that what is bounded is full.
"""

import asyncio
import json
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from time import perf_counter
from typing import Final

import aiohttp
import orjson

from lab.bench.connection import Connection, connected, post
from lab.bench.figures import latencies
from lab.bench.process import BenchError, served
from lab.bench.synthetic import JsonObject, container_document, node_document, pod_document, quota_document

__all__ = ["TENTHS", "HistoryBench", "bench_history"]

TENTHS: Final = 10
_DAY_S: Final = 86_400.0
_BATCH: Final = 25
"""Pods that are created, placed and deleted between two tellings."""
_NODE_EVERY: Final = 8
"""Tellings after which a node goes, and another of a new name comes."""
_SIZES_MIB: Final = (500, 1000, 2000, 3000, 4000, 6000)
_POLICIES: Final = ("", "binpack", "mutex", "mutex,binpack,numa", "topology-aware")
_TOO_MUCH_MIB: Final = 15361
_NAMESPACES: Final = 20

Progress = Callable[[str], None]


@dataclass(frozen=True)
class HistoryBench:
    """What happens: so many pods on a cluster of so many nodes that are all in use at any time."""

    pods: int = 12_000
    nodes: int = 128
    cards: int = 8
    warm_up: int = 50_000
    """Pods that come and go by events alone beforehand."""


@dataclass(slots=True)
class _Tenth:
    seconds: list[float] = field(default_factory=list)
    memory: dict[str, float] = field(default_factory=dict)


class _Caller:
    """One kept connection; every answer but 200 is a `BenchError`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def post(self, path: str, body: bytes) -> bytes:
        """The body of the answer to a JSON document."""
        return await self._asked(path, post(path, body))

    async def get(self, path: str) -> bytes:
        """The body of the answer."""
        return await self._asked(path, f"GET {path} HTTP/1.1\r\nHost: bench\r\n\r\n".encode())

    async def _asked(self, path: str, request: bytes) -> bytes:
        head, _, body = (await self._connection.ask(request)).partition(b"\r\n\r\n")
        if head.split(b" ", 2)[1] != b"200":
            raise BenchError(f"{path} was answered {head[:60]!r}: {body[:300]!r}")
        return body

    def close(self) -> None:
        """Close it."""
        self._connection.close()


async def _caller(port: int) -> _Caller:
    return _Caller(await connected(port))


def _pod(number: int) -> JsonObject:
    """The pods of a day: of all sizes and policies, one in ten with an init container and a sidecar, one in thirty without devices."""
    pod = pod_document(
        f"pod-{number:07d}",
        _TOO_MUCH_MIB + number % 997 if _fits_nowhere(number) else _SIZES_MIB[number % len(_SIZES_MIB)],
        count=2 if number % 7 == 0 else 1,
        cores=number % 3 * 10,
        policy=_POLICIES[number % len(_POLICIES)],
        namespace="limited" if number % 4 == 0 else f"team-{number % _NAMESPACES}",
    )
    metadata, spec = pod["metadata"], pod["spec"]
    assert isinstance(metadata, dict)
    assert isinstance(spec, dict)
    metadata["uid"] = f"{number:08x}-0000-4000-8000-000000000000"
    metadata.setdefault("annotations", {})["example.com/run"] = f"run-{number}"
    if number % 50 == 1:
        metadata["annotations"]["nvidia.com/nouse-gpuuuid"] = f"GPU-{number}"
    if number % 10 == 3:
        sidecar = {**container_document("sidecar", 200), "restartPolicy": "Always"}
        spec["initContainers"] = [sidecar, container_document("init", 400)]
    if _is_plain(number):
        spec["containers"] = [{"name": "main", "image": "bench:1"}]
        spec.pop("initContainers", None)
    return pod


def _is_plain(number: int) -> bool:
    return number % 30 == 4


def _fits_nowhere(number: int) -> bool:
    return number % 40 == 5


def _meta(document: JsonObject, key: str) -> str:
    metadata = document["metadata"]
    assert isinstance(metadata, dict)
    return str(metadata[key])


class _History:
    """The driver: one clock, the pods that live, the nodes that there are."""

    def __init__(self, bench: HistoryBench, telling: _Caller) -> None:
        self._bench = bench
        self._telling = self.filtering = self.binding = telling
        self._live: dict[str, str] = {}
        """Names of nodes by UID, oldest pod first; no name for pods without devices."""
        self._nodes: deque[str] = deque()
        self._next_node = 0
        self._done = 0
        self._names = b"[]"

    async def tell(self, put: list[tuple[str, JsonObject]], deleted: list[tuple[str, str]]) -> None:
        now_s = 1e9 + _DAY_S * self._done / max(self._bench.pods, 1)
        await self._telling.post("/told", orjson.dumps({"now_s": now_s, "put": put, "deleted": deleted}))

    def _new_node(self) -> tuple[str, JsonObject]:
        document = node_document(self._next_node, self._bench.cards)
        self._next_node += 1
        self._nodes.append(_meta(document, "name"))
        self._names = orjson.dumps(list(self._nodes))
        return "nodes", document

    async def begin(self) -> None:
        """The cluster as it is in the morning."""
        await self.tell(
            [("resourcequotas", quota_document()), *(self._new_node() for _ in range(self._bench.nodes))], []
        )

    async def come_and_go(self, count: int) -> None:
        """Pods that are seen and gone again, of which nobody asks anything."""
        seen: list[tuple[str, str]] = []
        numbers = iter(range(count))
        while batch := [_pod(10**9 + number) for number in islice(numbers, 500)]:
            await self.tell([("pods", pod) for pod in batch], seen)
            seen = [("pods", _meta(pod, "uid")) for pod in batch]
        await self.tell([], seen)

    async def run(self, numbers: Iterator[int], times: list[float]) -> None:
        """These pods: created, placed one after the other; as many of the oldest go as are too many."""
        tellings = 0
        most = self._bench.nodes * self._bench.cards // 2  # some want a card that nobody has
        put: list[tuple[str, JsonObject]] = []
        deleted: list[tuple[str, str]] = []
        while batch := [_pod(number) for number in islice(numbers, _BATCH)]:
            tellings += 1
            if tellings % _NODE_EVERY == 0:
                gone = self._nodes.popleft()
                ended = [uid for uid, node in self._live.items() if node == gone]
                deleted += (("pods", uid) for uid in ended)
                for uid in ended:
                    del self._live[uid]
                deleted.append(("nodes", f"uid-{gone}"))
                put.append(self._new_node())
            while len(self._live) > most:
                oldest = next(iter(self._live))
                del self._live[oldest]
                deleted.append(("pods", oldest))
            await self.tell([*put, *(("pods", pod) for pod in batch)], deleted)
            put, deleted = [], []
            placed = await self._place(batch, times)
            self._live |= placed
            deleted += (("pods", uid) for pod in batch if (uid := _meta(pod, "uid")) not in placed)
            self._done += len(batch)
        await self.tell(put, deleted)

    async def _place(self, batch: list[JsonObject], times: list[float]) -> dict[str, str]:
        """Where each of the pods went, by UID; those that fit nowhere are left out."""
        binding: asyncio.Task[None] | None = None
        placed: dict[str, str] = {}
        for pod in batch:
            body = b'{"Pod":%s,"Nodes":null,"NodeNames":%s}' % (orjson.dumps(pod), self._names)
            sent = perf_counter()
            answer = orjson.loads(await self.filtering.post("/filter", body))
            times.append(perf_counter() - sent)
            if binding is not None:
                await binding
                binding = None
            number = int(_meta(pod, "name")[4:])
            chosen = answer["NodeNames"] or []
            plain = _is_plain(number)
            if answer["Error"] or bool(chosen) is (_fits_nowhere(number) and not plain):
                raise BenchError(f"pod {number} was answered {str(answer)[:300]}")
            if chosen:
                placed[_meta(pod, "uid")] = "" if plain else chosen[0]
            if chosen and not plain:
                binding = asyncio.create_task(self._bind(pod, chosen[0]))
        if binding is not None:
            await binding
        return placed

    async def _bind(self, pod: JsonObject, node: str) -> None:
        asked = {
            "PodName": _meta(pod, "name"),
            "PodNamespace": _meta(pod, "namespace"),
            "PodUID": _meta(pod, "uid"),
            "Node": node,
        }
        answer = orjson.loads(await self.binding.post("/bind", orjson.dumps(asked)))
        if answer["Error"]:
            raise BenchError(f"the bind of {asked['PodName']} was answered {answer['Error']}")


async def bench_history(bench: HistoryBench, progress: Progress = lambda text: None) -> dict[str, object]:
    """The figures of one history. Raises `BenchError` where an answer is not as it must be, `ValueError` for less than ten pods."""
    if bench.pods < TENTHS:
        raise ValueError(f"pods is {bench.pods}: a history has ten parts, so at least {TENTHS}")
    tenths = [_Tenth() for _ in range(TENTHS)]
    with served("lab.bench.history_process") as extender:
        port, plain_port = extender.ports["port"], extender.ports["plain_port"]
        telling = await _caller(port)
        history = _History(bench, telling)
        await history.begin()
        await history.come_and_go(bench.warm_up)
        # Not before: connections without a request are closed after a while.
        history.filtering, history.binding = await _caller(port), await _caller(port)
        numbers = iter(range(bench.pods))
        began = perf_counter()
        for place, tenth in enumerate(tenths, 1):
            await history.run(islice(numbers, _share(bench.pods, place)), tenth.seconds)
            await _scraped(plain_port)
            tenth.memory = json.loads(await telling.get("/memory"))
            progress(f"{place * 10} %: {tenth.memory['rss_mib']} MiB, p99 {_p99(tenth)} ms")
        elapsed_s = perf_counter() - began
        for connection in (telling, history.filtering, history.binding):
            connection.close()
    return _figures(bench, tenths, elapsed_s)


async def _scraped(port: int) -> None:
    """As Prometheus does it, so that what a scrape leaves behind is in the figures, too."""
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/metrics") as page:
        if page.status != 200:
            raise BenchError(f"/metrics was answered {page.status}")
        await page.read()


def _share(pods: int, place: int) -> int:
    """So many pods belong to this tenth."""
    return pods * place // TENTHS - pods * (place - 1) // TENTHS


def _p99(tenth: _Tenth) -> float:
    return latencies(tenth.seconds, sum(tenth.seconds))["p99_ms"]


def _figures(bench: HistoryBench, tenths: list[_Tenth], elapsed_s: float) -> dict[str, object]:
    first, last = tenths[0], tenths[-1]
    seconds = [took for tenth in tenths for took in tenth.seconds]
    return {
        "bench": "history",
        "pods": bench.pods,
        "nodes": bench.nodes,
        "cards": bench.cards,
        "warm_up": bench.warm_up,
        "bound": int(last.memory["bound"]),
        "nodes_replaced": bench.pods // _BATCH // _NODE_EVERY,
        "seconds": round(elapsed_s, 1),
        "pods_per_second": round(bench.pods / elapsed_s, 1),
        **latencies(seconds, sum(seconds)),
        "p99_ms_tenths": [_p99(tenth) for tenth in tenths],
        "p50_ms_tenths": [latencies(tenth.seconds, 1.0)["p50_ms"] for tenth in tenths],
        "p99_ratio": round(_p99(last) / _p99(first), 3),
        "rss_mib": last.memory["rss_mib"],
        "rss_mib_tenths": [tenth.memory["rss_mib"] for tenth in tenths],
        "rss_ratio": round(last.memory["rss_mib"] / first.memory["rss_mib"], 3),
        "blocks_tenths": [int(tenth.memory["blocks"]) for tenth in tenths],
        "blocks_ratio": round(last.memory["blocks"] / first.memory["blocks"], 3),
    }
