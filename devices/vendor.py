"""What an accelerator family is: data first, a function only where its hardware differs.

A family is one module in `devices.vendors` with a `FAMILY`: the section of the device configuration it reads, that section's
fields, and how vendors come of it (most families are one vendor; some are one per chip).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import msgspec

from devices.fit import Candidates, Check, Headroom, Walk
from devices.model import Card, CardState, Charge, Entry, MigReservation, NodeState
from devices.objects import Node
from devices.quantity import Quantity
from devices.registration import CardList
from devices.requests import DeviceRequest, Resources
from devices.selection import Selection, UuidKeys, selection_of

__all__ = ["Admission", "Family", "FamilySettings", "Hooks", "Vendor"]


class FamilySettings(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A section of the device configuration; field names are its keys, defaults those of the shipped file."""


class Admission(Protocol):
    """What a family may do to a container at admission. Each call is one targeted change of the raw pod."""

    @property
    def resources(self) -> Resources: ...
    def set_limit(self, resource: str, value: Quantity) -> None: ...
    def append_env(self, name: str, value: str) -> None: ...
    def default_runtime_class(self, name: str) -> None: ...
    def warn(self, text: str) -> None: ...


def _no_admission(vendor: "Vendor", container: Admission) -> bool:
    return container.resources.limits.get(vendor.count_resource) is not None


def _no_cards(vendor: "Vendor", node: Node) -> CardList:
    return CardList()


def _plain_wanted_memory(request: DeviceRequest, card: Card) -> int:
    return request.memory_on(card.memory_mib)


def _plain_entry(vendor: "Vendor", state: CardState, walk: Walk) -> Entry:
    return Entry(state.card.uuid, vendor.key, vendor.wanted_memory(walk.request, state.card), walk.cores)


def _plain_price(vendor: "Vendor", entry: Entry) -> Charge:
    return Charge(entry.memory_mib, entry.cores, 1)


def _plain_selects(selection: Selection, card: Card) -> bool:
    return selection.allows_type(card) and selection.allows_uuid(card)


