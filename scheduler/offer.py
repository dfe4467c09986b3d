"""The offered names as slots of the columns: kube-scheduler mostly sends the same list again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from scheduler.columns import Columns, Numbers

__all__ = ["Offer", "Offers"]


@dataclass(frozen=True)
class Offer:
    """Names that were offered, each once: those with cards and their slots, in the order they came, and those without."""

    names: tuple[str, ...]
    slots: Numbers
    unregistered: tuple[str, ...]
    slot_of: Mapping[str, int]
    array: NDArray[np.object_]
    """`names` once more."""

    @property
    def count(self) -> int:
        """How many different names there were."""
        return len(self.names) + len(self.unregistered)

    @cached_property
    def in_order(self) -> Sequence[str]:
        """`names` sorted."""
        return tuple(sorted(self.names))


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


def _offer(names: Sequence[str], columns: Columns) -> Offer:
    found = {name: columns.slot_of.get(name) for name in names}
    known = {name: slot for name, slot in found.items() if slot is not None}
    missing = tuple(name for name, slot in found.items() if slot is None)
    return Offer(
        tuple(known), np.fromiter(known.values(), np.int64, len(known)), missing, known, np.array(list(known), object)
    )
