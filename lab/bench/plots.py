"""Plots of what the benches measured, from their JSON: time against nodes, time against pods, how times are spread.

Needs matplotlib, the extra `plots`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import orjson
from matplotlib import rc_context, rcParams
from matplotlib.figure import Figure

__all__ = ["PlotError", "plot", "read_figures"]

Figures = Mapping[str, object]
_SIZE_INCHES = (7.0, 4.2)


@contextmanager
def _styled() -> Iterator[None]:
    with rc_context():
        rcParams["svg.hashsalt"] = "slotwise"  # with it, and without a date, the same figures make the same file
        rcParams["svg.fonttype"] = "none"
        rcParams["axes.grid"] = True
        rcParams["grid.alpha"] = 0.3
        yield


class PlotError(ValueError):
    """What was given cannot be drawn."""


def read_figures(paths: Iterable[Path]) -> list[Figures]:
    """The object in each file, as `--json` prints it. Raises `PlotError` naming the file."""
    found: list[Figures] = []
    for path in paths:
        try:
            figures = orjson.loads(path.read_bytes())
        except OSError as error:
            raise PlotError(f"{path}: {error.strerror}") from error
        except orjson.JSONDecodeError as error:
            raise PlotError(f"{path}: not JSON: {error}") from error
        if not isinstance(figures, dict) or not isinstance(figures.get("bench"), str):
            raise PlotError(f"{path}: not what a bench prints with --json: expected an object with the key bench")
        found.append(figures)
    return found


def plot(figures: Sequence[Figures], folder: Path) -> list[Path]:
    """Draw all that these figures give into `folder`; the files made.

    `filter-nodes.svg` and `filter-pods.svg` need runs of `bench filter --case seen` of two sizes or more, `histogram-NAME.svg` any run with
    a histogram. Raises `PlotError` where nothing can be drawn.
    """
    seen = [f for f in figures if f["bench"] == "filter" and f.get("case") == "seen"]
    made = []
    for name, key, text in (("filter-nodes", "nodes", "nodes"), ("filter-pods", "pods", "placed pods")):
        other = "pods" if key == "nodes" else "nodes"
        series = _longest_series(seen, key, other)
        if len(series) > 1:
            made.append(_against(series, key, text, folder / f"{name}.svg"))
    for bench in ("filter", "admission", "burst"):
        spread = {
            str(f.get("case") or bench): f["histogram_ms"] for f in _largest(figures, bench) if "histogram_ms" in f
        }
        if spread:
            made.append(_histogram(bench, spread, folder / f"histogram-{bench}.svg"))
    if not made:
        raise PlotError("nothing to draw: expected `bench filter --json` of two sizes, or any run with histogram_ms")
    return made


def _number(figures: Figures, key: str) -> float:
    value = figures.get(key)
    if not isinstance(value, int | float):
        raise PlotError(f"bench {figures['bench']}: {key} is {value!r}, expected a number")
    return float(value)


def _longest_series(figures: Sequence[Figures], key: str, other: str) -> list[Figures]:
    """Runs that differ in `key`, in its order; of pods only with the same nodes, of nodes with as many pods a node."""

    def alike(run: Figures) -> float:
        return _number(run, other) if key == "pods" else round(_number(run, "pods") / _number(run, "nodes"), 1)

    groups: dict[float, dict[float, Figures]] = {}
    for run in figures:
        groups.setdefault(alike(run), {})[_number(run, key)] = run
    longest = max(groups.values(), key=len, default={})
    return [longest[size] for size in sorted(longest)]


def _largest(figures: Sequence[Figures], bench: str) -> list[Figures]:
    """The runs of a bench on its largest cluster."""
    runs = [f for f in figures if f["bench"] == bench]
    size = max(((_of(f, "nodes"), _of(f, "pods")) for f in runs), default=None)
    return [f for f in runs if (_of(f, "nodes"), _of(f, "pods")) == size]


def _of(figures: Figures, key: str) -> float:
    return _number(figures, key) if key in figures else 0.0


def _against(series: Sequence[Figures], key: str, text: str, path: Path) -> Path:
    sizes = [_number(run, key) for run in series]
    with _styled():
        figure = Figure(_SIZE_INCHES, layout="constrained")
        axes = figure.subplots()
        for value, label in (
            ("p99_ms", "99 % of calls"),
            ("p50_ms", "half of calls"),
            ("floor_p50_ms", "fixed answer"),
        ):
            axes.plot(sizes, [_number(run, value) for run in series], marker="o", label=label)
        axes.set(xlabel=text, ylabel="ms a call", title=f"POST /filter against {text}")
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.legend()
        figure.savefig(path, format="svg", metadata={"Date": None})
    return path


def _histogram(bench: str, spread: Mapping[str, object], path: Path) -> Path:
    with _styled():
        figure = Figure(_SIZE_INCHES, layout="constrained")
        axes = figure.subplots()
        for label, rows in sorted(spread.items()):
            if not isinstance(rows, list) or not rows:
                raise PlotError(f"bench {bench}: histogram_ms is {rows!r}, expected rows of an upper end and a count")
            total = sum(count for _, count in rows)
            axes.step([end for end, _ in rows], [100 * count / total for _, count in rows], where="pre", label=label)
        axes.set(xlabel="ms a call", ylabel="% of calls", title=f"bench {bench}: how long calls take", xscale="log")
        axes.set_ylim(bottom=0)
        axes.legend()
        figure.savefig(path, format="svg", metadata={"Date": None})
    return path
