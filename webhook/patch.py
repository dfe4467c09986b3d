"""Changing a raw pod, and the minimal JSON Patch that says the same (RFC 6902).

Only what is changed is copied and only that appears in the patch, so fields that Slotwise does not know survive. What an operation
relies on is tested before it: the old value of what is replaced, and the name of the list element that a position is meant for.
"""

from collections.abc import Callable
from typing import TypeVar

from webhook.errors import NotAPodError
from webhook.wire import JsonObject, Operation

__all__ = ["Path", "PodEdit"]

Path = tuple[str | int, ...]
"""Keys and list positions from the root, e.g. `("spec", "containers", 0, "env")`."""

_Copied = TypeVar("_Copied", list[object], JsonObject)

_ABSENT = object()
_END = "-"
"""The position after a list's last element."""


def _pointer(path: Path) -> str:
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def _child(value: object, part: str | int, where: Path) -> object:
    """The member or element, `_ABSENT` where there is none. Raises `NotAPodError` where the shape does not allow one."""
    if isinstance(part, int):
        if not isinstance(value, list):
            raise NotAPodError(f"object is not a Pod: {_pointer(where)} must be a list")
        return value[part] if part < len(value) else _ABSENT
    if not isinstance(value, dict):
        raise NotAPodError(f"object is not a Pod: {_pointer(where) or 'it'} must be an object")
    return value.get(part, _ABSENT)


class PodEdit:
    """A pod being mutated: `pod` is it as it is now, `operations` lead there from the pod given, which stays as it was."""

    def __init__(self, pod: JsonObject) -> None:
        self._pod: object = pod
        self._operations: list[Operation] = []
        self._tested: set[Path] = set()
        self._copies: dict[int, object] = {}
        """Lists and objects that are ours alone, by `id`: changed in place, or a pod of many containers would be copied for each."""

    @property
    def pod(self) -> JsonObject:
        """The pod with all changes so far."""
        if not isinstance(self._pod, dict):
            raise AssertionError("changes are made below the root")
        return self._pod

    @property
    def operations(self) -> list[Operation]:
        """The patch so far; empty when nothing was changed."""
        return list(self._operations)

    def get(self, *path: str | int) -> object:
        """What is at the path; None when it, or anything on the way, is absent or null."""
        value = self._at(path)
        return None if value is _ABSENT else value

    def put(self, path: Path, value: str) -> None:
        """Set a text, creating parents that are missing. Nothing happens where it stands already."""
        depth, held = self._outermost(path)
        if depth < len(path) or held != value:
            self._set(path[:depth], held, path[depth:], value)

    def append(self, path: Path, value: JsonObject) -> None:
        """Add an element at the end of a list, creating list and parents where missing."""
        depth, held = self._outermost(path)
        if held is None or held is _ABSENT:
            self._set(path[:depth], held, path[depth:], [value])
            return
        if not isinstance(held, list):
            raise NotAPodError(f"object is not a Pod: {_pointer(path)} must be a list")
        self._test_names(path)
        self._operations.append({"op": "add", "path": _pointer((*path, _END)), "value": value})
        self._pod = self._changed(self._pod, path, lambda _: [*held, value])

    def remove(self, path: Path) -> None:
        """Remove a member; nothing happens where there is none."""
        if self._at(path) is not _ABSENT:
            self._test_names(path)
            self._operations.append({"op": "remove", "path": _pointer(path)})
            self._pod = self._changed(self._pod, path, lambda _: _ABSENT)

    def _changed(self, value: object, path: Path, change: Callable[[object], object]) -> object:
        """`value`, or a copy of it where it is the caller's, with `change` made at `path`; what is not on the way is shared."""
        if not path:
            return change(value)
        part, rest = path[0], path[1:]
        if isinstance(value, list) and isinstance(part, int):
            elements = self._ours(value)
            elements[part] = self._changed(elements[part], rest, change)
            return elements
        members: JsonObject = self._ours(value) if isinstance(value, dict) else {}
        after = self._changed(members.get(str(part), _ABSENT), rest, change)
        if after is _ABSENT:
            members.pop(str(part), None)
        else:
            members[str(part)] = after
        return members

    def _ours(self, value: _Copied) -> _Copied:
        if id(value) in self._copies:
            return value
        copy = value.copy()
        self._copies[id(copy)] = copy
        return copy

    def _at(self, path: Path) -> object:
        value = self._pod
        for depth, part in enumerate(path):
            if isinstance(value, dict) and isinstance(part, str):
                value = value.get(part, _ABSENT)
            elif value is None or value is _ABSENT:
                return _ABSENT
            else:
                value = _child(value, part, path[:depth])
        return value

    def _outermost(self, path: Path) -> tuple[int, object]:
        """How deep the path leads until something is absent or null, or to its end; and what is there."""
        value = self._pod
        for depth, part in enumerate(path):
            if isinstance(value, dict) and isinstance(part, str):
                value = value.get(part, _ABSENT)
            else:
                value = _child(value, part, path[:depth])
            if value is None or value is _ABSENT:
                return depth + 1, value
        return len(path), value

    def _set(self, target: Path, old: object, missing: Path, value: object) -> None:
        """One `add` or guarded `replace` at the outermost place where something is missing; the rest comes as its value."""
        self._test_names((*target, *missing))
        for part in reversed(missing):
            value = {str(part): value}
        pointer = _pointer(target)
        if old is _ABSENT:
            self._operations.append({"op": "add", "path": pointer, "value": value})
        else:
            self._operations.append({"op": "test", "path": pointer, "value": old})
            self._operations.append({"op": "replace", "path": pointer, "value": value})
        self._pod = self._changed(self._pod, target, lambda _: value)

    def _test_names(self, path: Path) -> None:
        """Positions shift when others add containers: make sure, once each, that it is still the one we looked at."""
        for depth, part in enumerate(path):
            element = path[: depth + 1]
            if isinstance(part, int) and element not in self._tested:
                self._tested.add(element)
                name = self.get(*element, "name")
                if name is not None:
                    self._operations.append({"op": "test", "path": _pointer((*element, "name")), "value": name})
