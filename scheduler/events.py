"""Events on pods: best effort, budgeted, and never in the way of a decision."""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter

from devices.kube.errors import KubeError
from devices.kube.protocols import EventWriter, JsonObject
from devices.node_lock import rfc3339
from devices.objects import Pod
from devices.recent import Recent
from scheduler.clock import Clock
from scheduler.diagnosis import EventText, shortened

__all__ = ["EventBudget", "EventSink", "Events", "event_object"]

_LOG = logging.getLogger(__name__)


class EventSink(Protocol):
    """Takes Events without waiting."""

    def emit(self, pod: Pod, event: EventText) -> None:
        """Hand over one Event."""
        ...

    def later(self, work: Callable[[], None]) -> None:
        """Run `work` (which may emit) once the answer in hand has gone out."""
        ...


def event_object(pod: Pod, event: EventText, source: str, number: int, now_s: float) -> JsonObject:
    """The core/v1 Event; `number` makes the name unique within this process's second."""
    stamp = rfc3339(now_s)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{pod.name[:200]}.{int(now_s * 1e6):x}{number:x}", "namespace": pod.namespace},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": pod.namespace,
            "name": pod.name,
            "uid": pod.uid,
            "resourceVersion": pod.metadata.resource_version,
        },
        "reason": event.reason,
        "message": shortened(event.message),
        "type": event.type,
        "source": {"component": source},
        "reportingComponent": source,
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }


@dataclass(frozen=True, slots=True)
class EventBudget:
    """At most `per_second` Events on average, `burst` at once; `queue` wait, further ones are dropped and counted."""

    per_second: float = 50.0
    burst: int = 500
    queue: int = 2000


class Events:
    """Sends Events in the background; identical ones of a pod within a minute go once."""

    _REPEAT_S = 60.0
    _REMEMBERED = 4096

    def __init__(
        self, api: EventWriter, clock: Clock, source: str, budget: EventBudget, registry: CollectorRegistry
    ) -> None:
        self._api = api
        self._clock = clock
        self._source = source
        self._budget = budget
        self._queue: deque[tuple[Pod, EventText]] = deque()
        self._work: deque[Callable[[], None]] = deque()
        self._wake = asyncio.Event()
        self._tokens = float(budget.burst)
        self._filled_at = clock.now()
        self._sent: Recent[tuple[str, EventText], float] = Recent(self._REMEMBERED)
        self._number = 0
        self._task: asyncio.Task[None] | None = None
        self._count = Counter(
            "slotwise_events_total",
            "Events by outcome: sent, repeated, dropped, failed.",
            ["outcome"],
            registry=registry,
        )

    def emit(self, pod: Pod, event: EventText) -> None:
        """Queue an Event, or count it as repeated or dropped."""
        now = self._clock.now()
        key = (pod.uid, event)
        sent_at = self._sent.get(key)
        if sent_at is not None and now - sent_at < self._REPEAT_S:
            self._count.labels("repeated").inc()
            return
        if len(self._queue) >= self._budget.queue:
            self._count.labels("dropped").inc()
            return
        self._sent.put(key, now)
        self._queue.append((pod, event))
        self._wake.set()

    def later(self, work: Callable[[], None]) -> None:
        """Run after the present request has been answered."""
        if len(self._work) >= self._budget.queue:
            self._count.labels("dropped").inc()
            return
        self._work.append(work)
        self._wake.set()

    def start(self) -> None:
        """Begin sending."""
        self._task = asyncio.create_task(self._run(), name="events")

    async def stop(self) -> None:
        """Stop sending; what still waits is counted as dropped."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        self._count.labels("dropped").inc(len(self._queue))
        self._queue.clear()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._work or self._queue:
                if self._work:
                    # One piece at a time, so that requests that arrived meanwhile go first.
                    await asyncio.sleep(0)
                    self._do(self._work.popleft())
                if self._queue:
                    await self._send(*self._queue.popleft())

    def _do(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:
            _LOG.exception("the text of an Event could not be made")
            self._count.labels("failed").inc()

    async def _send(self, pod: Pod, event: EventText) -> None:
        await self._pay()
        self._number += 1
        body = event_object(pod, event, self._source, self._number, self._clock.now())
        try:
            await self._api.create_event(pod.namespace, body)
        except KubeError as error:
            self._count.labels("failed").inc()
            _LOG.debug("event %s for %s/%s was not written: %s", event.reason, pod.namespace, pod.name, error)
        else:
            self._count.labels("sent").inc()

    async def _pay(self) -> None:
        now = self._clock.now()
        self._tokens = min(self._budget.burst, self._tokens + (now - self._filled_at) * self._budget.per_second)
        self._filled_at = now
        if self._tokens < 1:
            await self._clock.wait(asyncio.Event(), (1 - self._tokens) / self._budget.per_second)
            # What came in meanwhile is spent right here; counted again it would double the budget.
            self._filled_at, self._tokens = self._clock.now(), 1
        self._tokens -= 1
