"""The offered names as slots of the columns: kube-scheduler mostly sends the same list again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from scheduler.columns import Columns, Numbers
from scheduler.passages import Passages

__all__ = ["Offer", "Offers"]


@dataclass(frozen=True)
class Offer:
    """Names that were offered, each once: those with cards and their slots, in the order they came, and those without."""

    names: tuple[str, ...]
    slots: Numbers
    unregistered: tuple[str, ...]

    @property
    def count(self) -> int:
        """How many different names there were."""
        return len(self.names) + len(self.unregistered)

    @cached_property
    def array(self) -> NDArray[np.object_]:
        """`names` once more."""
        return np.array(self.names, object)

    @cached_property
    def passages(self) -> Passages:
        """Writes `names` as JSON, each with a text."""
        return Passages(self.names)

    @cached_property
    def place_of(self) -> Mapping[str, int]:
        """Where each of `names` stands among them."""
        return {name: place for place, name in enumerate(self.names)}

    @cached_property
    def in_order(self) -> Sequence[str]:
        """`names` sorted."""
        return sorted(self.names)


class Offers:
    """Remembers the last few lists."""

    _KEPT = 4

    def __init__(self) -> None:
        self._last: list[tuple[tuple[str, ...], int, Offer]] = []

    def of(self, names: Sequence[str], columns: Columns) -> Offer:
        """The list in terms of the columns as they are now."""
        names = tuple(names)
        for number, (known, layout, offer) in enumerate(self._last):
            if layout == columns.layout and (known is names or known == names):
                if number:
                    self._last.insert(0, self._last.pop(number))
                return offer
        offer = _offer(names, columns)
        self._last = [(names, columns.layout, offer), *self._last[: self._KEPT - 1]]
        return offer


def _offer(names: tuple[str, ...], columns: Columns) -> Offer:
    slots = _slots(names, columns)
    if slots is not None:
        return Offer(names, slots, ())
    found = {name: columns.slot_of.get(name) for name in names}
    known = {name: slot for name, slot in found.items() if slot is not None}
    missing = tuple(name for name, slot in found.items() if slot is None)
    return Offer(tuple(known), np.fromiter(known.values(), np.int64, len(known)), missing)


def _slots(names: tuple[str, ...], columns: Columns) -> Numbers | None:
    """The slots of names that all have cards and are all different, as nearly every list is; else None."""
    try:
        slots = np.fromiter(map(columns.slot_of.__getitem__, names), np.int64, len(names))
    except KeyError:
        return None
    seen = np.zeros(columns.slots, np.bool_)
    seen[slots] = True
    return slots if np.count_nonzero(seen) == len(names) else None
