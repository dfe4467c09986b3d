"""A fake kubelet with its device plugin for every node at once: Allocate, Running, the end, and the deletion of pods."""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import orjson

from devices.annotations import decode
from devices.errors import AllocationError
from devices.keys import BIND_PHASE, BIND_TIME, NODE_LOCK, VGPU_NODE
from devices.kube.client import KubeClient
from devices.kube.errors import Conflict, KubeError, NotFound
from devices.kube.protocols import JsonObject
from devices.kube.resources import NODES, PODS
from devices.objects import Container, Node, Pod
from lab.follow import Followed, SeenNode, SeenPod
from lab.names import COUNT, FAIL_ALLOCATE, HOLD_INIT, REGISTRATION, RUN_SECONDS, TO_ALLOCATE

__all__ = ["AllocateError", "Kubelet", "Taken", "take_next"]

_log = logging.getLogger(__name__)

_LOCK_TRIES: Final = 5


class AllocateError(Exception):
    """What the device plugin answers instead of an allocation."""


@dataclass(frozen=True)
class Taken:
    """The cards of one container, and the text that is left for the others."""

    position: int
    """Counted over init containers first, then containers."""
    uuids: tuple[str, ...]
    rest: str


def take_next(text: str) -> Taken:
    """Serve the first container of a to-allocate text that still has cards; its place keeps its `;`.

    (HAMi v2.10 data plane: consuming the annotation.) Raises `AllocateError` if nothing is left or the text is malformed.
    """
    try:
        containers = decode(text, "NVIDIA")
    except AllocationError as error:
        raise AllocateError(f"decode pod devices failed: {error}") from error
    parts = text.split(";")
    for position, cards in enumerate(containers):
        if cards:
            parts[position] = ""
            return Taken(position, tuple(card.uuid for card in cards), ";".join(parts))
    raise AllocateError(f"device request not found: nothing is left in {text!r}")


