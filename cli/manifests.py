"""`slotwise manifests`: everything that a cluster needs, rendered; it replaces a chart."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from devices.errors import ConfigError
from manifests.check import PARTIAL, problems
from manifests.documents import Document, as_yaml, read_stream
from manifests.errors import ManifestError
from manifests.families import Families
from manifests.kustomize import FOLDER, overlays
from manifests.regions import generated
from manifests.schemas import load, minors
from manifests.settings import GROUPS, SETTINGS, given, rendered

__all__ = ["manifests", "settings_markdown"]

_FAILED, _BAD_INPUT = 1, 2


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


def settings_markdown() -> str:
    """The tables of docs/install.md; the keys of families, which docs/vendors.md explains, in a list of their own."""
    lines: list[str] = []
    for group, settings in GROUPS.items():
        lines += ["", f"**{group}**", "", "| setting | default | takes | |", "|---|---|---|---|"]
        for s in settings:
            if not s.name.startswith("device."):
                default = f"`{s.default}`" if s.default else "–"
                lines.append(f"| `{s.name}` | {default} | {s.accepts} | {s.about} |")
    lines += ["", "**keys of the device configuration**", ""]
    lines.append(", ".join(f"`{name}`" for name in SETTINGS if name.startswith("device.")))
    return "\n".join(lines[1:]) + "\n"


def _listed(as_json: bool) -> str:
    known = overlays()
    if as_json:
        rows = [
            {"name": s.name, "group": group, "default": s.default, "accepts": s.accepts, "about": s.about}
            for group, settings in GROUPS.items()
            for s in settings
        ]
        return json.dumps({"overlays": dict(known), "settings": rows}, indent=1)
    lines = ["Overlays", *(f"  {name:<14}{about}" for name, about in known.items())]
    for group, settings in GROUPS.items():
        lines += ["", f"Settings: {group}"]
        lines += [f"  {s.name}={s.default}\n      {s.about}; {s.accepts}" for s in settings]
    return "\n".join(lines)


def _stream(name: str) -> Sequence[Document]:
    if name == "-":
        return read_stream(sys.stdin.read(), "standard input")
    try:
        return read_stream(Path(name).read_text(encoding="utf-8"), name)
    except (OSError, UnicodeDecodeError) as error:
        raise ManifestError(f"{name}: cannot be read: {error}") from error


def _minor_of(settings: Sequence[str]) -> str:
    """Of the `kube-version` that is set, where its schemas are here; else nothing."""
    minor = ".".join(given(settings).get("kube-version", "").split(".")[:2])
    return minor if minor in minors() else ""


def _check(what: str, settings: Sequence[str], kubernetes: str, as_json: bool) -> None:
    """Print what is wrong; exit status 1 where something is."""
    schemas = load(kubernetes or _minor_of(settings) or minors()[0])
    if what == "-" or Path(what).is_file():
        if settings:
            raise ManifestError("--set goes with an overlay, not with manifests that are rendered already")
        documents = _stream(what)
    else:
        documents = rendered(what, given(settings)).documents
    found = problems(documents, schemas, partial=what in PARTIAL)
    if as_json:
        rows = [{"object": str(p.object), "path": p.finding.path, "problem": p.finding.text} for p in found]
        typer.echo(json.dumps({"kubernetes": schemas.version, "objects": len(documents), "problems": rows}))
    else:
        for problem in found:
            typer.echo(str(problem))
        result = f"{len(found)} {'problem' if len(found) == 1 else 'problems'}" if found else "nothing wrong"
        typer.echo(f"{len(documents)} objects, {result} (Kubernetes {schemas.version})", err=bool(found))
    if not documents:
        raise ManifestError(f"{what}: no objects there")
    if found:
        raise typer.Exit(_FAILED)


def manifests(
    overlay: Annotated[
        str,
        typer.Argument(
            help="base, ha, or another one that --list names. With --check also a file, or - for standard input."
        ),
    ] = "base",
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One of the settings of --list; repeat it.")
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Print nothing but what is wrong: every field, value and flag, without a cluster."
        ),
    ] = False,
    kubernetes: Annotated[
        str,
        typer.Option(
            metavar="MINOR",
            help="With --check: which Kubernetes; default: that of --set kube-version, or the newest here.",
        ),
    ] = "",
    list_them: Annotated[bool, typer.Option("--list", help="Overlays, and settings with their defaults.")] = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="With --list: settings as the tables of the documentation.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --list or --check: for programs.")] = False,
    regenerate: Annotated[
        bool, typer.Option("--regenerate", help="Make the generated parts of the files anew, after changing a family.")
    ] = False,
) -> None:
    """Print the manifests of an overlay, ready to apply; or check them, or what you made of them.

    Exit status of --check: 0 nothing wrong, 1 something is, 2 it cannot be read.

    [bold]Examples:[/bold]

    slotwise manifests ha --set image=registry.example.com/slotwise:0.1.0 | kubectl apply -f -

    kubectl kustomize my-overlay | slotwise manifests --check -
    """
    try:
        if check + list_them + regenerate > 1:
            raise ManifestError("--check, --list and --regenerate exclude each other")
        if kubernetes and not check:
            raise ManifestError("--kubernetes goes with --check")
        if as_markdown and (as_json or not list_them):
            raise ManifestError("--markdown goes with --list, and without --json")
        if regenerate:
            _regenerate(FOLDER)
        elif list_them:
            typer.echo(settings_markdown() if as_markdown else _listed(as_json), nl=not as_markdown)
        elif check:
            _check(overlay, settings or [], kubernetes, as_json)
        else:
            found = rendered(overlay, given(settings or []))
            for warning in found.warnings:
                typer.echo(f"slotwise manifests: {warning}", err=True)
            typer.echo(as_yaml(found.documents), nl=False)
    except (ManifestError, ConfigError) as error:
        _refuse(str(error))
