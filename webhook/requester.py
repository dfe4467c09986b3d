"""Who sent a request to the API server."""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

__all__ = ["NOBODY", "Requester"]


@dataclass(frozen=True, slots=True)
class Requester:
    """A user as the API server has authenticated it; without a name it is on no list."""

    name: str
    groups: frozenset[str] = frozenset()

    def is_among(self, listed: AbstractSet[str]) -> bool:
        """Whether the user, or a group it is in, is listed."""
        return self.name in listed or not self.groups.isdisjoint(listed)


NOBODY = Requester("")
