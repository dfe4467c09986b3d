"""The ledger: which cards exist, who holds what of them, and what that costs each namespace. One set of books for both services.

All changes come through a few plain methods, none of which waits or reads a clock; times are given, in seconds. A pod's holding is
always recomputed from what is known of it, in one place (`_holding`), and the difference is applied to node and namespace together.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType

from devices.annotations import at_positions, decode, mig_reservations
from devices.config import DeviceConfig
from devices.errors import AllocationError, MalformedValue, QuantityError, RegistrationError
from devices.keys import CORDON, VGPU_NODE, VGPU_TIME
from devices.mig import is_mig
from devices.model import NO_CHARGE, Allocation, Card, Charge, Entry, MigReservation, NodeState
from devices.objects import Container, Node, Pod, Quota
from devices.quantity import whole
from devices.quota import (
    Limit,
    LimitGroup,
    Standing,
    UnplacedCharge,
    limit_groups,
    managed_keys,
    quota_problems,
    unplaced_charge,
)
from devices.registration import cordoned
from devices.requests import PodRequest, pod_request, roles
from devices.scopes import EVERY_POD, Scope, ScopeFacts, covers, facts_of
from devices.score import node_score
from devices.selection import Selection
from devices.usage import CardKey, Hold, Tenancy, card_states, charge_of, holds_of, init_done
from devices.vendor import Vendor

__all__ = [
    "ADMITTED",
    "PLACED",
    "QUOTA_COUNTS",
    "Charged",
    "Holding",
    "Ledger",
    "Phase",
    "Reservation",
    "decode_allocation",
]

PLACED = "placed"
"""Quota counts the pods that hold cards."""
ADMITTED = "admitted"
"""Quota counts every live pod from its creation, as Kubernetes' own does."""
QUOTA_COUNTS = (PLACED, ADMITTED)

DEFAULT_RESERVATION_TIMEOUT_S = 11 * 60.0
"""kube-scheduler itself may wait ten minutes for volumes between filter and bind."""
_GONE_KEPT = 20_000
_REVISION_DIGITS = 20
"""Of 64 bits. A longer one is none of the API server's."""
_ENDED_KEPT = 50_000
"""Pods that have ended are remembered as seen: 90 s of them at 500 a second."""
_CHANGES_KEPT = 10_000


class Phase(Enum):
    """How far the bind of a reservation is."""

    HELD = "held"
    BINDING = "binding"
    """The Binding is under way: nothing releases the reservation."""
    UNSETTLED = "unsettled"
    """The reply was lost: the cards stay held until a read shows the outcome."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """Decided, not yet seen bound."""

    uid: str
    node: str
    allocation: Allocation
    made_at_s: float
    revision: int
    """resourceVersion of the pod that the filter saw."""
    phase: Phase = Phase.HELD


@dataclass(frozen=True, slots=True)
class Holding:
    """What a pod holds at the moment: the cards by container, on which node, and whether its init part is released."""

    node: str
    allocation: Allocation
    reservations: tuple[MigReservation, ...]
    released: bool
    tenancy: Tenancy
    charges: Mapping[str, Charge]


@dataclass(frozen=True, slots=True)
class Charged:
    """What a pod costs its namespace at the moment, by vendor key, and which quotas cover it."""

    charges: Mapping[str, Charge]
    facts: ScopeFacts


@dataclass(slots=True)
class _PodBook:
    pod: Pod
    first_seen_s: float
    answered: bool = False
    """A filter of this UID was answered: from then on only a reservation counts until the pod is bound."""
    watched: bool = False
    """An event or a read has shown the pod; a book that only a filter call opened goes with its reservation."""
    shown_at: int | None = None
    """The newest revision that the watch has delivered."""
    released: bool = False
    expired: bool = False
    reservation: Reservation | None = None
    holding: Holding | None = None
    charged: Charged | None = None


@dataclass(slots=True)
class _NodeBook:
    node: Node
    version: int
    cards: tuple[Card, ...]
    by_vendor: Mapping[str, tuple[Card, ...]]
    cordoned: frozenset[str]
    facts: Mapping[str, str]
    problems: tuple[str, ...]
    last_known: Mapping[CardKey, Card]
    """The cards of vendors whose entries cannot be read without them, as they were last registered."""
    state: NodeState | None = None


@dataclass(frozen=True, slots=True)
class _Registration:
    by_vendor: Mapping[str, tuple[Card, ...]] = field(default_factory=lambda: MappingProxyType({}))
    problems: tuple[str, ...] = ()


def _revision(pod: Pod) -> int:
    text = pod.metadata.resource_version
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _REVISION_DIGITS else 0


def _asks(vendor: Vendor, container: Container) -> bool:
    try:
        request = vendor.request(container)
    except MalformedValue:
        return vendor.count_resource in container.limits or vendor.count_resource in container.requests
    return request is not None


def decode_allocation(pod: Pod, vendors: Iterable[Vendor]) -> Allocation:
    """The allocation that a pod's annotations carry, at its container positions. Raises `AllocationError`."""
    containers = [*pod.init_containers, *pod.containers]
    positions: list[tuple[Entry, ...]] = [()] * len(containers)
    for vendor in vendors:
        text = pod.annotations.get(vendor.allocated) if vendor.allocated else None
        if text:
            decoded = decode(text, vendor.key)
            if len(decoded) != len(containers):
                decoded = at_positions(decoded, [_asks(vendor, container) for container in containers])
            positions = [before + entries for before, entries in zip(positions, decoded, strict=True)]
    return tuple(positions)


