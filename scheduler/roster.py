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

    @cached_property
    def _index(self) -> NameIndex:
        return NameIndex(self.names.tolist())

    @cached_property
    def _place_of(self) -> Mapping[str, int]:
        return {name: place for place, name in enumerate(self.names.tolist())}

    def find(self, names: Sequence[str]) -> tuple[Numbers, tuple[str, ...]]:
        """The places of these names, rising and each once; and those that no node has, as they came and each once."""
        found = self._index.of(names) if isinstance(names, OfferedNames) else None
        missing: tuple[str, ...] = ()
        if found is None:
            place_of = self._place_of
            found = np.array([place_of[name] for name in names if name in place_of], np.int64)
            missing = tuple(dict.fromkeys(name for name in names if name not in place_of))
        is_there = np.zeros(len(self.names), np.bool_)
        is_there[found] = True
        return np.flatnonzero(is_there), missing
