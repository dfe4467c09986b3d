"""How findings are shown: a table in colours on a terminal, plain lines in a pipe, or JSON."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cli.doctor.findings import Finding, Level

__all__ = ["as_json", "print_lines", "print_table", "summary"]

_MARKS: Final[Mapping[Level, tuple[str, str]]] = {
    Level.OK: ("✓", "green"),
    Level.WARNING: ("!", "yellow"),
    Level.PROBLEM: ("✗", "bold red"),
    Level.UNKNOWN: ("?", "cyan"),
}


def summary(findings: Sequence[Finding]) -> str:
    """One line: how many of each level."""
    counts = [(sum(f.level is level for f in findings), level.value) for level in Level]
    return ", ".join(f"{count} {name}" for count, name in counts if count)


def as_json(findings: Sequence[Finding], version: str, namespace: str) -> Mapping[str, object]:
    """One object: `findings` in their order, `healthy` when none is a problem."""
    return {
        "kubernetes": version,
        "namespace": namespace,
        "healthy": all(f.level is not Level.PROBLEM for f in findings),
        "findings": [{"check": f.check, "level": f.level.value, "text": f.text, "repair": f.repair} for f in findings],
    }


def _lines(findings: Sequence[Finding]) -> Iterator[str]:
    for finding in findings:
        yield f"{finding.level.value:<8} {finding.check}: {finding.text}"
        if finding.repair:
            yield f"         repair: {finding.repair}"


def print_lines(findings: Sequence[Finding]) -> None:
    """One line a finding, and one more for its repair."""
    print("\n".join((*_lines(findings), summary(findings))))


def print_table(findings: Sequence[Finding]) -> None:
    """One row a finding, its repair beneath."""
    table = Table("", "check", "finding", show_edge=False, header_style="dim")
    for finding in findings:
        mark, style = _MARKS[finding.level]
        text = Text(finding.text, style="" if finding.level is Level.OK else style)
        if finding.repair:
            text.append(f"\n→ {finding.repair}", style="default")
        table.add_row(Text(mark, style=style), finding.check, text)
    console = Console()
    console.print(table)
    console.print(summary(findings), style="bold", highlight=False)
