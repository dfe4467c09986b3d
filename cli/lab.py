"""`slotwise lab`: the embedded cluster and its scenarios."""

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from typer.core import TyperGroup

from lab.burst import BurstOptions, run_burst
from lab.cluster import Cluster, ClusterSettings
from lab.errors import LabError, ScenarioError
from lab.external import ExternalSettings
from lab.records import BurstResult, ScenarioDone
from lab.runner import run_scenario
from lab.scenario import Scenario, load_scenario, scenario_groups, shipped_scenarios
from lab.view import JsonView, PlainView, TerminalView, View
from serving.server import run as run_on_uvloop

__all__ = ["app"]

_FAILED = 1
_BAD_INPUT = 2
_EXTERNAL_SETTLE_S = 30.0
"""A real kube-scheduler waits up to 10 s before it tries a pod again."""


class _RunByDefault(TyperGroup):
    """Names that are no command are scenarios: `slotwise lab mutex` means `slotwise lab run mutex`."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override] # the same at run time
        """Put `run` in front where no command is named."""
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_RunByDefault,
    help="Run Slotwise in an embedded cluster: API server, kube-scheduler, kubelet and cards in this one process.\n\n"
    "slotwise lab [b]NAME…|PATH…[/] plays scenarios, all that are shipped when none is named.",
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command("run")
def run(
    scenarios: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME|PATH]…", help="Shipped scenarios by name, or files; none: all shipped ones."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document at the end instead of pictures.")] = False,
    keep: Annotated[
        bool,
        typer.Option("--keep", help="Afterwards leave a cluster with the last scenario's nodes running, until Ctrl-C."),
    ] = False,
    kubeconfig: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Play on this cluster instead of the embedded one: it has kube-scheduler and Slotwise, and no nodes.",
        ),
    ] = None,
    scheduler_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="With --kubeconfig: where the scheduler's read-only port is reached, for steps that ask for scores.",
        ),
    ] = None,
) -> None:
    """Play scenarios and compare; exit status 0 when every expectation held, 1 when not, 2 for a bad name or file.

    Example: slotwise lab mutex four-cards
    """
    _quiet()
    settings = _settings(kubeconfig, scheduler_url)
    try:
        chosen = _chosen(scenarios or [])
    except ScenarioError as error:
        _refuse(str(error))
    console = Console()
    view = _view(console, as_json)
    results: list[ScenarioDone] = []

    async def play() -> None:
        for scenario in chosen:
            async for record in run_scenario(scenario, settings):
                view.show(record)
                if isinstance(record, ScenarioDone):
                    results.append(record)
        view.end(results)
        if keep:
            await _keep(chosen[-1], settings)

    _run(play, view)
    if not all(result.passed for result in results):
        raise typer.Exit(_FAILED)


@app.command("list")
def list_scenarios(
    as_json: Annotated[bool, typer.Option("--json", help="A JSON list of names and titles.")] = False,
) -> None:
    """Name the scenarios that are shipped."""
    loaded = [load_scenario(path) for path in shipped_scenarios().values()]
    console = Console()
    if as_json:
        console.print_json(data=[{"name": scenario.name, "title": scenario.title} for scenario in loaded])
        return
    width = max(len(scenario.name) for scenario in loaded)
    for scenario in loaded:
        console.print(f"{scenario.name:<{width}}  {scenario.title}", markup=False, highlight=False, soft_wrap=True)


@app.command("burst")
def burst(
    nodes: Annotated[int, typer.Option(min=1, help="Nodes.")] = BurstOptions.nodes,
    cards: Annotated[int, typer.Option(min=1, help="Cards per node: 15360 MiB, 10 slots, 100 % compute each.")] = (
        BurstOptions.cards
    ),
    pods: Annotated[
        int, typer.Option(min=1, help="Pods, created as fast as the API server takes them.")
    ] = BurstOptions.pods,
    gpumem: Annotated[int, typer.Option(min=1, help="MiB that each pod asks for.")] = BurstOptions.gpumem,
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON.")] = False,
    kubeconfig: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Play on this cluster instead of the embedded one: it has kube-scheduler and Slotwise, and no nodes.",
        ),
    ] = None,
    scheduler_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="With --kubeconfig: where the scheduler's read-only port is reached, for steps that ask for scores.",
        ),
    ] = None,
) -> None:
    """Create many pods at once and count; exit status 0 when all were placed and no card went beyond its limits.

    Example: slotwise lab burst --nodes 50 --cards 8 --pods 2000 --json
    """
    _quiet()
    settings = _settings(kubeconfig, scheduler_url)
    options = BurstOptions(nodes=nodes, cards=cards, pods=pods, gpumem=gpumem)
    view = _view(Console(), as_json)
    results: list[BurstResult] = []

    async def play() -> None:
        async for record in run_burst(options, settings):
            view.show(record)
            if isinstance(record, BurstResult):
                results.append(record)

    _run(play, view)
    if not results or results[0].lost or results[0].violations:
        raise typer.Exit(_FAILED)


def _run(play: Callable[[], Coroutine[None, None, None]], view: View) -> None:
    try:
        run_on_uvloop(play())
    except LabError as error:
        print(f"slotwise lab: {error}", file=sys.stderr)
        raise typer.Exit(_FAILED) from error
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    finally:
        if isinstance(view, TerminalView):
            view.close()


def _settings(kubeconfig: str | None, scheduler_url: str | None) -> ClusterSettings:
    if kubeconfig is None:
        if scheduler_url is not None:
            _refuse("--scheduler-url has no effect without --kubeconfig: the embedded cluster knows its scheduler")
        return ClusterSettings()
    return ClusterSettings(settle_s=_EXTERNAL_SETTLE_S, external=ExternalSettings(kubeconfig, scheduler_url))


async def _keep(scenario: Scenario, settings: ClusterSettings) -> None:
    async with Cluster(settings) as cluster:
        for namespace in scenario.namespaces:
            await cluster.add_namespace(namespace)
        for node in scenario.nodes:
            await cluster.add_node(node)
        print(
            f"The cluster of {scenario.name} runs until Ctrl-C. Look at it, or create pods in it, with", file=sys.stderr
        )
        how = f"--kubeconfig {settings.external.kubeconfig}" if settings.external else f"--server {cluster.address}"
        print(f"  kubectl {how} get pods,nodes -A", file=sys.stderr)
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()


def _chosen(names: Sequence[str]) -> list[Scenario]:
    shipped, groups = shipped_scenarios(), scenario_groups()
    paths: list[Path] = []
    for name in names or shipped:
        if name in groups:
            paths += groups[name].values()
        elif name in shipped:
            paths.append(shipped[name])
        elif Path(name).is_file():
            paths.append(Path(name))
        else:
            known = ", ".join((*shipped, *groups))
            raise ScenarioError(f"no scenario {name!r}: neither a file nor one of {known}")
    return [load_scenario(path) for path in paths]


def _view(console: Console, as_json: bool) -> View:
    if as_json:
        return JsonView(console)
    return TerminalView(console) if console.is_terminal else PlainView(console)


def _quiet() -> None:
    """Only what is wrong: the services log a line a request, and thousands of them would bury the picture."""
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")


def _refuse(text: str) -> NoReturn:
    print(f"slotwise lab: {text}", file=sys.stderr)
    raise typer.Exit(_BAD_INPUT)
