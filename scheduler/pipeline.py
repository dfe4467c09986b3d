"""One decision, top to bottom: screen the nodes, evaluate best first, stop at the first that fits.

Nothing here waits, reads a clock, calls a client or logs: same nodes, same ask, same answer. What the caller may do with a decision
is elsewhere: reserve it (`engine`), word it (`diagnosis`), bind it (`bind`).
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import nsmallest

import numpy as np

from devices.config import DeviceConfig
from devices.model import NodeState
from devices.reasons import NODE_UNREGISTERED
from scheduler.ask import Ask
from scheduler.columns import LARGEST, Cluster, Columns, Flags, States
from scheduler.evaluate import Fit, Headrooms, NotFit, Verdict, evaluate
from scheduler.memo import Memo, Verdicts
from scheduler.offer import Offer, Offers
from scheduler.policies import NODE_POLICIES
from scheduler.refusals import Refusals, Refused
from scheduler.screen import Screen, needs_of

__all__ = ["Decision", "Pipeline"]

Judge = Callable[[int, NodeState], Verdict]
_LAST = np.int64(2 * LARGEST - 1)
"""Behind every node."""


@dataclass(frozen=True, slots=True)
class _Moment:
    """The offered nodes as they were when it was decided, and how to look at more of them."""

    offer: Offer
    states: States
    judge: Judge


@dataclass(slots=True)
class Decision:
    """The answer for one pod: the chosen node, or why every offered one is refused.

    `verdicts` has the nodes evaluated so far; `complete()` evaluates the rest on the same frozen states.
    """

    ask: Ask
    offered: int
    node: NodeState | None
    fit: Fit | None
    _verdicts: dict[str, Verdict]
    unregistered: tuple[str, ...]
    states: dict[str, NodeState] = field(default_factory=dict)
    """Refused nodes as they were at this moment; in a decision that is kept."""
    headrooms: Headrooms = field(default_factory=dict)
    _moment: _Moment | None = None
    _refused: Refused | None = None
    """All verdicts together, where none fits."""
    _states_kept: int = 0

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """By node name; those of a refusal are put together when they are first asked for, as most never are."""
        if self._refused is not None and not self._verdicts:
            self._verdicts = self._refused.by_name()
        return self._verdicts

    @property
    def evaluated(self) -> int:
        """How many of the offered nodes the answer rests on."""
        if self._refused is not None:
            return self.offered
        return len(self.verdicts) + len(self.unregistered)

    @property
    def failed(self) -> Mapping[str, str]:
        """Why each evaluated node was refused, as `FailedNodes` words it."""
        if self._refused is not None:
            return self._refused.failed
        worded: dict[int, str] = {}  # by object: equal refusals are mostly one
        failed = {}
        for name, verdict in self.verdicts.items():
            if isinstance(verdict, NotFit):
                text = worded.get(id(verdict))
                if text is None:
                    text = worded[id(verdict)] = verdict.text
                failed[name] = text
        if self.unregistered:
            failed.update(dict.fromkeys(self.unregistered, NODE_UNREGISTERED))
        return failed

    @property
    def refusals(self) -> Sequence[tuple[NotFit, Sequence[str]]]:
        """Every refusal with the nodes that have it; one that many nodes share may come more than once."""
        if self._refused is not None:
            return self._refused.groups
        found: dict[int, tuple[NotFit, list[str]]] = {}
        for name, verdict in self.verdicts.items():
            if isinstance(verdict, NotFit):
                known = found.get(id(verdict))
                if known is None:
                    found[id(verdict)] = (verdict, [name])
                else:
                    known[1].append(name)
        return tuple(found.values())

    @property
    def verdict_counts(self) -> Iterable[tuple[NotFit, int]]:
        """As `refusals`, with how many nodes there are: their names are not put together for it."""
        if self._refused is not None:
            return ((self._refused.verdicts[code], count) for code, count in self._refused.counts.items())
        return ((verdict, len(names)) for verdict, names in self.refusals)

    @property
    def fitting(self) -> Mapping[str, float]:
        """Scores of the evaluated nodes that fit, the chosen one among them."""
        if self._refused is not None:
            return {}
        return {name: verdict.score for name, verdict in self.verdicts.items() if isinstance(verdict, Fit)}

    def kept(self, refused: int) -> "Decision":
        """The decision as it may be kept: with the states of the first `refused` refused nodes, also those that `complete()` finds."""
        self._states_kept = refused
        self._keep_states()
        return Decision(
            self.ask,
            self.offered,
            self.node,
            self.fit,
            self._verdicts if self._refused is None else {},
            self.unregistered,
            self.states,
            self.headrooms,
            None,
            # Without what was worked out for the answer: that is large, and seldom asked for again.
            replace(self._refused, passages=None) if self._refused is not None else None,
        )

    def _keep_states(self) -> None:
        moment = self._moment
        if moment is None or not self._states_kept:
            return
        offer = moment.offer
        if self._refused is not None:
            names = list(offer.names[: self._states_kept])
        else:
            refused = (name for name, verdict in self.verdicts.items() if isinstance(verdict, NotFit))
            names = nsmallest(self._states_kept, refused)
        for name in names:
            state = moment.states.of(offer.slot(name))
            if state is not None:
                self.states[name] = state

    def complete(self) -> "Decision":
        """Evaluate what the answer did not need: the cluster may have moved on, the states here have not."""
        moment = self._moment
        if moment is not None and self.evaluated < self.offered:
            for name, slot in zip(moment.offer.names, moment.offer.slots.tolist(), strict=True):
                state = moment.states.of(slot)
                if name not in self.verdicts and state is not None:
                    self.verdicts[name] = moment.judge(slot, state)
            self._keep_states()
        return self


@dataclass(slots=True)
class _Outcomes:
    """What one shape is remembered by under one standing of its namespace's quota."""

    verdicts: Verdicts = field(default_factory=Verdicts)
    refusals: Refusals | None = None


