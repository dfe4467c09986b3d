"""What has become of a pod, and waiting for it."""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from devices.annotations import decode
from devices.errors import AllocationError
from devices.kube.errors import ApiStatusError
from devices.kube.resources import EVENTS
from devices.vendor import Vendor
from lab.cluster import Cluster
from lab.families import allocations
from lab.names import HOLD_INIT
from lab.scenario import EventForm

__all__ = ["Outcome", "denial_of", "outcome_of", "wait_for_event", "wait_for_outcome"]

_DENIED: Final = re.compile(r'admission webhook "[^"]*" denied the request(: )?(?P<why>.*)', re.DOTALL)


@dataclass(frozen=True)
class Outcome:
    """A pod as it stands; None where something has not been said about it."""

    exists: bool
    node: str | None = None
    allocated: str | None = None
    """The allocation texts of all families, by vendor key."""
    cards: list[str] | None = None
    """UUIDs over all containers, in order, of one family after the other; None while there is no allocation, or one that nobody
    can read."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    pending: str | None = None
    """kube-scheduler's message about a pod that is not placed."""
    phase: str | None = None
    message: str = ""
    """`status.message`, e.g. why an Allocate failed."""
    limits: dict[str, str] | None = None
    """Of the first container."""
    holds_init: bool = False
    """Its init containers wait to be ended, so it stays Pending."""

    @property
    def is_running(self) -> bool:
        """Placed and taken on by the kubelet; also true once it has succeeded."""
        return self.node is not None and (self.phase in ("Running", "Succeeded") or self.holds_init)

    @property
    def described(self) -> str:
        """In a few words, for people."""
        if not self.exists:
            return "is gone"
        if self.node is None:
            return f"is pending: {self.pending}" if self.pending else "is pending, nothing has been said about it yet"
        what = f"→ {self.node} {self.allocated or 'without cards'}"
        return f"{what} ({self.phase}: {self.message})" if self.phase == "Failed" else what


def _cards(texts: Sequence[tuple[Vendor, str]]) -> list[str] | None:
    try:
        held = [entry.uuid for vendor, text in texts for entries in decode(text, vendor.key) for entry in entries]
    except AllocationError:
        return None
    return held or None


class _Status(msgspec.Struct):
    message: str = ""


class _PodWithMessage(msgspec.Struct):
    status: _Status = msgspec.field(default_factory=_Status)


def outcome_of(cluster: Cluster, namespace: str, name: str) -> Outcome:
    """The pod as the lab's watch has shown it last."""
    seen = cluster.pods.objects.get(f"{namespace}/{name}")
    if seen is None:
        return Outcome(exists=False)
    pod = seen.pod
    conditions = seen.conditions if pod.is_unschedulable and not pod.bound_node else []
    said = next((c.get("message") for c in conditions if c.get("type") == "PodScheduled"), None)
    first = pod.containers[0] if pod.containers else None
    texts = allocations(pod, cluster.ledger.config.vendors) if pod.bound_node else []
    statuses = pod.status.init_container_statuses or ()
    return Outcome(
        exists=True,
        node=pod.bound_node or None,
        allocated=" ".join(text for _, text in texts) or None,
        cards=_cards(texts),
        annotations=pod.annotations,
        pending=cluster.own_words(str(said)) if said is not None else None,
        phase=pod.status.phase,
        message=msgspec.json.decode(seen.raw, type=_PodWithMessage).status.message,
        limits={key: str(value) for key, value in first.limits.items()} if first else None,
        holds_init=pod.annotations.get(HOLD_INIT) == "true" and bool(statuses),
    )


async def wait_for_outcome(cluster: Cluster, namespace: str, name: str, reached: Callable[[Outcome], bool]) -> Outcome:
    """The pod once `reached` says so, or as it stands when the cluster's time for that is over."""
    await cluster.pods.wait_for(lambda: reached(outcome_of(cluster, namespace, name)), cluster.settings.settle_s)
    return outcome_of(cluster, namespace, name)


def denial_of(error: ApiStatusError) -> str | None:
    """What the webhook said, without the API server's words in front; None for an error that is no denial."""
    match = _DENIED.match(error.message)
    return match["why"] if match else None


class _Involved(msgspec.Struct):
    namespace: str = ""
    name: str = ""


class _Event(msgspec.Struct):
    involved: _Involved = msgspec.field(name="involvedObject")
    reason: str = ""
    message: str = ""
    type: str = ""


class _Events(msgspec.Struct):
    items: list[_Event]


async def wait_for_event(cluster: Cluster, namespace: str, name: str, wanted: EventForm) -> list[str]:
    """Nothing once there is such an Event on the pod; else, when the cluster's time for that is over, what there was."""
    seen: list[_Event] = []

    def is_it(event: _Event) -> bool:
        if (event.involved.namespace, event.involved.name) != (namespace, name):
            return False
        event.message = cluster.own_words(event.message)
        seen.append(event)
        return (event.reason, event.message) == (wanted.reason, wanted.message) and wanted.type in (None, event.type)

    try:
        async with asyncio.timeout(cluster.settings.settle_s):
            version = ""
            async for page in cluster.client.list_pages(EVENTS, namespace):
                version = page.resource_version
                if any(is_it(event) for event in msgspec.json.decode(page.raw, type=_Events).items):
                    return []
            watch = cluster.client.watch(
                EVENTS, namespace, resource_version=version, timeout_s=cluster.settings.settle_s
            )
            async for line in watch:
                if line.type in ("ADDED", "MODIFIED") and is_it(msgspec.json.decode(line.raw, type=_Event)):
                    return []
    except TimeoutError:
        pass
    came = "; ".join(f"{event.type} {event.reason} {event.message!r}" for event in seen) or "none"
    return [f"event {wanted.reason} {wanted.message!r} did not come; there were: {came}"]
