"""What a run tells while it goes on; views turn these into pictures, lines or JSON."""

from dataclasses import dataclass

from lab.audit import CardUsage

__all__ = ["BurstProgress", "BurstResult", "Record", "ScenarioBegan", "ScenarioDone", "StepDone"]


@dataclass(frozen=True)
class ScenarioBegan:
    """A scenario starts a round; rounds count from 1."""

    scenario: str
    title: str
    round: int
    rounds: int


@dataclass(frozen=True)
class StepDone:
    """One step, played and checked."""

    scenario: str
    number: int
    """From 1."""
    title: str
    text: str
    """What was done and what came of it, e.g. `plain-1 → node-1 GPU-B 1000 MiB`."""
    problems: tuple[str, ...]
    """What was expected and what came instead; empty: everything held."""
    cards: tuple[CardUsage, ...]
    """All cards after the step; empty where the step had no cards of its own to show."""
    changed: bool
    """Whether the step was one that may change who holds which card."""


@dataclass(frozen=True)
class BurstProgress:
    """A burst under way."""

    placed: int
    pods: int
    seconds: float


@dataclass(frozen=True)
class BurstResult:
    """How a burst ended; the fields are the keys of its JSON."""

    nodes: int
    cards: int
    pods: int
    placed: int
    lost: int
    """Pods that are not placed."""
    seconds: float
    """From the first create to the last placement."""
    per_second: float
    writes_per_pod: float | None
    """Writes of the scheduler service per placed pod, events left out; None where nobody counts them."""
    violations: tuple[str, ...]
    digest: str = ""
    """Of which pod got which cards: equal where two bursts took the same ones."""

    @property
    def writes_text(self) -> str:
        """In words, for people."""
        return "writes not counted" if self.writes_per_pod is None else f"{self.writes_per_pod:g} writes a pod"


@dataclass(frozen=True)
class ScenarioDone:
    """A scenario has ended."""

    scenario: str
    title: str
    steps: int
    placed: int
    """Pods placed, over all rounds."""
    refused: int
    """Pods that had to wait, over all rounds."""
    denied: int
    """Pods denied at admission, over all rounds."""
    problems: tuple[str, ...]
    seconds: float
    burst: BurstResult | None = None

    @property
    def passed(self) -> bool:
        """Whether every expectation held."""
        return not self.problems


Record = ScenarioBegan | StepDone | BurstProgress | ScenarioDone
