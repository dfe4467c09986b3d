"""Whether this run has a real control plane, and which."""

import os
from typing import Final

__all__ = ["VARIABLE", "chosen_minor"]

VARIABLE: Final = "SLOTWISE_CLUSTER"


def chosen_minor() -> str | None:
    """The Kubernetes minor named by `SLOTWISE_CLUSTER`; None where the variable is not set: no real control plane then."""
    return os.environ.get(VARIABLE) or None
