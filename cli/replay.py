"""`slotwise replay`: recorded decisions against this version's code."""

import asyncio
import json
import time
from pathlib import Path
from typing import Annotated

import typer

from lab.replay.errors import ReplayError
from lab.replay.player import Played, play
from lab.replay.scenario import Scenario, find

__all__ = ["replay"]


def _record(folder: Path, base: Path, file: Path, line: int | None, played: Played) -> None:
    """What came, under `folder` at the file's place below `base`; never over the input."""
    target = folder / (file.relative_to(base) if base.is_dir() else Path(file.name))
    if target.resolve() == file.resolve():
        raise ReplayError(f"--record {folder}: would overwrite the input {file}; name another folder")
    indent = 1 if line is None else None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("w" if line is None else "a", encoding="utf-8") as out:
            out.write(json.dumps(played.came, indent=indent, ensure_ascii=False, sort_keys=True) + "\n")
    except OSError as error:
        raise ReplayError(f"--record {folder}: cannot be written: {error}") from error


def _base(paths: list[Path], file: Path) -> Path:
    return next((path for path in paths if path == file or path in file.parents), file)


def replay(
    paths: Annotated[
        list[Path], typer.Argument(help="Scenario files (.json, .jsonl) or folders of them.", exists=False)
    ],
    record: Annotated[
        Path | None, typer.Option(help="Write each scenario with what came in place of its expect under this folder.")
    ] = None,
) -> None:
    """Play recorded scenarios through the decision, admission and ledger code, and compare.

    Every difference is printed in full: what was expected, what came. Exit status: 0 when none differs, 1 when some do, 2 when a
    scenario cannot be played (unknown step, flag or key, unreadable file, none at all, a family this version does not have).

    Example: slotwise replay tests/vectors
    """
    began = time.perf_counter()
    count = differed = errors = 0
    with asyncio.Runner() as runner:
        try:
            found: list[tuple[Path, int | None, Scenario]] = list(find(paths))
            if record is not None:
                stale = [
                    record / (f.relative_to(_base(paths, f)) if _base(paths, f).is_dir() else f.name)
                    for f, n, _ in found
                    if n
                ]
                for target in stale:
                    if target.exists():
                        raise ReplayError(f"--record {record}: {target} exists already; name a new folder")
        except ReplayError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(2) from error
        for file, line, scenario in found:
            count += 1
            try:
                played = play(scenario, runner)
                if record is not None:
                    _record(record, _base(paths, file), file, line, played)
            except ReplayError as error:
                errors += 1
                typer.echo(f"error: {error}", err=True)
                continue
            if played.differences:
                differed += 1
                typer.echo(f"{scenario.where}: {scenario.name}")
                for difference in played.differences:
                    typer.echo(f"  step {difference.step} {difference.kind}: {difference.text}")
    seconds = time.perf_counter() - began
    typer.echo(f"{count / max(seconds, 1e-9):.0f} scenarios a second", err=True)
    if errors:
        typer.echo(f"{errors} of {count} scenarios could not be played", err=True)
    typer.echo(f"{count} scenarios, {count - differed - errors} matched, {differed + errors} differed")
    if errors:
        raise typer.Exit(2)
    if differed:
        raise typer.Exit(1)