def _no_reservations(annotations: Mapping[str, str]) -> tuple[MigReservation, ...]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """The functions a family may bring; every one has a plain default.

    - `request(vendor, container)`: what a container asks, None for nothing; raises `MalformedValue`.
    - `admit(vendor, container)`: change the container, answer whether it asks for this vendor; raises `MalformedValue`.
    - `read_node(vendor, node)`: the cards of a node; raises `RegistrationError`.
    - `selects(selection, card)`: whether the pod's own annotations allow the card; the checks ask the same.
    - `reservations(annotations)`: the MIG instances a pod holds; raises `AllocationError`.
    - `entry(vendor, state, walk)`: what a card that passes would give.
    - `price(vendor, entry)`: what an entry costs the namespace.
    - `wanted_memory(request, card)`: MiB that must be free on the card.
    - `gives_several(state, selection)`: one card may give several entries to a container.
    - `groups_by_numa(selection)`: all cards of a container come from one NUMA node.
    - `collects_all(walk)`, `choose(vendor, groups, walk)`: look at every card that passes, then choose.
    - `score(vendor, entries by container, node before placement, node policy)`: part of the node score.
    - `annotations(vendor, entries by container)`: further annotations of the allocation; None where it has no share.
    """

    request: "Callable[[Vendor, Resources], DeviceRequest | None]"
    admit: "Callable[[Vendor, Admission], bool]" = _no_admission
    read_node: "Callable[[Vendor, Node], CardList]" = _no_cards
    selects: "Callable[[Selection, Card], bool]" = _plain_selects
    reservations: "Callable[[Mapping[str, str]], tuple[MigReservation, ...]]" = _no_reservations
    entry: "Callable[[Vendor, CardState, Walk], Entry]" = _plain_entry
    price: "Callable[[Vendor, Entry], Charge]" = _plain_price
    wanted_memory: "Callable[[DeviceRequest, Card], int]" = _plain_wanted_memory
    gives_several: "Callable[[CardState, Selection], bool] | None" = None
    groups_by_numa: "Callable[[Selection], bool] | None" = None
    collects_all: "Callable[[Walk], bool] | None" = None
    choose: "Callable[[Vendor, Sequence[Candidates], Walk], Candidates | None] | None" = None
    score: "Callable[[Vendor, Sequence[tuple[Entry, ...]], NodeState, str], float] | None" = None
    annotations: "Callable[[Vendor, Sequence[tuple[Entry, ...]]], Mapping[str, str]] | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Vendor:
    """One vendor key with everything that carries its name. Empty text means "has none"."""

    key: str
    hooks: Hooks
    count_resource: str
    memory_resource: str = ""
    percentage_resource: str = ""
    core_resource: str = ""
    other_resources: tuple[str, ...] = ()
    allocated: str = ""
    to_allocate: str = ""
    outputs: tuple[str, ...] = ()
    """Further annotations that the system writes for this vendor; the pair above and these are protected keys."""
    inputs: tuple[str, ...] = ()
    """Further annotations that users set and a decision depends on."""
    node_inputs: tuple[str, ...] = ()
    """Node annotations that a decision depends on, besides the card list."""
    registration: tuple[str, ...] = ()
    """Node annotations that the card list is read from."""
    handshake: str = ""
    uuid_keys: tuple[UuidKeys, ...] = ()
    type_keys: UuidKeys | None = None
    node_lock: str = ""
    memory_factor: int = 1
    """Multiplies memory values and memory limits of quotas."""
    max_cores: int | None = 100
    checks: tuple[Check, ...] = ()
    """The questions asked of every card, in this order; the first refusal counts."""

    @property
    def resources(self) -> tuple[str, ...]:
        """All resource names, empty ones left out: what kube-scheduler must leave to the extender."""
        names = (
            self.count_resource,
            self.memory_resource,
            self.percentage_resource,
            self.core_resource,
            *self.other_resources,
        )
        return tuple(dict.fromkeys(name for name in names if name))

    @property
    def pod_annotations(self) -> tuple[str, ...]:
        """Every annotation of users that can change a decision of this vendor."""
        return (*(key for pair in self.uuid_keys for key in pair), *(self.type_keys or ()), *self.inputs)

    @property
    def protected_annotations(self) -> tuple[str, ...]:
        """What only the system may write."""
        return tuple(dict.fromkeys(key for key in (self.to_allocate, self.allocated, *self.outputs) if key))

    def selection(self, annotations: Mapping[str, str]) -> Selection:
        """The pod's lists for this vendor, parsed."""
        return selection_of(annotations, self.uuid_keys, self.type_keys)

    def clamped(self, cores: int) -> int:
        """Compute as cards are checked with it: 150 % of a card is 100 %."""
        return cores if self.max_cores is None else min(cores, self.max_cores)

    def request(self, container: Resources) -> DeviceRequest | None:
        """What the container asks of this vendor. Raises `MalformedValue`."""
        return self.hooks.request(self, container)

    def admit(self, container: Admission) -> bool:
        """Apply the family's admission rules; true when the container asks for this vendor. Raises `MalformedValue`."""
        return self.hooks.admit(self, container)

    def read_node(self, node: Node) -> CardList:
        """The cards of a node. Raises `RegistrationError`."""
        return self.hooks.read_node(self, node)

    def selects(self, selection: Selection, card: Card) -> bool:
        """Whether the pod's own annotations allow the card."""
        return self.hooks.selects(selection, card)

    def reservations(self, annotations: Mapping[str, str]) -> tuple[MigReservation, ...]:
        """The MIG instances that a pod's annotations name. Raises `AllocationError`."""
        return self.hooks.reservations(annotations)

    def entry(self, state: CardState, walk: Walk) -> Entry:
        """What the card gives."""
        return self.hooks.entry(self, state, walk)

    def price(self, entry: Entry) -> Charge:
        """What an entry costs the namespace."""
        return self.hooks.price(self, entry)

    def unplaced_price(self, request: DeviceRequest, card: Card) -> Charge:
        """What one card like this would cost a request that has none yet."""
        return self.price(Entry(card.uuid, self.key, self.wanted_memory(request, card), self.clamped(request.cores)))

    def wanted_memory(self, request: DeviceRequest, card: Card) -> int:
        """MiB that must be free on the card."""
        return self.hooks.wanted_memory(request, card)

    def gives_several(self, state: CardState, selection: Selection) -> bool:
        """Whether the card may give several entries to one container."""
        return self.hooks.gives_several is not None and self.hooks.gives_several(state, selection)

    def groups_by_numa(self, selection: Selection) -> bool:
        """Whether all cards of a container must share a NUMA node."""
        return self.hooks.groups_by_numa is not None and self.hooks.groups_by_numa(selection)

    def collects_all(self, walk: Walk) -> bool:
        """Whether every passing card is looked at before choosing."""
        return self.hooks.collects_all is not None and self.hooks.collects_all(walk)

    def choose(self, groups: Sequence[Candidates], walk: Walk) -> Candidates | None:
        """The family's choice among groups that each have enough cards."""
        return self.hooks.choose(self, groups, walk) if self.hooks.choose is not None else None

    def headroom_of(self, limits: Mapping[str, int], used: Charge) -> Headroom | None:
        """What is left under the limits (by resource name, as users write them); None when none of this vendor's is limited."""
        memory, cores, cards = (
            limits.get(n) if n else None for n in (self.memory_resource, self.core_resource, self.count_resource)
        )
        if memory is None and cores is None and cards is None:
            return None
        return Headroom(
            None if memory is None else memory * max(self.memory_factor, 1) - used.memory_mib,
            None if cores is None else cores - used.cores,
            None if cards is None else cards - used.cards,
        )


S = TypeVar("S", bound=FamilySettings)


@dataclass(frozen=True, slots=True)
class Family(Generic[S]):
    """One file's worth of accelerators: its section's name and fields, and the vendors that follow from them.

    `build` raises `ConfigError` for values that cannot be used together.
    """

    section: str
    settings: type[S]
    build: Callable[[S], tuple[Vendor, ...]]
