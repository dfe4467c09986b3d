"""Leadership as this process lives it: the Lease watched, our own pod labelled and stamped, everyone told of terms that begin and end."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge

from devices.kube.consumer import ListWatch
from devices.kube.errors import KubeError
from devices.kube.freshness import OwnPod
from devices.kube.metrics import ReflectorMetrics
from devices.kube.protocols import JsonObject, PodPatcher
from devices.kube.reflector import Reflector, ReflectorSettings
from devices.kube.resources import LEASES
from scheduler.clock import Clock, MonotonicClock
from scheduler.lead import Listener, Term
from scheduler.leadership import CaughtUp, Event, Phase, Rules, Standing, Tick, after
from scheduler.lease import LeaseNews, SeenLease, decode_lease

__all__ = ["ROLE_LABEL", "TOOK_OVER", "Election", "ElectionApi", "ElectionSettings"]

ROLE_LABEL: Final = "hami.io/scheduler-role"
TOOK_OVER: Final = "slotwise.io/took-over"
"""On our own pod: when this replica took over; every earlier write of a pod is seen once the pod watch shows it."""

_LOG = logging.getLogger(__name__)
_LATE_S: Final = 2.0
"""A call to a replica that does not lead waits so long: kube-scheduler may know of its Lease before our watch does."""
_DELIVERY_S: Final = 10.0
_RETRY_S: Final = 0.5
_LONGEST_RETRY_S: Final = 10.0
_IDLE_S: Final = 60.0
_LONGEST_BACKOFF_S: Final = 2.0
"""A Lease lasts seconds: after an outage its watch must be back at once."""


class ElectionApi(ListWatch, PodPatcher, Protocol):
    """What leadership needs of the API server."""


@dataclass(frozen=True, slots=True)
class ElectionSettings:
    """Whose Lease is followed, by which replica. `host_name` is the one that kube-scheduler beside us puts before its identity."""

    name: str
    namespace: str
    host_name: str
    own_pod: OwnPod
    bind_timeout_s: float = 5.0
    margin_s: float = 1.0

    @property
    def lease(self) -> str:
        """The Lease in words."""
        return f"Lease {self.namespace}/{self.name}"


class Election:
    """(Lead) `wait_for_pods` answers whether the pod watch has delivered a revision within some seconds.

    `clock` is monotonic, `wall` Unix seconds.
    """

    def __init__(
        self,
        api: ElectionApi,
        settings: ElectionSettings,
        wait_for_pods: Callable[[str, float], Awaitable[bool]],
        *,
        registry: CollectorRegistry,
        reflector_metrics: ReflectorMetrics | None = None,
        clock: Clock | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.promoted: list[Listener] = []
        self.demoted: list[Listener] = []
        self._api = api
        self._settings = settings
        self._rules = Rules.of(settings.bind_timeout_s, settings.margin_s)
        self._wait_for_pods = wait_for_pods
        self._clock = clock or MonotonicClock()
        self._standing = Standing()
        self._term: Term | None = None
        self._news: Reflector[SeenLease] = Reflector(
            api,
            LEASES,
            decode_lease,
            LeaseNews(settings.host_name, wall, self._happened),
            ReflectorSettings(
                namespace=settings.namespace,
                field_selector=f"metadata.name={settings.name}",
                longest_backoff_s=_LONGEST_BACKOFF_S,
            ),
            metrics=reflector_metrics,
        )
        self._changed = asyncio.Event()
        self._role_changed = asyncio.Event()
        self._moved = asyncio.Event()
        self._asked_again_at: float | None = None
        self._taking_over: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        leader = Gauge("slotwise_leader", "1 while this replica decides and binds.", registry=registry)
        leader.set_function(lambda: float(self.leads))
        left = Gauge("slotwise_lease_left_seconds", "What is left of our Lease, 0 without one.", registry=registry)
        left.set_function(lambda: self._standing.left_s(self._clock.now()))
        self._terms = Counter(
            "slotwise_leader_terms_total", "Terms that this replica began to lead.", registry=registry
        )

    @property
    def leads(self) -> bool:
        """(Lead)"""
        return self._standing.phase is Phase.LEADING and self._standing.left_s(self._clock.now()) > 0

    @property
    def term(self) -> Term | None:
        """(Lead)"""
        return self._term if self.leads else None

    def refusal(self) -> str | None:
        """Why filter and bind are not answered; None while they are."""
        if self.leads:
            return None
        standing, now = self._standing, self._clock.now()
        if standing.phase is Phase.STAMPING:
            return "this replica is taking over: it waits for the pod watch to show everything before that"
        if standing.phase is Phase.WAITING:
            if standing.renewed_at_s is None:
                return f"this replica is taking over: it waits for {self._settings.lease} to be renewed"
            wait_s = max(0.0, standing.may_bind_from_s - now)
            return f"this replica is taking over: Bindings of the last leader may arrive for {wait_s:.1f} s more"
        return f"this replica does not lead: {self._settings.lease} is held by {self._holder()}"

    async def within(self, seconds: float) -> str | None:
        """(Lead) Of a replica that is not even taking over, it takes no longer than 2 s."""
        until = self._clock.now() + seconds
        late = self._clock.now() + _LATE_S
        while not self.leads:
            end = min(until, late) if self._standing.phase is Phase.FOLLOWING else until
            left_s = end - self._clock.now()
            if left_s <= 0:
                return self.refusal()
            self._moved.clear()
            await self._clock.wait(self._moved, left_s)
        return None

    def unready(self) -> Sequence[str]:
        """(Lead)"""
        settings, lease = self._settings, self._standing.lease
        if not self._news.synced.is_set():
            return [f"{settings.lease} is not listed yet"]
        # Another replica's Lease may be as short as that one's configuration says: one that replaces it has to become ready first.
        is_ours = self._standing.phase is not Phase.FOLLOWING
        if is_ours and lease is not None and lease.duration_s <= self._rules.needed_s:
            return [
                f"{settings.lease} lasts {lease.duration_s:g} s, and no Binding goes out with less than {self._rules.needed_s:g} s"
                f" left of it (--bind-timeout {settings.bind_timeout_s:g}s + --leader-elect-margin {settings.margin_s:g}s):"
                " shorten the former, or lengthen leaseDuration in kube-scheduler's configuration"
            ]
        return []

    async def start(self) -> None:
        """(Lead)"""
        self._role_changed.set()
        runs = [self._news.run(), self._pass_time(), self._keep_role()]
        self._tasks = [asyncio.create_task(run, name="leadership") for run in runs]

    async def stop(self) -> None:
        """(Lead)"""
        tasks = [*self._tasks, *([self._taking_over] if self._taking_over is not None else [])]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._tasks, self._taking_over = [], None

    # --- from one standing to the next ---

    def _happened(self, event: Event) -> None:
        before, now = self._standing, self._clock.now()
        self._standing = standing = after(before, event, now, self._rules)
        if standing == before:
            return
        self._changed.set()
        led, leads = before.phase is Phase.LEADING, standing.phase is Phase.LEADING
        if (before.term, before.phase) != (standing.term, standing.phase):
            self._moved.set()
            self._role_changed.set()
        if led and not leads:
            self._end_term()
        stamped, stamps = (one.term if one.phase is Phase.STAMPING else None for one in (before, standing))
        # A renewal while the stamp is on its way changes neither; what has come as far as leading ends by itself.
        if stamped != stamps and stamped is not None and not leads and self._taking_over is not None:
            self._taking_over.cancel()
        if stamped != stamps and stamps is not None:
            self._taking_over = asyncio.create_task(self._take_over(stamps), name=f"take over, term {stamps}")
        if leads and not led:
            self._begin_term(standing.term)

    def _begin_term(self, number: int) -> None:
        _LOG.info("leading: term %d, %s held by %s", number, self._settings.lease, self._holder())
        self._terms.inc()
        self._term = Term(lambda: self._why_no_binding(number))
        for listener in self.promoted:
            listener()

    def _end_term(self) -> None:
        _LOG.warning("not leading any more: %s is held by %s", self._settings.lease, self._holder())
        term, self._term = self._term, None
        if term is not None:
            term.end()
        for listener in self.demoted:
            listener()

    def _holder(self) -> str:
        lease = self._standing.lease
        return lease.holder if lease is not None and lease.holder else "nobody"

    def _why_no_binding(self, term: int) -> str | None:
        standing, now = self._standing, self._clock.now()
        if standing.term != term or not self.leads:
            return self.refusal() or "this replica has lost the lead since"
        if not standing.may_bind(now, self._rules):
            return (
                f"only {standing.left_s(now):.1f} s of {self._settings.lease} are left, and a Binding needs"
                f" {self._rules.needed_s:g} s"
            )
        return None

    async def _pass_time(self) -> None:
        while True:
            self._changed.clear()
            now = self._clock.now()
            due = [now + _IDLE_S]
            next_s, ends_at_s, lease = self._standing.next_s(), self._standing.ends_at_s, self._standing.lease
            if next_s is not None:
                due.append(next_s)
            if ends_at_s is not None and lease is not None and self._asked_again_at != ends_at_s:
                half_s = ends_at_s - lease.duration_s / 2
                if now >= half_s:
                    # A renewal is overdue: it may be the watch that does not bring it.
                    self._asked_again_at = ends_at_s
                    self._news.request_resync()
                else:
                    due.append(half_s)
            await self._clock.wait(self._changed, min(due) - now)
            self._happened(Tick())

    # --- our own pod ---

    async def _take_over(self, term: int) -> None:
        wait_s = _RETRY_S
        while True:
            # A value of its own each time: a patch that changes nothing makes no event.
            stamp = f"{datetime.now(UTC).isoformat(timespec='microseconds')} {self._settings.host_name} {term}"
            try:
                stored = await self._patch({"annotations": {TOOK_OVER: stamp}})
                if await self._wait_for_pods(_revision(stored), _DELIVERY_S):
                    self._happened(CaughtUp(term))
                    return
                trouble = f"the pod watch has not delivered it within {_DELIVERY_S:g} s"
            except (KubeError, ValueError) as error:
                trouble = str(error)
            _LOG.warning("taking over: our own pod was patched in vain: %s", trouble)
            await self._clock.wait(asyncio.Event(), wait_s)
            wait_s = min(2 * wait_s, _LONGEST_RETRY_S)

    async def _keep_role(self) -> None:
        """Label our own pod as soon as the Lease is ours, and when it no longer is."""
        said, wait_s = "", _RETRY_S
        while True:
            await self._role_changed.wait()
            self._role_changed.clear()
            role = "follower" if self._standing.phase is Phase.FOLLOWING else "leader"
            if role == said:
                continue
            try:
                await self._patch({"labels": {ROLE_LABEL: role}})
                said, wait_s = role, _RETRY_S
            except KubeError as error:
                _LOG.warning("our own pod is not labelled %s: %s", role, error)
                said = ""
                await self._clock.wait(self._role_changed, wait_s)
                wait_s = min(2 * wait_s, _LONGEST_RETRY_S)
                self._role_changed.set()

    async def _patch(self, metadata: JsonObject) -> JsonObject:
        pod = self._settings.own_pod
        return await self._api.patch_pod(pod.namespace, pod.name, {"metadata": metadata})


def _revision(stored: JsonObject) -> str:
    metadata = stored.get("metadata")
    version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
    if not isinstance(version, str):
        raise ValueError(f"the patched pod has resourceVersion {version!r}, not a text")
    return version