class Pipeline:
    """Columns, screens, evaluator and memory over one device configuration."""

    def __init__(self, config: DeviceConfig, shapes: int = 256) -> None:
        self._config = config
        self._columns = Columns()
        self._offers = Offers()
        self._screens: Memo[Screen] = Memo(shapes)
        self._outcomes: Memo[_Outcomes] = Memo(shapes)
        self._epoch = self._columns.epoch

    def catch_up(self, cluster: Cluster) -> None:
        """Take in what has changed in the cluster, so that the next decision does not have to."""
        self._offers.of(tuple(cluster.node_names()), self._followed(cluster))

    def decide(self, ask: Ask, names: Sequence[str], cluster: Cluster, headrooms: Headrooms) -> Decision:
        """Choose among the named nodes; a node without cards is unregistered."""
        columns = self._followed(cluster)
        offer = self._offers.of(names, columns)
        screen = self._screens.of(ask.shape, lambda: Screen(needs_of(ask, self._config)))
        quota = self._quota_key(ask, headrooms, cluster.largest_memory_mib)
        outcomes = self._outcomes.of((ask.shape, quota), _Outcomes)

        def judge(slot: int, state: NodeState) -> Verdict:
            return outcomes.verdicts.on(slot, state, lambda s: evaluate(s, ask, self._config, headrooms))

        refused = None
        if self.scores_depend_on_cards(ask):
            # A family adds to the node score what only the evaluated cards show: every node is evaluated.
            verdicts = self._every(offer, columns, judge)
            chosen = self._best_of(verdicts, ask)
        else:
            may = screen.may_fit(columns)[offer.slots]
            refusals = outcomes.refusals
            if refusals is None:
                binding = headrooms if quota is not None else {}
                refusals = outcomes.refusals = Refusals(ask, screen.needs, binding)
            verdicts, chosen = self._best_first(ask, offer, may, columns, judge, refusals)
            if chosen is None:
                # A refusal names the reasons of every node, also of those that the screen dropped.
                refused = refusals.of(columns, offer, judge)
                verdicts = {}
        fit = verdicts[chosen] if chosen is not None else None
        return Decision(
            ask,
            offer.count,
            columns.states[columns.slot_of[chosen]] if chosen is not None else None,
            fit if isinstance(fit, Fit) else None,
            verdicts,
            offer.unregistered,
            {},
            headrooms,
            _Moment(offer, columns.present(), judge),
            refused,
        )

    def judge_all(
        self, ask: Ask, names: Sequence[str], state_of: Callable[[str], NodeState | None], headrooms: Headrooms
    ) -> Decision:
        """The complete decision the plain way, nothing remembered: for nodes that the books do not have."""
        states = {name: state_of(name) for name in names}
        found = {name: state for name, state in states.items() if state is not None}
        verdicts = {name: evaluate(state, ask, self._config, headrooms) for name, state in found.items()}
        chosen = self._best_of(verdicts, ask)
        fit = verdicts[chosen] if chosen is not None else None
        return Decision(
            ask,
            len(states),
            found[chosen] if chosen is not None else None,
            fit if isinstance(fit, Fit) else None,
            verdicts,
            tuple(name for name, state in states.items() if state is None),
            found,
            headrooms,
        )

    def _followed(self, cluster: Cluster) -> Columns:
        columns = self._columns
        columns.follow(cluster)
        if columns.epoch != self._epoch:
            self._epoch = columns.epoch
            self._screens.clear()
            self._outcomes.clear()
        return columns

    @staticmethod
    def _best_first(
        ask: Ask, offer: Offer, may: Flags, columns: Columns, judge: Judge, refusals: Refusals
    ) -> tuple[dict[str, Verdict], str | None]:
        """Evaluate by score as the node policy wants it, ties by name, up to the first that fits."""
        verdicts: dict[str, Verdict] = {}
        order = np.where(may, columns.order[ask.node_policy][offer.slots], _LAST)
        for _ in range(_ONE_BY_ONE):
            place = int(order.argmin()) if len(order) else -1
            if place < 0 or order[place] == _LAST:
                return verdicts, None
            order[place] = _LAST
            if isinstance(_judged(offer, place, columns, judge, verdicts), Fit):
                return verdicts, offer.name(place)
        # The screen cannot tell here, so there may be many to look at.
        left = np.flatnonzero(order != _LAST)
        order[left[~refusals.may_fit(columns, offer.slots[left])]] = _LAST
        for place in np.argsort(order, kind="stable").tolist():
            if order[place] == _LAST:
                break
            if isinstance(_judged(offer, place, columns, judge, verdicts), Fit):
                return verdicts, offer.name(place)
        return verdicts, None

    @staticmethod
    def _every(offer: Offer, columns: Columns, judge: Judge) -> dict[str, Verdict]:
        verdicts: dict[str, Verdict] = {}
        for place in range(len(offer.slots)):
            _judged(offer, place, columns, judge, verdicts)
        return verdicts

    @staticmethod
    def _best_of(verdicts: Mapping[str, Verdict], ask: Ask) -> str | None:
        factor = NODE_POLICIES[ask.node_policy]
        ranks = {name: (factor * verdict.score, name) for name, verdict in verdicts.items() if isinstance(verdict, Fit)}
        return min(ranks, key=ranks.__getitem__, default=None)

    def scores_depend_on_cards(self, ask: Ask) -> bool:
        """Whether a family that the pod asks for adds to the node score what only the chosen cards show."""
        asked = (self._config.vendor(key) for key in ask.request.vendors)
        return any(vendor is not None and vendor.hooks.score is not None for vendor in asked)

    def _quota_key(self, ask: Ask, headrooms: Headrooms, largest_memory_mib: Callable[[str], int]) -> Hashable:
        """None while nothing the request could cost would exceed the headroom: the outcome without quota is then exact."""
        if not headrooms:
            return None
        for container in ask.request.containers:
            for request in container.devices:
                headroom = headrooms.get(request.vendor)
                if headroom is None:
                    continue
                # Every container at once, each at the largest card: more than any phase of the pod can cost.
                same = [d for c in ask.request.containers for d in c.devices if d.vendor == request.vendor]
                memory = sum(d.count * max(d.memory_mib, largest_memory_mib(d.vendor)) for d in same)
                cores = sum(d.count * max(d.cores, 100) for d in same)
                cards = sum(d.count for d in same)
                limits = ((headroom.memory_mib, memory), (headroom.cores, cores), (headroom.cards, cards))
                if any(limit is not None and cost > limit for limit, cost in limits):
                    return tuple(sorted(headrooms.items(), key=lambda item: item[0]))
        return None


_ONE_BY_ONE = 8
"""So many candidates are evaluated before it is worth asking the columns closely, and ordering what is left."""


def _judged(offer: Offer, place: int, columns: Columns, judge: Judge, verdicts: dict[str, Verdict]) -> Verdict:
    slot = int(offer.slots[place])
    state = columns.states[slot]
    if state is None:
        raise AssertionError(f"node {offer.name(place)} is offered without cards")
    verdict = verdicts[offer.name(place)] = judge(slot, state)
    return verdict
