"""What people see of a run: pictures of the cards on a terminal, plain lines in a pipe, or JSON at the end."""

from collections.abc import Iterable
from typing import Final, Protocol

import msgspec
import orjson
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lab.audit import CardUsage
from lab.records import (
    BurstProgress,
    BurstResult,
    Record,
    ScenarioBegan,
    ScenarioDone,
    StepDone,
)

__all__ = ["JsonView", "PlainView", "TerminalView", "View", "card_bar", "card_line", "summary_line"]

_BAR_CELLS: Final = 32
_CARDS_SHOWN: Final = 16
_COLOURS: Final = ("cyan", "magenta", "yellow", "green", "blue", "red", "bright_cyan", "bright_magenta")
_PROGRESS_S: Final = 2.0


class View(Protocol):
    """Shows records as they come. `end` is called once, with the final record of every scenario."""

    def show(self, record: Record | BurstResult) -> None:
        """Show one record."""
        ...

    def end(self, results: list[ScenarioDone]) -> None:
        """Show how everything ended."""
        ...


def summary_line(results: Iterable[ScenarioDone]) -> str:
    """One line for all, e.g. `6 scenarios, 6 passed, 0 failed, 12.3 s`."""
    done = list(results)
    failed = sum(not result.passed for result in done)
    noun = "scenario" if len(done) == 1 else "scenarios"
    seconds = sum(result.seconds for result in done)
    return f"{len(done)} {noun}, {len(done) - failed} passed, {failed} failed, {seconds:.1f} s"


def _amounts(result: BurstResult) -> str:
    violations = "no card over its limits" if not result.violations else f"{len(result.violations)} VIOLATIONS"
    return (
        f"{result.placed} of {result.pods} pods placed on {result.nodes} nodes of {result.cards} cards in "
        f"{result.seconds:.1f} s: {result.per_second:.0f} a second, {result.writes_text}, {violations}"
    )


def card_line(card: CardUsage) -> str:
    """A card in plain text: `node-1 GPU-B  2000/15360 MiB  2/10 slots  plain-1 1000, plain-2 1000`."""
    tenants = ", ".join(f"{_short(share.pod)} {share.memory_mib}" for share in card.tenants) or "idle"
    cores = f"  {card.used_cores}/{card.cores} %" if card.used_cores else ""
    return (
        f"{card.node} {card.uuid}  {card.used_memory_mib}/{card.memory_mib} MiB  "
        f"{card.used_slots}/{card.slots} slots{cores}  {tenants}"
    )


def _short(pod: str) -> str:
    return pod.removeprefix("default/")


def card_bar(card: CardUsage, colours: dict[str, str], cells: int = _BAR_CELLS) -> Text:
    """The card's memory as a bar: one coloured piece per tenant, with its name where that fits; dots are free."""
    bar = Text()
    drawn = 0
    for share in card.tenants:
        if drawn >= cells:
            break
        width = round(cells * share.memory_mib / card.memory_mib) if card.memory_mib else 0
        width = max(1, min(width, cells - drawn))
        name, colour = _short(share.pod), _colour(share.pod, colours)
        if len(name) <= width:
            bar.append(name.ljust(width), style=f"black on {colour}")
        else:
            bar.append("█" * width, style=colour)
        drawn += width
    bar.append("·" * (cells - drawn), style="dim")
    return bar


def _tenants(card: CardUsage, colours: dict[str, str]) -> Text:
    names = [Text(_short(share.pod), style=_colour(share.pod, colours)) for share in card.tenants]
    return Text(", ").join(names)


def _colour(pod: str, colours: dict[str, str]) -> str:
    return colours.setdefault(pod, _COLOURS[len(colours) % len(_COLOURS)])


