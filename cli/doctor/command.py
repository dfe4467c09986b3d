"""The command: read, judge, show; exit status 0 when nothing is broken."""

import asyncio
import json
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, NoReturn

import msgspec
import typer
from rich.console import Console

from cli.doctor.bundle import container_logs, write_bundle
from cli.doctor.checks import examine
from cli.doctor.collect import Collected, collect
from cli.doctor.errors import DoctorError
from cli.doctor.findings import Level
from cli.doctor.report import as_json, print_lines, print_table
from devices.kube.client import ClientSettings, KubeClient
from devices.kube.config import load_access
from devices.kube.errors import KubeError
from webhook.config import DEFAULT_NAMESPACE

__all__ = ["doctor"]

_BROKEN, _CANNOT = 1, 2
_TIMEOUT_S = 30.0


def doctor(
    kubeconfig: Annotated[
        str | None, typer.Option(help="Default: $KUBECONFIG, ~/.kube/config, then in-cluster.")
    ] = None,
    namespace: Annotated[
        str, typer.Option("-n", "--namespace", help="Where Slotwise is installed.")
    ] = DEFAULT_NAMESPACE,
    probe_namespace: Annotated[
        str, typer.Option(help="Where pods are sent as dry runs: an ordinary namespace, not exempt from admission.")
    ] = "default",
    as_document: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    bundle: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Also write findings, objects and logs to an archive (tar.gz), without secrets."
        ),
    ] = None,
) -> None:
    """Check an installation: every link between a pod and its card, and the repair of each that is broken.

    Sends pods as dry runs through the API server, compares the served certificate with the caBundle, and looks at services,
    scheduler configuration and version, leadership, rights, node registrations, competing device plugins, failure policies,
    clocks, expiring certificates, node locks and waiting pods. Changes nothing.

    Exit status 0: no problem (warnings allowed), 1: something is broken, 2: the cluster cannot be reached or input is wrong.

    Example: slotwise doctor --namespace slotwise-system --bundle slotwise.tar.gz
    """
    if bundle is not None and not bundle.absolute().parent.is_dir():
        _stop(f"--bundle {bundle}: there is no folder {bundle.absolute().parent}")
    try:
        collected, logs = asyncio.run(_read(kubeconfig, namespace, probe_namespace, with_logs=bundle is not None))
    except (KubeError, msgspec.ValidationError) as error:
        _stop(str(error))
    findings = examine(collected.facts)
    report = as_json(findings, collected.facts.version, namespace)
    if as_document:
        typer.echo(json.dumps(report, ensure_ascii=False))
    elif sys.stdout.isatty():
        print_table(findings)
    else:
        print_lines(findings)
    if bundle is not None:
        _bundle(bundle, collected, report, logs)
    if any(finding.level is Level.PROBLEM for finding in findings):
        raise typer.Exit(_BROKEN)


def _stop(text: str) -> NoReturn:
    typer.echo(f"slotwise doctor: {text}", err=True)
    raise typer.Exit(_CANNOT)


async def _read(
    kubeconfig: str | None, namespace: str, probe_namespace: str, *, with_logs: bool
) -> tuple[Collected, Mapping[str, str]]:
    settings = ClientSettings(user_agent="slotwise-doctor", timeout_s=_TIMEOUT_S)
    with _progress() as say:
        async with KubeClient(await load_access(kubeconfig), settings) as client:
            collected = await collect(client, namespace, probe_namespace, say=say)
            if not with_logs:
                return collected, {}
            say("reading logs")
            return collected, await container_logs(client, collected)


def _progress() -> AbstractContextManager[Callable[[str], None]]:
    """What is being done, on a terminal only."""
    console = Console(stderr=True)
    if not console.is_terminal:
        return nullcontext(lambda _: None)
    return _Status(console)


class _Status(AbstractContextManager[Callable[[str], None]]):
    def __init__(self, console: Console) -> None:
        self._status = console.status("")

    def __enter__(self) -> Callable[[str], None]:
        self._status.start()
        return self._status.update

    def __exit__(self, *_: object) -> None:
        self._status.stop()


def _bundle(path: Path, collected: Collected, report: Mapping[str, object], logs: Mapping[str, str]) -> None:
    try:
        names = write_bundle(path, collected, report, logs)
    except DoctorError as error:
        _stop(str(error))
    typer.echo(f"wrote {path}: {len(names)} files, no secrets", err=True)
