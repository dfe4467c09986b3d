"""What fits: one question a card, one reason, in the order of the family's tuple; and the walk that collects cards.

This is the one definition of "fits". Screens and memos elsewhere may be faster, never different.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from types import MappingProxyType
from typing import Protocol

from devices.model import NO_CHARGE, Card, CardState, Charge, Entry
from devices.reasons import NODE_INSUFFICIENT_DEVICE, Reason, summary
from devices.requests import DeviceRequest
from devices.selection import Selection

__all__ = [
    "STANDARD_CHECKS",
    "Candidates",
    "Check",
    "Family",
    "Headroom",
    "Refusal",
    "Walk",
    "affordable",
    "beyond_quota",
    "collect",
    "compute_left",
    "enough_cores",
    "enough_memory",
    "free_slot",
    "healthy",
    "idle",
    "idle_for_exclusive_policy",
    "idle_for_whole_compute",
    "not_cordoned",
    "only_when",
    "right_type",
    "right_uuid",
    "within_quota",
]

WHOLE_COMPUTE = 100


@dataclass(frozen=True, slots=True)
class Headroom:
    """What a namespace may still take of one vendor; None is unlimited. Negative when usage already exceeds the limit."""

    memory_mib: int | None = None
    cores: int | None = None
    cards: int | None = None

    def admits(self, charge: Charge) -> bool:
        """Whether a further charge stays within every limit that is set."""
        return (
            (self.memory_mib is None or charge.memory_mib <= self.memory_mib)
            and (self.cores is None or charge.cores <= self.cores)
            and (self.cards is None or charge.cards <= self.cards)
        )

    def tightest(self, other: "Headroom") -> "Headroom":
        """What is left under the limits of both."""
        return Headroom(
            _smaller(self.memory_mib, other.memory_mib),
            _smaller(self.cores, other.cores),
            _smaller(self.cards, other.cards),
        )


def _smaller(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)


def _no_facts() -> Mapping[str, str]:
    return MappingProxyType({})


@dataclass(slots=True)
class Walk:
    """One container's walk over one family's cards of one node: what it asks, and what it has collected so far.

    `cores` is the request's compute after the family's clamp. `spent` is what containers that run at the same time already cost the namespace, `before` what was collected and still counts
    with the next candidate.
    """

    family: "Family"
    request: DeviceRequest
    cores: int
    selection: Selection
    policies: frozenset[str] = frozenset()
    headroom: Headroom | None = None
    spent: Charge = NO_CHARGE
    before: list[Entry] = field(default_factory=list)
    trace: "Callable[[CardState, Reason | None], None] | None" = None
    """Told each card as it is looked at, with the reason that refused it; for explanations, never for decisions."""
    earlier: Sequence[Entry] = ()
    """What earlier containers of the same phase got of this family."""
    node_facts: Mapping[str, str] = field(default_factory=_no_facts)
    """The node's annotations that the families declare."""
    cards: Sequence[CardState] = ()
    """All the cards walked over, preferred first, the refused ones too."""
    note: object = None
    """The family's own: what its gate found out about this container, for its checks, entries and choice."""


Check = Callable[[CardState, Walk], Reason | None]


class Family(Protocol):
    """What fitting needs of a vendor; `devices.vendor.Vendor` has it."""

    @property
    def checks(self) -> tuple[Check, ...]: ...
    def gate(self, walk: Walk) -> "Refusal | None": ...
    def total_cores(self, card: Card, selection: Selection) -> int: ...
    def wanted_memory(self, request: DeviceRequest, card: Card) -> int: ...
    def entry(self, state: CardState, walk: Walk) -> Entry: ...
    def price(self, entry: Entry) -> Charge: ...
    def gives_several(self, state: CardState, selection: Selection) -> bool: ...
    def groups_by_numa(self, selection: Selection) -> bool: ...
    def collects_all(self, walk: Walk) -> bool: ...
    def choose(
        self, groups: "Sequence[Candidates]", walk: Walk, counts: Mapping[Reason, int]
    ) -> "Candidates | Refusal | None": ...


