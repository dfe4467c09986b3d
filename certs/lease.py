"""One of several replicas holds a Lease: taken, renewed and given back by compare-and-swap, judged by our own clock only.

Whoever loses the API server stops holding it by time alone, before another may take it.
"""

import asyncio
import logging
import random as random_module
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from devices.kube.errors import AlreadyExists, Conflict, KubeError, NotFound
from devices.kube.protocols import JsonObject, LeaseStore

__all__ = ["LeaseHolder", "LeaseTimes"]

_log = logging.getLogger(__name__)
_RELEASE_S: Final = 5.0


@dataclass(frozen=True)
class LeaseTimes:
    """Raises ValueError unless retry < hold < duration."""

    duration_s: float = 15.0
    """A Lease not renewed for so long is anybody's."""
    hold_s: float = 10.0
    """We count as its holder for so long after we asked for the last renewal that succeeded."""
    retry_s: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.retry_s < self.hold_s < self.duration_s:
            raise ValueError(
                f"retry {self.retry_s:g} s, hold {self.hold_s:g} s, duration {self.duration_s:g} s: each must be above the one"
                " before, and the first above 0"
            )


class LeaseHolder:
    """Tries to hold a Lease while `run` runs. `changed` is called on the event loop when `held` may have turned true.

    `identity` must be this process's alone. Clock (monotonic seconds), wall time, sleep and random can be replaced.
    """

    def __init__(
        self,
        client: LeaseStore,
        namespace: str,
        name: str,
        identity: str,
        *,
        changed: Callable[[], None] = lambda: None,
        failed: Callable[[], None] = lambda: None,
        times: LeaseTimes = LeaseTimes(),
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        random: Callable[[], float] = random_module.random,
    ) -> None:
        self.identity = identity
        self._client = client
        self._namespace = namespace
        self._name = name
        self._changed = changed
        self._failed = failed
        self._times = times
        self._clock = clock
        self._now = now
        self._sleep = sleep
        self._random = random
        self._held_until = float("-inf")
        self._seen: tuple[object, ...] = ()
        """Holder and times of another's Lease, as last read."""
        self._seen_at = float("-inf")
        """When the other's Lease was first seen so: its age counts from there, not from its writer's clock."""
        self._said = ""

    @property
    def held(self) -> bool:
        """Whether it is ours at this moment."""
        return self._clock() < self._held_until

    async def run(self) -> None:
        """Take and renew until cancelled; errors only delay it."""
        while True:
            await self.attempt()
            # A little apart, so that replicas started together do not always meet.
            await self._sleep(self._times.retry_s * (1.0 + 0.2 * self._random()))

    async def attempt(self) -> bool:
        """Try once to take or renew it; whether it is ours afterwards."""
        was_held = self.held
        try:
            async with asyncio.timeout(self._times.hold_s):
                await self._attempt()
        except (Conflict, NotFound):
            pass  # somebody was faster; the next look shows who
        except (KubeError, TimeoutError) as error:
            self._failed()
            text = str(error) or "timed out"
            if text != self._said:
                self._said = text
                _log.warning("Lease %s/%s: %s", self._namespace, self._name, text)
        else:
            self._said = ""
        if self.held != was_held:
            _log.info("Lease %s/%s: %s", self._namespace, self._name, "ours" if self.held else "no longer ours")
            self._changed()
        return self.held

    async def release(self) -> None:
        """Give it back, so that another need not wait for its end; best effort."""
        if not self.held:
            return
        self._held_until = float("-inf")
        try:
            async with asyncio.timeout(_RELEASE_S):
                lease = await self._client.get_lease(self._namespace, self._name)
                spec = _spec(lease)
                if spec.get("holderIdentity") != self.identity:
                    return
                spec = {**spec, "holderIdentity": "", "renewTime": self._moment(), "leaseDurationSeconds": 1}
                await self._client.replace_lease(self._namespace, self._name, {**lease, "spec": spec})
        except (KubeError, TimeoutError) as error:
            _log.warning("Lease %s/%s was not given back, it ends by itself: %s", self._namespace, self._name, error)

    async def _attempt(self) -> None:
        asked_at = self._clock()
        try:
            lease = await self._client.get_lease(self._namespace, self._name)
        except NotFound:
            body: JsonObject = {"metadata": {"name": self._name, "namespace": self._namespace}, "spec": self._ours({})}
            try:
                await self._client.create_lease(self._namespace, body)
            except AlreadyExists:
                return
            self._held_until = asked_at + self._times.hold_s
            return
        spec = _spec(lease)
        if spec.get("holderIdentity") != self.identity:
            self._held_until = float("-inf")
            if not self._is_free(spec):
                return
        asked_at = self._clock()
        await self._client.replace_lease(self._namespace, self._name, {**lease, "spec": self._ours(spec)})
        self._held_until = asked_at + self._times.hold_s

    def _is_free(self, spec: JsonObject) -> bool:
        if not spec.get("holderIdentity"):
            return True
        seen = tuple(spec.get(key) for key in ("holderIdentity", "acquireTime", "renewTime", "leaseTransitions"))
        if seen != self._seen:
            self._seen, self._seen_at = seen, self._clock()
        seconds = spec.get("leaseDurationSeconds")
        duration_s = seconds if isinstance(seconds, int) and seconds > 0 else self._times.duration_s
        return self._clock() >= self._seen_at + duration_s

    def _ours(self, before: JsonObject) -> JsonObject:
        moment = self._moment()
        spec = {
            **before,
            "holderIdentity": self.identity,
            # Rounded up: another replica counts this, and must not be ahead of us.
            "leaseDurationSeconds": max(1, -int(-self._times.duration_s // 1)),
            "renewTime": moment,
        }
        if before.get("holderIdentity") != self.identity:
            transitions = before.get("leaseTransitions")
            spec["acquireTime"] = moment
            spec["leaseTransitions"] = transitions + 1 if isinstance(transitions, int) else 0
        return spec

    def _moment(self) -> str:
        return f"{self._now():%Y-%m-%dT%H:%M:%S.%fZ}"


def _spec(lease: JsonObject) -> JsonObject:
    spec = lease.get("spec")
    return dict(spec) if isinstance(spec, dict) else {}
