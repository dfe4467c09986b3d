"""The evaluator's walk over the cards of many nodes at once: on which nodes a pod does not fit, and why, as counts.

The same steps in the same order as `scheduler.evaluate` and `devices.fit.collect`, each for all nodes before the next. What cannot be
told this way is left out, node by node, for the evaluator: a node that fits; one where it matters which instance a card hands out;
checks, entries or choices of a family that do not follow from columns. The property tests hold it against the evaluator.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from devices.fit import Headroom
from devices.model import Card
from devices.reasons import Reason
from devices.requests import Role
from devices.score import Weights, claims
from scheduler import policies
from scheduler.ask import Ask
from scheduler.card_table import CardTable, card_tables
from scheduler.columns import Columns, Flags, Numbers, bounded
from scheduler.evaluate import Headrooms
from scheduler.needs import CODE, FOREIGN, Codes, Needs

__all__ = ["CARDS", "HAS_MIG", "MAY_GIVE_SEVERAL", "PASSING", "Told", "Walks"]

PASSING = 0
MAY_GIVE_SEVERAL = FOREIGN + 1
HAS_MIG = FOREIGN + 2
CARDS = FOREIGN + 3
_WIDTH = FOREIGN + 4
_KEPT = 4096
_QUOTA, _NUMA = CODE[Reason.QUOTA_NOT_FIT], CODE[Reason.NUMA_NOT_FIT]
Scores = NDArray[np.float32]
Scalar = TypeVar("Scalar", bound=np.generic)


@dataclass(frozen=True, slots=True)
class Told:
    """Nodes on which one request of one container does not fit.

    A line of `counts` is a node: how many cards have each code, and `PASSING` entries were collected in vain; then whether a card
    `MAY_GIVE_SEVERAL` entries, whether it `HAS_MIG`, and how many `CARDS` of the family there are.
    """

    slots: Numbers
    container: str
    wanted: int
    counts: Numbers


_KEYS: Mapping[policies.Key, Callable[[CardTable, Scores], NDArray[np.generic]]] = MappingProxyType(
    {
        policies.binpack: lambda cards, scores: -scores,
        policies.spread: lambda cards, scores: scores,
        policies.numa: lambda cards, scores: -cards.numa,
        policies.lowest_numa: lambda cards, scores: cards.numa,
        policies.mutex: lambda cards, scores: cards.used_slots,
        policies.index: lambda cards, scores: -cards.index,
    }
)


@dataclass(frozen=True, slots=True)
class _Nodes:
    """Nodes that everything so far fits on, as it has left them."""

    slots: Numbers
    line: Numbers
    """Where they stood when the present container began."""
    cards: CardTable
    order: Numbers
    """Places of the cards in walk order."""
    spent: Mapping[str, Numbers]
    """MiB, percent and cards by vendor: three by the number of nodes."""
    scores: Scores | None = None
    """Of the cards as the present container found them, once it has ordered them."""

    def only(self, lines: Flags) -> "_Nodes":
        if lines.all():
            return self
        return _Nodes(
            self.slots[lines],
            self.line[lines],
            self.cards.only(lines),
            self.order[lines],
            {vendor: charge[:, lines] for vendor, charge in self.spent.items()},
            None if self.scores is None else self.scores[lines],
        )

    def ordered(self, keys: Sequence[policies.Key], scores: Scores) -> "_Nodes":
        """In the order of these keys, equal cards as they are."""
        columns = [np.take_along_axis(_KEYS[key](self.cards, scores), self.order, 1) for key in reversed(keys)]
        return replace(self, order=np.take_along_axis(self.order, np.lexsort(columns, axis=-1), 1), scores=scores)

    def with_entries(self, where: Flags, need: Needs) -> "_Nodes":
        """As many cards as the request wants are taken on every node, those of `where`."""
        key, kind = need.vendor.key, self.cards.kind
        cost = np.stack([np.where(where, price[kind], 0).sum(axis=1) for price in need.price])
        spent = {**self.spent, key: self.spent[key] + cost if key in self.spent else cost}
        return replace(self, cards=self.cards.taken(where, *need.entry), spent=spent)


class Walks:
    """One shape's walk, under one standing of its namespace's quota."""

    def __init__(self, ask: Ask, needs: Sequence[Needs], headrooms: Headrooms) -> None:
        self._ask = ask
        self._needs = {need.request: need for need in needs}
        self._headrooms = headrooms
        asking = [c for c in ask.request.containers if c.devices]
        self._containers = [c for role in (Role.SIDECAR, Role.INIT, Role.APP) for c in asking if c.role is role]
        self._known = 0
        self._totals: Numbers = np.zeros((3, 0), np.int64)
        self._claims: list[Numbers] = []
        self._given: dict[Hashable, tuple[int, int]] = {}
        """How many entries a card would give, and why no more, by all that it depends on: while `told` runs, since many shapes are kept."""

    def told(self, columns: Columns, slots: Numbers) -> list[Told]:
        """Which of these nodes are refused as far as columns tell."""
        for need in self._needs.values():
            need.learn(columns.kinds)
        found: list[Told] = []
        for mine, cards in card_tables(columns, slots):
            # As the evaluator does, from the card registered last.
            order = np.broadcast_to(np.arange(cards.kind.shape[1])[::-1], cards.kind.shape)
            nodes = _Nodes(mine, np.arange(len(mine)), cards, order, {})
            self._walk(nodes.only(cards.exact), order[:1], found)
        self._given.clear()
        return found

    def scores(self, cards: CardTable, container: int) -> Scores:
        """`devices.score.card_score` of every card towards a container, by its place among those that ask, sidecars first."""
        self._learn(cards.columns.kinds)
        return _scores(cards, self._ask.weights, self._totals, self._claims[container])

    def _learn(self, kinds: Sequence[Card]) -> None:
        if self._known != len(kinds):
            self._known = len(kinds)
            self._totals = _by_kind((card.slots, card.cores, card.memory_mib) for card in kinds)
            self._claims = [_by_kind(claims(card, c.devices) for card in kinds) for c in self._containers]

    def _walk(self, nodes: _Nodes, first_order: Numbers, found: list[Told]) -> None:
        for number, container in enumerate(self._containers):
            nodes = replace(nodes, line=np.arange(len(nodes.slots)), scores=None)
            if container.role is Role.INIT:
                fresh = replace(nodes, order=np.broadcast_to(first_order, nodes.order.shape))
                left = self._place(number, fresh, True, found)
                fitting = np.zeros(len(nodes.slots), np.bool_)
                fitting[left.line] = True
                nodes = nodes.only(fitting)
            else:
                nodes = self._place(number, nodes, number == len(self._containers) - 1, found)
            if not len(nodes.slots):
                return

    def _place(self, position: int, nodes: _Nodes, last: bool, found: list[Told]) -> _Nodes:
        """The nodes that the container fits on; `last`: nobody looks at what it took."""
        container = self._containers[position]
        for number, request in enumerate(container.devices, 1):
            need = self._needs[request]
            headroom = self._headrooms.get(request.vendor)
            may_follow = need.greedy and need.gives_by_kind
            nothing = np.zeros(len(nodes.slots), np.bool_)
            if not need.tells_reasons or not (may_follow if headroom is not None else need.greedy or not need.grouped):
                return nodes.only(nothing)
            ends = last and number == len(container.devices)
            if not ends or need.grouped or headroom is not None:
                scores = nodes.scores
                if scores is None:
                    scores = self.scores(nodes.cards, position)
                nodes = nodes.ordered(policies.card_keys(self._ask.card_policy, need.grouped), scores)
            cards = nodes.cards
            codes, priced = need.reasons(cards)
            given, instances = np.zeros(len(codes), np.int64), np.zeros(len(codes), np.bool_)
            if need.any_special:
                open_ = (codes == 0) | (priced if headroom is not None else False)
                open_ &= need.special[cards.kind]
                instances = open_.any(axis=1)
                clear = ~instances
                if headroom is None and not need.grouped:
                    codes, given, clear = self._instances(need, nodes, codes, open_)
                nodes, codes, priced, given = nodes.only(clear), codes[clear], priced[clear], given[clear]
                cards, instances = nodes.cards, instances[clear]
            if need.grouped or headroom is not None:
                counts, fits, taken = _one_by_one(need, nodes, codes, priced, headroom)
            else:
                counts, fits, taken = _all_at_once(need, nodes, codes, given, not ends and may_follow)
            if not fits.all():
                refused = ~fits
                counts = counts[refused]
                counts[:, CARDS] = (codes[refused] != FOREIGN).sum(axis=1)
                if need.any_special:
                    kind = cards.kind[refused]
                    counts[:, MAY_GIVE_SEVERAL] = need.several[kind].any(axis=1)
                    counts[:, HAS_MIG] = need.mig[kind].any(axis=1)
                found.append(Told(nodes.slots[refused], container.name, request.count, counts))
            if ends:
                return nodes.only(fits)
            if not may_follow:
                return nodes.only(np.zeros(len(fits), np.bool_))
            fits &= ~instances  # which instances it gets is the evaluator's to say
            nodes = nodes.only(fits).with_entries(taken[fits], need)
        return nodes

    def _instances(self, need: Needs, nodes: _Nodes, codes: Codes, where: Flags) -> tuple[Codes, Numbers, Flags]:
        """What cards of `where` alone would give: codes once they have given all, entries by node, and nodes of which it is known.

        Instances of one card do not mind those of another.
        """
        codes, given, clear = codes.copy(), np.zeros(len(codes), np.int64), np.ones(len(codes), np.bool_)
        states, slots = nodes.cards.columns.states, nodes.slots.tolist()
        for line, place in np.argwhere(where).tolist():
            node = states[slots[line]]
            state, kind = node.cards[place] if node is not None else None, int(nodes.cards.kind[line, place])
            if state is None or state.tenants or not need.several[kind]:
                clear[line] = False
                continue
            key = (need.request, kind, state.used_slots, state.used_memory_mib, state.used_cores, state.placements)
            found = self._given.get(key)
            if found is None:
                if len(self._given) > _KEPT:
                    self._given.clear()
                found = self._given[key] = need.given(state)
            given[line] += found[0]
            codes[line, place] = found[1]
        return codes, given, clear


def _by_kind(triples: Iterable[tuple[int, int, int]]) -> Numbers:
    return np.array([[bounded(number) for number in triple] for triple in triples], np.int64).T


def _scores(cards: CardTable, weights: Weights, totals: Numbers, claimed: Numbers) -> Scores:
    """Single precision here rounds as it does there."""
    kind = cards.kind
    used = (cards.used_slots, cards.used_cores, totals[2].take(kind) - cards.free_memory)
    parts = []
    with np.errstate(all="ignore"):  # a card without capacity scores 0, whatever comes out of this
        for values, total, claim, weight in zip(
            used, totals, claimed, (weights.slot, weights.core, weights.memory), strict=True
        ):
            counted = values + claim.take(kind) if claim.any() else values
            share = counted.astype(np.float32) / total.astype(np.float32).take(kind)
            parts.append(share * np.float32(float(weight)))
        score: Scores = np.float32(10) * ((parts[0] + parts[1]) + parts[2])
    score[(totals == 0).any(axis=0).take(kind)] = 0
    return score


def _all_at_once(need: Needs, nodes: _Nodes, codes: Codes, given: Numbers, picks: bool) -> tuple[Numbers, Flags, Flags]:
    """Where nothing depends on what was collected before: counts, the nodes that fit, and the cards taken where `picks`."""
    lines = np.arange(len(codes))[:, np.newaxis]
    counts = np.bincount((lines * _WIDTH + codes).ravel(), minlength=len(codes) * _WIDTH).reshape(-1, _WIDTH)
    counts[:, PASSING] += given
    fits: Flags = counts[:, PASSING] >= need.request.count
    taken: Flags = codes == 0
    if picks:
        walked = np.take_along_axis(taken, nodes.order, 1)
        taken = np.zeros(codes.shape, np.bool_)
        np.put_along_axis(taken, nodes.order, walked & (walked.cumsum(axis=1) <= need.request.count), 1)
    return counts, fits, taken


def _one_by_one(
    need: Needs, nodes: _Nodes, codes: Codes, priced: Flags, headroom: Headroom | None
) -> tuple[Numbers, Flags, Flags]:
    """As `_all_at_once`, card by card: with a quota, or where a run of equal NUMA numbers may end."""
    size, width = codes.shape
    count = need.request.count

    def walked(values: NDArray[Scalar]) -> NDArray[Scalar]:
        """By place in the walk, then by node."""
        return np.ascontiguousarray(np.take_along_axis(values, nodes.order, 1).T)

    lines = np.arange(size)
    code_of, numa_of = walked(codes), walked(nodes.cards.numa)
    counts = np.zeros((size, _WIDTH), np.int64)
    held, begun, numa = np.zeros(size, np.int64), np.zeros(size, np.int64), np.zeros(size, np.int64)
    done = np.zeros(size, np.bool_)
    taken = np.zeros((width, size), np.bool_)
    limits: list[tuple[int, Numbers, Numbers]] = []
    if headroom is not None:
        before = nodes.spent.get(need.vendor.key, np.zeros((3, size), np.int64))
        most = (headroom.memory_mib, headroom.cores, headroom.cards)
        limits = [
            (bounded(limit), before[n], walked(need.price[n][nodes.cards.kind]))
            for n, limit in enumerate(most)
            if limit is not None
        ]
    priced_of = walked(priced) if limits else priced
    collected = np.zeros((len(limits), size), np.int64)
    for place in range(width):
        code = code_of[place]
        foreign = (held > 0) & (numa != numa_of[place]) if need.grouped else np.zeros(size, np.bool_)
        for (limit, spent, price), cost in zip(limits, collected, strict=True):
            beyond = spent + price[place] + np.where(foreign, 0, cost) > limit
            code = np.where(beyond & priced_of[place], _QUOTA, code)
        passing = (code == 0) & ~done
        counts[lines, code] += code > 0
        ended = passing & foreign
        counts[ended, _NUMA] += held[ended]
        held[ended], begun[ended] = 0, place
        held += passing
        numa = np.where(passing, numa_of[place], numa)
        collected[:, ended] = 0
        for number, (_, _, price) in enumerate(limits):
            collected[number] += np.where(passing, price[place], 0)
        taken[place] = passing
        done |= held >= count
    counts[:, PASSING] = held
    taken &= np.arange(width)[:, np.newaxis] >= begun
    placed: Flags = np.zeros(codes.shape, np.bool_)
    np.put_along_axis(placed, nodes.order, taken.T, 1)
    return counts, done, placed
