"""The ledger: which cards exist, who holds what of them, and what that costs each namespace. One set of books for both services.

All changes come through a few plain methods, none of which waits or reads a clock; times are given, in seconds. A pod's holding is
always recomputed from what is known of it, in one place (`_holding`), and the difference is applied to node and namespace together.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from msgspec.structs import replace

from devices.annotations import mig_reservations
from devices.config import DeviceConfig
from devices.errors import AllocationError, MalformedValue
from devices.keys import VGPU_NODE, VGPU_TIME
from devices.ledger.costs import CostBooks
from devices.ledger.nodes import NodeBooks
from devices.ledger.reading import decode_allocation, revision
from devices.ledger.values import ADMITTED, PLACED, Charged, Holding, Phase, Reservation
from devices.model import NO_CHARGE, Allocation, Charge, Entry, MigReservation
from devices.objects import Pod, Quota
from devices.quota import UnplacedCharge, unplaced_charge
from devices.recent import Recent
from devices.requests import PodRequest, pod_request, roles
from devices.scopes import facts_of
from devices.usage import Tenancy, charge_of, holds_of, init_done

__all__ = ["Ledger"]

_NO_FACTS: Mapping[str, Mapping[str, str]] = MappingProxyType({})

DEFAULT_RESERVATION_TIMEOUT_S = 11 * 60.0
"""kube-scheduler itself may wait ten minutes for volumes between filter and bind."""
_GONE_KEPT = 20_000
_ENDED_KEPT = 50_000
"""Pods that have ended are remembered as seen: 90 s of them at 500 a second."""


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


class Ledger(NodeBooks, CostBooks):
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
        NodeBooks.__init__(self, config, node_selector)
        CostBooks.__init__(self, config)
        self.quota_counts = quota_counts
        self._timeout_s = reservation_timeout_s
        self._keeping_facts = frozenset(v.key for v in config.vendors if v.hooks.tenant_facts is not None)
        self._with_instances = tuple(vendor for vendor in config.vendors if vendor.hands_out_instances)
        self._pods: dict[str, _PodBook] = {}
        self._reserving: dict[str, _PodBook] = {}
        self._gone: Recent[str, None] = Recent(_GONE_KEPT)
        self._ended: Recent[str, int] = Recent(_ENDED_KEPT)
        self._unplaced: set[str] = set()
        self._prices_stale = False
        self._pod_problems: dict[str, str] = {}

    def _cards_changed(self, node: str) -> None:
        """Prices of pods without cards, and what tenants hold where that depends on their cards, follow the cards."""
        super()._cards_changed(node)
        self._prices_stale = bool(self._unplaced)
        if not self._needing_cards:
            return
        for uid in list(self._tenants.get(node, ())):
            book = self._pods[uid]
            if book.holding is not None and any(
                entry.vendor in self._needing_cards for entries in book.holding.allocation for entry in entries
            ):
                self._settle(uid, book)

    def put_pod(self, pod: Pod, now_s: float, *, by_watch: bool = True) -> None:
        """A pod as it is now. Pods without managed devices leave no trace.

        `by_watch`: an event of the pod watch brought it, in its turn; not a list or a read of ours.
        """
        uid = pod.metadata.uid
        if uid in self._gone:
            if by_watch:
                self._note_ended(pod)  # a list of ours was faster than the watch
            return  # a read of ours came back after the watch had shown the end
        book = self._pods.get(uid)
        if book is None:
            if not self._matters(pod):
                return
            ended_at = self._ended.get(uid)
            if not by_watch and ended_at is not None and revision(pod) <= ended_at:
                return  # a read of ours came back after the pod had finished: no event would end it again
            if pod.is_finished:
                if by_watch:
                    self._note_ended(pod)
                return
            book = self._pods[uid] = _PodBook(pod, now_s)
        elif revision(pod) < revision(book.pod):
            if by_watch:
                book.shown_at = revision(pod)
            return  # a read of ours has shown a newer version already
        else:
            book.pod = pod
        book.watched = True
        if by_watch:
            book.shown_at = revision(pod)
        if pod.is_finished:
            if book.shown_at is not None:
                self._note_ended(pod)
            self._drop(uid)
            return
        reservation = book.reservation
        if (
            reservation is not None
            and reservation.phase is Phase.HELD
            and pod.is_unschedulable
            and revision(pod) > reservation.revision
            # A newer pod that says what it said to the filter was changed by somebody else: ourselves, when we touch it, for one.
            and pod.scheduled != reservation.scheduled
        ):
            book.reservation = None
        if pod.spec.node_name:
            book.reservation = None
        self._settle(uid, book)

    def delete_pod(self, uid: str) -> None:
        """A pod that is gone: it holds nothing, whatever returns late."""
        self._gone.put(uid, None)
        book = self._pods.get(uid)
        if book is not None and book.shown_at is not None:
            self._note_ended(book.pod)
        self._drop(uid)

    def _note_ended(self, pod: Pod) -> None:
        self._ended.put(pod.uid, revision(pod))

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

    @property
    def books_of_pods(self) -> Mapping[str, object]:
        """The UIDs of all pods in the books, as they are at any time; what they lead to is the ledger's own."""
        return self._pods

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
        needing = self._needing_cards
        if needing and any(e.vendor in needing for entries in allocation for e in entries):
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
        known = self._last_known(node)

        def restored(entry: Entry) -> Entry:
            vendor = self.config.vendor(entry.vendor)
            card = known.get((entry.vendor, entry.uuid))
            return entry if vendor is None else vendor.restored(entry, card)

        return tuple(tuple(restored(entry) for entry in entries) for entries in allocation)

    def _reservations(self, uid: str, pod: Pod) -> tuple[MigReservation, ...]:
        found: list[MigReservation] = []
        annotations = pod.annotations
        for vendor in self._with_instances:
            try:
                found += vendor.reservations(annotations)
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
            tenancy = Tenancy(tenancy.holds, reservations, facts, self._since_s(pod), pod.uid)
        return Holding(
            node, allocation, reservations, released, tenancy, charge_of(allocation, when, released, self._price)
        )

    def _tenant_facts(self, pod: Pod, allocation: Allocation) -> Mapping[str, Mapping[str, str]]:
        keeping = self._keeping_facts
        keys = [entry.vendor for entries in allocation for entry in entries if entry.vendor in keeping]
        if not keys:
            return _NO_FACTS
        found = {}
        for key in sorted(set(keys)):
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
        if before is after or before == after:
            return
        if before is not None:
            tenants = self._tenants[before.node]
            del tenants[uid]
            if not tenants:
                del self._tenants[before.node]
        if after is not None:
            self._tenants.setdefault(after.node, {})[uid] = after.tenancy
        if before is not None and (after is None or after.node != before.node or after.tenancy != before.tenancy):
            self.room.on_node(before.node)
        book.holding = after
        if before is not None:
            self._touch(before.node)
        if after is not None and (before is None or before.node != after.node):
            self._touch(after.node)

    def put_quota(self, quota: Quota) -> None:
        """A ResourceQuota as it is now."""
        super().put_quota(quota)
        self.room.in_namespace(quota.namespace)

    def delete_quota(self, namespace: str, name: str) -> None:
        """A ResourceQuota that is gone."""
        super().delete_quota(namespace, name)
        self.room.in_namespace(namespace)

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
        self._set_charged(uid, book.pod.namespace, before, after)
        if before is not None and book.pod.namespace in self._quotas and before.is_more_than(after):
            self.room.in_namespace(book.pod.namespace)
        book.charged = after

    def charged(self, uid: str) -> Charged | None:
        """What the pod costs its namespace at the moment."""
        self._reprice()
        book = self._pods.get(uid)
        return book.charged if book else None

    # Reservations

    def reserve(self, pod: Pod, node: str, allocation: Allocation, now_s: float) -> Reservation:
        """Hold the cards of a decision under the pod's UID, in place of any earlier reservation of it."""
        book = self._pods.get(pod.uid)
        if book is None:
            book = self._pods[pod.uid] = _PodBook(pod, now_s)
        book.answered = True
        book.reservation = Reservation(pod.uid, node, allocation, now_s, revision(pod), scheduled=pod.scheduled)
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

    def new_term(self) -> tuple[str, ...]:
        """Another leader has decided, or will: what this process reserved or answered counts no more. Answers the UIDs released, sorted.

        Reservations with a Binding under way stay until its outcome is known.
        """
        released = []
        for uid, book in list(self._pods.items()):
            reservation = book.reservation
            if reservation is not None and reservation.phase is not Phase.HELD:
                continue
            if reservation is None and not book.answered:
                continue
            if reservation is not None:
                released.append(uid)
            book.answered, book.reservation = False, None
            if book.watched:
                self._settle(uid, book)
            else:
                self._drop(uid)
        return tuple(sorted(released))

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
