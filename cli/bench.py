"""`slotwise bench`: how fast, shown by measuring."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from lab.bench.admission import AdmissionBench, bench_admission
from lab.bench.burst import PlacementBench, bench_burst
from lab.bench.cluster import ClusterBench, bench_cluster, find_programs
from lab.bench.coldstart import ColdStartBench, bench_coldstart
from lab.bench.families import FamiliesBench, bench_families
from lab.bench.filter import CASES, FilterBench, bench_filter, bench_growth
from lab.bench.history import HistoryBench, bench_history
from lab.bench.metrics import MetricsBench, bench_metrics
from lab.bench.process import BenchError
from lab.bench.quota import QuotaBench, bench_quota
from lab.bench.suite import run_all
from lab.bench.synthetic import Size
from serving.server import run as run_on_uvloop

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
        if name == "histogram_ms":
            continue  # for the plots
        table.add_row(name, str(value))
    Console().print(table)


def _progress(as_json: bool) -> Callable[[str], None]:
    """Lines on a terminal that is watched; silence elsewhere."""
    if as_json or not sys.stderr.isatty():
        return lambda text: None
    return lambda text: typer.echo(text, err=True)


@contextmanager
def _refusals() -> Iterator[None]:
    """What a bench refuses, or could not measure, in one line and exit status 1."""
    try:
        yield
    except (BenchError, ValueError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error


@app.command("filter")
def filter_(
    nodes: Annotated[int, typer.Option(min=1, help="Nodes in the cluster; all are offered in every call.")] = 5000,
    cards: Annotated[int, typer.Option(min=1, help="Cards a node.")] = 8,
    pods: Annotated[int, typer.Option(min=0, help="Pods placed beforehand.")] = 40_000,
    calls: Annotated[int, typer.Option(min=1, help="Calls that are measured, after 50 to warm up.")] = 1000,
    case: Annotated[str, typer.Option(help=f"What is asked: {', '.join(CASES)}.")] = CASES[0],
    growth: Annotated[
        bool, typer.Option("--growth", help="Measure a tenth of the cluster too, and how the time grows.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """POST /filter with names only: the call that sits in kube-scheduler's serial cycle.

    Of ten nodes six are full in memory, one in slots, one in compute and two are mixed; half of the pods are under a quota.

    JSON keys: p50_ms, p95_ms, p99_ms, max_ms, per_second, rss_mib, and the parameters; floor_p50_ms for a route of the same process
    that reads the same request and gives a fixed answer, plain_p50_ms for the algorithm that remembers nothing; times_floor and
    plain_times are the ratios to both. cpu_ms, floor_cpu_ms, cpu_times_floor and plain_cpu_times are means of the time that the
    server's process ran, which a busy machine hardly changes. With --growth: small_nodes, small_p50_ms, small_floor_p50_ms, growth, and with cpu.

    Example: slotwise bench filter --case new --json
    """
    bench = FilterBench(Size(nodes, cards, pods), calls, case)
    with _refusals():
        _progress(as_json)(f"placing {pods} pods on {nodes} nodes of {cards} cards, then {calls} calls …")
        figures = bench_growth(bench) if growth else bench_filter(bench)
    _show(figures, as_json)


@app.command("admission")
def admission(
    connections: Annotated[int, typer.Option(min=1, help="TLS connections, kept open.")] = AdmissionBench.connections,
    size_bytes: Annotated[int, typer.Option("--size", help="Bytes of a review.")] = AdmissionBench.size_bytes,
    rate: Annotated[
        int, typer.Option(min=1, help="Requests a second while latency is measured.")
    ] = AdmissionBench.rate,
    rounds: Annotated[int, typer.Option(min=1, help="How often every part is measured.")] = AdmissionBench.rounds,
    seconds: Annotated[float, typer.Option(min=0.1, help="Each part of a round.")] = AdmissionBench.seconds,
    as_json: AsJson = False,
) -> None:
    """POST /webhook over TLS: flat out on all connections, then at a fixed rate, timed from when each request was due.

    JSON keys: p50_ms, p95_ms, p99_ms, max_ms at the fixed rate; per_second flat out; rss_mib, and the parameters. The same as floor_ for a
    route of the same process that decodes the same review and gives a fixed answer, and as plain_ for a pod that asks for no card:
    floor_p50_ms, plain_p50_ms, floor_per_second, plain_per_second. cpu_ms, floor_cpu_ms and plain_cpu_ms are what a request costs the
    server's process, which a busy machine changes less; cpu_times_floor and plain_cpu_times_floor the ratios.

    Example: slotwise bench admission --connections 8 --json
    """
    bench = AdmissionBench(connections, size_bytes, rate, rounds, seconds)
    with _refusals():
        _progress(as_json)(f"{rounds} rounds of {6 * seconds:g} seconds …")
        figures = bench_admission(bench)
    _show(figures, as_json)


@app.command("burst")
def burst(
    nodes: Annotated[int, typer.Option(min=1, help="Nodes in the cluster; all are offered in every call.")] = 5000,
    cards: Annotated[int, typer.Option(min=1, help="Cards a node.")] = 8,
    pods: Annotated[int, typer.Option(min=0, help="Pods placed beforehand.")] = 40_000,
    placements: Annotated[int, typer.Option(min=1, help="Pods that are placed.")] = PlacementBench.placements,
    api_ms: Annotated[
        float, typer.Option(min=0, help="What the API server takes for a write.")
    ] = PlacementBench.api_ms,
    as_json: AsJson = False,
) -> None:
    """POST /filter, then POST /bind while the next pod is filtered, as kube-scheduler does, with an API server that takes 2 ms.

    JSON keys: per_second; p50_ms, p95_ms, p99_ms, max_ms from a pod's filter call to the answer of its bind; filter_p50_ms, filter_p99_ms;
    writes_per_pod without Events, events_per_pod; seconds, rss_mib, and the parameters.

    Example: slotwise bench burst --placements 4000 --json
    """
    with _refusals():
        _progress(as_json)(f"placing {pods} pods on {nodes} nodes of {cards} cards, then {placements} over HTTP …")
        figures = bench_burst(PlacementBench(Size(nodes, cards, pods), placements, api_ms))
    _show(figures, as_json)


@app.command("metrics")
def metrics(
    nodes: Annotated[int, typer.Option(min=1, help="Nodes in the cluster.")] = 5000,
    cards: Annotated[int, typer.Option(min=1, help="Cards a node.")] = 8,
    pods: Annotated[int, typer.Option(min=0, help="Pods placed beforehand.")] = 40_000,
    scrapes: Annotated[int, typer.Option(min=1, help="Pages that are fetched.")] = MetricsBench.scrapes,
    packed: Annotated[bool, typer.Option(help="The scraper takes gzip, as Prometheus does.")] = True,
    as_json: AsJson = False,
) -> None:
    """GET /metrics while pods are filtered one after the other: how long a page takes, and what it costs the decisions.

    JSON keys: seconds (median of a page), first_seconds, longest_seconds of the others; series and bytes (unpacked); p50_ms, p95_ms, p99_ms,
    max_ms, per_second of the decisions meanwhile, without_p50_ms, without_p99_ms, without_max_ms of those without a scrape, floor_p50_ms
    for a route that gives a fixed answer; anew_seconds, anew_max_ms and anew_series for the page as the Prometheus library makes it;
    rss_mib, and the parameters.

    Example: slotwise bench metrics --nodes 500 --pods 4000 --json
    """
    with _refusals():
        _progress(as_json)(f"placing {pods} pods on {nodes} nodes of {cards} cards, then {scrapes} scrapes …")
        figures = bench_metrics(MetricsBench(Size(nodes, cards, pods), scrapes, packed))
    _show(figures, as_json)


@app.command("quota")
def quota(
    namespaces: Annotated[int, typer.Option(min=1, help="Namespaces with a quota.")] = QuotaBench.namespaces,
    rate: Annotated[int, typer.Option(min=1, help="Requests a second while latency is measured.")] = QuotaBench.rate,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long.")] = QuotaBench.seconds,
    burst_seconds: Annotated[
        float, typer.Option(min=0.1, help="How long one namespace is asked flat out.")
    ] = QuotaBench.burst_seconds,
    size_rate: Annotated[
        int, typer.Option(min=1, help="Admissions a second in one namespace while its record's size is watched.")
    ] = QuotaBench.size_rate,
    size_seconds: Annotated[float, typer.Option(min=0.1, help="How long.")] = QuotaBench.size_seconds,
    as_json: AsJson = False,
) -> None:
    """POST /validate under quota that counts admitted pods: each is recorded with the API server before the yes.

    JSON keys: p50_ms, p95_ms, p99_ms, max_ms at the fixed rate; per_second and admissions_per_write flat out in one namespace;
    largest_record_bytes; and the parameters.

    Example: slotwise bench quota --size-seconds 120 --json
    """
    bench = QuotaBench(namespaces, rate, seconds, burst_seconds, size_rate, size_seconds)
    with _refusals():
        figures = run_on_uvloop(bench_quota(bench))
    _show(figures, as_json)


@app.command("families")
def families(
    nodes: Annotated[int, typer.Option(min=1, help="Nodes with NVIDIA cards; a quarter as many have others.")] = 500,
    cards: Annotated[int, typer.Option(min=1, help="Cards a node.")] = 8,
    pods: Annotated[int, typer.Option(min=0, help="Pods placed beforehand.")] = 4000,
    calls: Annotated[int, typer.Option(min=1, help="Placements that are measured on each cluster.")] = 1000,
    as_json: AsJson = False,
) -> None:
    """What the other families cost NVIDIA's pods: placements with all families in the cluster and without them, in turn.

    JSON keys: families_ratio (all ÷ NVIDIA alone), all_p50_ms, nvidia_p50_ms, and the parameters. No HTTP: decisions alone.

    Example: slotwise bench families --calls 2000 --json
    """
    with _refusals():
        figures = bench_families(FamiliesBench(Size(nodes, cards, pods), calls))
    _show(figures, as_json)


@app.command("coldstart")
def coldstart(
    nodes: Annotated[int, typer.Option(min=1, help="Nodes in the cluster.")] = 5000,
    cards: Annotated[int, typer.Option(min=1, help="Cards a node.")] = 8,
    pods: Annotated[int, typer.Option(min=0, help="Placed pods of 5.5 KB.")] = 40_000,
    page_size: Annotated[int, typer.Option(min=1, help="Objects in a page of a list.")] = ColdStartBench.page_size,
    rounds: Annotated[int, typer.Option(min=1, help="Starts of each kind.")] = ColdStartBench.rounds,
    as_json: AsJson = False,
) -> None:
    """How long a start takes until the books are complete, against an API server whose pages were encoded beforehand.

    JSON keys: seconds from the process's beginning to ready, floor_seconds for a process that only downloads the same pages,
    more_than_floor_seconds, plain_seconds for one that keeps every object whole; cpu_s, floor_cpu_s, plain_cpu_s in processor time,
    which a busy machine stretches less; rss_mib, floor_rss_mib, plain_rss_mib at the peak; cpu_times_floor, plain_rss_times; page_mib
    and the parameters.

    Example: slotwise bench coldstart --rounds 3 --json
    """
    bench = ColdStartBench(Size(nodes, cards, pods), page_size, rounds)
    with _refusals():
        figures = bench_coldstart(bench, _progress(as_json))
    _show(figures, as_json)


@app.command("history")
def history(
    pods: Annotated[int, typer.Option(min=10, help="Pods that come, are placed and go.")] = HistoryBench.pods,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes at any time; some are replaced.")] = HistoryBench.nodes,
    cards: Annotated[int, typer.Option(min=1, help="Cards a node.")] = HistoryBench.cards,
    warm_up: Annotated[
        int, typer.Option(min=0, help="Pods seen and gone before the first tenth, so that what is bounded is full.")
    ] = HistoryBench.warm_up,
    as_json: AsJson = False,
) -> None:
    """A day of a cluster in seconds: whether memory stays flat and times stay the same while pods and nodes come and go.

    JSON keys: p50_ms, p95_ms, p99_ms, max_ms of /filter; p50_ms_tenths, p99_ms_tenths, rss_mib_tenths (after a garbage collection)
    and blocks_tenths (Python's allocated blocks) by tenths of the history; p99_ratio, rss_ratio and blocks_ratio are the last tenth
    as a multiple of the first; rss_mib at the end, seconds, pods_per_second, bound, nodes_replaced, and the parameters.

    Example: slotwise bench history --pods 1000000 --json
    """
    bench = HistoryBench(pods, nodes, cards, warm_up)
    with _refusals():
        figures = run_on_uvloop(bench_history(bench, _progress(as_json)))
    _show(figures, as_json)


@app.command("cluster")
def cluster(
    nodes: Annotated[int, typer.Option(min=1, help="Nodes, all offered in every call.")] = ClusterBench.nodes,
    cards: Annotated[int, typer.Option(min=1, help="Cards a node.")] = ClusterBench.cards,
    pods: Annotated[int, typer.Option(min=1, help="Pods placed in each round.")] = ClusterBench.pods,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds, each with kube-scheduler alone and with Slotwise.")] = 3,
    programs: Annotated[
        str, typer.Option(metavar="DIR[:DIR]", help="Where etcd, kube-apiserver and kube-scheduler are.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Placements through a real kube-scheduler: with Slotwise, and alone with a plain extended resource, in the same run.

    Needs etcd, kube-apiserver and kube-scheduler: those of --programs, else the newest that the tests have built, else on PATH.
    kube-scheduler is stopped while the pods are created; the clock runs from its release to the last Binding. Its client limits are
    raised, Events are on.

    JSON keys: per_second, alone_per_second (medians), ratio (median of the rounds' ratios), writes_per_pod as the API server's audit
    log has them (Events apart), the rounds themselves, and the parameters.

    Example: slotwise bench cluster --nodes 1000 --json
    """
    with _refusals():
        figures = run_on_uvloop(
            bench_cluster(ClusterBench(nodes, cards, pods, rounds), find_programs(programs), _progress(as_json))
        )
    _show(figures, as_json)


def _draw(files: list[Path], out: Path) -> None:
    """Draw what the files give, and say where it is."""
    try:
        from lab.bench.plots import plot, read_figures  # noqa: PLC0415 - matplotlib is an extra
    except ImportError as error:
        typer.echo(f"error: plots need matplotlib: pip install 'slotwise[plots]' ({error})", err=True)
        raise typer.Exit(1) from error
    with _refusals():
        out.mkdir(parents=True, exist_ok=True)
        for path in plot(read_figures(files), out):
            typer.echo(str(path))


@app.command("plot")
def plot_(
    files: Annotated[
        list[Path], typer.Argument(help="What benches printed with --json, a file each.", metavar="FILE...")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the SVG files.")] = Path(),
) -> None:
    """Draw time against nodes, time against pods and how times are spread, as SVG files, from the JSON of the benches.

    Example: slotwise bench plot figures/*.json --out docs/performance
    """
    _draw(files, out)


@app.command("all")
def all_(
    out: Annotated[Path, typer.Option(help="Folder for the JSON and SVG files.")] = Path("figures"),
    small: Annotated[
        bool, typer.Option("--small", help="Tiny clusters: whether everything works, not how fast.")
    ] = False,
) -> None:
    """Run every bench one after the other and draw the plots: some minutes, on a machine that does nothing else.

    Example: slotwise bench all --out figures
    """
    with _refusals():
        files = run_all(out, lambda line: typer.echo(line, err=True), small)
    _draw(files, out)
