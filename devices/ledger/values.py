"""What the ledger's books hold, as values."""

from collections.abc import Mapping
from enum import Enum

import msgspec

from devices.model import NO_CHARGE, Allocation, Charge, MigReservation
from devices.objects import Condition
from devices.scopes import ScopeFacts
from devices.usage import Tenancy

__all__ = ["ADMITTED", "PLACED", "QUOTA_COUNTS", "Charged", "Holding", "Phase", "Reservation"]

PLACED = "placed"
"""Quota counts the pods that hold cards."""
ADMITTED = "admitted"
"""Quota counts every live pod from its creation, as Kubernetes' own does."""
QUOTA_COUNTS = (PLACED, ADMITTED)


class Phase(Enum):
    """How far the bind of a reservation is."""

    HELD = "held"
    BINDING = "binding"
    """The Binding is under way: nothing releases the reservation."""
    UNSETTLED = "unsettled"
    """The reply was lost: the cards stay held until a read shows the outcome."""


class Reservation(msgspec.Struct, frozen=True):
    """Decided, not yet seen bound."""

    uid: str
    node: str
    allocation: Allocation
    made_at_s: float
    revision: int
    """resourceVersion of the pod that the filter saw."""
    phase: Phase = Phase.HELD
    scheduled: Condition | None = None
    """What the pod that the filter saw said of its scheduling."""


class Holding(msgspec.Struct, frozen=True):
    """What a pod holds at the moment: the cards by container, on which node, and whether its init part is released."""

    node: str
    allocation: Allocation
    reservations: tuple[MigReservation, ...]
    released: bool
    tenancy: Tenancy
    charges: Mapping[str, Charge]


class Charged(msgspec.Struct, frozen=True):
    """What a pod costs its namespace at the moment, by vendor key, and which quotas cover it."""

    charges: Mapping[str, Charge]
    facts: ScopeFacts

    def is_more_than(self, other: "Charged | None") -> bool:
        """Whether anything is given back where this becomes `other`."""
        if other is None or other.facts != self.facts:
            return True
        left = ((charge, other.charges.get(key, NO_CHARGE)) for key, charge in self.charges.items())
        return any(charge.peak(after) != after for charge, after in left)
