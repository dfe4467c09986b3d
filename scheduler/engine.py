"""The extender's decisions over the ledger: filter reserves in the same step in which it decides. No HTTP, no waiting.

`now_s` is given by the caller, so that a recorded history replays the same.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from devices.errors import MalformedValue, WeightsError
from devices.fit import Headroom, not_cordoned
from devices.ledger import Ledger, Phase, Reservation
from devices.model import NO_CHARGE, Allocation
from devices.objects import Node, Pod
from devices.requests import PodRequest, pod_request, roles
from devices.scopes import facts_of
from scheduler.ask import Ask, Defaults, ask_of
from scheduler.diagnosis import (
    FILTERING_FAILED,
    WARNING,
    EventText,
    failure_events,
    success_event,
    unresolvable,
)
from scheduler.evaluate import Headrooms
from scheduler.pipeline import Decision, Pipeline
from scheduler.quota_notes import quota_notes
from scheduler.ring import Ring

__all__ = ["Engine", "Filtered"]

YIELDS_AFTER_S = 30.0
"""A reservation this old whose pod kube-scheduler calls unschedulable gives way to another pod."""


@dataclass(frozen=True, slots=True)
class Filtered:
    """The answer of a filter call. `nodes` None: nothing fits, see `failed`; `error`: the call itself failed."""

    nodes: tuple[str, ...] | None = None
    failed: Mapping[str, str] | None = None
    unresolvable: Mapping[str, str] | None = None
    error: str = ""
    decision: Decision | None = None
    allocation: Allocation | None = None
    notes: tuple[str, ...] = ()
    """What the Events of a refusal say beyond the recorded texts."""
    outcome: str = "fit"
    """For log and metrics: fit, plain, nofit, bound, held, malformed, gone."""


class Engine:
    """Decides and reserves. One per ledger; its methods never wait, so each is atomic between two awaits of the caller."""

    def __init__(self, ledger: Ledger, defaults: Defaults, ring: Ring | None = None, shapes: int = 256) -> None:
        self.ledger = ledger
        self.ring = ring if ring is not None else Ring()
        self._defaults = defaults
        self._pipeline = Pipeline(ledger.config, shapes)

    def catch_up(self) -> None:
        """Take in what has changed in the ledger, so that the next decision does not have to: with 5,000 new nodes that takes 0.2 s."""
        self._pipeline.catch_up(self.ledger)

    def filter(self, pod: Pod, names: Sequence[str], now_s: float) -> Filtered:
        """Choose one of the named nodes and reserve its cards for the pod."""
        asked = self._asked(pod, now_s)
        if isinstance(asked, Filtered):
            return asked
        if asked is None:
            return Filtered(nodes=tuple(names), outcome="plain")
        settled = self._settled(pod, names)
        if settled is not None:
            return settled
        self.ledger.answer(pod, now_s)
        decision = self._decide(asked, pod, names)
        if decision.fit is None:
            decision = self._made_way(asked, pod, names, now_s) or decision
        self.ring.record(pod, decision, now_s)
        if decision.node is None or decision.fit is None:
            return self._refused(pod, decision)
        self.ledger.reserve(pod, decision.node.name, decision.fit.allocation, now_s)
        return Filtered((decision.node.name,), decision=decision, allocation=decision.fit.allocation)

    def feasible(self, pod: Pod, names: Sequence[str], now_s: float) -> Filtered:
        """Every named node that fits, nothing reserved: for `--node-choice=scheduler`, where the cards are chosen at bind."""
        asked = self._asked(pod, now_s)
        if isinstance(asked, Filtered):
            return asked
        if asked is None:
            return Filtered(nodes=tuple(names), outcome="plain")
        settled = self._settled(pod, names)
        if settled is not None:
            return settled
        self.ledger.answer(pod, now_s)
        decision = self._decide(asked, pod, names).complete()
        self.ring.record(pod, decision, now_s)
        if decision.node is None:
            return self._refused(pod, decision)
        fitting = decision.fitting
        return Filtered(
            tuple(name for name in dict.fromkeys(names) if name in fitting),
            failed=decision.failed,
            unresolvable=unresolvable(decision),
            decision=decision,
        )

    def simulate(self, pod: Pod, nodes: Sequence[Node], names: Sequence[str]) -> Filtered:
        """Every node that fits, among known names and nodes given whole; the books, the ring and the pod stay untouched.

        A node the ledger knows is taken as it is now, with its tenants; any other as the object says, empty. The pod's own
        reservation is left out of account only in its own real filter, so here it counts like any other.
        """
        try:
            ask = ask_of(pod, self.ledger.config, self._defaults, self.ledger)
        except (MalformedValue, WeightsError) as error:
            return Filtered(error=str(error), outcome="malformed")
        offered = [*names, *(node.name for node in nodes)]
        if not ask.request.asks:
            return Filtered(nodes=tuple(offered), outcome="plain")
        known = set(self.ledger.node_names())
        made_up = {node.name: self.ledger.simulated(node) for node in nodes if node.name not in known}
        headrooms = self._headrooms(pod, ask.request)
        if made_up:
            decision = self._pipeline.judge_all(
                ask,
                offered,
                lambda name: made_up[name] if name in made_up else self.ledger.state(name),
                headrooms,
            )
        else:
            decision = self._pipeline.decide(ask, offered, self.ledger, headrooms).complete()
        fitting = decision.fitting
        return Filtered(
            tuple(name for name in dict.fromkeys(offered) if name in fitting) or None,
            failed=decision.failed,
            unresolvable=unresolvable(decision),
            decision=decision,
            outcome="fit" if fitting else "nofit",
        )

    def likeness(self, pod: Pod) -> Hashable:
        """Equal for pods of which all or none fit; a pod whose request cannot be read is like no other."""
        try:
            shape = ask_of(pod, self.ledger.config, self._defaults, self.ledger).shape
        except (MalformedValue, WeightsError):
            return pod.uid
        return (pod.namespace, facts_of(pod), shape)

    def could_fit(self, pod: Pod, names: Sequence[str] | None) -> bool:
        """Whether a filter call with these nodes (None: all) would find one; nothing is reserved, recorded or given up for it."""
        try:
            ask = ask_of(pod, self.ledger.config, self._defaults, self.ledger)
        except (MalformedValue, WeightsError):
            return False
        offered = tuple(self.ledger.node_names()) if names is None else names
        return ask.request.asks and bool(offered) and self._decide(ask, pod, offered).fit is not None

    def place(self, pod: Pod, node: str, now_s: float) -> Reservation | Filtered:
        """Reserve cards on exactly this node, for a bind whose reservation is gone or on another node."""
        found = self.filter(pod, [node], now_s)
        reservation = self.ledger.reservation(pod.uid)
        return reservation if found.allocation is not None and reservation is not None else found

    def still_good(self, reservation: Reservation) -> bool:
        """Whether the reserved cards may still be bound: there, healthy, not cordoned, and with all tenants within their limits."""
        state = self.ledger.state(reservation.node)
        if state is None or self.ledger.reservation(reservation.uid) is None:
            return False
        cards = {(s.card.vendor, s.card.uuid): s for s in state.cards}
        pod = self.ledger.pod(reservation.uid)
        for entry in (entry for entries in reservation.allocation for entry in entries):
            vendor, found = self.ledger.config.vendor(entry.vendor), cards.get((entry.vendor, entry.uuid))
            if vendor is None or found is None or not found.healthy:
                return False
            if found.cordoned and not_cordoned in vendor.checks:
                return False
            if vendor.is_overdrawn(found, vendor.selection(pod.annotations if pod is not None else {})):
                return False
        return True

    def scores(self, pod: Pod, names: Sequence[str]) -> dict[str, int]:
        """0 to 10 per named node, 10 for the one the node policy prefers: what `/prioritize` answers.

        Where a family adds to the score, with what it adds for the cards that the pod would get; a node without such cards has 0.
        """
        ask = ask_of(pod, self.ledger.config, self._defaults, self.ledger)
        if self._pipeline.scores_depend_on_cards(ask):
            states = dict(self._decide(ask, pod, names).complete().fitting)
        else:
            states = {name: state.score for name in names if (state := self.ledger.state(name)) is not None}
        low, high = min(states.values(), default=0.0), max(states.values(), default=0.0)
        scores = {}
        for name in names:
            share = 0.0 if name not in states or high == low else (states[name] - low) / (high - low)
            scores[name] = round(10 * (1 - share if ask.node_policy == "spread" else share)) if name in states else 0
        return scores

    def events(self, filtered: Filtered, event_nodes: int) -> tuple[EventText, ...]:
        """The Events of a filter call, to be made after its answer has gone.

        With up to `event_nodes` offered nodes the rest is evaluated for a complete text.
        """
        decision = filtered.decision
        if filtered.error:
            return (EventText(WARNING, FILTERING_FAILED, filtered.error),) if filtered.outcome == "malformed" else ()
        if decision is None:
            return ()
        if decision.node is None:
            return failure_events(decision, filtered.notes)
        if decision.offered <= event_nodes:
            decision.complete()
        warnings = tuple(EventText(WARNING, "UnknownPolicy", text) for text in decision.ask.warnings)
        return (*warnings, success_event(decision))

    def _asked(self, pod: Pod, now_s: float) -> Ask | Filtered | None:
        """The pod's ask, None for a pod without devices, or the answer that ends the call."""
        try:
            request = pod_request(pod, self.ledger.config.vendors, self.ledger)
            if not request.asks:
                return None
            if not pod.uid:
                return Filtered(error="the pod has no metadata.uid: cards are reserved under it", outcome="malformed")
            if self.ledger.is_gone(pod.uid):
                return Filtered(error=f'pod "{pod.name}" not found', outcome="gone")
            if self.ledger.has_ended(pod.uid):
                return Filtered(error=f'pod "{pod.name}" has finished: it gets no cards any more', outcome="gone")
            known = self.ledger.pod(pod.uid)
            if known is not None and roles(known) != roles(pod):
                text = "the pod's containers are not those of the pod known under its UID"
                return Filtered(error=text, outcome="malformed")
            return ask_of(pod, self.ledger.config, self._defaults, self.ledger, request)
        except WeightsError as error:
            text = f"calcScore failed {error} for pod {pod.name}"
        except MalformedValue as error:
            text = str(error)
        reservation = self.ledger.reservation(pod.uid)
        if reservation is None or reservation.phase is Phase.HELD:
            self.ledger.answer(pod, now_s)
        return Filtered(error=text, outcome="malformed")

    def _settled(self, pod: Pod, names: Sequence[str]) -> Filtered | None:
        """The answer for a pod whose node is decided already: bound, or with a Binding under way."""
        seen = self.ledger.pod(pod.uid)
        bound = pod.bound_node or (seen.bound_node if seen is not None else "")
        if bound:
            return self._only(bound, names, f"the pod is already bound to node {bound}", "bound")
        reservation = self.ledger.reservation(pod.uid)
        if reservation is not None and reservation.phase is not Phase.HELD:
            text = f"the pod's earlier binding to node {reservation.node} is not settled yet"
            return self._only(reservation.node, names, text, "held")
        return None

    @staticmethod
    def _only(node: str, names: Sequence[str], why: str, outcome: str) -> Filtered:
        if node in names:
            return Filtered((node,), outcome=outcome)
        return Filtered(failed=dict.fromkeys(names, why), unresolvable={}, outcome=outcome)

    def _decide(self, ask: Ask, pod: Pod, names: Sequence[str]) -> Decision:
        return self._pipeline.decide(ask, names, self.ledger, self._headrooms(pod, ask.request, without=pod.uid))

    def _headrooms(self, pod: Pod, request: PodRequest, without: str = "") -> Headrooms:
        """What the pod's namespace may still take under every quota that covers it, its own charge left out."""
        found: dict[str, Headroom] = {}
        asked = [vendor for key in request.vendors if (vendor := self.ledger.config.vendor(key)) is not None]
        for standing in self.ledger.standings(pod.namespace, facts_of(pod), without):
            values = {name: limit.value for name, limit in standing.limits.items()}
            for vendor in asked:
                headroom = vendor.headroom_of(values, standing.used.get(vendor.key, NO_CHARGE))
                if headroom is not None:
                    known = found.get(vendor.key)
                    found[vendor.key] = headroom if known is None else known.tightest(headroom)
        return found

    def _made_way(self, ask: Ask, pod: Pod, names: Sequence[str], now_s: float) -> Decision | None:
        """The decision once old reservations of pods that kube-scheduler cannot place are gone; None where that is no help.

        Only what stood in this pod's way stays released: the chosen node's, and what its own namespace's quota was spent on.
        """
        old = [
            (r, holder)
            for r in self.ledger.reservations()
            if r.uid != pod.uid
            and r.phase is Phase.HELD
            and now_s - r.made_at_s > YIELDS_AFTER_S
            and (holder := self.ledger.pod(r.uid)) is not None
            and holder.is_unschedulable
        ]
        offered = set(names) if old else frozenset[str]()
        yielding = [(r, holder) for r, holder in old if r.node in offered or holder.namespace == pod.namespace]
        if not yielding:
            return None
        for r, _ in yielding:
            self.ledger.release(r.uid)
        decision = self._decide(ask, pod, names)
        for r, holder in yielding:
            if decision.node is None or (r.node != decision.node.name and holder.namespace != pod.namespace):
                self.ledger.reserve(holder, r.node, r.allocation, r.made_at_s)
        return decision if decision.node is not None else None

    def _refused(self, pod: Pod, decision: Decision) -> Filtered:
        notes = (*decision.ask.warnings, *quota_notes(self.ledger, pod, decision))
        return Filtered(
            failed=decision.failed,
            unresolvable=unresolvable(decision),
            decision=decision,
            notes=notes,
            outcome="nofit",
        )
