"""Times as figures: percentiles in milliseconds, and what a process holds of memory."""

from collections import Counter
from collections.abc import Sequence
from math import ceil, log
from pathlib import Path

__all__ = ["cpu_s", "histogram_ms", "latencies", "rss_mib"]

_STEP = 1.1
"""From one end of a histogram to the next."""


def _percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def latencies(seconds: Sequence[float], elapsed_s: float) -> dict[str, float]:
    """`p50_ms`, `p95_ms`, `p99_ms`, `max_ms`, `per_second` of single calls and the time they all took."""
    ordered = sorted(seconds)
    figures = {f"p{percent}_ms": round(_percentile(ordered, percent / 100) * 1000, 3) for percent in (50, 95, 99)}
    return {**figures, "max_ms": round(ordered[-1] * 1000, 3), "per_second": round(len(ordered) / elapsed_s, 1)}


def histogram_ms(seconds: Sequence[float]) -> list[tuple[float, int]]:
    """Upper ends in milliseconds and how many calls fell below each, but not below the one before; every end is a tenth above the last."""
    counts: Counter[int] = Counter(ceil(log(max(s, 1e-9) * 1000, _STEP)) for s in seconds)
    return [(round(_STEP**power, 4), counts[power]) for power in range(min(counts), max(counts) + 1)]


def cpu_s(pid: int) -> float:
    """Seconds the process's main thread has run so far: what others do on the machine is not in it."""
    return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9


def rss_mib(pid: int) -> float:
    """Memory a process holds at the moment, in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("VmRSS:"):
            return round(int(line.split()[1]) / 1024, 1)
    raise RuntimeError(f"/proc/{pid}/status has no VmRSS")
