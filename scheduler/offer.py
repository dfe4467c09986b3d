"""The offered names as nodes of the columns: kube-scheduler mostly sends the same nodes again, in whatever order."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from scheduler.columns import Columns, Numbers
from scheduler.names import OfferedNames
from scheduler.passages import Passages
from scheduler.roster import Roster

__all__ = ["Offer", "Offers"]


@dataclass(frozen=True, eq=False)
class Offer:
    """Names that were offered, each once: those with cards by their places in the roster, and those without, sorted."""

    roster: Roster
    places: Numbers
    unregistered: tuple[str, ...]

    @property
    def count(self) -> int:
        """How many different names there were."""
        return len(self.places) + len(self.unregistered)

    @cached_property
    def slots(self) -> Numbers:
        """Of those with cards, in the order of their names, as all that follows."""
        return self.roster.slots[self.places]

    def name(self, place: int) -> str:
        """One of `names`, without putting all of them together."""
        return str(self.roster.names[self.places[place]])

    @cached_property
    def array(self) -> NDArray[np.object_]:
        """Their names."""
        return self.roster.names[self.places]

    @cached_property
    def names(self) -> Sequence[str]:
        """`array` as a tuple."""
        return tuple(self.array.tolist())

    @cached_property
    def passages(self) -> Passages:
        """Writes `names` as JSON, each with a text."""
        return Passages(self.names)

    def slot(self, name: str) -> int:
        """Of one of `names`."""
        return int(self.slots[bisect_left(self.names, name)])


class Offers:
    """Remembers the last few lists."""

    _KEPT = 4

    def __init__(self) -> None:
        self._last: list[tuple[Sequence[str], int, Offer]] = []

    def of(self, names: Sequence[str], columns: Columns) -> Offer:
        """The list in terms of the columns as they are now."""
        if not isinstance(names, OfferedNames):
            names = tuple(names)
        for number, (known, layout, offer) in enumerate(self._last):
            if layout == columns.layout and (known is names or (type(known) is type(names) and known == names)):
                if number:
                    self._last.insert(0, self._last.pop(number))
                return offer
        offer = self._by_nodes(names, columns)
        self._last = [(names, columns.layout, offer), *self._last[: self._KEPT - 1]]
        return offer

    def _by_nodes(self, names: Sequence[str], columns: Columns) -> Offer:
        """A new offer, or the one of these nodes in another order."""
        places, missing = columns.roster.find(names)
        for _, layout, offer in self._last:
            if layout == columns.layout and offer.unregistered == missing and np.array_equal(offer.places, places):
                return offer
        return Offer(columns.roster, places, missing)
