"""`slotwise manifests`: everything that a cluster needs, rendered; it replaces a chart."""

import json
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from devices.errors import ConfigError
from manifests.documents import as_yaml, in_order
from manifests.errors import ManifestError
from manifests.families import Families
from manifests.kustomize import FOLDER, overlays, render
from manifests.regions import generated

__all__ = ["manifests"]

_BAD_INPUT = 2


def _refuse(text: str) -> NoReturn:
    typer.echo(f"slotwise manifests: {text}", err=True)
    raise typer.Exit(_BAD_INPUT)


def _regenerate(folder: Path) -> None:
    """Make the generated parts of the files anew, in place; for those who change a family."""
    for path in sorted(folder.rglob("*.yaml")):
        written = path.read_text(encoding="utf-8")
        made = generated(path, Families())
        if made != written:
            path.write_text(made, encoding="utf-8")
            typer.echo(str(path))


def manifests(
    overlay: Annotated[str, typer.Argument(help="base, or one that --list names.")] = "base",
    list_them: Annotated[bool, typer.Option("--list", help="Which overlays there are.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --list: for programs.")] = False,
    regenerate: Annotated[
        bool, typer.Option("--regenerate", help="Make the generated parts of the files anew, after changing a family.")
    ] = False,
) -> None:
    """Print the manifests of an overlay, ready to apply.

    Example: slotwise manifests ha | kubectl apply -f -
    """
    try:
        if regenerate:
            _regenerate(FOLDER)
        elif list_them:
            known = overlays()
            typer.echo(json.dumps(dict(known)) if as_json else "\n".join(f"{n:<14}{text}" for n, text in known.items()))
        else:
            typer.echo(as_yaml(in_order(render(overlay, Families()))), nl=False)
    except (ManifestError, ConfigError) as error:
        _refuse(str(error))
