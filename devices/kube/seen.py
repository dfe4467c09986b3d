"""Which revision of which object a watch has delivered: what is new, what a duplicate, what comes late."""

from collections import OrderedDict
from collections.abc import Iterable, Set
from typing import Final

import msgspec

__all__ = ["Seen", "SeenObject"]

# Late events of deleted objects are recognised as long as no more than so many were deleted since.
_REMEMBERED_DELETIONS: Final = 4096


class SeenObject(msgspec.Struct, frozen=True, gc=False):
    """An object's identity and the revision it was seen at; `namespace` is empty for cluster-wide resources."""

    uid: str
    namespace: str
    name: str
    revision: int


class Seen:
    """The last delivered revision by UID.

    Deletions are remembered for a while: a late event of a deleted object must not bring it back. A newer one may,
    since with a selector DELETED only says that the object stopped matching.
    """

    def __init__(self) -> None:
        self._present: dict[str, SeenObject] = {}
        self._by_name: dict[tuple[str, str], str] = {}
        self._deleted: OrderedDict[str, int] = OrderedDict()
        self._listed_to = -1

    def get(self, uid: str) -> SeenObject | None:
        """The object as last delivered."""
        return self._present.get(uid)

    def revision(self, uid: str) -> int | None:
        """The revision last delivered, None if the object is not held."""
        seen = self._present.get(uid)
        return None if seen is None else seen.revision

    def uids(self) -> Set[str]:
        """Everything held."""
        return self._present.keys()

    def is_news(self, candidate: SeenObject, *, deleted: bool) -> bool:
        """False for the same or an older state of its UID, for any state older than its deletion, and for one that the last list would
        have shown if it were still there.

        A deletion at the very revision that is held is news: not every server gives it a revision of its own.
        """
        held = self.revision(candidate.uid)
        if held is not None:
            return candidate.revision > held or (deleted and candidate.revision == held)
        gone_at = self._deleted.get(candidate.uid)
        return candidate.revision > (self._listed_to if gone_at is None else gone_at)

    def namesake(self, candidate: SeenObject) -> SeenObject | None:
        """Another object held under the same namespace and name: one of the two is gone, the older."""
        uid = self._by_name.get((candidate.namespace, candidate.name), candidate.uid)
        return None if uid == candidate.uid else self._present.get(uid)

    def put(self, delivered: SeenObject) -> None:
        """The consumer holds this state now."""
        self._present[delivered.uid] = delivered
        self._by_name[delivered.namespace, delivered.name] = delivered.uid
        self._deleted.pop(delivered.uid, None)

    def delete(self, delivered: SeenObject) -> None:
        """The consumer has let it go."""
        self.forget(delivered.uid)
        self._deleted[delivered.uid] = delivered.revision
        self._deleted.move_to_end(delivered.uid)
        if len(self._deleted) > _REMEMBERED_DELETIONS:
            self._deleted.popitem(last=False)

    def forget(self, uid: str) -> None:
        """It is not known what the consumer holds of this one."""
        seen = self._present.pop(uid, None)
        if seen is not None and self._by_name.get((seen.namespace, seen.name)) == uid:
            del self._by_name[seen.namespace, seen.name]

    def listed(self, revision: int) -> None:
        """A full list was delivered as of `revision`, which counts even where it is older than one before."""
        self._listed_to = revision

    def replace(self, listed: Iterable[SeenObject]) -> None:
        """The consumer holds exactly these."""
        self._present = {seen.uid: seen for seen in listed}
        self._by_name = {(seen.namespace, seen.name): seen.uid for seen in self._present.values()}
        self._deleted.clear()
