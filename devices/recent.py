"""The last few of what never ends, in memory that does not grow."""

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["Recent"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """The last `size` keys that came, each with its newest value; a key that comes again keeps its place."""

    # The order is kept beside the dict: to find the first key of a dict whose first ones were deleted, all of those are passed over.

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: dict[K, V] = {}
        self._order: deque[K] = deque()

    def put(self, key: K, value: V) -> None:
        """Remember; the one that came first is forgotten if they are too many."""
        if key not in self._values:
            self._order.append(key)
        self._values[key] = value
        if len(self._order) > self._size:
            del self._values[self._order.popleft()]

    def get(self, key: K) -> V | None:
        """The newest value, None for what is not remembered."""
        return self._values.get(key)

    def __contains__(self, key: K) -> bool:
        return key in self._values

    def __len__(self) -> int:
        return len(self._values)