def healthy(state: CardState, walk: Walk) -> Reason | None:
    """The card works, and nothing about its tenants is in doubt."""
    return None if state.healthy else Reason.CARD_NOT_HEALTHY


def not_cordoned(state: CardState, walk: Walk) -> Reason | None:
    """The administrator has not closed the card for new tenants."""
    return Reason.CARD_CORDONED if state.cordoned else None


def right_type(state: CardState, walk: Walk) -> Reason | None:
    """The pod's type lists accept the registered model."""
    return None if walk.selection.allows_type(state.card) else Reason.CARD_TYPE_MISMATCH


def right_uuid(state: CardState, walk: Walk) -> Reason | None:
    """The pod's UUID lists accept the card."""
    return None if walk.selection.allows_uuid(state.card) else Reason.CARD_UUID_MISMATCH


def free_slot(state: CardState, walk: Walk) -> Reason | None:
    """One more tenant may come."""
    return None if state.used_slots < state.card.slots else Reason.CARD_SLOTS_EXHAUSTED


def idle_for_exclusive_policy(state: CardState, walk: Walk) -> Reason | None:
    """Under `mutex` a card must have no tenant at all, whoever it is; later pods may still join."""
    return Reason.EXCLUSIVE_CONFLICT if "mutex" in walk.policies and state.used_slots > 0 else None


def idle(state: CardState, walk: Walk) -> Reason | None:
    """The card has no tenant at all."""
    return Reason.EXCLUSIVE_CONFLICT if state.used_slots > 0 else None


def enough_memory(state: CardState, walk: Walk) -> Reason | None:
    """Free memory covers what is wanted of this card: 15360 MiB with 13000 in use has no room for 3000."""
    wanted = walk.family.wanted_memory(walk.request, state.card)
    return None if wanted <= state.free_memory_mib else Reason.CARD_INSUFFICIENT_MEMORY


def enough_cores(state: CardState, walk: Walk) -> Reason | None:
    """Free compute covers the request."""
    free = walk.family.total_cores(state.card, walk.selection) - state.used_cores
    return None if walk.cores <= free else Reason.CARD_INSUFFICIENT_CORES


def idle_for_whole_compute(state: CardState, walk: Walk) -> Reason | None:
    """100 % of an unscaled card is exclusive; with scaled compute (total other than 100) it is not."""
    if walk.cores != WHOLE_COMPUTE or state.used_slots == 0:
        return None
    whole = walk.family.total_cores(state.card, walk.selection) == WHOLE_COMPUTE
    return Reason.EXCLUSIVE_CONFLICT if whole else None


def compute_left(state: CardState, walk: Walk) -> Reason | None:
    """A tenant without a compute share needs some compute that nobody holds."""
    if walk.cores != 0 or state.used_cores == 0:
        return None
    exhausted = state.used_cores == walk.family.total_cores(state.card, walk.selection)
    return Reason.CARD_COMPUTE_EXHAUSTED if exhausted else None


def smallest(charges: Sequence[Charge], count: int) -> Charge:
    """The least that `count` of these can cost, each quantity for itself."""
    if len(charges) > count:
        return Charge(
            sum(sorted(c.memory_mib for c in charges)[:count]),
            sum(sorted(c.cores for c in charges)[:count]),
            sum(sorted(c.cards for c in charges)[:count]),
        )
    total = NO_CHARGE
    for charge in charges:
        total += charge
    return total


def within_quota(state: CardState, walk: Walk) -> Reason | None:
    """The namespace can pay for this card beside what the pod's containers and this one have collected."""
    if walk.headroom is None:
        return None
    family = walk.family
    # A choice among all that pass takes N - 1 others at the most, in the best case the cheapest ones.
    others = smallest([family.price(entry) for entry in walk.before], walk.request.count - 1)
    charge = walk.spent + family.price(family.entry(state, walk)) + others
    return None if walk.headroom.admits(charge) else Reason.QUOTA_NOT_FIT


