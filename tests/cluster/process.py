"""Kept for a moment: moved to lab.processes."""

from lab.processes import LOOPBACK, Child, HeldPort, StartError, answers

__all__ = ["LOOPBACK", "Child", "HeldPort", "StartError", "answers"]
