"""`slotwise rbac-check`: what manifests let the processes do, compared with what those processes ask for."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import msgspec
import typer
import yaml
from rich.console import Console
from rich.table import Table

from devices.errors import ConfigError
from manifests.documents import Document, read_stream
from manifests.errors import ManifestError
from manifests.families import Families
from manifests.kustomize import overlays, render
from manifests.rights import AccountRights, compare

__all__ = ["rbac_check"]

_DIFFERS, _BAD_INPUT = 1, 2


def _refuse(text: str) -> NoReturn:
    typer.echo(f"slotwise rbac-check: {text}", err=True)
    raise typer.Exit(_BAD_INPUT)


def _documents(source: str) -> Sequence[Document]:
    """Of an overlay, a file, or standard input."""
    if source in overlays():
        return render(source, Families())
    if source == "-":
        return read_stream(sys.stdin.read(), "standard input")
    path = Path(source)
    if not path.is_file():
        _refuse(f"{source}: neither an overlay ({', '.join(overlays())}) nor a file; - reads standard input")
    return read_stream(path.read_text(encoding="utf-8"), source)


def rbac_check(
    source: Annotated[str, typer.Argument(help="An overlay, a file of manifests, or - for standard input.")] = "ha",
    as_document: Annotated[bool, typer.Option("--json", help="A JSON list, one object an account.")] = False,
) -> None:
    """Compare the rights in manifests with the calls that the code makes, both ways.

    For each service account of a Deployment: what its processes, started with the flags in those manifests, ask of the API server;
    what the roles bound to it allow; what is missing and what is too much.

    Exit status 0: nothing missing, nothing too much; 1: they differ; 2: input that cannot be used.

    Example: slotwise manifests ha --set quota-annotation=true | slotwise rbac-check -
    """
    try:
        accounts = compare(_documents(source))
    except (ManifestError, ConfigError, msgspec.ValidationError, yaml.YAMLError, UnicodeDecodeError) as error:
        _refuse(str(error))
    if not accounts:
        _refuse(f"{source}: there is no Deployment in it, so nothing runs with any rights")
    if as_document:
        typer.echo(json.dumps([_json(account) for account in accounts]))
    elif sys.stdout.isatty():
        _table(accounts)
    else:
        _lines(accounts)
    if not all(account.is_right for account in accounts):
        raise typer.Exit(_DIFFERS)


def _json(account: AccountRights) -> dict[str, object]:
    return {
        "namespace": account.namespace,
        "name": account.name,
        "processes": account.processes,
        "needed": [str(one) for one in sorted(account.needed)],
        "given": [str(one) for one in sorted(account.given)],
        "missing": [str(one) for one in account.missing],
        "tooMuch": account.too_much,
    }


def _lines(accounts: Sequence[AccountRights]) -> None:
    for account in accounts:
        typer.echo(f"{account.namespace}/{account.name} ({', '.join(account.processes)}): {_verdict(account)}")
        for one in account.missing:
            typer.echo(f"  missing: {one}")
        for text in account.too_much:
            typer.echo(f"  too much: {text}")


def _verdict(account: AccountRights) -> str:
    if account.is_right:
        return f"may make its {len(account.needed)} calls, and nothing else"
    return f"{len(account.missing)} rights missing, {len(account.too_much)} too many"


def _table(accounts: Sequence[AccountRights]) -> None:
    console = Console()
    for account in accounts:
        table = Table("right", "needed", "given", title=f"{account.namespace}/{account.name}", title_justify="left")
        for one in sorted(account.needed | account.given):
            missing, extra = one in account.missing, str(one) in account.too_much
            style = "bold red" if missing else "yellow" if extra else ""
            table.add_row(str(one), "" if extra else "✓", "" if missing else "✓", style=style)
        console.print(table)
        console.print(_verdict(account), style="green" if account.is_right else "bold red", highlight=False)
