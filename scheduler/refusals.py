"""Why no node fits, for all nodes at once: reasons counted over columns, and kept per node until it changes.

For a plain request (one, no quota in the way, cards taken one by one as they pass) the counts follow from each card alone. Nodes with
cards that hand out instances, and all other requests, have the exact evaluator's verdicts. Equal refusals are one object.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from devices.fit import Refusal
from devices.model import NodeState
from devices.reasons import Reason
from scheduler.ask import Ask
from scheduler.columns import LARGEST, Columns, Numbers
from scheduler.evaluate import NotFit, Verdict
from scheduler.needs import FOREIGN, REASONS, Needs, Rows
from scheduler.offer import Offer
from scheduler.screen import WORTH_ALL

__all__ = ["Refusals", "Refused"]

_SPECIAL = FOREIGN + 1
"""Column of the counts that says whether the node has cards for the evaluator alone."""
_WIDTH = FOREIGN + 2
_EXACT = -1
_PASSING = 0
_VERDICTS_A_SLOT = 4
"""More verdicts than that are mostly of the past."""


@dataclass(frozen=True)
class Refused:
    """Why each of `names` is refused: `codes` say by place which of `verdicts` it is."""

    names: tuple[str, ...]
    array: NDArray[np.object_]
    codes: Numbers
    verdicts: Sequence[NotFit]

    def by_name(self) -> dict[str, Verdict]:
        """Verdicts in the order of the names."""
        return dict(zip(self.names, map(self.verdicts.__getitem__, self.codes.tolist()), strict=True))

    @cached_property
    def groups(self) -> Sequence[tuple[NotFit, Sequence[str]]]:
        """Every verdict with its nodes; it comes where its first node stands among the names."""
        places = np.argsort(self.codes, kind="stable")
        ordered = self.codes[places]
        bounds = [*np.flatnonzero(np.diff(ordered, prepend=-1)).tolist(), len(ordered)]
        found = [
            (int(places[start]), self.verdicts[ordered[start]], self.array[places[start:end]].tolist())
            for start, end in pairwise(bounds)
        ]
        return tuple((verdict, names) for _, verdict, names in sorted(found, key=lambda group: group[0]))

    @cached_property
    def texts(self) -> Mapping[str, str]:
        """Each node's entry in `FailedNodes`."""
        codes = self.codes.tolist()
        text = {code: self.verdicts[code].text for code in set(codes)}
        return dict(zip(self.names, map(text.__getitem__, codes), strict=True))


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
    """Verdicts of one shape (and quota standing) on nodes that the screen and the evaluator found not to fit, by slot."""

    def __init__(self, ask: Ask, needs: Sequence[Needs], quota_matters: bool) -> None:
        self._container = next(c.name for c in ask.request.containers if c.devices)
        asking = [c for c in ask.request.containers if c.devices]
        one = len(asking) == 1 and len(asking[0].devices) == 1
        self._plain = needs[0] if one and not quota_matters and needs[0].tells_reasons else None
        self._at: Numbers = np.zeros(0, np.int64)
        self._codes: Numbers = np.zeros(0, np.int64)
        self._verdicts: list[NotFit] = []
        self._numbers: dict[Hashable, int] = {}

    def of(self, columns: Columns, offer: Offer, judge: Callable[[int, NodeState], Verdict]) -> Refused:
        """Why each offered node is refused. `judge` is asked where columns cannot tell."""
        if len(self._at) < columns.slots or len(self._verdicts) > _VERDICTS_A_SLOT * columns.slots:
            self._at = np.full(columns.slots, -1, np.int64)
            self._codes = np.zeros(columns.slots, np.int64)
            self._verdicts, self._numbers = [], {}
        slots = offer.slots
        stale = slots[self._at[slots] != columns.changed_at[slots]]
        if len(stale):
            self._renew(columns, stale, judge)
            self._at[stale] = columns.changed_at[stale]
        return Refused(offer.names, offer.array, self._codes[slots], self._verdicts)

    def _renew(self, columns: Columns, slots: Numbers, judge: Callable[[int, NodeState], Verdict]) -> None:
        exact = slots.tolist()
        if self._plain is not None:
            self._plain.learn(columns.kinds)
            exact = self._counted(columns, slots, self._plain)
        for slot in exact:
            state = columns.states[slot]
            verdict = judge(slot, state) if state is not None else None
            if not isinstance(verdict, NotFit):
                raise AssertionError(f"slot {slot} is refused, but its verdict is {verdict}")
            refusal = verdict.refusal
            key = (verdict.container, verdict.has_mig, refusal.cards, frozenset(refusal.counts.items()))
            self._codes[slot] = self._number(key, partial(_itself, verdict))

    def _number(self, key: Hashable, verdict: Callable[[], NotFit]) -> int:
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._verdicts)
            self._verdicts.append(verdict())
        return number

    def _counted(self, columns: Columns, slots: Numbers, needs: Needs) -> list[int]:
        """Word what columns tell of these nodes, and answer those that have to be evaluated."""
        few = len(slots) * WORTH_ALL < len(columns.slot_of)
        rows: Rows = columns.rows_of(slots.tolist()) if few else slice(None)
        codes = needs.reasons(columns, rows)
        owner = columns.owner[rows]
        counts = np.bincount(owner * _WIDTH + codes, minlength=columns.slots * _WIDTH).reshape(columns.slots, _WIDTH)
        if needs.any_special:
            counts[owner[needs.special[columns.kind[rows]]], _SPECIAL] = 1
        table = counts[slots]
        first, which = _distinct(table)
        numbers = np.array([self._numbered(tuple(row), needs.request.count) for row in table[first].tolist()], np.int64)
        found = numbers[which]
        told = found != _EXACT
        self._codes[slots[told]] = found[told]
        return [int(slot) for slot in slots[~told]]

    def _numbered(self, row: tuple[int, ...], count: int) -> int:
        if row[_SPECIAL] or (sum(row[:FOREIGN]) and row[_PASSING] >= count):
            return _EXACT  # the latter fits, which is for the evaluator to say
        return self._number(row, lambda: self._worded(row, count))

    def _worded(self, row: tuple[int, ...], count: int) -> NotFit:
        cards = sum(row[:FOREIGN])
        if count > cards:
            return NotFit(self._container, Refusal({}, cards))
        found = {reason: row[code] for code, reason in enumerate(REASONS, 1) if row[code]}
        if row[_PASSING]:
            found[Reason.CARDS_INSUFFICIENT] = row[_PASSING]
        return NotFit(self._container, Refusal(found, cards))


def _itself(verdict: NotFit) -> NotFit:
    return verdict