class PlainView:
    """Lines, for pipes and logs."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last: tuple[CardUsage, ...] = ()
        self._said_s = 0.0

    def show(self, record: Record | BurstResult) -> None:
        """(View)"""
        if isinstance(record, ScenarioBegan):
            of = f" (round {record.round} of {record.rounds})" if record.rounds > 1 else ""
            self._line(f"== {record.scenario}: {record.title}{of}")
            self._last = ()
        elif isinstance(record, StepDone):
            self._step(record)
        elif isinstance(record, BurstProgress):
            if record.seconds - self._said_s >= _PROGRESS_S:
                self._said_s = record.seconds
                self._line(f"     {record.placed} of {record.pods} pods placed after {record.seconds:.0f} s")
        elif isinstance(record, BurstResult):
            self._line(_amounts(record))
            for violation in record.violations:
                self._line(f"     violation: {violation}")
        else:
            self._said_s = 0.0
            self._line(f"== {record.scenario}: {'passed' if record.passed else 'FAILED'} in {record.seconds:.1f} s")

    def _step(self, step: StepDone) -> None:
        if step.title:
            self._line(f"  -- {step.title}")
        self._line(f"  {'ok ' if not step.problems else 'NO '} {step.text}")
        for problem in step.problems:
            self._line(f"       {problem}")
        if step.changed and step.cards:
            for card in step.cards:
                if card not in self._last:
                    self._line(f"       {card_line(card)}")
            self._last = step.cards

    def end(self, results: list[ScenarioDone]) -> None:
        """(View)"""
        for result in results:
            for problem in result.problems:
                self._line(f"FAILED {result.scenario}: {problem}")
        for result in results:
            self._line(
                f"{'passed' if result.passed else 'FAILED'}  {result.scenario:<12} {result.steps} steps, {result.placed} placed, "
                f"{result.refused} refused, {result.denied} denied, {result.seconds:.1f} s"
            )
        self._line(summary_line(results))

    def _line(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class TerminalView:
    """Steps scroll by above a picture of the cards that is redrawn in place."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._colours: dict[str, str] = {}
        self._live: Live | None = None
        self._cards: RenderableType | None = None

    def show(self, record: Record | BurstResult) -> None:
        """(View)"""
        if isinstance(record, ScenarioBegan):
            of = f" [dim](round {record.round} of {record.rounds})[/]" if record.rounds > 1 else ""
            self._stop()
            self._console.print(f"\n[bold]{record.scenario}[/] {escape(record.title)}{of}")
            self._colours = {}
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        elif isinstance(record, StepDone):
            self._step(record)
        elif isinstance(record, BurstProgress):
            self._draw(self._progress(record))
        elif isinstance(record, BurstResult):
            self._stop()
            self._console.print(escape(_amounts(record)))
            for violation in record.violations:
                self._console.print(f"  [red]violation: {escape(violation)}[/]")
        else:
            self._stop()

    def _step(self, step: StepDone) -> None:
        if step.title:
            self._console.print(f"  [bold]{escape(step.title)}[/]", highlight=False)
        mark = "[green]✓[/]" if not step.problems else "[red]✗[/]"
        self._console.print(f"  {mark} {escape(step.text)}", highlight=False)
        for problem in step.problems:
            self._console.print(f"      [red]{escape(problem)}[/]", highlight=False)
        if step.cards:
            self._cards = self._picture(step.cards)
            self._draw(self._cards)

    def _picture(self, cards: tuple[CardUsage, ...]) -> RenderableType:
        table = Table.grid(padding=(0, 1))
        for card in cards[:_CARDS_SHOWN]:
            table.add_row(
                Text(f"   {card.node}", style="dim"),
                Text(card.uuid, style="bold"),
                card_bar(card, self._colours),
                f"{card.used_memory_mib}/{card.memory_mib} MiB",
                f"{card.used_slots}/{card.slots} slots",
                f"{card.used_cores} %",
                _tenants(card, self._colours),
            )
        more = len(cards) - _CARDS_SHOWN
        return Group(table, Text(f"   … and {more} cards more", style="dim")) if more > 0 else table

    @staticmethod
    def _progress(record: BurstProgress) -> RenderableType:
        row = Table.grid(padding=(0, 1))
        rate = record.placed / record.seconds if record.seconds > 0 else 0.0
        bar = ProgressBar(total=record.pods, completed=record.placed, width=40)
        row.add_row("  ", bar, f"{record.placed} of {record.pods} pods placed, {rate:.0f} a second")
        return row

    def _draw(self, picture: RenderableType) -> None:
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        self._live.update(picture, refresh=True)

    def _stop(self) -> None:
        """Leave the last picture of the cards standing; a progress bar has served its purpose."""
        self.close()
        if self._cards is not None:
            self._console.print(self._cards)
            self._cards = None

    def close(self) -> None:
        """Give the terminal back, whatever has happened."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def end(self, results: list[ScenarioDone]) -> None:
        """(View)"""
        self._stop()
        table = Table(title="slotwise lab", title_justify="left")
        for name in ("scenario", "result", "steps", "placed", "refused", "denied", "seconds"):
            table.add_column(name, justify="left" if name in ("scenario", "result") else "right")
        for result in results:
            table.add_row(
                result.scenario,
                "[green]passed[/]" if result.passed else "[red]FAILED[/]",
                *(str(number) for number in (result.steps, result.placed, result.refused, result.denied)),
                f"{result.seconds:.1f}",
            )
        self._console.print()
        self._console.print(table)
        for result in results:
            for problem in result.problems:
                self._console.print(f"[red]{escape(result.scenario)}: {escape(problem)}[/]", highlight=False)
        self._console.print(summary_line(results), highlight=False)


class JsonView:
    """One JSON document at the end; nothing before."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._steps: dict[str, list[dict[str, object]]] = {}
        self._round = 1

    def show(self, record: Record | BurstResult) -> None:
        """(View)"""
        if isinstance(record, ScenarioBegan):
            self._round = record.round
        elif isinstance(record, StepDone):
            self._steps.setdefault(record.scenario, []).append(
                {
                    "round": self._round,
                    "number": record.number,
                    "title": record.title,
                    "text": record.text,
                    "problems": list(record.problems),
                    "cards": [msgspec.to_builtins(card) for card in record.cards] if record.changed else [],
                }
            )
        elif isinstance(record, BurstResult):
            self._write(msgspec.to_builtins(record))

    def end(self, results: list[ScenarioDone]) -> None:
        """(View)"""
        scenarios = [
            {**msgspec.to_builtins(result), "passed": result.passed, "played": self._steps.get(result.scenario, [])}
            for result in results
        ]
        self._write({"passed": all(result.passed for result in results), "scenarios": scenarios})

    def _write(self, document: object) -> None:
        text = orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
