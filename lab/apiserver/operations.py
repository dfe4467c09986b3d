"""What is asked of the server and what came of it, free of HTTP."""

from __future__ import annotations

from dataclasses import dataclass, field

from .documents import JsonObject
from .hooks import User
from .resources import Resource
from .store import Version


@dataclass(frozen=True, slots=True)
class Target:
    """What a request is about."""

    resource: Resource
    namespace: str = ""
    name: str = ""
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who writes, and whether in earnest."""

    user: User
    dry_run: bool = False
    field_manager: str = ""


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """What a DELETE asked for."""

    grace_period_s: int | None = None
    uid: str | None = None
    resource_version: str | None = None
    document: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Written:
    """The outcome of a write."""

    version: Version | None
    """None where the answer is a Status."""
    changed: bool
    created: bool = False
    warnings: tuple[str, ...] = ()
    status: JsonObject | None = None
