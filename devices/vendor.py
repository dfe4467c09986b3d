"""What an accelerator family is: data first, a function only where its hardware differs.

A family is one module in `devices.vendors` with a `FAMILY`: the section of the device configuration it reads, that section's
fields, and how vendors come of it (most families are one vendor; some are one per chip).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, Protocol, TypeVar

import msgspec

from devices.errors import RegistrationError
from devices.fit import STANDARD_CHECKS, Candidates, Check, Headroom, Refusal, Walk
from devices.mig import is_mig
from devices.model import Card, CardState, Charge, Entry, MigReservation, NodeState
from devices.node_lock import OWNED, LockFormat
from devices.objects import Node, Pod
from devices.quantity import Quantity
from devices.reasons import Reason
from devices.registration import CardList, read_json, read_text
from devices.requests import NO_CLUSTER, Cluster, DeviceRequest, Resources, optional_whole
from devices.selection import Selection, UuidKeys, selection_of

__all__ = [
    "INT32",
    "WHOLE",
    "Admission",
    "Bound",
    "Family",
    "FamilySettings",
    "Hooks",
    "Placed",
    "Quick",
    "ScoreContext",
    "Vendor",
    "every_card",
    "json_registration",
    "no_memory",
    "plain_admission",
    "text_registration",
]

INT32 = 2**31 - 1
"""The largest number of the wire."""
WHOLE = 100
"""Percent of a card."""


class FamilySettings(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A section of the device configuration; field names are its keys, defaults those of the shipped file."""


