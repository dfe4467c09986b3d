"""The cards of some nodes as matrices, cut from the columns: a line a node, a place a card, and what a pod's containers took meanwhile."""

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from scheduler.columns import NOBODY, Columns, Flags, Numbers, Small

__all__ = ["CardTable", "card_tables"]

Scalar = TypeVar("Scalar", bound=np.generic)
_VAST = 2**50
"""Sums of a few smaller numbers are exact as integers and as floats."""


@dataclass(frozen=True, slots=True)
class CardTable:
    """Every matrix has a line a node and a place a card, as the node lists them; short lines end with cards of kind `NOBODY`.

    Nothing here is ever written to: it may be the columns' own memory.
    """

    columns: Columns
    row: Numbers
    """In the columns."""
    kind: Numbers
    closed: Small
    free_memory: Numbers
    used_slots: Numbers
    used_cores: Numbers

    def only(self, lines: Flags) -> "CardTable":
        """Some of the nodes."""
        if lines.all():
            return self
        return CardTable(
            self.columns,
            self.row[lines],
            self.kind[lines],
            self.closed[lines],
            self.free_memory[lines],
            self.used_slots[lines],
            self.used_cores[lines],
        )

    def taken(self, where: Flags, memory: Numbers, slots: Numbers, cores: Numbers) -> "CardTable":
        """With one entry more on the cards of `where`; what it holds is given by kind."""
        kind = self.kind
        return replace(
            self,
            free_memory=self.free_memory - np.where(where, memory[kind], 0),
            used_slots=self.used_slots + np.where(where, slots[kind], 0),
            used_cores=self.used_cores + np.where(where, cores[kind], 0),
        )

    @property
    def numa(self) -> Numbers:
        """NUMA numbers; of what fills a short line, anything."""
        return self.columns.numa.take(self.row)

    @property
    def index(self) -> Numbers:
        """Indexes; of what fills a short line, anything."""
        return self.columns.index.take(self.row)

    @property
    def exact(self) -> Flags:
        """Nodes without numbers that the columns may have cut, or that cannot be added up here."""
        found: Flags = np.ones(len(self.kind), np.bool_)
        for values in (self.free_memory, self.used_slots, self.used_cores):
            if values.max(initial=0) >= _VAST or values.min(initial=0) <= -_VAST:
                found &= (np.abs(values) < _VAST).all(axis=1)
        return found


def card_tables(columns: Columns, slots: Numbers) -> list[tuple[Numbers, CardTable]]:
    """The nodes in these slots by about how many cards they have: slots, and the cards in the same order."""
    start, count = columns.spans()
    slots = np.sort(slots)
    widths = 1 << np.ceil(np.log2(np.maximum(count[slots], 1))).astype(np.int64)
    found = []
    for width in np.unique(widths).tolist():
        mine = slots[widths == width]
        found.append((mine, _table(columns, start[mine], count[mine], width)))
    return found


def _table(columns: Columns, start: Numbers, count: Numbers, width: int) -> CardTable:
    row = start[:, np.newaxis] + np.arange(width)
    there = np.arange(width) < count[:, np.newaxis]
    first, last = row[0, 0], row[-1, -1]
    # Rows that follow each other, as they do while no node comes or goes, are not copied.
    follow = bool(there.all()) and bool((row[:, 0] == first + width * np.arange(len(row))).all())
    if not follow:
        row = np.where(there, row, 0)

    def cut(values: NDArray[Scalar]) -> NDArray[Scalar]:
        return values[first : last + 1].reshape(row.shape) if follow else values.take(row)

    return CardTable(
        columns,
        row,
        cut(columns.kind) if follow else np.where(there, cut(columns.kind), NOBODY),
        cut(columns.closed),
        cut(columns.free_memory),
        cut(columns.used_slots),
        cut(columns.used_cores),
    )
