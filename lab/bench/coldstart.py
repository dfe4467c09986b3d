"""How long a start takes until the books are complete, beside two yardsticks of the same run.

The pages are encoded beforehand and handed out by a process of their own. Each start is a fresh process, timed from outside: from its
beginning to its word that it is ready. The floor downloads the same pages and throws them away; the plain way keeps every object whole,
decoded, before anything is counted. Starts of the three kinds take turns.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Final

from lab.bench.process import BenchError, served
from lab.bench.synthetic import Size, documents

__all__ = ["KINDS", "ColdStartBench", "bench_coldstart"]

KINDS: Final = ("download", "feed", "whole")
Progress = Callable[[str], None]


@dataclass(frozen=True)
class ColdStartBench:
    """What is measured: starts in a cluster of this size, read in pages of so many objects."""

    size: Size
    page_size: int = 500
    rounds: int = 1


@dataclass(slots=True)
class _Starts:
    seconds: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    peak_mib: list[float] = field(default_factory=list)


def bench_coldstart(bench: ColdStartBench, progress: Progress = lambda text: None) -> dict[str, object]:
    """The figures of one run, medians over its rounds; memory is the most that any start held.

    Raises `BenchError` for a start that ends early or has other books than the cluster, `ValueError` for more pods than there is room
    for and for a page size below 1.
    """
    size = bench.size
    documents(size)  # says what does not fit here, not in the other process
    if bench.page_size < 1 or bench.rounds < 1:
        raise ValueError(f"page size {bench.page_size} and rounds {bench.rounds}: both must be at least 1")
    starts = {kind: _Starts() for kind in KINDS}
    with served("lab.bench.pages", size.nodes, size.cards, size.pods, bench.page_size) as pages:
        for number in range(bench.rounds):
            for kind in KINDS:
                _start(kind, pages.ports["port"], size, starts[kind])
                progress(f"round {number + 1}, {kind}: {starts[kind].seconds[-1]:.1f} s")
        size_bytes = pages.ports["bytes"]
    return _figures(bench, size_bytes, starts)


def _start(kind: str, port: int, size: Size, starts: _Starts) -> None:
    began = perf_counter()
    with served("lab.bench.coldstart_process", kind, port) as started:
        starts.seconds.append(perf_counter() - began)
        said: dict[str, float] = dict(started.ports)
    if kind == "feed" and (said["pods"], said["nodes"]) != (size.pods, size.nodes):
        raise BenchError(f"the books have {said['pods']} pods and {said['nodes']} nodes, not those of the cluster")
    starts.cpu_s.append(said["cpu_s"])
    starts.peak_mib.append(said["peak_mib"])


def _figures(bench: ColdStartBench, size_bytes: int, starts: dict[str, _Starts]) -> dict[str, object]:
    seconds = {kind: median(start.seconds) for kind, start in starts.items()}
    cpu_s = {kind: median(start.cpu_s) for kind, start in starts.items()}
    peak_mib = {kind: max(start.peak_mib) for kind, start in starts.items()}
    return {
        "bench": "coldstart",
        "nodes": bench.size.nodes,
        "cards": bench.size.cards,
        "pods": bench.size.pods,
        "page_size": bench.page_size,
        "rounds": bench.rounds,
        "page_mib": round(size_bytes / 2**20, 1),
        "seconds": round(seconds["feed"], 2),
        "floor_seconds": round(seconds["download"], 2),
        "more_than_floor_seconds": round(seconds["feed"] - seconds["download"], 2),
        "plain_seconds": round(seconds["whole"], 2),
        "cpu_s": round(cpu_s["feed"], 2),
        "floor_cpu_s": round(cpu_s["download"], 2),
        "plain_cpu_s": round(cpu_s["whole"], 2),
        "cpu_times_floor": round(cpu_s["feed"] / cpu_s["download"], 2),
        "rss_mib": peak_mib["feed"],
        "floor_rss_mib": peak_mib["download"],
        "plain_rss_mib": peak_mib["whole"],
        "plain_rss_times": round(peak_mib["whole"] / peak_mib["feed"], 2),
    }
