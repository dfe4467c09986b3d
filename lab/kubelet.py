"""A fake kubelet with its device plugin for every node at once: Allocate, Running, the end, and the deletion of pods."""

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Final

from devices.annotations import decode
from devices.errors import AllocationError, QuantityError
from devices.keys import BIND_PHASE, BIND_TIME, NODE_LOCK, VGPU_NODE
from devices.kube.client import KubeClient
from devices.kube.errors import Conflict, KubeError, NotFound
from devices.kube.protocols import JsonObject
from devices.kube.resources import NODES, PODS
from devices.model import Allocation
from devices.objects import Container, Node, Pod
from devices.quantity import whole
from devices.vendor import Vendor
from lab.families import allocations, registered
from lab.follow import Followed, SeenNode, SeenPod
from lab.names import FAIL_ALLOCATE, HOLD_INIT, RUN_SECONDS
from lab.plugins import plugin_of

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
    parts = text.split(";")
    for position, cards in enumerate(_decoded(text)):
        if cards:
            parts[position] = ""
            return Taken(position, tuple(card.uuid for card in cards), ";".join(parts))
    raise AllocateError(f"device request not found: nothing is left in {text!r}")


def _decoded(text: str) -> Allocation:
    try:
        return decode(text, "")
    except AllocationError as error:
        raise AllocateError(f"decode pod devices failed: {error}") from error


@dataclass(frozen=True)
class _Served:
    """A container that a family's plugin is asked to serve."""

    vendor: Vendor
    position: int
    """Counted over init containers first, then containers."""
    container: Container
    count: int
    """Cards that it asks for; 0 where its plugin counts by something else."""


class Kubelet:
    """Acts for all nodes from `start` to `stop`, with the device plugins of `vendors`. Follows `pods` and `nodes`, which others start.

    It goes by what stands on the pods: `lab.names` lists the annotations with which a pod asks for a special course.
    """

    def __init__(
        self, client: KubeClient, pods: Followed[SeenPod], nodes: Followed[SeenNode], vendors: Sequence[Vendor]
    ) -> None:
        self._client = client
        self._vendors = vendors
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
        asking = [served for vendor in self._vendors for served in _asking(pod, vendor)]
        if not asking:
            return
        known = self._nodes.objects.get(pod.bound_node)
        if known is None:
            raise AllocateError(f"node {pod.bound_node} is gone")
        node = known.node
        self._require_ours(pod, node)
        try:
            texts: dict[str, str] = {}
            for number, served in enumerate(asking, 1):
                annotations = _allocate(pod, node, served, texts)
                texts |= annotations
                if number == len(asking):
                    annotations[BIND_PHASE] = "success"
                if annotations:
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
            "conditions": self._ready_conditions(pod),
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

    def _ready_conditions(self, pod: Pod) -> list[JsonObject]:
        """Controllers go by Ready. A merge patch replaces the list, so what others have said before is in it."""
        kinds = ("Initialized", "ContainersReady", "Ready")
        now = _timestamp()
        said: list[JsonObject] = [{"type": kind, "status": "True", "lastTransitionTime": now} for kind in kinds]
        seen = self._pods.objects.get(f"{pod.namespace}/{pod.name}")
        return [*said, *(c for c in (seen.conditions if seen else ()) if c.get("type") not in kinds)]

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
        """Take away the node's locks that are this pod's; a lock of another pod stays."""
        for lock in sorted({vendor.node_lock for vendor in self._vendors if vendor.node_lock}):
            await self._release(pod, node_name, lock)

    async def _release(self, pod: Pod, node_name: str, lock: str) -> None:
        for _ in range(_LOCK_TRIES):
            seen = self._nodes.objects.get(node_name)
            if seen is None or lock not in seen.node.annotations or not self._owns(pod, seen.node, lock):
                return
            version = seen.node.metadata.resource_version
            body: JsonObject = {"metadata": {"resourceVersion": version, "annotations": {lock: None}}}
            try:
                await self._client.merge_patch(NODES, node_name, body)
                return
            except Conflict:
                await self._nodes.wait_for(partial(self._has_moved, node_name, version), 1.0)
        _log.error("fake kubelet: cannot release the lock %s of node %s", lock, node_name)

    def _owns(self, pod: Pod, node: Node, lock: str) -> bool:
        """A lock names its pod; one that cannot is that of the pod which the plugin is serving."""
        if node.annotations[lock].endswith(f",{pod.namespace},{pod.name}"):
            return True
        served = (vendor for vendor, _ in allocations(pod, self._vendors) if vendor.node_lock == lock)
        return any(not vendor.lock_format.names_owner for vendor in served)

    def _has_moved(self, node_name: str, version: str) -> bool:
        return self._version(node_name) != version

    def _version(self, node_name: str) -> str:
        seen = self._nodes.objects.get(node_name)
        return seen.node.metadata.resource_version if seen else ""


