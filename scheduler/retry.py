"""Refused pods are touched when room was made for them: an annotation of theirs changes, and kube-scheduler tries them again."""

import asyncio
import contextlib
import logging
from collections.abc import Hashable
from datetime import UTC, datetime
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from devices.kube.errors import Invalid, KubeError, NotFound
from devices.kube.protocols import PodPatcher
from devices.objects import Pod
from scheduler.clock import Clock
from scheduler.engine import Engine, Filtered
from scheduler.lead import Lead
from scheduler.waiting import Judgement, WaitingPods

__all__ = ["RETRY", "Retry"]

RETRY: Final = "slotwise.io/retry"
"""On a waiting pod: when it was touched last. Nobody reads it; that it changes is what matters."""

_LOG = logging.getLogger(__name__)
_LOOK_EVERY_S: Final = 0.5
"""Room is left to kube-scheduler so long, which hears of most of it at the same time as we do."""
_INHERITED_S: Final = 30.0
"""Pods that an earlier leader refused are left to kube-scheduler so long: it tries everybody when it starts."""
_JUDGED_AT_ONCE: Final = 1000
_EVALUATION: Final = 50
"""What a look at the nodes costs, in looks at what is remembered of an equal pod."""


class Retry:
    """Touches at most `per_second` pods a second (0: none) while `lead` leads. Only who was refused is ever touched."""

    def __init__(
        self,
        engine: Engine,
        api: PodPatcher,
        clock: Clock,
        lead: Lead,
        per_second: float,
        registry: CollectorRegistry,
        waiting: WaitingPods | None = None,
    ) -> None:
        self._engine = engine
        self._ledger = engine.ledger
        self._api = api
        self._clock = clock
        self._lead = lead
        self._per_second = per_second
        self._waiting = waiting if waiting is not None else WaitingPods()
        self._alike: dict[str, Hashable] = {}
        self._judged: dict[Hashable, bool] = {}
        self._judged_at = (-1, -1)
        self._left = 0
        self._settled = 0
        self._failing = False
        self._somebody = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        gauge = Gauge("slotwise_waiting_pods", "Pods that were refused here and still wait.", registry=registry)
        gauge.set_function(lambda: float(len(self._waiting)))
        self._count = Counter(
            "slotwise_waiting_pods_touched_total",
            "Refused pods that kube-scheduler was asked to try again, by outcome: sent, gone, failed.",
            ["outcome"],
            registry=registry,
        )

    def answered(self, pod: Pod, filtered: Filtered) -> None:
        """A filter call was answered so."""
        if filtered.outcome != "nofit" or filtered.decision is None or self._per_second <= 0:
            self._forget(pod.uid)
            return
        self._waiting.refused(pod.uid, self._ledger.room.number)
        self._alike.pop(pod.uid, None)
        self._somebody.set()

    def start(self) -> None:
        """Begin to look after those who wait."""
        if self._per_second > 0:
            self._task = asyncio.create_task(self._run(), name="waiting pods")

    async def stop(self) -> None:
        """Look after nobody any more."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    def look_again(self) -> None:
        """From now on this replica leads, or its books are complete: who waits was refused by an earlier leader or before a restart."""
        if self._per_second <= 0 or not self._lead.leads:
            return
        not_before_s = self._clock.now() + _INHERITED_S
        for pod in self._ledger.pods():
            if pod.is_unschedulable and pod.uid not in self._waiting and self._may_wait(pod):
                self._waiting.refused(pod.uid, -1, not_before_s)
                self._somebody.set()

    def forget_all(self) -> None:
        """Another replica leads."""
        self._waiting.clear()
        self._alike.clear()

    def _forget(self, uid: str) -> None:
        self._waiting.forget(uid)
        self._alike.pop(uid, None)

    def _may_wait(self, pod: Pod) -> bool:
        return not (pod.bound_node or pod.is_terminating or self._ledger.reservation(pod.uid) is not None)

    async def _run(self) -> None:
        while True:
            await self._somebody.wait()
            if self._lead.leads and await self._touch_next(self._settled):
                await self._clock.wait(asyncio.Event(), 1 / self._per_second)
                continue
            self._settled = self._ledger.room.number
            if not self._waiting:
                self._somebody.clear()
                continue
            await self._clock.wait(asyncio.Event(), _LOOK_EVERY_S)
            self._tidy()

    def _tidy(self) -> None:
        for uid in self._waiting.uids():
            pod = self._ledger.pod(uid)
            if pod is None or not self._may_wait(pod):
                self._forget(uid)

    async def _touch_next(self, room: int) -> bool:
        """Touch one pod; whether there may be another."""
        self._left = _JUDGED_AT_ONCE
        found = self._waiting.next(self._clock.now(), room, self._judge)
        if found.uid is None:
            return found.more
        pod = self._ledger.pod(found.uid)
        if pod is None or not self._may_wait(pod):
            self._forget(found.uid)
        else:
            await self._touch(pod, room)
        return True

    def _judge(self, uid: str, room: int) -> Judgement:
        pod = self._ledger.pod(uid)
        if pod is None:
            return Judgement.NOT
        at = (self._ledger.version, self._ledger.room.number)
        if at != self._judged_at:
            self._judged_at = at
            self._judged.clear()
        if self._left <= 0:
            return Judgement.LATER
        alike = self._alike.get(uid)
        if alike is None:
            alike = self._alike[uid] = self._engine.likeness(pod)
        names = self._ledger.room.since(room, pod.namespace)
        key = (alike, names)
        fits = self._judged.get(key)
        if fits is None:
            self._left -= _EVALUATION
            fits = self._judged[key] = self._engine.could_fit(pod, names)
        self._left -= 1
        return Judgement.FITS if fits else Judgement.NOT

    async def _touch(self, pod: Pod, room: int) -> None:
        now_s = self._clock.now()
        stamp = datetime.fromtimestamp(now_s, UTC).isoformat(timespec="microseconds")
        try:
            await self._api.patch_pod(
                pod.namespace, pod.name, {"metadata": {"uid": pod.uid, "annotations": {RETRY: stamp}}}
            )
        except (NotFound, Invalid):  # Invalid: another pod has the name by now
            self._forget(pod.uid)
            self._count.labels("gone").inc()
        except KubeError as error:
            self._waiting.failed(pod.uid, self._clock.now())
            self._count.labels("failed").inc()
            log = _LOG.debug if self._failing else _LOG.warning
            log(
                "pod %s/%s waits although there may be room, and could not be touched: %s",
                pod.namespace,
                pod.name,
                error,
            )
            self._failing = True
        else:
            self._waiting.touched(pod.uid, self._clock.now(), room)
            self._count.labels("sent").inc()
            self._failing = False
