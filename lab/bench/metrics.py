"""How long a metrics page takes, and what it costs the decisions that are asked for meanwhile.

A thread of its own process scrapes while the caller goes on filtering: first nobody scrapes, then the page that the service makes, the
first one included, and at last the page that the Prometheus library makes anew.
"""

import asyncio
import gzip
import subprocess
import sys
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import aiohttp
import orjson

from lab.bench.connection import Connection, connected, post
from lab.bench.figures import latencies, rss_mib
from lab.bench.filter import probe
from lab.bench.process import BenchError, apart, served
from lab.bench.synthetic import Size, documents, node_name
from serving.server import run

__all__ = ["MetricsBench", "bench_metrics"]

_WARM_UP_CALLS = 50
_SCRAPES = 5
_PAUSE_S = 0.5
"""Between two scrapes, so that decisions have changed some nodes."""
_ANEW_WAIT_S = 120.0


@dataclass(frozen=True)
class MetricsBench:
    """What is measured: scrapes of a cluster of this size while filtering."""

    size: Size
    scrapes: int = _SCRAPES
    packed: bool = True
    """Whether the scraper takes gzip, as Prometheus does."""


@dataclass(frozen=True, slots=True)
class _Scrape:
    seconds: float
    size_bytes: int
    series: int


async def _scrape(port: int, path: str, packed: bool) -> list[_Scrape]:
    """One page, fetched by a process of its own: reading it must not slow the caller down."""
    command = (sys.executable, "-m", "lab.bench.metrics", f"http://127.0.0.1:{port}{path}", "gzip" if packed else "")
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    out, _ = await process.communicate()
    if process.returncode:
        raise BenchError(f"the page {path} could not be fetched")
    return [_Scrape(**orjson.loads(line)) for line in out.splitlines()]


class _Deciding:
    """Filter calls one after the other, as kube-scheduler makes them."""

    def __init__(self, connection: Connection, size: Size) -> None:
        names = orjson.dumps([node_name(number) for number in range(size.nodes)])
        bodies = (
            b'{"Pod":%s,"Nodes":null,"NodeNames":%s}' % (orjson.dumps(probe("seen", n)), names) for n in range(96)
        )
        self._requests = [post("/filter", body) for body in bodies]
        self._floor = [b"POST /floor" + request.removeprefix(b"POST /filter") for request in self._requests]
        self._connection = connection
        self._number = 0

    async def calls(self, count: int, floor: bool = False) -> list[float]:
        """Seconds of so many calls."""
        found = []
        for _ in range(count):
            self._number += 1
            requests = self._floor if floor else self._requests
            began = perf_counter()
            answer = await self._connection.ask(requests[self._number % len(requests)])
            found.append(perf_counter() - began)
            if b'"NodeNames":["' not in answer:
                raise BenchError(f"a pod was answered {answer.decode(errors='replace')[-300:]}")
        return found

    async def until_done(self, task: "asyncio.Task[list[_Scrape]]") -> list[float]:
        """Seconds of the calls made while something goes on."""
        found: list[float] = []
        while not task.done():
            found += await self.calls(1)
        return found


async def _measure(bench: MetricsBench, ports: dict[str, int], pid: int) -> dict[str, object]:
    connection = await connected(ports["port"])
    try:
        deciding = _Deciding(connection, bench.size)
        await deciding.calls(_WARM_UP_CALLS)
        floor = await deciding.calls(_WARM_UP_CALLS * 2, floor=True)
        alone = await deciding.calls(500)
        scrapes: list[_Scrape] = []
        meanwhile: list[float] = []
        for _ in range(bench.scrapes):
            task = asyncio.create_task(_scrape(ports["plain_port"], "/metrics", bench.packed))
            meanwhile += await deciding.until_done(task)
            scrapes += await task
            await asyncio.sleep(_PAUSE_S)
        memory = rss_mib(pid)
        async with asyncio.timeout(_ANEW_WAIT_S):
            task = asyncio.create_task(_scrape(ports["plain_port"], "/anew", False))
            during_anew = await deciding.until_done(task)
            (anew,) = await task
    finally:
        connection.close()
    without = latencies(alone, sum(alone))
    largest_s = max(scrape.seconds for scrape in scrapes[1:] or scrapes)
    return {
        "scrapes": bench.scrapes,
        "series": scrapes[-1].series,
        "bytes": scrapes[-1].size_bytes,
        "seconds": round(median(scrape.seconds for scrape in scrapes), 3),
        "first_seconds": round(scrapes[0].seconds, 3),
        "longest_seconds": round(largest_s, 3),
        **latencies(meanwhile, sum(meanwhile)),
        "floor_p50_ms": round(median(floor) * 1000, 3),
        "without_p50_ms": without["p50_ms"],
        "without_p99_ms": without["p99_ms"],
        "without_max_ms": without["max_ms"],
        "anew_seconds": round(anew.seconds, 3),
        "anew_max_ms": round(max(during_anew) * 1000, 3),
        "anew_series": anew.series,
        "rss_mib": memory,
    }


def bench_metrics(bench: MetricsBench) -> dict[str, object]:
    """The figures of one run. Raises `BenchError` for a page or an answer that is none, `ValueError` for pods that do not fit."""
    size = bench.size
    documents(size)
    with served("lab.bench.metrics_server", size.nodes, size.cards, size.pods) as server, apart(server.pid) as is_apart:
        try:
            figures = run(_measure(bench, server.ports, server.pid))
        except ConnectionError as error:
            raise BenchError(f"the extender's connection broke: {error}") from error
    parameters = {"bench": "metrics", "nodes": size.nodes, "cards": size.cards, "pods": size.pods}
    return {**parameters, "core_each": is_apart, **figures}


async def _fetch(url: str, encoding: str) -> None:
    """Print how long a page took and what is in it; only then it is unpacked and counted."""
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        began = perf_counter()
        async with session.get(url, headers={"Accept-Encoding": encoding or "identity"}) as answer:
            answer.raise_for_status()
            page = await answer.read()
            seconds = perf_counter() - began
            is_packed = answer.headers.get("Content-Encoding") == "gzip"
    text = gzip.decompress(page) if is_packed else page
    series = sum(not line.startswith(b"#") for line in text.splitlines())
    print(orjson.dumps({"seconds": seconds, "size_bytes": len(text), "series": series}).decode())


if __name__ == "__main__":
    run(_fetch(sys.argv[1], sys.argv[2]))