class Kubelet:
    """Acts for all nodes from `start` to `stop`. Follows `pods` and `nodes`, which others start.

    It goes by what stands on the pods: `lab.names` lists the annotations with which a pod asks for a special course.
    """

    def __init__(self, client: KubeClient, pods: Followed[SeenPod], nodes: Followed[SeenNode]) -> None:
        self._client = client
        self._pods = pods
        self._nodes = nodes
        self._tasks: set[asyncio.Task[None]] = set()
        self._admitted: set[str] = set()
        self._deleting: set[str] = set()
        self._turns: dict[str, asyncio.Lock] = {}
        self._started = False
        pods.listen(self._pod_changed)

    async def start(self) -> None:
        """Begin, with the pods bound before."""
        self._started = True
        for seen in list(self._pods.objects.values()):
            self._pod_changed(None, seen)

    async def stop(self) -> None:
        """End; whatever is under way is cancelled."""
        self._started = False
        for task in (ending := list(self._tasks)):
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)  # what went wrong has been told by `_done`

    async def finish(self, namespace: str, name: str, phase: str = "Succeeded") -> None:
        """End a pod's containers. Raises KeyError if it is not known here."""
        pod = self._pods.objects[f"{namespace}/{name}"].pod
        exit_code = 0 if phase == "Succeeded" else 1
        status: JsonObject = {
            "phase": phase,
            "initContainerStatuses": [_terminated(c, 0) for c in pod.init_containers],
            "containerStatuses": [_terminated(c, exit_code) for c in pod.containers],
        }
        await self._patch_status(pod, status)

    async def finish_init(self, namespace: str, name: str) -> None:
        """End the init containers of a pod that held them; its containers start. Raises KeyError if it is not known here."""
        await self._run(self._pods.objects[f"{namespace}/{name}"].pod)

    # --- what the watch shows ---

    def _pod_changed(self, before: SeenPod | None, after: SeenPod | None) -> None:
        if after is None:
            assert before is not None
            self._admitted.discard(before.uid)
            self._deleting.discard(before.uid)
            return
        pod = after.pod
        if not self._started or not pod.bound_node:
            return
        if pod.is_terminating:
            if after.uid not in self._deleting:
                self._deleting.add(after.uid)
                self._spawn(self._delete(pod))
        elif after.uid not in self._admitted and pod.status.phase in (None, "Pending"):
            self._admitted.add(after.uid)
            self._spawn(self._admit(after))

    def _spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, NotFound):
            return  # the pod went away under our hands
        _log.error("fake kubelet: %s", error, exc_info=error if not isinstance(error, KubeError) else None)

    # --- the life of a pod ---

    async def _admit(self, seen: SeenPod) -> None:
        pod = seen.pod
        # The device plugin serves one Allocate at a time on its node.
        turn = self._turns.setdefault(pod.bound_node, asyncio.Lock())
        async with turn:
            try:
                await self._allocate_all(pod)
            except AllocateError as error:
                await self._patch_status(
                    pod,
                    {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": f"Allocate failed: {error}"},
                )
                return
        if pod.annotations.get(HOLD_INIT) == "true":
            await self._hold_init(pod)
        else:
            await self._run(pod)

    async def _allocate_all(self, pod: Pod) -> None:
        asking = [
            (position, container, count)
            for position, container in enumerate((*pod.init_containers, *pod.containers))
            if (count := _count(container))
        ]
        if not asking:
            return
        known = self._nodes.objects.get(pod.bound_node)
        if known is None:
            raise AllocateError(f"node {pod.bound_node} is gone")
        node = known.node
        self._require_ours(pod, node)
        try:
            text = pod.annotations.get(TO_ALLOCATE, "")
            for number, (position, container, count) in enumerate(asking, 1):
                taken = _allocate(pod, node, text, position, container, count)
                text = taken.rest
                annotations = {TO_ALLOCATE: text}
                if number == len(asking):
                    annotations[BIND_PHASE] = "success"
                await self._annotate(pod, annotations)
        except AllocateError:
            await self._annotate(pod, {BIND_PHASE: "failed"})
            raise
        finally:
            await self._release_lock(pod, node.name)

    def _require_ours(self, pod: Pod, node: Node) -> None:
        """The plugin is not told which pod it serves: it goes by the node's lock, else by the pod's annotations."""
        lock = node.annotations.get(NODE_LOCK, "")
        if lock.count(",") == 2 and lock.split(",")[1:] != [pod.namespace, pod.name]:
            raise AllocateError(f"the node's lock {lock!r} names another pod")
        if pod.annotations.get(BIND_PHASE) not in ("allocating", "success"):
            raise AllocateError(f"no pending pod found: {BIND_PHASE} is {pod.annotations.get(BIND_PHASE)!r}")
        if not pod.annotations.get(BIND_TIME):
            raise AllocateError(f"no pending pod found: {BIND_TIME} is missing")
        if pod.annotations.get(VGPU_NODE) != node.name:
            raise AllocateError(f"no pending pod found: {VGPU_NODE} is {pod.annotations.get(VGPU_NODE)!r}")

    async def _hold_init(self, pod: Pod) -> None:
        running: JsonObject = {"startedAt": _timestamp()}
        status: JsonObject = {
            "phase": "Pending",
            "initContainerStatuses": [_state(c, {"running": running}) for c in pod.init_containers],
            "containerStatuses": [_state(c, {"waiting": {"reason": "PodInitializing"}}) for c in pod.containers],
        }
        await self._patch_status(pod, status)

    async def _run(self, pod: Pod) -> None:
        running: JsonObject = {"running": {"startedAt": _timestamp()}}
        status: JsonObject = {
            "phase": "Running",
            "startTime": _timestamp(),
            "containerStatuses": [_state(c, running) for c in pod.containers],
        }
        if pod.init_containers:
            status["initContainerStatuses"] = [
                _state(c, running) if c.restart_policy == "Always" else _terminated(c, 0) for c in pod.init_containers
            ]
        await self._patch_status(pod, status)
        seconds = pod.annotations.get(RUN_SECONDS)
        if seconds is not None:
            await asyncio.sleep(float(seconds))
            await self.finish(pod.namespace, pod.name)

    async def _delete(self, pod: Pod) -> None:
        await self._release_lock(pod, pod.bound_node)
        await self._client.delete(PODS, pod.name, pod.namespace, uid=pod.uid, grace_s=0)

    # --- writes ---

    async def _annotate(self, pod: Pod, annotations: dict[str, str]) -> None:
        await self._client.patch_pod(
            pod.namespace, pod.name, {"metadata": {"uid": pod.uid, "annotations": annotations}}
        )

    async def _patch_status(self, pod: Pod, status: JsonObject) -> None:
        body: JsonObject = {"metadata": {"uid": pod.uid}, "status": status}
        await self._client.merge_patch(PODS, pod.name, body, pod.namespace, subresource="status")

    async def _release_lock(self, pod: Pod, node_name: str) -> None:
        """Take away the node's lock where it names this pod; a lock of another pod stays."""
        for _ in range(_LOCK_TRIES):
            seen = self._nodes.objects.get(node_name)
            if seen is None or NODE_LOCK not in seen.node.annotations:
                return
            if not seen.node.annotations[NODE_LOCK].endswith(f",{pod.namespace},{pod.name}"):
                return
            version = seen.node.metadata.resource_version
            body: JsonObject = {"metadata": {"resourceVersion": version, "annotations": {NODE_LOCK: None}}}
            try:
                await self._client.merge_patch(NODES, node_name, body)
                return
            except Conflict:
                await self._nodes.wait_for(lambda version=version: self._version(node_name) != version, 1.0)  # type: ignore[misc]
        _log.error("fake kubelet: cannot release the lock of node %s", node_name)

    def _version(self, node_name: str) -> str:
        seen = self._nodes.objects.get(node_name)
        return seen.node.metadata.resource_version if seen else ""


def _allocate(pod: Pod, node: Node, text: str, position: int, container: Container, count: int) -> Taken:
    if pod.annotations.get(FAIL_ALLOCATE) == "true":
        raise AllocateError(f"told to fail by {FAIL_ALLOCATE}")
    taken = take_next(text)
    if taken.position != position:
        raise AllocateError(
            f"cards for container position {taken.position}, but {container.name} at {position} is served"
        )
    if len(taken.uuids) != count:
        raise AllocateError(
            f"device number not matched: {len(taken.uuids)} cards for {container.name}, which asks for {count}"
        )
    unknown = sorted(set(taken.uuids).difference(_registered_uuids(node)))
    if unknown:
        raise AllocateError(f"node {node.name} has no card {', '.join(unknown)}")
    return taken


def _registered_uuids(node: Node) -> Sequence[str]:
    return [card["id"] for card in orjson.loads(node.annotations.get(REGISTRATION, "[]"))]


def _count(container: Container) -> int:
    value = container.limits.get(COUNT, container.requests.get(COUNT, 0))
    return int(value)


def _state(container: Container, state: JsonObject) -> JsonObject:
    return {"name": container.name, "ready": "running" in state, "restartCount": 0, "state": state}


def _terminated(container: Container, exit_code: int) -> JsonObject:
    reason = "Completed" if exit_code == 0 else "Error"
    return _state(container, {"terminated": {"exitCode": exit_code, "reason": reason, "finishedAt": _timestamp()}})


def _timestamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
