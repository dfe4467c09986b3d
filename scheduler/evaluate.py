"""The exact evaluator: does this pod fit on this node, and with which cards. Plain Python over frozen values."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from devices.config import DeviceConfig
from devices.fit import Headroom, Refusal, Walk, collect
from devices.mig import is_mig
from devices.model import NO_CHARGE, Allocation, CardState, Charge, Entry, NodeState
from devices.reasons import Reason
from devices.requests import ContainerRequest, DeviceRequest, Role
from devices.score import card_score, single
from devices.vendor import ScoreContext
from scheduler.ask import Ask
from scheduler.policies import card_order

__all__ = ["Fit", "Headrooms", "NotFit", "Trace", "Verdict", "evaluate", "sort_scores"]

Headrooms = Mapping[str, Headroom]
"""What the pod's namespace may still take, by vendor key; a vendor without limits is left out."""


@dataclass(frozen=True, slots=True)
class Fit:
    """The cards the pod would get on the node, by container position, and the node's score."""

    allocation: Allocation
    score: float


@dataclass(frozen=True, slots=True)
class NotFit:
    """The first container that does not fit, and why; `text` is the node's entry in `FailedNodes`."""

    container: str
    refusal: Refusal
    has_mig: bool = False
    """Some of the cards hand out instances, which a request for a whole card rarely gets."""

    @property
    def text(self) -> str:
        """`2/2 CardInsufficientMemory`."""
        return self.refusal.text

    @property
    def is_unresolvable(self) -> bool:
        """Freeing cards would not help: every card is of a wrong type, or there are too few of them."""
        counts = self.refusal.counts
        return not counts or set(counts) == {Reason.CARD_TYPE_MISMATCH}


Verdict = Fit | NotFit

Trace = Callable[[str, CardState, Reason | None], None]
"""Told container, card and reason for every look at a card."""


def sort_scores(
    states: Sequence[CardState], ask: Ask, devices: Sequence[DeviceRequest]
) -> dict[tuple[str, str], float]:
    """Score of every card of the node, by (vendor, UUID), as the sort of one container sees it."""
    return {(s.card.vendor, s.card.uuid): card_score(s, ask.weights, devices) for s in states}


class _Evaluation:
    """One node, one pod: the working state of an evaluation."""

    def __init__(
        self, node: NodeState, ask: Ask, config: DeviceConfig, headrooms: Headrooms, trace: Trace | None
    ) -> None:
        self._trace = trace
        self._node = node
        self._ask = ask
        self._config = config
        self._headrooms = headrooms

    def run(self) -> Verdict:
        """Sidecars first, since they run beside everything; then each other init container on a copy; then the apps."""
        containers = self._ask.request.containers
        placed: list[tuple[Entry, ...]] = [()] * len(containers)
        beside = list(reversed(self._node.cards))
        spent: dict[str, Charge] = {}
        earlier: list[Entry] = []
        earlier_init: list[Entry] = []
        for role in (Role.SIDECAR, Role.INIT, Role.APP):
            for position, container in enumerate(containers):
                if container.role is not role or not container.devices:
                    continue
                if role is Role.INIT:
                    result = self._place(
                        container, self._in_first_order(beside), dict(spent), [*earlier, *earlier_init]
                    )
                else:
                    result = self._place(container, beside, spent, earlier)
                if isinstance(result, NotFit):
                    return result
                placed[position] = result
                (earlier_init if role is Role.INIT else earlier).extend(result)
        allocation = tuple(placed)
        return Fit(allocation, self._score(allocation))

    def _in_first_order(self, states: Sequence[CardState]) -> list[CardState]:
        now = {(state.card.vendor, state.card.uuid): state for state in states}
        return [now[state.card.vendor, state.card.uuid] for state in reversed(self._node.cards)]

    def _place(
        self, container: ContainerRequest, states: list[CardState], spent: dict[str, Charge], earlier: Sequence[Entry]
    ) -> tuple[Entry, ...] | NotFit:
        """Place one container: `states` and `spent` afterwards hold what it took. `earlier`: what those before it got."""
        scores = sort_scores(states, self._ask, container.devices)
        entries: list[Entry] = []
        for request in container.devices:
            vendor = self._config.vendor(request.vendor)
            if vendor is None:
                raise AssertionError(f"a request for unknown vendor {request.vendor}")
            selection = self._ask.selections[vendor.key]
            states[:] = card_order(states, scores, self._ask.card_policy, vendor.groups_by_numa(selection))
            walk = Walk(
                vendor,
                request,
                vendor.clamped(request.cores),
                selection,
                self._ask.policies,
                self._headrooms.get(vendor.key),
                spent.get(vendor.key, NO_CHARGE),
                trace=partial(self._trace, container.name) if self._trace is not None else None,
                earlier=[entry for entry in earlier if entry.vendor == vendor.key],
                node_facts=self._node.facts,
            )
            cards = [state for state in states if vendor.offers(state.card)]
            found = collect(cards, walk)
            if isinstance(found, Refusal):
                return NotFit(container.name, found, any(is_mig(state.card) for state in cards))
            facts = vendor.tenant_facts(selection.annotations or {})
            for entry in found.entries:
                place = next(
                    n for n, s in enumerate(states) if s.card.uuid == entry.uuid and s.card.vendor == vendor.key
                )
                states[place] = states[place].with_entry(entry, facts)
                spent[vendor.key] = spent.get(vendor.key, NO_CHARGE) + vendor.price(entry)
            entries += found.entries
        return tuple(entries)

    def _score(self, allocation: Allocation) -> float:
        score = self._node.score
        for key in sorted({entry.vendor for entries in allocation for entry in entries}):
            vendor = self._config.vendor(key)
            if vendor is not None and vendor.hooks.score is not None:
                mine = [tuple(e for e in entries if e.vendor == key) for entries in allocation]
                context = ScoreContext(self._node, self._ask.selections[key], self._ask.node_policy)
                score = single(score + single(vendor.score(mine, context)))
        return score


def evaluate(
    node: NodeState, ask: Ask, config: DeviceConfig, headrooms: Headrooms, trace: Trace | None = None
) -> Verdict:
    """The verdict on one node. The node's score is taken before placement (HAMi v2.10 scheduling, node score)."""
    return _Evaluation(node, ask, config, headrooms, trace).run()
