"""Whether this run has a real control plane, and which."""

import os
from typing import Final

__all__ = ["VARIABLE", "a_binding_carries_labels", "chosen_minor"]

VARIABLE: Final = "SLOTWISE_CLUSTER"


def chosen_minor() -> str | None:
    """The Kubernetes minor named by `SLOTWISE_CLUSTER`; None where the variable is not set: no real control plane then."""
    return os.environ.get(VARIABLE) or None


def a_binding_carries_labels() -> bool:
    """Whether the API server merges a Binding's labels into the pod, as it does its annotations: from 1.35 on, and the embedded one."""
    return chosen_minor() != "1.34"
