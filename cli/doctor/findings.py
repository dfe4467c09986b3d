"""What a check says: how it stands, which link is broken, and the repair."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Finding", "Level", "problem", "unknown", "warning", "well"]


class Level(enum.Enum):
    """How a link stands; the value is what `--json` says."""

    OK = "ok"
    WARNING = "warning"
    """Works now, and will not for long or not in every case."""
    PROBLEM = "problem"
    """Does not work."""
    UNKNOWN = "unknown"
    """Could not be looked at, and why."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a check found; all but OK say what to do."""

    check: str
    level: Level
    text: str
    repair: str = ""


def well(check: str, text: str) -> Finding:
    """The link holds."""
    return Finding(check, Level.OK, text)


def problem(check: str, text: str, repair: str) -> Finding:
    """The link is broken."""
    return Finding(check, Level.PROBLEM, text, repair)


def warning(check: str, text: str, repair: str) -> Finding:
    """The link holds, and should not be left as it is."""
    return Finding(check, Level.WARNING, text, repair)


def unknown(check: str, text: str, repair: str) -> Finding:
    """The link could not be looked at."""
    return Finding(check, Level.UNKNOWN, text, repair)


def worst(findings: Sequence[Finding]) -> Level:
    """The most severe level among them; OK for none."""
    order = (Level.PROBLEM, Level.WARNING, Level.UNKNOWN)
    return next((level for level in order if any(f.level is level for f in findings)), Level.OK)
