"""A kube-scheduler as far as an extender meets it: one pod a cycle, binding beside it, its own events and conditions."""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from devices.kube.client import KubeClient
from devices.kube.errors import KubeError, NotFound
from devices.kube.protocols import JsonObject
from devices.kube.resources import PODS
from devices.objects import Pod
from lab.extender_client import ExtenderClient, ExtenderError, FilterAnswer
from lab.follow import Followed, SeenNode, SeenPod
from lab.scheduling_queue import Backoff, SchedulingQueue

__all__ = ["KubeScheduler", "KubeSchedulerSettings", "failure_text"]

_log = logging.getLogger(__name__)

_NO_NODES: Final = "no nodes available to schedule pods"


@dataclass(frozen=True)
class KubeSchedulerSettings:
    """What the scheduler's configuration file would say."""

    extender_url: str
    """The extender's base address, without a trailing slash."""
    managed_resources: frozenset[str]
    """A pod that asks for one of these goes to the extender; every other pod is bound here."""
    scheduler_name: str = "hami-scheduler"
    backoff: Backoff = field(default_factory=Backoff)
    http_timeout_s: float = 30.0
    """What one call to the extender may take."""


class KubeScheduler:
    """Schedules the pods that carry its name, from `start` to `stop`. Follows `pods` and `nodes`, which others start."""

    def __init__(
        self,
        settings: KubeSchedulerSettings,
        client: KubeClient,
        pods: Followed[SeenPod],
        nodes: Followed[SeenNode],
    ) -> None:
        self._settings = settings
        self._client = client
        self._nodes = nodes
        self._extender = ExtenderClient(settings.extender_url, settings.http_timeout_s)
        self._queue = SchedulingQueue(settings.backoff)
        self._pods: dict[str, SeenPod] = {}
        self._binding: dict[str, asyncio.Task[None]] = {}
        self._said: dict[str, str] = {}
        self._cycles: asyncio.Task[None] | None = None
        pods.listen(self._pod_changed)
        nodes.listen(self._node_changed)

    async def start(self) -> None:
        """Begin; pods seen before are in the queue already."""
        self._cycles = asyncio.create_task(self._run(), name="kube-scheduler")

    async def stop(self) -> None:
        """End; bindings under way are cancelled."""
        tasks = [*self._binding.values(), *([self._cycles] if self._cycles else [])]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
        self._cycles = None
        self._queue.close()
        await self._extender.close()

    # --- what the watches show ---

    def _pod_changed(self, before: SeenPod | None, after: SeenPod | None) -> None:
        if after is None:
            assert before is not None
            self._forget(before.uid)
            if before.pod.bound_node:
                self._queue.cluster_changed()
            return
        pod = after.pod
        if pod.bound_node:
            self._forget(after.uid)
            if pod.is_finished and before is not None and not before.pod.is_finished:
                self._queue.cluster_changed()
            return
        if pod.spec.scheduler_name != self._settings.scheduler_name:
            return
        if pod.is_finished or pod.is_terminating:
            self._forget(after.uid)
            return
        self._pods[after.uid] = after
        if before is None:
            self._queue.add(after.uid)
        elif (before.pod.annotations, before.pod.labels, before.pod.spec) != (pod.annotations, pod.labels, pod.spec):
            self._queue.pod_changed(after.uid)

    def _forget(self, uid: str) -> None:
        self._pods.pop(uid, None)
        self._said.pop(uid, None)
        self._queue.drop(uid)

    def _node_changed(self, before: SeenNode | None, after: SeenNode | None) -> None:
        if after is not None and (before is None or _offer(before) != _offer(after)):
            self._queue.cluster_changed()

    # --- scheduling cycles ---

    async def _run(self) -> None:
        while True:
            uid = await self._queue.take()
            seen = self._pods.get(uid)
            if seen is None:
                continue
            try:
                await self._cycle(seen)
            except KubeError as error:
                _log.warning("scheduling %s: %s", seen.key, error)
                self._queue.failed(uid)

    async def _cycle(self, seen: SeenPod) -> None:
        offered = sorted(name for name, node in self._nodes.objects.items() if not node.unschedulable)
        if not offered:
            await self._refused(seen, _NO_NODES)
            return
        if not self._is_managed(seen.pod):
            self._bind(seen, offered[0], by_extender=False)
            return
        try:
            answer = await self._extender.filter(seen.raw, offered)
        except ExtenderError as error:
            await self._failed(seen, str(error))
            return
        if answer.node_names:
            self._bind(seen, answer.node_names[0], by_extender=True)
        else:
            await self._refused(seen, failure_text(len(offered), answer))

    def _is_managed(self, pod: Pod) -> bool:
        managed = self._settings.managed_resources
        return any(
            not managed.isdisjoint(container.limits) or not managed.isdisjoint(container.requests)
            for container in (*pod.init_containers, *pod.containers)
        )

    # --- binding, beside the cycles ---

    def _bind(self, seen: SeenPod, node: str, *, by_extender: bool) -> None:
        task = asyncio.create_task(self._bind_now(seen, node, by_extender), name=f"bind {seen.key}")
        self._binding[seen.uid] = task
        task.add_done_callback(lambda done: self._bound(seen, done))

    async def _bind_now(self, seen: SeenPod, node: str, by_extender: bool) -> None:
        pod = seen.pod
        try:
            if by_extender:
                await self._extender.bind(pod.namespace, pod.name, pod.uid, node)
            else:
                await self._client.bind(pod.namespace, pod.name, _binding(pod, node), self._settings.http_timeout_s)
        except (ExtenderError, KubeError) as error:
            await self._failed(seen, f"binding rejected: {error}")

    def _bound(self, seen: SeenPod, done: asyncio.Task[None]) -> None:
        self._binding.pop(seen.uid, None)
        if not done.cancelled() and (error := done.exception()) is not None:
            _log.error("binding %s failed", seen.key, exc_info=error)
            self._queue.failed(seen.uid)

    # --- what is said about a pod that was not placed ---

    async def _refused(self, seen: SeenPod, text: str) -> None:
        self._queue.refused(seen.uid)
        await self._say(seen, "Unschedulable", text)

    async def _failed(self, seen: SeenPod, text: str) -> None:
        # Queued last: nothing may take the pod for a second binding while this one is still registered.
        await self._say(seen, "SchedulerError", text)
        self._binding.pop(seen.uid, None)
        self._queue.failed(seen.uid)

    async def _say(self, seen: SeenPod, reason: str, text: str) -> None:
        """An event unless the last one of this pod said the same, and the condition where it differs from the stored one."""
        now = self._pods.get(seen.uid)
        if now is None:
            return
        try:
            if self._said.get(seen.uid) != text:
                self._said[seen.uid] = text
                await self._client.create_event(seen.pod.namespace, self._event(seen.pod, text))
            await self._set_condition(now, reason, text)
        except NotFound:
            return  # deleted meanwhile, the watch will say so
        except KubeError as error:
            _log.warning("cannot say why %s is not placed: %s", seen.key, error)

    async def _set_condition(self, seen: SeenPod, reason: str, text: str) -> None:
        wanted = {"type": "PodScheduled", "status": "False", "reason": reason, "message": text}
        conditions = seen.conditions
        held = next((c for c in conditions if c.get("type") == "PodScheduled"), None)
        if held is not None and all(held.get(key) == value for key, value in wanted.items()):
            return  # kube-scheduler does not repeat an identical condition
        changed = held is None or held.get("status") != "False"
        stamp = _timestamp() if changed or held is None else held.get("lastTransitionTime")
        others = [c for c in conditions if c.get("type") != "PodScheduled"]
        body: JsonObject = {
            "metadata": {"uid": seen.uid},
            "status": {"conditions": [*others, {**wanted, "lastProbeTime": None, "lastTransitionTime": stamp}]},
        }
        await self._client.merge_patch(PODS, seen.pod.name, body, seen.pod.namespace, subresource="status")

    def _event(self, pod: Pod, text: str) -> JsonObject:
        stamp = _timestamp()
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{pod.name}.", "namespace": pod.namespace},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": pod.namespace,
                "name": pod.name,
                "uid": pod.uid,
            },
            "reason": "FailedScheduling",
            "message": text,
            "type": "Warning",
            "source": {"component": self._settings.scheduler_name},
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
        }


def failure_text(offered: int, answer: FilterAnswer) -> str:
    """kube-scheduler's own sentence about nodes that an extender refused, with what preemption has to say.

    Reasons are counted by their text and sorted: `0/2 nodes are available: 1 node unregistered, 1 2/2 CardInsufficientMemory. …`.
    """
    helpful, hopeless = answer.failed_nodes or {}, answer.failed_and_unresolvable_nodes or {}
    preemption = {
        "No preemption victims found for incoming pod": len(helpful),
        "Preemption is not helpful for scheduling": len(hopeless),
    }
    why = _counted(Counter((*helpful.values(), *hopeless.values())))
    lead = f"0/{offered} nodes are available:"
    return f"{lead} {why}. preemption: {lead} {_counted(preemption)}."


def _counted(texts: Mapping[str, int]) -> str:
    return ", ".join(sorted(f"{count} {text}" for text, count in texts.items() if count))


def _offer(seen: SeenNode) -> Iterable[object]:
    return (seen.node.annotations, seen.node.labels, seen.node.allocatable, seen.unschedulable)


def _binding(pod: Pod, node: str) -> JsonObject:
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }


def _timestamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
