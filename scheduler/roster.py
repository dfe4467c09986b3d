"""All nodes by name, and where those of a request stand among them: the order in which names come says nothing."""

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from scheduler.names import NameIndex, OfferedNames

__all__ = ["Roster"]

Numbers = NDArray[np.int64]


class Roster:
    """The nodes of one moment, until one comes or goes."""

    def __init__(self, slot_of: Mapping[str, int]) -> None:
        ordered = sorted(slot_of)
        self.names: NDArray[np.object_] = np.array(ordered, object)
        """Sorted."""
        self.slots: Numbers = np.array([slot_of[name] for name in ordered], np.int64)
        """Of each, in the columns."""
        self._index = NameIndex(ordered)

    @cached_property
    def _place_of(self) -> Mapping[str, int]:
        return {name: place for place, name in enumerate(self.names.tolist())}

    def find(self, names: Sequence[str]) -> tuple[Numbers, tuple[str, ...]]:
        """The places of these names, rising and each once; and those that no node has, sorted and each once."""
        found = self._index.of(names) if isinstance(names, OfferedNames) else None
        if found is None:
            found = np.array([self._place_of.get(name, -1) for name in names], np.int64)
        missing = {names[number] for number in np.flatnonzero(found < 0).tolist()}
        is_there = np.zeros(len(self.names), np.bool_)
        is_there[found[found >= 0]] = True
        return np.flatnonzero(is_there), tuple(sorted(missing))
