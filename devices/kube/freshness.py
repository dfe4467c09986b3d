"""Is what we know of the pods fresh? Proven by touching our own pod and seeing the watch deliver that change."""

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, Gauge

from devices.kube.errors import KubeError
from devices.kube.protocols import JsonObject, PodPatcher

__all__ = ["HEARTBEAT_ANNOTATION", "Freshness", "FreshnessSettings", "OwnPod", "WatchProgress", "own_pod"]

HEARTBEAT_ANNOTATION: Final = "slotwise.io/heartbeat"

_log = logging.getLogger(__name__)


class WatchProgress(Protocol):
    """What freshness needs to know of the pod reflector."""

    synced: asyncio.Event

    @property
    def last_event_age_s(self) -> float:
        """Seconds since the API server last told us anything."""
        ...

    async def wait_for_revision(self, resource_version: str | int, timeout_s: float) -> bool:
        """True as soon as that revision was delivered, False after `timeout_s`."""
        ...


@dataclass(frozen=True, slots=True)
class OwnPod:
    """The pod this process runs in (`POD_NAMESPACE`, `POD_NAME`)."""

    namespace: str
    name: str


def own_pod(environment: Mapping[str, str] = os.environ) -> OwnPod | None:
    """The pod that the environment names; None where it names none (a laptop, a test)."""
    name, namespace = environment.get("POD_NAME"), environment.get("POD_NAMESPACE")
    return OwnPod(namespace, name) if name and namespace else None


@dataclass(frozen=True)
class FreshnessSettings:
    """How often the watch is proven, and when it counts as stale. Raises ValueError for a time that is not above 0."""

    interval_s: float = 5.0
    """Time between two touches of our own pod."""
    limit_s: float = 10.0
    """A touch not delivered for so long makes the watch stale."""
    quiet_limit_s: float = 120.0
    """Without a pod of our own: silence after which the watch counts as stale; above the reflector's own quiet time."""

    def __post_init__(self) -> None:
        for name in ("interval_s", "limit_s", "quiet_limit_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be above 0")


_DEFAULT_SETTINGS: Final = FreshnessSettings()


class Freshness:
    """Whether the pod watch can be trusted. With a pod of our own `run` has to run; without one, silence alone decides.

    Clock (monotonic seconds) and sleep can be replaced.
    """

    def __init__(
        self,
        watch: WatchProgress,
        patcher: PodPatcher,
        own_pod: OwnPod | None,
        settings: FreshnessSettings = _DEFAULT_SETTINGS,
        *,
        registry: CollectorRegistry | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._watch = watch
        self._patcher = patcher
        self._own_pod = own_pod
        self._settings = settings
        self._clock = clock
        self._sleep = sleep
        self._touched_at: float | None = None
        self._unproven_since: float | None = None
        self._trouble = ""
        if own_pod is None:
            _log.info("no pod of our own: freshness of the pod watch is judged by bookmarks and events alone")
        if registry is not None:
            stale = Gauge("slotwise_pod_watch_stale", "1 while what we know of the pods may be old.", registry=registry)
            stale.set_function(lambda: float(self.is_stale()))
            age = Gauge(
                "slotwise_pod_watch_silence_seconds",
                "Time since the pod watch last brought anything.",
                registry=registry,
            )
            age.set_function(lambda: self._watch.last_event_age_s)

    @property
    def driven_by(self) -> str:
        """In words, what the judgement rests on."""
        if self._own_pod is None:
            return "bookmarks and events of the pod watch (no pod of our own)"
        return f"round trips over pod {self._own_pod.namespace}/{self._own_pod.name}"

    def is_stale(self) -> bool:
        """True while the watch may be behind: pods may exist, or be gone, without our knowing."""
        return self.reason() is not None

    def reason(self) -> str | None:
        """Why the watch counts as stale, None while it is fresh."""
        if not self._watch.synced.is_set():
            return "the pods are not listed yet"
        if self._own_pod is None:
            silence_s = self._watch.last_event_age_s
            if silence_s <= self._settings.quiet_limit_s:
                return None
            return f"the pod watch has been silent for {silence_s:.0f} s (limit {self._settings.quiet_limit_s:g} s)"
        if self._touched_at is None:
            return "our own pod has not been touched yet"
        if self._unproven_since is None:
            # Nothing is on its way; it stays so only until the next touch is due.
            idle_s = self._clock() - self._touched_at
            due_s = self._settings.interval_s + self._settings.limit_s
            return None if idle_s <= due_s else f"our own pod was last touched {idle_s:.0f} s ago (limit {due_s:g} s)"
        unproven_s = self._clock() - self._unproven_since
        if unproven_s <= self._settings.limit_s:
            return None
        trouble = self._trouble or "the watch has not delivered it"
        return f"our own pod was touched {unproven_s:.0f} s ago (limit {self._settings.limit_s:g} s): {trouble}"

    async def run(self) -> None:
        """Touch our own pod at the interval until cancelled; returns at once without one."""
        if self._own_pod is None:
            return
        await self._watch.synced.wait()
        while True:
            began_at = self._clock()
            await self._beat(self._own_pod)
            await self._sleep(max(0.0, began_at + self._settings.interval_s - self._clock()))

    async def _beat(self, pod: OwnPod) -> None:
        """One round trip. Staleness counts from the first touch that none has come back since."""
        self._touched_at = self._clock()
        if self._unproven_since is None:
            self._unproven_since = self._touched_at
        # A value of its own each time: a patch that changes nothing makes no event.
        stamp = datetime.now(UTC).isoformat(timespec="microseconds")
        try:
            stored = await self._patcher.patch_pod(
                pod.namespace, pod.name, {"metadata": {"annotations": {HEARTBEAT_ANNOTATION: stamp}}}
            )
            delivered = await self._watch.wait_for_revision(_resource_version(stored), self._settings.limit_s)
        except (KubeError, ValueError) as error:
            self._say(f"it cannot be touched: {error}")
            return
        if delivered:
            if self._trouble:
                _log.info("the pod watch is fresh again")
            self._unproven_since = None
            self._trouble = ""
        else:
            self._say("the watch has not delivered it")

    def _say(self, trouble: str) -> None:
        if trouble != self._trouble:
            _log.warning("own pod: %s", trouble)
        self._trouble = trouble


def _resource_version(stored: JsonObject) -> str:
    metadata = stored.get("metadata")
    version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
    if not isinstance(version, str):
        raise ValueError(f"the patched pod has resourceVersion {version!r}, not a text")
    return version
