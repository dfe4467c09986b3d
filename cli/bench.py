"""`slotwise bench`: how fast, shown by measuring."""

import json
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from lab.bench.filter import BenchError, FilterBench, bench_filter
from lab.bench.synthetic import Size

__all__ = ["app"]

app = typer.Typer(
    help="Measure Slotwise on this machine: a server in its own process over real HTTP, times as the client sees them.",
    no_args_is_help=True,
)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]


def _show(figures: dict[str, object], as_json: bool) -> None:
    if as_json or not sys.stdout.isatty():
        typer.echo(json.dumps(figures) if as_json else "\n".join(f"{name}\t{value}" for name, value in figures.items()))
        return
    table = Table("figure", "value", title=f"bench {figures['bench']}")
    for name, value in figures.items():
        table.add_row(name, str(value))
    Console().print(table)


@app.command("filter")
def filter_(
    nodes: Annotated[int, typer.Option(min=1, help="Nodes in the cluster; all are offered in every call.")] = 500,
    cards: Annotated[int, typer.Option(min=1, help="Cards a node.")] = 8,
    pods: Annotated[int, typer.Option(min=0, help="Pods placed beforehand.")] = 4000,
    calls: Annotated[int, typer.Option(min=1, help="Calls that are measured, after 50 to warm up.")] = 2000,
    as_json: AsJson = False,
) -> None:
    """POST /filter with names only: the call that sits in kube-scheduler's serial cycle.

    JSON keys: p50_ms, p95_ms, p99_ms, max_ms, per_second, rss_mib, and the parameters.

    Example: slotwise bench filter --nodes 500 --cards 8 --pods 4000 --json
    """
    try:
        if not as_json and sys.stderr.isatty():
            typer.echo(f"placing {pods} pods on {nodes} nodes of {cards} cards, then {calls} calls …", err=True)
        figures = bench_filter(FilterBench(Size(nodes, cards, pods), calls))
    except (BenchError, ValueError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error
    _show(figures, as_json)


@app.callback()
def _group() -> None:
    """Keep `filter` a subcommand while it is the only one."""
