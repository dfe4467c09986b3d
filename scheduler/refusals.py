"""Why no node fits, for all nodes at once: verdicts worded from counts over columns, and kept per node until it changes.

Nodes that the walk over columns cannot tell have the exact evaluator's verdicts. Equal refusals are one object.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from devices.fit import Refusal
from devices.model import NodeState
from devices.reasons import Reason
from scheduler.ask import Ask
from scheduler.columns import LARGEST, Columns, Flags, Numbers
from scheduler.evaluate import Headrooms, NotFit, Verdict
from scheduler.failed_nodes import FailedNodes
from scheduler.needs import REASONS, Needs
from scheduler.offer import Offer
from scheduler.passages import Passages
from scheduler.walks import CARDS, HAS_MIG, MAY_GIVE_SEVERAL, PASSING, Told, Walks

__all__ = ["Refusals", "Refused"]

_EXACT = -1
"""The node fits, or only the evaluator knows."""
_VERDICTS_A_SLOT = 4
"""More verdicts than that are mostly of the past."""


@dataclass(frozen=True)
class Refused:
    """Why each of the offered nodes is refused: `codes` say by place in `names` which of `verdicts` it is."""

    names: NDArray[np.object_]
    unregistered: tuple[str, ...]
    codes: Numbers
    verdicts: Sequence[NotFit]
    passages: Passages | None
    """Of the names, while it is being answered."""

    def by_name(self) -> dict[str, Verdict]:
        """Verdicts in the order of the names."""
        return dict(zip(self.names.tolist(), map(self.verdicts.__getitem__, self.codes.tolist()), strict=True))

    @cached_property
    def groups(self) -> Sequence[tuple[NotFit, Sequence[str]]]:
        """Every verdict with its nodes; it comes where its first node stands among the names."""
        places = np.argsort(self.codes, kind="stable")
        ordered = self.codes[places]
        bounds = [*np.flatnonzero(np.diff(ordered, prepend=-1)).tolist(), len(ordered)]
        found = [
            (int(places[start]), self.verdicts[ordered[start]], self.names[places[start:end]].tolist())
            for start, end in pairwise(bounds)
        ]
        return tuple((verdict, names) for _, verdict, names in sorted(found, key=lambda group: group[0]))

    @cached_property
    def counts(self) -> Mapping[int, int]:
        """How many nodes there are of each code that any has."""
        counts = np.bincount(self.codes)
        found = np.flatnonzero(counts)
        return dict(zip(found.tolist(), counts[found].tolist(), strict=True))

    @cached_property
    def failed(self) -> FailedNodes:
        """Each node's entry in the answer, nodes without cards among them."""
        verdicts = {code: self.verdicts[code] for code in self.counts}
        return FailedNodes(self.names, self.codes, verdicts, self.unregistered, self.passages)


def _distinct(table: Numbers) -> tuple[Numbers, Numbers]:
    """Where each different row of small numbers first stands, and for every row which of those it is."""
    keys, span = np.zeros(len(table), np.int64), 1
    first = which = keys
    for column in (*np.flatnonzero(table.any(axis=0)).tolist(), None):
        width = int(table[:, column].max()) + 1 if column is not None else LARGEST
        if span * width >= LARGEST:
            # Before the key has no room for more: the rows so far by number.
            _, first, which = np.unique(keys, return_index=True, return_inverse=True)
            keys, span = which.astype(np.int64), len(first)
        if column is not None:
            keys = keys * width + table[:, column]
            span *= width
    return first, which


class Refusals:
    """Verdicts of one shape (and quota standing) on nodes that do not fit, by slot."""

    def __init__(self, ask: Ask, needs: Sequence[Needs], headrooms: Headrooms) -> None:
        self._walks = Walks(ask, needs, headrooms)
        self._at: Numbers = np.zeros(0, np.int64)
        self._codes: Numbers = np.zeros(0, np.int64)
        self._verdicts: list[NotFit] = []
        self._numbers: dict[Hashable, int] = {}

    def may_fit(self, columns: Columns, slots: Numbers) -> Flags:
        """False for nodes of which columns tell that they are refused: many more than the screen drops, at a higher price."""
        self._follow(columns, slots)
        found: Flags = self._codes[slots] == _EXACT
        return found

    def of(self, columns: Columns, offer: Offer, judge: Callable[[int, NodeState], Verdict]) -> Refused:
        """Why each offered node is refused. `judge` is asked where columns cannot tell."""
        slots = offer.slots
        self._follow(columns, slots)
        for slot in slots[self._codes[slots] == _EXACT].tolist():
            state = columns.states[slot]
            verdict = judge(slot, state) if state is not None else None
            if not isinstance(verdict, NotFit):
                raise AssertionError(f"slot {slot} is refused, but its verdict is {verdict}")
            self._codes[slot] = self._number(verdict)
        return Refused(offer.array, offer.unregistered, self._codes[slots], self._verdicts, offer.passages)

    def _follow(self, columns: Columns, slots: Numbers) -> None:
        if len(self._at) < columns.slots or len(self._verdicts) > _VERDICTS_A_SLOT * columns.slots:
            self._at = np.full(columns.slots, -1, np.int64)
            self._codes = np.full(columns.slots, _EXACT, np.int64)
            self._verdicts, self._numbers = [], {}
        stale = slots[self._at[slots] != columns.changed_at[slots]]
        if not len(stale):
            return
        self._codes[stale] = _EXACT
        for told in self._walks.told(columns, stale):
            first, which = _distinct(told.counts)
            numbers = [self._number(_verdict(told, row)) for row in told.counts[first].tolist()]
            self._codes[told.slots] = np.array(numbers, np.int64)[which]
        self._at[stale] = columns.changed_at[stale]

    def _number(self, verdict: NotFit) -> int:
        refusal = verdict.refusal
        key = (verdict.container, verdict.has_mig, refusal.cards, frozenset(refusal.counts.items()))
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._verdicts)
            self._verdicts.append(verdict)
        return number


def _verdict(told: Told, row: Sequence[int]) -> NotFit:
    cards, has_mig = row[CARDS], bool(row[HAS_MIG])
    if told.wanted > cards and not row[MAY_GIVE_SEVERAL]:
        return NotFit(told.container, Refusal({}, cards), has_mig)
    found = {reason: row[code] for code, reason in enumerate(REASONS, 1) if row[code]}
    if row[PASSING]:
        found[Reason.CARDS_INSUFFICIENT] = row[PASSING]
    return NotFit(told.container, Refusal(found, cards), has_mig)
