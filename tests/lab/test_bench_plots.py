"""Plots are drawn from the JSON of the benches, the same for the same figures; and everything runs in a small form."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

from cli.bench import app
from lab.bench.figures import histogram_ms
from lab.bench.plots import PlotError, plot, read_figures
from lab.bench.suite import RUNS, Run


def filtered(nodes: int, pods: int, case: str = "seen") -> dict[str, object]:
    times = {"p50_ms": nodes / 4000, "p99_ms": nodes / 2000, "floor_p50_ms": 0.2}
    return {
        "bench": "filter",
        "case": case,
        "nodes": nodes,
        "pods": pods,
        **times,
        "histogram_ms": [[1.0, 3], [1.1, 1]],
    }


def drawn(path: Path) -> str:
    """The words in an SVG file."""
    root = ElementTree.fromstring(path.read_bytes())
    return " ".join("".join(text.itertext()) for text in root.iter("{http://www.w3.org/2000/svg}text"))


def test_every_plot_that_the_figures_give(tmp_path: Path) -> None:
    runs = [filtered(500, 4000), filtered(5000, 40_000), filtered(5000, 10_000), filtered(5000, 40_000, "new")]
    made = plot(runs, tmp_path)
    assert [path.name for path in made] == ["filter-nodes.svg", "filter-pods.svg", "histogram-filter.svg"]
    assert "POST /filter against nodes" in drawn(made[0])
    assert "POST /filter against placed pods" in drawn(made[1])
    assert "new" in drawn(made[2])
    before = [path.read_bytes() for path in made]
    assert [path.read_bytes() for path in plot(runs, tmp_path)] == before


BROKEN = {
    "no such file": (None, "No such file or directory"),
    "no JSON": ("{", "not JSON"),
    "another object": ("{}", "expected an object with the key bench"),
    "one size alone": ('{"bench": "filter", "case": "seen", "nodes": 1, "pods": 1}', "nothing to draw"),
    "a word for a number": ('{"bench": "filter", "case": "seen", "nodes": "many", "pods": 1}', "nodes is 'many'"),
}


@pytest.mark.parametrize(("content", "text"), BROKEN.values(), ids=BROKEN)
def test_what_cannot_be_drawn_is_said(content: str | None, text: str, tmp_path: Path) -> None:
    path = tmp_path / "given.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(PlotError, match=text):
        plot(read_figures([path]), tmp_path)
    result = CliRunner().invoke(app, ["plot", str(path), "--out", str(tmp_path)])
    assert result.exit_code == 1
    assert result.output.startswith("error: ")


def test_a_histogram_counts_every_call_once() -> None:
    rows = histogram_ms([0.001, 0.001, 0.0012, 0.1])
    assert sum(count for _, count in rows) == 4
    assert [end for end, _ in rows] == sorted(end for end, _ in rows)
    assert rows[0] == (1.0, 2)
    assert rows[-1][0] >= 100 > rows[-1][0] / 1.1
    assert rows[-1][1] == 1


def test_runs_are_drawn_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of all runs: each bench has its own test, and a process of its own takes its time to start."""
    some = [run for run in RUNS if run.name in ("filter-500-nodes", "filter-5000-nodes", "burst")]
    monkeypatch.setattr("lab.bench.suite.RUNS", some)
    result = CliRunner().invoke(app, ["all", "--small", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert {path.stem for path in tmp_path.glob("*.json")} == {run.name for run in some}
    assert {path.name for path in tmp_path.glob("*.svg")} == {
        "filter-nodes.svg",
        "histogram-filter.svg",
        "histogram-burst.svg",
    }
    assert json.loads((tmp_path / "burst.json").read_text())["writes_per_pod"] == 1.0


def test_what_a_bench_has_to_say_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Run("wrong", ("filter",), ("filter", "--nodes", "1", "--cards", "1", "--pods", "5000"))
    monkeypatch.setattr("lab.bench.suite.RUNS", [wrong])
    result = CliRunner().invoke(app, ["all", "--small", "--out", str(tmp_path)])
    assert result.exit_code == 1
    assert "5000 pods do not fit on 1 nodes of 1 cards" in result.output


@pytest.mark.parametrize("arguments", [a for run in RUNS for a in (run.arguments, run.small)], ids=" ".join)
def test_every_run_is_one_that_the_command_takes(arguments: tuple[str, ...]) -> None:
    command = get_command(app)
    assert isinstance(command, TyperGroup)
    name, *rest = arguments
    context = command.commands[name].make_context(name, rest)
    assert "as_json" in context.params


def test_every_bench_is_run() -> None:
    """Except the one that needs a control plane built beforehand."""
    command = get_command(app)
    assert isinstance(command, TyperGroup)
    assert {run.arguments[0] for run in RUNS} == command.commands.keys() - {"all", "plot", "cluster"}
