"""Cards, what is used of them, and what a pod gets. Memory is MiB, compute is percent of one card, slots are tenants."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import msgspec

__all__ = [
    "NO_CHARGE",
    "Allocation",
    "Card",
    "CardState",
    "Charge",
    "Entry",
    "MigProfile",
    "MigReservation",
    "NodeState",
    "Placement",
    "Tenant",
    "entries_of",
]


_NO_SCORES: Mapping[str, int] = MappingProxyType({})
_NO_CUSTOM: Mapping[str, object] = MappingProxyType({})


def _no_scores() -> Mapping[str, int]:
    return _NO_SCORES


def _no_facts() -> Mapping[str, str]:
    return MappingProxyType({})


def _no_custom() -> Mapping[str, object]:
    return _NO_CUSTOM


@dataclass(frozen=True, slots=True, order=True)
class Placement:
    """The memory slices [start, start + size) of a card that one MIG instance covers."""

    start: int
    size: int

    def conflicts(self, other: "Placement") -> bool:
        """True when the two cover a common slice, whatever their profiles."""
        return self.start < other.start + other.size and other.start < self.start + self.size


@dataclass(frozen=True, slots=True)
class MigProfile:
    """An instance size that a card offers, as the driver reports it."""

    name: str
    memory_mib: int
    cores: int
    slice_count: int
    placements: tuple[Placement, ...]


class Card(msgspec.Struct, frozen=True, gc=False):
    """One physical device as its node registered it. `vendor` is the family's key, `model` the registered type text."""

    uuid: str
    vendor: str
    index: int = 0
    slots: int = 0
    memory_mib: int = 0
    cores: int = 0
    model: str = ""
    numa: int = 0
    mode: str = ""
    healthy: bool = False
    mig_profiles: tuple[MigProfile, ...] = ()
    pair_scores: Mapping[str, int] = msgspec.field(default_factory=_no_scores)
    custom: Mapping[str, object] = msgspec.field(default_factory=_no_custom)


@dataclass(frozen=True, slots=True)
class Tenant:
    """A pod on a card, with what its family keeps of it; `uid` is empty for the pod that is being placed."""

    uid: str
    facts: Mapping[str, str]
    cores: int = 0


class CardState(msgspec.Struct, frozen=True, gc=False):
    """A card and what all tenants together hold of it; frozen, so a decision may keep it."""

    card: Card
    used_slots: int = 0
    used_memory_mib: int = 0
    used_cores: int = 0
    placements: tuple[Placement, ...] = ()
    healthy: bool = True
    cordoned: bool = False
    tenants: tuple[Tenant, ...] = ()
    """Oldest first; kept only for families that keep facts of their tenants."""

    @property
    def free_memory_mib(self) -> int:
        """Memory nobody holds; negative when a card shrank below its tenants."""
        return self.card.memory_mib - self.used_memory_mib

    @property
    def free_cores(self) -> int:
        """Compute nobody holds, in the card's own units."""
        return self.card.cores - self.used_cores

    def with_entry(self, entry: "Entry", facts: Mapping[str, str] | None = None) -> "CardState":
        """The state once `entry` is placed here too: its slots, memory and cores more; `facts` are what the family keeps of the pod."""
        placements = (*self.placements, entry.placement) if entry.placement else self.placements
        return CardState(
            self.card,
            self.used_slots + entry.slots,
            self.used_memory_mib + entry.memory_mib,
            self.used_cores + entry.cores,
            placements,
            self.healthy,
            self.cordoned,
            self.tenants if facts is None else _joined(self.tenants, facts, entry.cores),
        )


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One card given to one container: what the allocation text says, and the MIG instance where there is one."""

    uuid: str
    vendor: str
    memory_mib: int
    cores: int
    profile: str = ""
    placement: Placement | None = None
    kind: str = ""
    """What stands for the vendor key in the allocation text, where a family writes something else."""
    slots: int = 1
    """Tenants that it counts as on its card; slices of a sliced card."""
    quota_cores: int | None = None
    """Compute as the namespace's quota counts it; None: as `cores`."""


Allocation = tuple[tuple[Entry, ...], ...]
"""A pod's cards by container position: init containers (sidecars among them) first, then containers."""


@dataclass(frozen=True, slots=True)
class MigReservation:
    """One MIG instance held by a pod: `container` and `device` are positions in the allocation text.

    `runtime` is what the device plugin adds once the instance exists: (MIG UUID, GPU instance id, compute instance id).
    """

    container: int
    device: int
    uuid: str
    profile: str
    placement: Placement
    runtime: tuple[str, int, int] | None = None


class Charge(msgspec.Struct, frozen=True, gc=False):
    """What something costs a namespace: MiB after the memory factor, percent, and cards."""

    memory_mib: int = 0
    cores: int = 0
    cards: int = 0

    def __add__(self, other: "Charge") -> "Charge":
        return Charge(self.memory_mib + other.memory_mib, self.cores + other.cores, self.cards + other.cards)

    def __sub__(self, other: "Charge") -> "Charge":
        return Charge(self.memory_mib - other.memory_mib, self.cores - other.cores, self.cards - other.cards)

    def peak(self, other: "Charge") -> "Charge":
        """The larger of both, each quantity for itself."""
        if self.memory_mib >= other.memory_mib and self.cores >= other.cores and self.cards >= other.cards:
            return self
        return Charge(
            max(self.memory_mib, other.memory_mib), max(self.cores, other.cores), max(self.cards, other.cards)
        )


NO_CHARGE = Charge()


class NodeState(msgspec.Struct, frozen=True, gc=False):
    """One node at one moment: its cards ordered by (index, UUID), its score before placement, the annotations families read.

    `version` changes whenever anything that a decision can depend on changed on this node.
    """

    name: str
    version: int
    cards: tuple[CardState, ...]
    score: float
    facts: Mapping[str, str] = msgspec.field(default_factory=_no_facts)


def _joined(tenants: tuple[Tenant, ...], facts: Mapping[str, str], cores: int) -> tuple[Tenant, ...]:
    """The tenants with the pod being placed as the newest; its second container makes it no second tenant."""
    mine = [tenant for tenant in tenants if not tenant.uid]
    others = (tenant for tenant in tenants if tenant.uid)
    return (*others, Tenant("", facts, cores + sum(tenant.cores for tenant in mine)))


def entries_of(allocation: Allocation, vendor: str) -> Allocation:
    """The same positions with the cards of one vendor only."""
    return tuple(tuple(entry for entry in entries if entry.vendor == vendor) for entries in allocation)
