"""What goes wrong in the lab, apart from expectations that do not hold."""

__all__ = ["LabError", "ScenarioError"]


class LabError(Exception):
    """The lab cannot do what it was asked to."""


class ScenarioError(LabError):
    """A scenario file is not acceptable; the text names file, line and key."""
