"""Every bench there is, one after the other, each in a process of its own, as a person would run them."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lab.bench.filter import CASES
from lab.bench.process import BenchError

__all__ = ["RUNS", "Run", "run_all"]


@dataclass(frozen=True, slots=True)
class Run:
    """One call of `slotwise bench`: the name of its file, and its arguments; `small` ones instead for a try."""

    name: str
    arguments: tuple[str, ...]
    small: tuple[str, ...] = ()


def _filter(name: str, nodes: int, pods: int, case: str = "seen") -> Run:
    sizes = ("--nodes", str(nodes), "--pods", str(pods), "--case", case)
    few = 100 + nodes // 50
    fewer = few * pods // (4 * nodes)
    small = ("--nodes", str(few), "--pods", str(fewer), "--case", case, "--calls", "10")
    return Run(name, ("filter", *sizes), ("filter", *small))


RUNS = (
    *(_filter(f"filter-{nodes}-nodes", nodes, 8 * nodes) for nodes in (500, 1000, 2500, 5000)),
    *(_filter(f"filter-{pods}-pods", 5000, pods) for pods in (5000, 10_000, 20_000)),
    *(_filter(f"filter-{case}", 5000, 40_000, case) for case in CASES[1:]),
    Run("admission", ("admission",), ("admission", "--rate", "20", "--rounds", "1", "--seconds", "0.1")),
    Run("burst", ("burst",), ("burst", "--nodes", "60", "--pods", "60", "--placements", "10")),
    Run("metrics", ("metrics",), ("metrics", "--nodes", "20", "--pods", "20", "--scrapes", "1")),
    Run("coldstart", ("coldstart",), ("coldstart", "--nodes", "20", "--pods", "40", "--rounds", "1")),
    Run("history", ("history",), ("history", "--pods", "200", "--nodes", "10", "--warm-up", "0")),
    Run("families", ("families",), ("families", "--nodes", "40", "--pods", "20", "--calls", "5")),
    Run(
        "quota",
        ("quota",),
        (
            "quota",
            "--rate",
            "20",
            "--seconds",
            "0.2",
            "--burst-seconds",
            "0.2",
            "--size-rate",
            "20",
            "--size-seconds",
            "0.2",
        ),
    ),
)


def run_all(folder: Path, tell: Callable[[str], None], small: bool = False) -> list[Path]:
    """Run everything; the JSON files, one a run. Raises `BenchError` with what a bench had to say that failed."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for number, run in enumerate(RUNS, start=1):
        arguments = run.small if small else run.arguments
        tell(f"{number}/{len(RUNS)} slotwise bench {' '.join(arguments)}")
        done = subprocess.run(
            [sys.executable, "-m", "cli", "bench", *arguments, "--json"], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise BenchError(f"slotwise bench {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}")
        path = folder / f"{run.name}.json"
        path.write_text(done.stdout, encoding="utf-8")
        made.append(path)
    return made
