"""The value of a node lock: `<RFC 3339 time>,<namespace>,<pod name>`, or in its older form the time alone."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from devices.errors import LockError

__all__ = ["OWNED", "LockFormat", "LockValue", "parse", "rfc3339", "seconds_of"]

_PARTS = 3
_RFC3339 = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?(Z|[+-]\d{2}:\d{2})")


@dataclass(frozen=True, slots=True)
class LockValue:
    """Who took the lock and when (Unix seconds); the older form names nobody."""

    at_s: float
    namespace: str = ""
    name: str = ""

    @property
    def names_owner(self) -> bool:
        """False for the older form."""
        return bool(self.name)

    def is_of(self, namespace: str, name: str) -> bool:
        """Whether it names this pod."""
        return (self.namespace, self.name) == (namespace, name) and self.names_owner

    def text(self) -> str:
        """The annotation's value."""
        return f"{rfc3339(self.at_s)},{self.namespace},{self.name}" if self.names_owner else rfc3339(self.at_s)


@dataclass(frozen=True, slots=True)
class LockFormat:
    """How the lock of a family's device plugin is written.

    `names_owner`: the value says whose it is; without, it is the bare time. `expiry_s`: its age at which it is nobody's, None for
    the configured one. `takes_malformed`: what cannot be read counts as expired; else taking the lock fails. `contention`: what a pod
    is told that has to come again.
    """

    names_owner: bool = True
    expiry_s: float | None = None
    takes_malformed: bool = True
    contention: str = "node {node} has been locked within {expiry}: node lock contention"


OWNED = LockFormat()
"""The common one."""


def rfc3339(seconds: float) -> str:
    """Unix seconds as `2026-08-01T06:00:00Z`."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_of(text: str) -> float:
    """Unix seconds of an RFC 3339 time. Raises `LockError`."""
    if not _RFC3339.fullmatch(text):
        raise LockError(f"malformed lock time {text!r}: expected a time such as 2026-08-01T06:00:00Z")
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError as error:
        raise LockError(f"malformed lock time {text!r}: {error}") from error


def parse(text: str) -> LockValue:
    """The value read. Raises `LockError` with the recorded text for a wrong number of parts."""
    if "," not in text:
        return LockValue(seconds_of(text))
    parts = text.split(",")
    if len(parts) != _PARTS:
        raise LockError(f"malformed lock annotation: expected 3 parts, got {len(parts)} from {text}")
    return LockValue(seconds_of(parts[0]), parts[1], parts[2])
