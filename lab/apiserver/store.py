"""The objects, their versions and the recent changes: one revision counter over all kinds, as in etcd.

Objects are replaced, never changed in place, so a version can be handed out, diffed and sent without copying.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Literal

import orjson

from .documents import JsonObject
from .errors import expired, too_large_version
from .resources import RESOURCES, Resource

ChangeType = Literal["ADDED", "MODIFIED", "DELETED"]


class Version:
    """One object as it was after one write, serialised at most once."""

    __slots__ = ("_raw", "key", "obj", "revision")

    def __init__(self, key: str, obj: JsonObject, revision: int) -> None:
        self.key = key
        self.obj = obj
        self.revision = revision
        self._raw: bytes | None = None

    @property
    def raw(self) -> bytes:
        """The object as JSON; begins with the kind's `raw_prefix`."""
        if self._raw is None:
            self._raw = orjson.dumps(self.obj)
        return self._raw


class Change:
    """One write as watchers learn of it."""

    __slots__ = ("_line", "previous", "type", "version")

    def __init__(self, type_: ChangeType, version: Version, previous: Version | None) -> None:
        self.type: ChangeType = type_
        self.version = version
        """After the write; for DELETED the last state under the revision of the deletion."""
        self.previous = previous
        self._line: bytes | None = None

    @property
    def line(self) -> bytes:
        """The change as a line of a watch stream."""
        if self._line is None:
            self._line = watch_line(self.type, self.version.raw)
        return self._line


def watch_line(type_: str, raw: bytes) -> bytes:
    """Return one event of a watch stream, newline included."""
    return b'{"type":"%s","object":%s}\n' % (type_.encode(), raw)


class _Collection:
    """All objects of one kind and their last changes."""

    __slots__ = ("changes", "items", "order", "truncated")

    def __init__(self) -> None:
        self.items: dict[str, Version] = {}
        self.changes: deque[Change] = deque()
        self.truncated = False
        self.order: list[str] | None = None

    def sorted(self) -> list[Version]:
        if self.order is None:
            self.order = sorted(self.items)
        items = self.items
        return [items[key] for key in self.order]


class Store:
    """Versions of objects under one revision counter.

    Args:
        window: changes kept a kind; watches and paged lists from before them are answered with 410.
        on_change: called after every write, in order of revisions.
    """

    def __init__(self, window: int, on_change: Callable[[Resource, Change], None]) -> None:
        if window < 1:
            raise ValueError(f"window is {window}; at least 1 change has to be kept")
        self._window = window
        self._on_change = on_change
        self._collections = {resource: _Collection() for resource in RESOURCES}
        self.revision = 1
        """Revision of the last write to any kind."""

    def get(self, resource: Resource, key: str) -> Version | None:
        """Return the newest version under the key, or None."""
        return self._collections[resource].items.get(key)

    def count(self, resource: Resource) -> int:
        """Return how many objects of the kind exist."""
        return len(self._collections[resource].items)

    def ordered(self, resource: Resource) -> list[Version]:
        """Return all objects of the kind in key order."""
        return self._collections[resource].sorted()

    def ordered_at(self, resource: Resource, revision: int) -> list[Version]:
        """Return all objects of the kind as they were at an earlier revision.

        Raises:
            ApiError: 504 for a revision not reached yet; 410 for one older than the kept changes.
        """
        if revision > self.revision:
            raise too_large_version(revision, self.revision)
        later = self.changes_after(resource, revision)
        if not later:
            return self.ordered(resource)
        items = dict(self._collections[resource].items)
        for change in reversed(later):
            if change.previous is None:
                items.pop(change.version.key, None)
            else:
                items[change.version.key] = change.previous
        return [items[key] for key in sorted(items)]

    def changes_after(self, resource: Resource, revision: int) -> list[Change]:
        """Return the changes of the kind later than a revision, oldest first.

        Raises:
            ApiError: 410 when changes of that time are no longer kept.
        """
        collection = self._collections[resource]
        changes = collection.changes
        if collection.truncated:
            oldest = changes[0].version.revision if changes else self.revision + 1
            if revision < oldest - 1:
                raise expired(f"too old resource version: {revision} ({oldest - 1})")
        if not changes or changes[-1].version.revision <= revision:
            return []
        start = bisect.bisect_right(changes, revision, key=lambda change: change.version.revision)
        return list(islice(changes, start, None))

    def put(self, resource: Resource, key: str, obj: JsonObject) -> Version:
        """Write a new version of an object, which may be the first."""
        collection = self._collections[resource]
        previous = collection.items.get(key)
        version = self._next(resource, key, obj)
        collection.items[key] = version
        if previous is None:
            collection.order = None
        self._record(resource, collection, Change("ADDED" if previous is None else "MODIFIED", version, previous))
        return version

    def remove(self, resource: Resource, key: str) -> Version:
        """Delete an object that exists and return its last state under the deletion's revision."""
        collection = self._collections[resource]
        previous = collection.items.pop(key)
        collection.order = None
        version = self._next(resource, key, previous.obj)
        self._record(resource, collection, Change("DELETED", version, previous))
        return version

    def forget_changes(self, resource: Resource) -> None:
        """Drop the kept changes of a kind: whatever rests on an earlier revision is answered with 410."""
        collection = self._collections[resource]
        collection.changes.clear()
        collection.truncated = True

    def _next(self, resource: Resource, key: str, obj: JsonObject) -> Version:
        self.revision += 1
        revision = str(self.revision)
        stored: JsonObject = {"kind": resource.kind, "apiVersion": resource.api_version}
        stored.update(obj)
        stored["kind"], stored["apiVersion"] = resource.kind, resource.api_version
        stored["metadata"] = {**obj["metadata"], "resourceVersion": revision}
        return Version(key, stored, self.revision)

    def _record(self, resource: Resource, collection: _Collection, change: Change) -> None:
        collection.changes.append(change)
        if len(collection.changes) > self._window:
            collection.changes.popleft()
            collection.truncated = True
        self._on_change(resource, change)