def _asking(pod: Pod, vendor: Vendor) -> list[_Served]:
    """The containers that a family's plugin has to serve, in order."""
    containers = (*pod.init_containers, *pod.containers)
    counts = [_count(container, vendor.count_resource) for container in containers]
    if vendor.to_allocate:
        return [
            _Served(vendor, n, c, count) for n, (c, count) in enumerate(zip(containers, counts, strict=True)) if count
        ]
    # These ask by other names as well, and some count by something else than cards.
    return [_Served(vendor, n, c, 0) for n, c in enumerate(containers) if any(_count(c, name) for name in vendor.names)]


def _allocate(pod: Pod, node: Node, served: _Served, texts: Mapping[str, str]) -> dict[str, str]:
    """What the plugin writes on the pod; `texts` are the annotations that it has written since the pod was read."""
    if pod.annotations.get(FAIL_ALLOCATE) == "true":
        raise AllocateError(f"told to fail by {FAIL_ALLOCATE}")
    vendor, plugin = served.vendor, plugin_of(served.vendor.key)
    missing = [key for key in plugin.reads if not pod.annotations.get(key)]
    if missing:
        raise AllocateError(f"no annotation {', '.join(missing)}, which the plugin of {vendor.key} reads")
    confirmed = {plugin.confirms: "true"} if plugin.confirms else {}
    if vendor.to_allocate:
        taken = take_next(texts.get(vendor.to_allocate, pod.annotations.get(vendor.to_allocate, "")))
        if taken.position != served.position:
            raise AllocateError(
                f"cards for container position {taken.position}, but {served.container.name} at {served.position} is served"
            )
        _require_cards(node, vendor, served, taken.uuids)
        return {vendor.to_allocate: taken.rest, **confirmed}
    containers = _decoded(pod.annotations.get(vendor.allocated, ""))
    cards = containers[served.position] if served.position < len(containers) else ()
    _require_cards(node, vendor, served, [card.uuid for card in cards])
    return confirmed


def _require_cards(node: Node, vendor: Vendor, served: _Served, uuids: Sequence[str]) -> None:
    if not uuids or len(uuids) != (served.count or len(uuids)):
        raise AllocateError(
            f"device number not matched: {len(uuids)} cards for {served.container.name}, which asks for {served.count or 'some'}"
        )
    unknown = sorted(set(uuids).difference(card.uuid for _, card in registered(node, [vendor])))
    if unknown:
        raise AllocateError(f"node {node.name} has no card {', '.join(unknown)}")


def _count(container: Container, resource: str) -> int:
    """How much of a resource the kubelet sees asked for."""
    try:
        return whole(container.limits.get(resource, container.requests.get(resource, 0)))
    except QuantityError as error:
        raise AllocateError(f"{container.name}: {resource}: {error}") from error


def _state(container: Container, state: JsonObject) -> JsonObject:
    return {"name": container.name, "ready": "running" in state, "restartCount": 0, "state": state}


def _terminated(container: Container, exit_code: int) -> JsonObject:
    reason = "Completed" if exit_code == 0 else "Error"
    return _state(container, {"terminated": {"exitCode": exit_code, "reason": reason, "finishedAt": _timestamp()}})


def _timestamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