class Admission(Protocol):
    """What a family may do to a container at admission. Each call is one targeted change of the raw pod."""

    @property
    def resources(self) -> Resources:
        """The container's resources with all changes so far."""
        ...

    @property
    def environment(self) -> frozenset[str]:
        """Names of the container's variables."""
        ...

    @property
    def annotations(self) -> Mapping[str, str]:
        """The pod's annotations."""
        ...

    @property
    def cluster(self) -> Cluster:
        """What is registered at the moment."""
        ...

    def set_limit(self, resource: str, value: Quantity) -> None:
        """Set a limit, and the request beside it where there is one: the API server refuses a pod whose two differ."""
        ...

    def set_request(self, resource: str, value: Quantity) -> None:
        """Set a request alone."""
        ...

    def append_env(self, name: str, value: str) -> None: ...
    def set_annotation(self, key: str, value: str) -> None: ...
    def default_runtime_class(self, name: str) -> None: ...
    def warn(self, text: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Placed:
    """What a family's annotations may tell of a decision: the pod, its node, the node's cards by UUID, and the time."""

    pod: Pod
    node: str
    cards: Mapping[str, Card]
    now_s: float


@dataclass(frozen=True, slots=True)
class ScoreContext:
    """What a family's part of the node score may depend on: the node before placement, the pod's annotations, the node policy."""

    node: NodeState
    selection: Selection
    policy: str


def _plain_request(vendor: "Vendor", container: Resources, cluster: Cluster) -> DeviceRequest | None:
    """Count, memory times the factor, compute or its default; no memory is all of a card's. Or what the vendor always asks."""
    count = optional_whole(container, vendor.count_resource, 0, INT32)
    memory = optional_whole(container, vendor.memory_resource, 0, INT32 // vendor.memory_factor)
    cores = optional_whole(container, vendor.core_resource, 0, INT32)
    if not count:
        return None
    if vendor.constant is not None:
        return DeviceRequest(vendor.key, count, *vendor.constant)
    wanted = (memory or 0) * vendor.memory_factor
    percentage = None if wanted else WHOLE
    return DeviceRequest(vendor.key, count, wanted, percentage, vendor.default_cores if cores is None else cores)


def plain_admission(vendor: "Vendor", container: Admission) -> bool:
    """Refuse values that cannot be used, warn of those that count as others; the container asks where its limits have the count."""
    resources = container.resources
    request = vendor.request(resources, container.cluster)
    if optional_whole(resources, vendor.memory_resource, 0, INT32) == 0:
        container.warn(f"container {resources.name}: {vendor.memory_resource} 0 counts as not given")
    if request is not None and vendor.clamped(request.cores) < request.cores:
        container.warn(
            f"container {resources.name}: {vendor.core_resource} {request.cores} counts as {vendor.max_cores}, one whole card"
        )
    return bool(vendor.count_resource) and vendor.count_resource in resources.limits


def _no_cards(vendor: "Vendor", node: Node) -> CardList:
    return CardList()


def json_registration(vendor: "Vendor", node: Node) -> CardList:
    """The cards in the JSON list of the vendor's first registration annotation. Raises `RegistrationError`."""
    return read_json(_registered(node, vendor.registration[0]), vendor.key)


def text_registration(vendor: "Vendor", node: Node) -> CardList:
    """The cards in the text list of the vendor's first registration annotation. Raises `RegistrationError`."""
    return read_text(_registered(node, vendor.registration[0]), vendor.key)


def _registered(node: Node, key: str) -> str:
    text = node.annotations.get(key)
    if text is None:
        raise RegistrationError(f"annotation {key} is missing")
    return text


def every_card(walk: Walk) -> bool:
    """The hook `collects_all` of a family that always chooses among all cards that pass."""
    return True


def _plain_wanted_memory(request: DeviceRequest, card: Card) -> int:
    return request.memory_on(card.memory_mib)


def no_memory(request: DeviceRequest, card: Card) -> int:
    """For `wanted_memory`: the family shares its cards by other things, whatever memory they register."""
    return 0


def _plain_entry(vendor: "Vendor", state: CardState, walk: Walk) -> Entry:
    return Entry(state.card.uuid, vendor.key, vendor.wanted_memory(walk.request, state.card), walk.cores)


def _plain_price(vendor: "Vendor", entry: Entry) -> Charge:
    return Charge(entry.memory_mib, entry.cores if entry.quota_cores is None else entry.quota_cores, 1)


def _plain_unplaced(vendor: "Vendor", request: DeviceRequest, card: Card) -> Charge:
    return vendor.price(
        Entry(card.uuid, vendor.key, vendor.wanted_memory(request, card), vendor.clamped(request.cores))
    )


def _plain_selects(selection: Selection, card: Card) -> bool:
    return selection.allows_type(card) and selection.allows_uuid(card)


def _no_reservations(annotations: Mapping[str, str]) -> tuple[MigReservation, ...]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """The functions a family may bring; every one has a plain default, or is not asked where there is none.

    Reading:

    - `request(vendor, container, cluster)`: what a container asks, None for nothing; raises `MalformedValue`. The default reads the
      vendor's names with its factor, default compute and constant request.
    - `admit(vendor, container)`: change the container, answer whether it asks for this vendor; raises `MalformedValue`. A family
      with its own may begin with `plain_admission`. Asked of containers that name a resource of the vendor (see also
      `Vendor.changes_other_pods`).
    - `read_node(vendor, node)`: the cards of a node; raises `RegistrationError`. Asked of every node where the vendor declares no
      `registration`: then a node without such cards is an empty list, not an error.

    Fitting, per container:

    - `selects(selection, card)`: whether the pod's own annotations allow the card; the checks ask the same.
    - `gate(vendor, walk)`: a refusal of the whole node before any card is looked at, or None; may leave what it found out in
      `walk.note`. `walk.cards` are all cards, `walk.node_facts` the declared annotations of the node.
    - `total_cores(card, selection)`: compute the card counts as having for this pod.
    - `wanted_memory(request, card)`: MiB that must be free on the card; never less than the request's own number.
    - `entry(vendor, state, walk)`: what a card that passes would give.
    - `gives_several(state, selection)`: one card may give several entries to a container.
    - `groups_by_numa(selection)`: all cards of a container come from one NUMA node.
    - `collects_all(walk)`, `choose(vendor, groups, walk, counts)`: look at every card, then choose. `groups` are the cards that pass,
      in walk order (one group unless grouped by NUMA, perhaps too small or empty), `counts` the reasons of the others; answers the
      cards, a refusal, or None for the ordinary one of too few cards.

    Accounting:

    - `restore(vendor, entry, card)`: an entry read from a pod's text with what the text does not say, as `entry` made it; the card is
      None while it is not registered.
    - `price(vendor, entry)`: what an entry costs the namespace.
    - `unplaced(vendor, request, card)`: what one card like this would cost a request that has none yet.
    - `tenant_facts(annotations)`: what of a pod its cards keep, for the checks of later pods (`state.tenants`).
    - `reservations(annotations)`: the MIG instances a pod holds; raises `AllocationError`.

    Answering:

    - `annotate(vendor, entries by container, placed)`: further annotations of the allocation.
    - `score(vendor, entries by container, context)`: part of the node score (see `Vendor.score_is_neutral`).
    """

    request: "Callable[[Vendor, Resources, Cluster], DeviceRequest | None]" = _plain_request
    admit: "Callable[[Vendor, Admission], bool]" = plain_admission
    read_node: "Callable[[Vendor, Node], CardList]" = _no_cards
    selects: "Callable[[Selection, Card], bool]" = _plain_selects
    gate: "Callable[[Vendor, Walk], Refusal | None] | None" = None
    total_cores: "Callable[[Card, Selection], int] | None" = None
    wanted_memory: "Callable[[DeviceRequest, Card], int]" = _plain_wanted_memory
    entry: "Callable[[Vendor, CardState, Walk], Entry]" = _plain_entry
    gives_several: "Callable[[CardState, Selection], bool] | None" = None
    groups_by_numa: "Callable[[Selection], bool] | None" = None
    collects_all: "Callable[[Walk], bool] | None" = None
    choose: "Callable[[Vendor, Sequence[Candidates], Walk, Mapping[Reason, int]], Candidates | Refusal | None] | None" = None
    restore: "Callable[[Vendor, Entry, Card | None], Entry] | None" = None
    price: "Callable[[Vendor, Entry], Charge]" = _plain_price
    unplaced: "Callable[[Vendor, DeviceRequest, Card], Charge]" = _plain_unplaced
    tenant_facts: "Callable[[Mapping[str, str]], Mapping[str, str]] | None" = None
    reservations: "Callable[[Mapping[str, str]], tuple[MigReservation, ...]]" = _no_reservations
    annotate: "Callable[[Vendor, Sequence[tuple[Entry, ...]], Placed], Mapping[str, str]] | None" = None
    score: "Callable[[Vendor, Sequence[tuple[Entry, ...]], ScoreContext], float] | None" = None


class Bound(Enum):
    """What the tenants of a card together never exceed."""

    SLOTS = "slots"
    MEMORY = "memory"
    CORES = "cores"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quick:
    """What quick passes over all cards at once may take for granted of a family; the plain values claim nothing.

    The standard checks are known without it; any other check that is not named here is left to the exact evaluation.
    """

    by_kind: frozenset[Check] = frozenset()
    """Checks that look at nothing but how the card is registered (not its UUID, index or links) and at the pod's annotations."""
    mig_only: frozenset[Check] = frozenset()
    """Checks that pass every card that hands out no instances."""
    entry_by_kind: bool = False
    """Whether what a card gives follows from the request and how the card is registered, cards apart that hand out instances; with
    the plain hook `entry` that is so anyway."""
    takes_what_passes: bool = False
    """Whether all cards are collected depends on request and policies alone, and a choice takes as many entries as are asked, all of
    cards that pass; without a hook `collects_all` that is so anyway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vendor:
    """One vendor key with everything that carries its name. Empty text means "has none"."""

    key: str
    count_resource: str
    hooks: Hooks = Hooks()
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
    admission_outputs: tuple[str, ...] = ()
    """Annotations that admission sets."""
    changes_other_pods: bool = False
    """Admission changes pods that name none of the resources, too."""
    device_variables: tuple[str, ...] = ()
    """Variables that open cards to a container beside those it was given; all that end in `_VISIBLE_DEVICES` do, whoever's."""
    node_inputs: tuple[str, ...] = ()
    """Node annotations that a decision depends on, besides the card list."""
    registration: tuple[str, ...] = ()
    """Node annotations that the card list is read from."""
    handshake: str = ""
    uuid_keys: tuple[UuidKeys, ...] = ()
    type_keys: UuidKeys | None = None
    node_lock: str = ""
    lock_format: LockFormat = OWNED
    memory_factor: int = 1
    """Multiplies memory values and memory limits of quotas; at least 1."""
    memory_unit: str = ""
    """What a memory value counts, for people; empty: as the factor says."""
    core_unit: str = "percent of a card"
    """What a compute value counts, for people."""
    default_cores: int = 0
    """Compute of a request that names none."""
    constant: tuple[int, int | None, int] | None = None
    """Memory (MiB), percentage and compute of every request, for vendors that are asked for a count alone."""
    max_cores: int | None = WHOLE
    """What a larger compute value counts as; None: it stays as it is, and then never fits."""
    bounds: frozenset[Bound] = frozenset(Bound)
    """What must hold of a card when a reservation on it is bound."""
    names: frozenset[str] = field(init=False, repr=False, compare=False)
    """The resource names: a container that has none of them asks for nothing."""
    score_is_neutral: bool = False
    """The family's score counts 10,000 fold and always in favour of the node, under `spread` as well."""
    checks: tuple[Check, ...] = STANDARD_CHECKS
    """The questions asked of every card, in this order; the first refusal counts."""
    quick: Quick = Quick()

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", frozenset(self.resources))

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

    def offers(self, card: Card) -> bool:
        """Whether the card is of this vendor and its registered type says so: no other card is ever looked at."""
        return card.vendor == self.key and self.key.lower() in card.model.lower()

    @property
    def gives_by_kind(self) -> bool:
        """What `Quick.entry_by_kind` says, or the plain hook."""
        return self.quick.entry_by_kind or self.hooks.entry is _plain_entry

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

    def request(self, container: Resources, cluster: Cluster = NO_CLUSTER) -> DeviceRequest | None:
        """What the container asks of this vendor. Raises `MalformedValue`."""
        return self.hooks.request(self, container, cluster)

    def admit(self, container: Admission) -> bool:
        """Apply the family's admission rules; true when the container asks for this vendor. Raises `MalformedValue`."""
        return self.hooks.admit(self, container)

    def read_node(self, node: Node) -> CardList:
        """The cards of a node. Raises `RegistrationError`."""
        return self.hooks.read_node(self, node)

    def selects(self, selection: Selection, card: Card) -> bool:
        """Whether the pod's own annotations allow the card."""
        return self.hooks.selects(selection, card)

    def gate(self, walk: Walk) -> Refusal | None:
        """Why no card of the node can serve the container, before any is looked at."""
        return self.hooks.gate(self, walk) if self.hooks.gate is not None else None

    def total_cores(self, card: Card, selection: Selection) -> int:
        """Compute that the card counts as having for a pod with these annotations."""
        return card.cores if self.hooks.total_cores is None else self.hooks.total_cores(card, selection)

    def restored(self, entry: Entry, card: Card | None) -> Entry:
        """An entry as read from a pod's text, with what the text does not say."""
        return entry if self.hooks.restore is None else self.hooks.restore(self, entry, card)

    def tenant_facts(self, annotations: Mapping[str, str]) -> Mapping[str, str] | None:
        """What its cards keep of a pod; None where the family keeps nothing."""
        return None if self.hooks.tenant_facts is None else self.hooks.tenant_facts(annotations)

    def is_overdrawn(self, state: CardState, selection: Selection) -> bool:
        """Whether the tenants of a card together hold more than it has.

        An instance's compute is rounded up, so that of a full MIG card may come to more.
        """
        return (
            (Bound.SLOTS in self.bounds and state.used_slots > state.card.slots)
            or (Bound.MEMORY in self.bounds and state.free_memory_mib < 0)
            or (
                Bound.CORES in self.bounds
                and not is_mig(state.card)
                and state.used_cores > self.total_cores(state.card, selection)
            )
        )

    @property
    def hands_out_instances(self) -> bool:
        """Whether a pod may hold MIG instances of this vendor's cards."""
        return self.hooks.reservations is not _no_reservations

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
        return self.hooks.unplaced(self, request, card)

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

    def choose(
        self, groups: Sequence[Candidates], walk: Walk, counts: Mapping[Reason, int]
    ) -> Candidates | Refusal | None:
        """The family's choice among the cards that pass, or its own refusal; None for the ordinary one."""
        return self.hooks.choose(self, groups, walk, counts) if self.hooks.choose is not None else None

    def score(self, entries: Sequence[tuple[Entry, ...]], context: ScoreContext) -> float:
        """The family's part of the node score, with the sign that the node policy gives it."""
        if self.hooks.score is None:
            return 0.0
        part = self.hooks.score(self, entries, context)
        if not self.score_is_neutral:
            return part
        return part * (-_NEUTRAL_FACTOR if context.policy == "spread" else _NEUTRAL_FACTOR)

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


_NEUTRAL_FACTOR = 10_000
"""Sets a policy-neutral score above everything that usage can amount to."""

S = TypeVar("S", bound=FamilySettings)


@dataclass(frozen=True, slots=True)
class Family(Generic[S]):
    """One file's worth of accelerators: its section's name and fields, and the vendors that follow from them.

    `build` raises `ConfigError` for values that cannot be used together.
    """

    section: str
    settings: type[S]
    build: Callable[[S], tuple[Vendor, ...]]
    list_field: str = ""
    """Where the section is a list: the field of the settings that holds it."""
    flag: str = ""
    """Set where the family is off by default: `x` is switched on by `--enable-x`."""
    about: str = ""
    """What its cards are and how they are shared: the first line of its module."""