class Ledger:
    """The books. Every node, pod and quota event goes in; states, usage and headroom come out.

    `node_selector`: labels a node must have to be offered. `reservation_timeout_s`: how long a reservation, or the annotations of a
    pod that is not bound, count. `quota_counts`: which pods cost their namespace anything, `placed` or `admitted`.
    """

    def __init__(
        self,
        config: DeviceConfig,
        node_selector: Mapping[str, str] = MappingProxyType({}),
        reservation_timeout_s: float = DEFAULT_RESERVATION_TIMEOUT_S,
        quota_counts: str = PLACED,
    ) -> None:
        self.config = config
        self.quota_counts = quota_counts
        self.quota_names = managed_keys(config.vendors)
        self._node_selector = node_selector
        self._timeout_s = reservation_timeout_s
        self._nodes: dict[str, _NodeBook] = {}
        self._pods: dict[str, _PodBook] = {}
        self._reserving: dict[str, _PodBook] = {}
        self._tenants: dict[str, dict[str, Tenancy]] = {}
        self._used: dict[str, dict[str, Charge]] = {}
        self._used_by_facts: dict[str, dict[ScopeFacts, dict[str, Charge]]] = {}
        self._charged: dict[str, dict[str, Charged]] = {}
        self._quotas: dict[str, dict[str, Quota]] = {}
        self._limits: dict[str, tuple[LimitGroup, ...]] = {}
        self._gone: dict[str, None] = {}
        self._ended: dict[str, int] = {}
        self._unplaced: set[str] = set()
        self._prices_stale = False
        self._version = 0
        self._changes: deque[tuple[int, str]] = deque(maxlen=_CHANGES_KEPT)
        self._kinds: dict[str, tuple[Card, ...]] = {}
        self._most: dict[str, int] = {}
        self._pod_problems: dict[str, str] = {}
        self._needing_cards = frozenset(vendor.key for vendor in config.vendors if vendor.hooks.restore is not None)

    # Nodes

    def put_node(self, node: Node) -> None:
        """A node as it is now. Every change of its cards, cordon list or health counts at once."""
        before = self._nodes.get(node.name)
        registration = self._registration(node)
        cordon = cordoned(node.annotations.get(CORDON, ""))
        facts = {key: value for key in self._fact_keys() if (value := node.annotations.get(key)) is not None}
        if before is not None and (before.by_vendor, before.cordoned, before.facts) == (
            registration.by_vendor,
            cordon,
            facts,
        ):
            before.node, before.problems = node, registration.problems
            return
        cards = [card for cards in registration.by_vendor.values() for card in cards]
        cards.sort(key=lambda card: (card.index, card.uuid, card.vendor))
        self._nodes[node.name] = _NodeBook(
            node,
            self._next_version(node.name),
            tuple(cards),
            registration.by_vendor,
            cordon,
            MappingProxyType(facts),
            registration.problems,
            {
                **(before.last_known if before is not None else {}),
                **{(card.vendor, card.uuid): card for card in cards if card.vendor in self._needing_cards},
            },
        )
        self._cards_changed()
        if self._needing_cards:
            self._settle_tenants(node.name)

    def _settle_tenants(self, node: str) -> None:
        """What tenants hold can depend on their cards, which may have become known only now."""
        for uid in list(self._tenants.get(node, ())):
            book = self._pods[uid]
            if book.holding is not None and any(
                entry.vendor in self._needing_cards for entries in book.holding.allocation for entry in entries
            ):
                self._settle(uid, book)

    def delete_node(self, name: str) -> None:
        """A node that is gone; its pods keep their place in the books until they are gone too."""
        if self._nodes.pop(name, None) is not None:
            self._next_version(name)
            self._cards_changed()

    def _cards_changed(self) -> None:
        self._kinds.clear()
        self._most.clear()
        self._prices_stale = bool(self._unplaced)

    def _fact_keys(self) -> Iterator[str]:
        for vendor in self.config.vendors:
            yield from vendor.node_inputs

    def _registration(self, node: Node) -> _Registration:
        if any(node.labels.get(key) != value for key, value in self._node_selector.items()):
            return _Registration()
        found: dict[str, tuple[Card, ...]] = {}
        problems: list[str] = []
        for vendor in self.config.vendors:
            if vendor.registration and not any(key in node.annotations for key in vendor.registration):
                continue
            try:
                listed = vendor.read_node(node)
                problems += listed.problems
                offered = whole(node.allocatable.get(vendor.count_resource, 1))
            except (RegistrationError, QuantityError) as error:
                problems.append(f"{vendor.key}: {error}")
                continue
            if offered > 0 and listed.cards:
                found[vendor.key] = listed.cards
        return _Registration(MappingProxyType(found), tuple(problems))

    def _next_version(self, changed: str) -> int:
        self._version += 1
        self._changes.append((self._version, changed))
        return self._version

    @property
    def version(self) -> int:
        """Rises with every change of any node or holding."""
        return self._version

    def changed_since(self, version: int) -> Iterable[str] | None:
        """Names of the nodes that came, went or changed after `version`, each once; None when that is too long ago to tell."""
        if version < 0 or version + len(self._changes) < self._version:
            return None
        found: dict[str, None] = {}
        for number, name in reversed(self._changes):
            if number <= version:
                break
            found[name] = None
        return tuple(found)

    def node_names(self) -> Iterable[str]:
        """Names of all known nodes, with cards or without."""
        return self._nodes.keys()

    def node_object(self, name: str) -> Node | None:
        """The node as last seen."""
        book = self._nodes.get(name)
        return book.node if book else None

    def node_problems(self) -> Mapping[str, tuple[str, ...]]:
        """What could not be read of each node's registration."""
        return {name: book.problems for name, book in sorted(self._nodes.items()) if book.problems}

    def problems_of(self, name: str) -> tuple[str, ...]:
        """What could not be read of one node's registration."""
        book = self._nodes.get(name)
        return book.problems if book else ()

    def state(self, name: str) -> NodeState | None:
        """The node at this moment; None when it is unknown or offers no card."""
        book = self._nodes.get(name)
        if book is None or not book.cards:
            return None
        if book.state is None:
            states = card_states(book.cards, book.cordoned, self._tenants.get(name, _NOBODY).values())
            book.state = NodeState(name, book.version, states, node_score(states), book.facts)
        return book.state

    def simulated(self, node: Node) -> NodeState | None:
        """A node that may not exist, without tenants; the books do not change."""
        registration = self._registration(node)
        cards = [card for cards in registration.by_vendor.values() for card in cards]
        if not cards:
            return None
        cards.sort(key=lambda card: (card.index, card.uuid, card.vendor))
        states = card_states(cards, cordoned(node.annotations.get(CORDON, "")), ())
        facts = {key: value for key in self._fact_keys() if (value := node.annotations.get(key)) is not None}
        return NodeState(node.name, 0, states, node_score(states), MappingProxyType(facts))

    def usage(self, name: str) -> Mapping[CardKey, Hold]:
        """What all tenants hold of each card of a node."""
        state = self.state(name)
        return {
            (s.card.vendor, s.card.uuid): Hold(s.used_slots, s.used_memory_mib, s.used_cores)
            for s in (state.cards if state else ())
        }

    def cards_for(self, vendor: Vendor, selection: Selection) -> tuple[Card, ...]:
        """Registered cards (unhealthy and cordoned ones too) that a pod's rules allow; equal ones stand once unless it names UUIDs."""
        if selection.use_uuids or selection.nouse_uuids:
            cards: Iterable[Card] = (c for book in self._nodes.values() for c in book.by_vendor.get(vendor.key, ()))
        else:
            cards = self._kinds_of(vendor.key)
        return tuple(card for card in cards if vendor.selects(selection, card))

    def kinds(self, vendor: str) -> tuple[Card, ...]:
        """The registered cards of a vendor, equal ones once."""
        return self._kinds_of(vendor)

    def _kinds_of(self, vendor: str) -> tuple[Card, ...]:
        kinds = self._kinds.get(vendor)
        if kinds is None:
            seen: dict[tuple[object, ...], Card] = {}
            for book in self._nodes.values():
                for card in book.by_vendor.get(vendor, ()):
                    details = (card.mode, card.mig_profiles, repr(card.custom) if card.custom else "")
                    seen.setdefault((card.model, card.memory_mib, card.cores, *details), card)
            kinds = self._kinds[vendor] = tuple(seen.values())
        return kinds

    def largest_memory_mib(self, vendor: str) -> int:
        """The largest registered card of a vendor: no entry is charged more."""
        return max((card.memory_mib for card in self._kinds_of(vendor)), default=0)

    def most_cards(self, vendor: str) -> int:
        """The most cards of a vendor that one node has, so the most that a container can get; a MIG card counts with all its slots."""
        most = self._most.get(vendor)
        if most is None:
            counts = (
                sum(max(card.slots, 1) if is_mig(card) else 1 for card in book.by_vendor.get(vendor, ()))
                for book in self._nodes.values()
            )
            most = self._most[vendor] = max(counts, default=0)
        return most

    # Pods

    def put_pod(self, pod: Pod, now_s: float, *, by_watch: bool = True) -> None:
        """A pod as it is now. Pods without managed devices leave no trace.

        `by_watch`: an event of the pod watch brought it, in its turn; not a list or a read of ours.
        """
        if pod.uid in self._gone:
            if by_watch:
                self._note_ended(pod)  # a list of ours was faster than the watch
            return  # a read of ours came back after the watch had shown the end
        book = self._pods.get(pod.uid)
        if book is None:
            if not self._matters(pod):
                return
            if not by_watch and _revision(pod) <= self._ended.get(pod.uid, -1):
                return  # a read of ours came back after the pod had finished: no event would end it again
            if pod.is_finished:
                if by_watch:
                    self._note_ended(pod)
                return
            book = self._pods[pod.uid] = _PodBook(pod, now_s)
        elif _revision(pod) < _revision(book.pod):
            if by_watch:
                book.shown_at = _revision(pod)
            return  # a read of ours has shown a newer version already
        else:
            book.pod = pod
        book.watched = True
        if by_watch:
            book.shown_at = _revision(pod)
        if pod.is_finished:
            if book.shown_at is not None:
                self._note_ended(pod)
            self._drop(pod.uid)
            return
        reservation = book.reservation
        if (
            reservation is not None
            and reservation.phase is Phase.HELD
            and pod.is_unschedulable
            and _revision(pod) > reservation.revision
        ):
            book.reservation = None
        if pod.bound_node:
            book.reservation = None
        self._settle(pod.uid, book)

    def delete_pod(self, uid: str) -> None:
        """A pod that is gone: it holds nothing, whatever returns late."""
        self._gone[uid] = None
        if len(self._gone) > _GONE_KEPT:
            del self._gone[next(iter(self._gone))]
        book = self._pods.get(uid)
        if book is not None and book.shown_at is not None:
            self._note_ended(book.pod)
        self._drop(uid)

    def _note_ended(self, pod: Pod) -> None:
        self._ended[pod.uid] = _revision(pod)
        if len(self._ended) > _ENDED_KEPT:
            del self._ended[next(iter(self._ended))]

    def shown(self, uid: str) -> int | None:
        """The revision at which the watch last showed the pod, living or ended; None for one never shown or long forgotten."""
        book = self._pods.get(uid)
        return book.shown_at if book is not None else self._ended.get(uid)

    def _matters(self, pod: Pod) -> bool:
        return VGPU_NODE in pod.annotations or any(
            not self.config.resources.isdisjoint((*c.limits, *c.requests))
            for c in (*pod.init_containers, *pod.containers)
        )

    def pod(self, uid: str) -> Pod | None:
        """The pod as last seen."""
        book = self._pods.get(uid)
        return book.pod if book else None

    def pods(self) -> Iterable[Pod]:
        """Every pod in the books."""
        return (book.pod for book in self._pods.values())

    def is_gone(self, uid: str) -> bool:
        """Whether the pod was seen to be deleted."""
        return uid in self._gone

    def has_ended(self, uid: str) -> bool:
        """Whether the pod was seen to finish or to be deleted."""
        return uid in self._gone or (uid in self._ended and uid not in self._pods)

    def holding(self, uid: str) -> Holding | None:
        """What the pod holds at the moment."""
        book = self._pods.get(uid)
        return book.holding if book else None

    def pod_problems(self) -> Mapping[str, str]:
        """What could not be read of pods' allocations, by UID."""
        return self._pod_problems

    def _drop(self, uid: str) -> None:
        book = self._pods.pop(uid, None)
        self._pod_problems.pop(uid, None)
        self._reserving.pop(uid, None)
        if book is not None:
            self._apply(uid, book, None)
            self._recharge(uid, book, None)

    def _settle(self, uid: str, book: _PodBook) -> None:
        book.released = book.released or init_done(book.pod)
        if book.reservation is None:
            self._reserving.pop(uid, None)
        else:
            self._reserving[uid] = book
        self._apply(uid, book, self._holding(uid, book))
        self._recharge(uid, book, self._charge_now(uid, book))

    def _holding(self, uid: str, book: _PodBook) -> Holding | None:
        """The one rule of who counts: a reservation, else what a bound pod carries, else what an unanswered one carries."""
        self._pod_problems.pop(uid, None)
        pod, reservation = book.pod, book.reservation
        if reservation is not None:
            return self._held(
                pod, reservation.node, reservation.allocation, mig_reservations(reservation.allocation), book.released
            )
        if not pod.bound_node and (book.answered or book.expired):
            return None
        node = pod.annotations.get(VGPU_NODE)
        if not node:
            return None
        current = book.holding
        try:
            allocation = decode_allocation(pod, self.config.vendors)
        except AllocationError as error:
            self._pod_problems[uid] = f"pod {pod.namespace}/{pod.name}: its allocation counts nothing: {error}"
            return None
        if not any(allocation):
            return None
        if self._needing_cards:
            allocation = self._restored(allocation, node)
        reservations = self._reservations(uid, pod)
        if current is not None and (current.node, current.allocation, current.reservations, current.released) == (
            node,
            allocation,
            reservations,
            book.released,
        ):
            return current
        return self._held(pod, node, allocation, reservations, book.released)

    def _restored(self, allocation: Allocation, node: str) -> Allocation:
        """The entries with what their texts do not say, by the cards of the node as they are or last were."""
        book = self._nodes.get(node)

        def restored(entry: Entry) -> Entry:
            vendor = self.config.vendor(entry.vendor)
            card = book.last_known.get((entry.vendor, entry.uuid)) if book is not None else None
            return entry if vendor is None else vendor.restored(entry, card)

        return tuple(tuple(restored(entry) for entry in entries) for entries in allocation)

    def _reservations(self, uid: str, pod: Pod) -> tuple[MigReservation, ...]:
        found: list[MigReservation] = []
        for vendor in self.config.vendors:
            try:
                found += vendor.reservations(pod.annotations)
            except AllocationError as error:
                self._pod_problems[uid] = f"pod {pod.namespace}/{pod.name}: its MIG cards take nobody else: {error}"
        return tuple(found)

    def _held(
        self, pod: Pod, node: str, allocation: Allocation, reservations: tuple[MigReservation, ...], released: bool
    ) -> Holding:
        when = roles(pod)
        tenancy = Tenancy(MappingProxyType(holds_of(allocation, when, released)), reservations)
        facts = self._tenant_facts(pod, allocation)
        if facts:
            tenancy = replace(tenancy, facts=facts, since_s=self._since_s(pod), uid=pod.uid)
        return Holding(
            node, allocation, reservations, released, tenancy, charge_of(allocation, when, released, self._price)
        )

    def _tenant_facts(self, pod: Pod, allocation: Allocation) -> Mapping[str, Mapping[str, str]]:
        found = {}
        for key in sorted({entry.vendor for entries in allocation for entry in entries}):
            vendor = self.config.vendor(key)
            facts = vendor.tenant_facts(pod.annotations) if vendor is not None else None
            if facts is not None:
                found[key] = facts
        return MappingProxyType(found)

    def _since_s(self, pod: Pod) -> float:
        """When the pod got its cards: as its reservation or its annotation says, else when we first saw it."""
        book = self._pods[pod.uid]
        if book.reservation is not None:
            return book.reservation.made_at_s
        stamp = pod.annotations.get(VGPU_TIME, "")
        return float(stamp) if stamp.isascii() and stamp.isdigit() else book.first_seen_s

    def _price(self, entry: Entry) -> Charge:
        vendor = self.config.vendor(entry.vendor)
        return vendor.price(entry) if vendor is not None else NO_CHARGE

    def _apply(self, uid: str, book: _PodBook, after: Holding | None) -> None:
        before = book.holding
        if before == after:
            return
        if before is not None:
            tenants = self._tenants[before.node]
            del tenants[uid]
            if not tenants:
                del self._tenants[before.node]
        if after is not None:
            self._tenants.setdefault(after.node, {})[uid] = after.tenancy
        book.holding = after
        for name in {holding.node for holding in (before, after) if holding is not None}:
            node = self._nodes.get(name)
            if node is not None:
                node.version, node.state = self._next_version(name), None

    # What pods cost

    def _charge_now(self, uid: str, book: _PodBook) -> Charged | None:
        """The one rule of what a pod costs: its cards if it holds any; else nothing, or with `admitted` its request."""
        self._unplaced.discard(uid)
        pod = book.pod
        charges: Mapping[str, Charge] = {}
        if book.holding is not None:
            charges = book.holding.charges
        elif self.quota_counts == ADMITTED and book.watched:
            try:
                charges = {key: c.charged for key, c in self.unplaced(pod).items()}
            except MalformedValue as error:
                self._pod_problems[uid] = f"pod {pod.namespace}/{pod.name}: its request counts nothing: {error}"
                return None
            self._unplaced.add(uid)
        if not charges:
            return None
        facts = facts_of(pod)
        if book.charged is not None and book.charged.charges == charges and book.charged.facts == facts:
            return book.charged
        return Charged(charges, facts)

    def unplaced(self, pod: Pod, request: PodRequest | None = None) -> Mapping[str, UnplacedCharge]:
        """What the pod is charged while it has no cards, by vendor key. Raises `MalformedValue`."""
        asked = request if request is not None else pod_request(pod, self.config.named_by(pod), self)
        vendors = [vendor for key in asked.vendors if (vendor := self.config.vendor(key)) is not None]
        return {v.key: unplaced_charge(v, asked, self.cards_for(v, v.selection(pod.annotations))) for v in vendors}

    def _reprice(self) -> None:
        """Cards came or went: pods without cards are charged by those there are now, whatever the order of events was."""
        if self._prices_stale:
            self._prices_stale = False
            for uid in sorted(self._unplaced):
                book = self._pods[uid]
                self._recharge(uid, book, self._charge_now(uid, book))

    def _recharge(self, uid: str, book: _PodBook, after: Charged | None) -> None:
        if after is None:
            self._unplaced.discard(uid)
        before = book.charged
        if before is after:
            return
        namespace = book.pod.namespace
        pods = self._charged.setdefault(namespace, {})
        for charged, sign in ((before, -1), (after, 1)):
            if charged is not None:
                self._charge(namespace, charged, sign)
        if after is not None:
            pods[uid] = after
        else:
            pods.pop(uid, None)
        if not pods:
            del self._charged[namespace]
        book.charged = after

    def _charge(self, namespace: str, charged: Charged, sign: int) -> None:
        by_facts = self._used_by_facts.setdefault(namespace, {})
        for used in (self._used.setdefault(namespace, {}), by_facts.setdefault(charged.facts, {})):
            for vendor, charge in charged.charges.items():
                total = used.get(vendor, NO_CHARGE)
                total = total + charge if sign > 0 else total - charge
                if total == NO_CHARGE:
                    used.pop(vendor, None)
                else:
                    used[vendor] = total
        if not by_facts[charged.facts]:
            del by_facts[charged.facts]
        if not self._used[namespace]:
            del self._used[namespace]
            del self._used_by_facts[namespace]

    def charged(self, uid: str) -> Charged | None:
        """What the pod costs its namespace at the moment."""
        self._reprice()
        book = self._pods.get(uid)
        return book.charged if book else None

    def charged_in(self, namespace: str) -> Mapping[str, Charged]:
        """Every pod that costs the namespace anything, by UID."""
        self._reprice()
        return self._charged.get(namespace, {})

    # Reservations

    def reserve(self, pod: Pod, node: str, allocation: Allocation, now_s: float) -> Reservation:
        """Hold the cards of a decision under the pod's UID, in place of any earlier reservation of it."""
        book = self._pods.get(pod.uid)
        if book is None:
            book = self._pods[pod.uid] = _PodBook(pod, now_s)
        book.answered = True
        book.reservation = Reservation(pod.uid, node, allocation, now_s, _revision(pod))
        self._settle(pod.uid, book)
        return book.reservation

    def answer(self, pod: Pod, now_s: float) -> None:
        """A filter of this pod begins: what an earlier attempt left, in the books or on the pod, no longer counts."""
        book = self._pods.get(pod.uid)
        if book is None:
            book = self._pods[pod.uid] = _PodBook(pod, now_s)
        book.answered = True
        book.reservation = None
        self._settle(pod.uid, book)

    def reservation(self, uid: str) -> Reservation | None:
        """The reservation of a pod."""
        book = self._pods.get(uid)
        return book.reservation if book else None

    def reservations(self) -> Iterable[Reservation]:
        """All reservations."""
        return (book.reservation for book in self._reserving.values() if book.reservation is not None)

    def set_phase(self, uid: str, phase: Phase) -> None:
        """How far the bind is; a reservation that is gone stays gone."""
        book = self._pods.get(uid)
        if book is not None and book.reservation is not None:
            book.reservation = replace(book.reservation, phase=phase)

    def release(self, uid: str) -> None:
        """Give a reservation's cards back; a pod that turns out to be bound goes on holding what it carries."""
        book = self._pods.get(uid)
        if book is not None and book.reservation is not None:
            book.reservation = None
            self._settle(uid, book)

    def expire(self, now_s: float) -> tuple[str, ...]:
        """Release what is overdue: reservations, and annotations of pods that are not bound. Answers the UIDs, sorted."""
        overdue = []
        for uid, book in self._pods.items():
            reservation = book.reservation
            if reservation is not None:
                if reservation.phase is Phase.HELD and now_s - reservation.made_at_s > self._timeout_s:
                    overdue.append(uid)
            elif book.holding is not None and not book.pod.bound_node:
                # A time that cannot be read, or lies ahead of us, says nothing: then the moment we first saw the pod counts.
                stamp = book.pod.annotations.get(VGPU_TIME, "")
                written = float(stamp) if stamp.isascii() and stamp.isdigit() else 0.0
                since = max(written, book.first_seen_s) if written <= now_s else book.first_seen_s
                if now_s - since > self._timeout_s:
                    overdue.append(uid)
        for uid in sorted(overdue):
            book = self._pods[uid]
            book.reservation, book.expired = None, True
            self._settle(uid, book)
        for uid in [uid for uid, book in self._pods.items() if not book.watched and book.reservation is None]:
            if now_s - self._pods[uid].first_seen_s > self._timeout_s:
                self._drop(uid)
        return tuple(sorted(overdue))

    # Quota

    def put_quota(self, quota: Quota) -> None:
        """A ResourceQuota as it is now."""
        self._quotas.setdefault(quota.namespace, {})[quota.name] = quota
        self._limits.pop(quota.namespace, None)

    def delete_quota(self, namespace: str, name: str) -> None:
        """A ResourceQuota that is gone."""
        quotas = self._quotas.get(namespace, {})
        quotas.pop(name, None)
        if not quotas:
            self._quotas.pop(namespace, None)
        self._limits.pop(namespace, None)

    def quotas(self) -> Iterable[Quota]:
        """Every ResourceQuota known."""
        return (quota for quotas in self._quotas.values() for quota in quotas.values())

    def quota_problems(self) -> tuple[str, ...]:
        """What limits nothing although it looks as if it should."""
        return tuple(text for quota in self.quotas() for text in quota_problems(quota, self.quota_names))

    def quotas_of(self, namespace: str) -> tuple[Quota, ...]:
        """The namespace's ResourceQuotas by name."""
        return tuple(quota for _, quota in sorted(self._quotas.get(namespace, {}).items()))

    def limit_groups(self, namespace: str) -> tuple[LimitGroup, ...]:
        """The limits in force by scope; empty where no object limits anything of ours."""
        groups = self._limits.get(namespace)
        if groups is None:
            groups = limit_groups(self._quotas.get(namespace, {}).values(), self.quota_names)
            if namespace in self._quotas:
                self._limits[namespace] = groups
        return groups

    def limits(self, namespace: str) -> Mapping[str, Limit]:
        """The limits that every pod is under, by resource name."""
        return next((group.limits for group in self.limit_groups(namespace) if group.scope == EVERY_POD), _NO_LIMITS)

    def used(self, namespace: str, scope: Scope = EVERY_POD) -> Mapping[str, Charge]:
        """What the namespace's pods, or those that a scope covers, cost, by vendor key."""
        self._reprice()
        if scope == EVERY_POD:
            return self._used.get(namespace, _NOTHING)
        total: dict[str, Charge] = {}
        for facts, used in self._used_by_facts.get(namespace, {}).items():
            if covers(scope, facts):
                for vendor, charge in used.items():
                    total[vendor] = total.get(vendor, NO_CHARGE) + charge
        return total

    def standings(self, namespace: str, facts: ScopeFacts, without: str = "") -> tuple[Standing, ...]:
        """What a pod like this is up against; pod `without` (the one that is judged) does not count as another."""
        groups = [group for group in self.limit_groups(namespace) if covers(group.scope, facts)]
        if not groups:
            return ()
        own = self.charged_in(namespace).get(without) if without else None
        found = []
        for group in groups:
            used = self.used(namespace, group.scope)
            if own is not None and covers(group.scope, own.facts):
                used = {key: charge - own.charges.get(key, NO_CHARGE) for key, charge in used.items()}
            found.append(Standing(group.limits, used, group.scope))
        return tuple(found)

    def namespaces(self) -> tuple[str, ...]:
        """Namespaces that hold or limit anything, sorted."""
        self._reprice()
        return tuple(sorted({*self._used, *self._quotas}))


_NOBODY: Mapping[str, Tenancy] = MappingProxyType({})
_NOTHING: Mapping[str, Charge] = MappingProxyType({})
_NO_LIMITS: Mapping[str, Limit] = MappingProxyType({})
