"""Reading the Lease that kube-scheduler competes for, and telling the reflector's news of it as events of leadership."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec

from devices.kube.seen import SeenObject
from scheduler.leadership import Event, Gone, Lease, Listed, Seen

__all__ = ["LeaseNews", "SeenLease", "decode_lease"]


class _Metadata(msgspec.Struct, rename="camel"):
    uid: str


class _Spec(msgspec.Struct, rename="camel"):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class _Document(msgspec.Struct):
    metadata: _Metadata
    spec: _Spec | None = None


@dataclass(frozen=True, slots=True)
class SeenLease:
    """A Lease, and when its holder says that it renewed it (Unix seconds; None where it says nothing)."""

    lease: Lease
    renewed_s: float | None


def decode_lease(raw: bytes) -> SeenLease:
    """One Lease's JSON. Raises ValueError for what is no Lease, or names a time that is none."""
    document = msgspec.json.decode(raw, type=_Document)
    spec = document.spec or _Spec()
    lease = Lease(
        document.metadata.uid,
        spec.holder_identity or "",
        spec.acquire_time or "",
        spec.lease_transitions or 0,
        spec.renew_time or "",
        float(spec.lease_duration_seconds or 0),
    )
    return SeenLease(lease, datetime.fromisoformat(spec.renew_time).timestamp() if spec.renew_time else None)


class LeaseNews:
    """(Consumer) Turns what a reflector brings of one Lease into events.

    `host_name` and an underscore begin the identity of the kube-scheduler beside us. `wall` gives Unix seconds. That kube-scheduler
    has our own machine's clock, so the age of its renewal is known; it only ever makes our Lease shorter.
    """

    def __init__(self, host_name: str, wall: Callable[[], float], happened: Callable[[Event], None]) -> None:
        self._beside = f"{host_name}_"
        self._wall = wall
        self._happened = happened
        self._held: dict[str, object] = {}

    def known(self) -> Mapping[str, object]:
        """(Consumer) Asked at every list after the first, which is how that is noticed."""
        self._happened(Listed())
        return dict(self._held)

    def replace(self, items: Sequence[SeenLease]) -> None:
        """(Consumer)"""
        self._held.clear()
        if not items:
            self._happened(Gone())
        for item in items:
            self.put(item)

    def put(self, item: SeenLease) -> None:
        """(Consumer)"""
        self._held[item.lease.uid] = None
        ours = item.lease.holder.startswith(self._beside)
        age_s = 0.0 if item.renewed_s is None else max(0.0, self._wall() - item.renewed_s)
        self._happened(Seen(item.lease, ours, age_s if ours else 0.0))

    def delete(self, gone: SeenObject) -> None:
        """(Consumer)"""
        if gone.uid in self._held:
            del self._held[gone.uid]
            self._happened(Gone())