def only_when(applies: Callable[[Walk], bool], check: Check) -> Check:
    """The question as it is asked of some requests; the others pass it."""

    @wraps(check)
    def checked(state: CardState, walk: Walk) -> Reason | None:
        return check(state, walk) if applies(walk) else None

    return checked


STANDARD_CHECKS: tuple[Check, ...] = (
    healthy,
    right_type,
    right_uuid,
    free_slot,
    idle_for_exclusive_policy,
    within_quota,
    enough_memory,
    enough_cores,
    idle_for_whole_compute,
    compute_left,
)
"""What most families ask of a card that is shared by memory and compute."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Cards that pass, in walk order, each with the entry it would give; a card may stand more than once (MIG)."""

    states: tuple[CardState, ...]
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a container does not fit on a node: counts over the vendor's cards there, or too few cards altogether."""

    counts: Mapping[Reason, int]
    cards: int

    @property
    def text(self) -> str:
        """As `FailedNodes` words it: `10/12 CardTimeSlicingExhausted, 2/12 CardInsufficientMemory`."""
        return summary(self.counts, self.cards) if self.counts else NODE_INSUFFICIENT_DEVICE


def affordable(entries: Sequence[Entry], walk: Walk) -> bool:
    """Whether the namespace can pay for all of these beside what the pod's containers have cost so far."""
    if walk.headroom is None:
        return True
    charge = walk.spent
    for entry in entries:
        charge += walk.family.price(entry)
    return walk.headroom.admits(charge)


def beyond_quota(candidates: Candidates, walk: Walk, counts: Mapping[Reason, int]) -> Refusal:
    """No choice among these is within the quota, although each card alone is."""
    total = counts.get(Reason.QUOTA_NOT_FIT, 0) + len(candidates.entries)
    return Refusal({**counts, Reason.QUOTA_NOT_FIT: total}, len(walk.cards))


def _refused(state: CardState, walk: Walk, checks: Sequence[Check]) -> Reason | None:
    for check in checks:
        reason = check(state, walk)
        if reason is not None:
            return reason
    return None


def collect(cards: Sequence[CardState], walk: Walk) -> Candidates | Refusal:
    """Walk the family's cards in the given order (preferred first) and collect `walk.request.count` of them.

    A card gives one entry, unless its family lets it give several. With NUMA grouping all entries come from one consecutive run of
    equal NUMA among the cards that pass everything else; a new run forgets the one before.
    """
    family, count = walk.family, walk.request.count
    if count > len(cards) and not any(family.gives_several(state, walk.selection) for state in cards):
        return Refusal({}, len(cards))
    walk.cards = cards
    closed = family.gate(walk)
    if closed is not None:
        return closed
    grouped = family.groups_by_numa(walk.selection)
    greedy = not family.collects_all(walk)
    counts: Counter[Reason] = Counter()
    groups: list[tuple[list[CardState], list[Entry]]] = [([], [])]
    for state in cards:
        several = family.gives_several(state, walk.selection)
        while True:
            states, entries = groups[-1]
            foreign = grouped and bool(states) and states[-1].card.numa != state.card.numa
            walk.before = [] if foreign else entries
            reason = _refused(state, walk, family.checks)
            if walk.trace is not None:
                walk.trace(state, reason)
            if reason is not None:
                counts[reason] += 1
                break
            if foreign:
                if greedy:
                    counts[Reason.NUMA_NOT_FIT] += len(entries)
                states, entries = [], []
                groups.append((states, entries))
                walk.before = entries
            entry = family.entry(state, walk)
            states.append(state)
            entries.append(entry)
            if greedy and len(entries) == count:
                return Candidates(tuple(states), tuple(entries))
            if not several:
                break
    if not greedy:
        passing = [Candidates(tuple(states), tuple(entries)) for states, entries in groups]
        chosen = family.choose(passing, walk, counts)
        if isinstance(chosen, Candidates) and not affordable(chosen.entries, walk):
            return beyond_quota(chosen, walk, counts)
        if chosen is not None:
            return chosen
    if groups[-1][1]:
        counts[Reason.CARDS_INSUFFICIENT] = len(groups[-1][1])
    return Refusal(dict(counts), len(cards))
