"""Why no node fits, for all nodes at once: reasons counted over columns, and kept per node until it changes.

For a plain request (one, no quota in the way, cards taken one by one as they pass) the counts follow from each card alone. Nodes with
cards that hand out instances, and all other requests, have the exact evaluator's verdicts. Equal refusals are one object.
"""

from collections.abc import Callable, Sequence

import numpy as np

from devices.fit import Refusal
from devices.model import NodeState
from devices.reasons import Reason
from scheduler.ask import Ask
from scheduler.columns import Columns, Numbers
from scheduler.evaluate import NotFit, Verdict
from scheduler.needs import FOREIGN, REASONS, Needs, Rows
from scheduler.screen import WORTH_ALL

__all__ = ["Refusals"]

_WIDTH = FOREIGN + 1
_PASSING = 0


class Refusals:
    """Verdicts of one shape (and quota standing) on nodes that the screen and the evaluator found not to fit, by slot."""

    def __init__(self, ask: Ask, needs: Sequence[Needs], quota_matters: bool) -> None:
        self._container = next(c.name for c in ask.request.containers if c.devices)
        asking = [c for c in ask.request.containers if c.devices]
        one = len(asking) == 1 and len(asking[0].devices) == 1
        self._plain = needs[0] if one and not quota_matters and needs[0].tells_reasons else None
        self._verdicts: list[Verdict | None] = []
        self._at: Numbers = np.zeros(0, np.int64)
        self._equal: dict[tuple[int, ...], NotFit] = {}

    def of(self, columns: Columns, slots: Numbers, judge: Callable[[int, NodeState], Verdict]) -> Sequence[Verdict]:
        """A verdict a slot. `judge` is asked where columns cannot tell."""
        if len(self._verdicts) < columns.slots:
            self._verdicts += [None] * (columns.slots - len(self._verdicts))
            grown = np.full(columns.slots, -1, np.int64)
            grown[: len(self._at)] = self._at
            self._at = grown
        stale = slots[self._at[slots] != columns.changed_at[slots]]
        if len(stale):
            self._renew(columns, stale, judge)
            self._at[stale] = columns.changed_at[stale]
        verdicts = self._verdicts
        return [verdict for slot in slots.tolist() if (verdict := verdicts[slot]) is not None]

    def _renew(self, columns: Columns, slots: Numbers, judge: Callable[[int, NodeState], Verdict]) -> None:
        exact = slots.tolist()
        if self._plain is not None:
            self._plain.learn(columns.kinds)
            exact = self._counted(columns, slots, self._plain)
        for slot in exact:
            state = columns.states[slot]
            if state is not None:
                self._verdicts[slot] = judge(slot, state)

    def _counted(self, columns: Columns, slots: Numbers, needs: Needs) -> list[int]:
        """Word what columns tell of these nodes, and answer those that have to be evaluated."""
        few = len(slots) * WORTH_ALL < len(columns.slot_of)
        rows: Rows = columns.rows_of(slots.tolist()) if few else slice(None)
        codes = needs.reasons(columns, rows)
        owner = columns.owner[rows]
        counts = np.bincount(owner * _WIDTH + codes, minlength=columns.slots * _WIDTH).reshape(columns.slots, _WIDTH)
        special = np.zeros(columns.slots, np.bool_)
        if needs.any_special:
            special[owner[needs.special[columns.kind[rows]]]] = True
        exact: list[int] = []
        for slot, row, has_special in zip(
            slots.tolist(), map(tuple, counts[slots].tolist()), special[slots].tolist(), strict=True
        ):
            if has_special or (sum(row[:FOREIGN]) and row[_PASSING] >= needs.request.count):
                exact.append(slot)  # the latter fits, which is for the evaluator to say
                continue
            known = self._equal.get(row)
            if known is None:
                known = self._equal[row] = self._worded(row, needs.request.count)
            self._verdicts[slot] = known
        return exact

    def _worded(self, row: tuple[int, ...], count: int) -> NotFit:
        cards = sum(row[:FOREIGN])
        if count > cards:
            return NotFit(self._container, Refusal({}, cards))
        found = {reason: row[code] for code, reason in enumerate(REASONS, 1) if row[code]}
        if row[_PASSING]:
            found[Reason.CARDS_INSUFFICIENT] = row[_PASSING]
        return NotFit(self._container, Refusal(found, cards))
