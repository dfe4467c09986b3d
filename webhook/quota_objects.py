"""What we write to ResourceQuota objects and about them: warning Events on what is not understood, and what is used as an annotation.

Both are best effort, rate-limited, and the same whichever replica does it.
"""

import asyncio
import hashlib
import logging
import random as random_module
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import orjson
from prometheus_client import CollectorRegistry, Counter

from devices.kube.errors import AlreadyExists, KubeError
from devices.kube.protocols import EventWriter, JsonObject
from devices.ledger import Ledger
from devices.model import NO_CHARGE
from devices.node_lock import rfc3339
from devices.objects import Quota
from devices.quota import PREFIX, amounts, limits_of, quota_problems
from devices.recent import Recent
from devices.scopes import scope_of

__all__ = ["USED_ANNOTATION", "QuotaAnnotations", "QuotaEvents", "QuotaPatcher", "used_text"]

USED_ANNOTATION: Final = "slotwise.io/quota-used"
_REASON: Final = "QuotaNotUnderstood"
_ROUND_S: Final = 10.0
"""An object is annotated at most so often."""
_A_ROUND: Final = 50
"""At most so many objects a round."""
_QUEUE: Final = 1000
_log = logging.getLogger(__name__)


class QuotaPatcher(Protocol):
    """Merge-patches ResourceQuotas."""

    async def patch_quota(self, namespace: str, name: str, body: JsonObject) -> JsonObject:
        """The object as stored. Raises KubeError."""
        ...


class QuotaEvents:
    """Writes one Warning for each thing in a quota that limits nothing; all replicas together write it once."""

    def __init__(
        self, api: EventWriter, ledger: Ledger, now: Callable[[], float], registry: CollectorRegistry | None = None
    ) -> None:
        self._api = api
        self._ledger = ledger
        self._now = now
        self._queue: asyncio.Queue[tuple[Quota, str]] = asyncio.Queue(_QUEUE)
        self._said: Recent[str, None] = Recent(_QUEUE)
        self._count = Counter(
            "slotwise_quota_events",
            "Warnings on quota objects by outcome: sent, known (another replica was faster), dropped, failed.",
            ["outcome"],
            registry=registry or CollectorRegistry(),
        )

    def changed(self, quota: Quota) -> None:
        """A quota as it is now (listener of the feed)."""
        for text in quota_problems(quota, self._ledger.quota_names):
            name = _event_name(quota, text)
            if name in self._said:
                continue
            self._said.put(name, None)
            try:
                self._queue.put_nowait((quota, text))
            except asyncio.QueueFull:
                self._count.labels("dropped").inc()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            quota, text = await self._queue.get()
            try:
                await self._api.create_event(quota.namespace, _event(quota, text, self._now()))
            except AlreadyExists:
                self._count.labels("known").inc()
            except KubeError as error:
                self._count.labels("failed").inc()
                _log.warning("no Event for %s: %s", text, error)
            else:
                self._count.labels("sent").inc()


def _event_name(quota: Quota, text: str) -> str:
    """The same for every replica and as long as the object says the same."""
    digest = hashlib.sha256(f"{quota.metadata.uid} {text}".encode()).hexdigest()[:16]
    return f"{quota.name[:200]}.{digest}"


def _event(quota: Quota, text: str, now_s: float) -> JsonObject:
    stamp = rfc3339(now_s)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": _event_name(quota, text), "namespace": quota.namespace},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "namespace": quota.namespace,
            "name": quota.name,
            "uid": quota.metadata.uid,
            "resourceVersion": quota.metadata.resource_version,
        },
        "reason": _REASON,
        "message": text[:1024],
        "type": "Warning",
        "source": {"component": "slotwise-webhook"},
        "reportingComponent": "slotwise-webhook",
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }


def used_text(ledger: Ledger, quota: Quota) -> str:
    """What is used of every key of the object that we manage, as a JSON object; empty where it limits nothing of ours."""
    limited = limits_of((quota,), ledger.quota_names)
    used = ledger.used(quota.namespace, scope_of(quota)) if limited else {}
    rows = {
        PREFIX + name: amount
        for vendor in ledger.config.vendors
        for name, amount, _ in amounts(vendor, used.get(vendor.key, NO_CHARGE))
        if name in limited
    }
    return orjson.dumps(rows, option=orjson.OPT_SORT_KEYS).decode() if rows else ""


class QuotaAnnotations:
    """Keeps the annotation `slotwise.io/quota-used` of every quota object that limits anything of ours."""

    def __init__(
        self,
        api: QuotaPatcher,
        ledger: Ledger,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        random: Callable[[], float] = random_module.random,
    ) -> None:
        self._api = api
        self._ledger = ledger
        self._sleep = sleep
        self._random = random

    async def run(self) -> None:
        """Write until cancelled, a round every ten seconds or so: at random, so that one replica is first and the others see it."""
        while True:
            await self._sleep(_ROUND_S * (0.75 + 0.5 * self._random()))
            await self.round()

    async def round(self) -> int:
        """Annotate what has changed, at most fifty objects; how many were written."""
        written = 0
        for quota in sorted(self._ledger.quotas(), key=lambda q: (q.namespace, q.name)):
            text = used_text(self._ledger, quota)
            if not text or (quota.metadata.annotations or {}).get(USED_ANNOTATION) == text:
                continue
            if written == _A_ROUND:
                break
            written += 1
            body: JsonObject = {"metadata": {"uid": quota.metadata.uid, "annotations": {USED_ANNOTATION: text}}}
            try:
                await self._api.patch_quota(quota.namespace, quota.name, body)
            except KubeError as error:
                _log.warning("quota %s/%s is not annotated: %s", quota.namespace, quota.name, error)
        return written
