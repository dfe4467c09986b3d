"""Binding a pod: its reservation, the node's lock where the plugin needs one, then the one write that carries everything.

Every error path gives back what it took: a definite failure releases reservation and lock; a lost reply holds the cards until a
read of the pod shows what became of it.
"""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Protocol

from devices.errors import BindingMetadataError
from devices.keys import NODE_LOCK_MODE, POD_GROUP_LABEL
from devices.kube.errors import Conflict, KubeError, NotFound, OutcomeUnknown
from devices.kube.protocols import Binder as BindingWriter
from devices.kube.protocols import JsonObject
from devices.ledger import Phase, Reservation
from devices.objects import Pod, pod_of
from scheduler.allocate import carried, carries
from scheduler.clock import Clock
from scheduler.diagnosis import (
    BINDING_FAILED,
    BINDING_SUCCEED,
    NORMAL,
    WARNING,
    EventText,
)
from scheduler.engine import Engine, Filtered
from scheduler.errors import BindError, LockContentionError, NodeNotFoundError, NotLeadingError, PodNotFoundError
from scheduler.events import EventSink
from scheduler.lead import AlwaysLeads, Lead, Term
from scheduler.nodelock import LockApi, NodeLocks

__all__ = ["BindApi", "BindRequest", "BindSettings", "PodBinder"]

_LOG = logging.getLogger(__name__)
_READ_RETRY_S = 1.0


class BindApi(BindingWriter, LockApi, Protocol):
    """What binding needs of the API server."""


@dataclass(frozen=True, slots=True)
class BindSettings:
    """`node_lock`: auto, always or never. `timeout_s`: of the Binding request itself, kept by the API server as well."""

    node_lock: str = "auto"
    timeout_s: float = 5.0


@dataclass(frozen=True, slots=True)
class BindRequest:
    """What kube-scheduler asks; `deadline_s` (Unix seconds) is when it stops waiting for our answer, None for never."""

    namespace: str
    name: str
    uid: str
    node: str
    deadline_s: float | None = None


class PodBinder:
    """Binds pods. One per engine."""

    def __init__(
        self,
        engine: Engine,
        api: BindApi,
        locks: NodeLocks,
        clock: Clock,
        events: EventSink,
        settings: BindSettings,
        lead: Lead | None = None,
    ) -> None:
        self._engine = engine
        self._ledger = engine.ledger
        self._api = api
        self._locks = locks
        self._clock = clock
        self._events = events
        self._settings = settings
        self._lead = lead if lead is not None else AlwaysLeads()
        self._unsettled: set[asyncio.Task[None]] = set()

    async def bind(self, request: BindRequest) -> None:
        """Bind the pod to the node, once. Raises `BindError` with the text for kube-scheduler.

        A caller that goes away before the Binding is sent cancels it; after that its outcome is awaited without the caller.
        So does the end of the term in which the call came: nothing is sent any more, and what was taken is given back.
        """
        term = self._lead.term
        if term is None:
            raise NotLeadingError("this replica does not lead")
        pod = await self._pod(request)
        if pod.bound_node:
            try:
                self._check_bound(pod, request.node)
            finally:
                self._ledger.put_pod(pod, self._clock.now(), by_watch=False)
            return
        if self._ledger.node_object(request.node) is None:
            self._release_held(request.uid)
            self._failed(pod, f"failed to get node {request.node}")
            raise NodeNotFoundError(f'node "{request.node}" not found')
        try:
            await self._bind(pod, request, term)
        except BindError as error:
            self._failed(pod, str(error))
            raise
        message = f"Successfully binding node [{request.node}] to {pod.namespace}/{pod.name}"
        self._events.emit(pod, EventText(NORMAL, BINDING_SUCCEED, message))

    async def stop(self) -> None:
        """Stop waiting for outcomes that are still open."""
        tasks = list(self._unsettled)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _pod(self, request: BindRequest) -> Pod:
        """The pod from the books; as the API server has it now, where they do not know it or a Binding of it is still open."""
        pod = self._ledger.pod(request.uid)
        if pod is None:
            gone_before = self._ledger.is_gone(request.uid)
            try:
                pod = pod_of(await self._get(request))
            except NotFound as error:
                raise PodNotFoundError(f'pod "{request.name}" not found') from error
            except KubeError as error:
                raise BindError(str(error)) from error
            if pod.uid == request.uid:
                if self._ledger.is_gone(pod.uid) and not gone_before:
                    # The answer left before the deletion that the watch has shown since.
                    raise PodNotFoundError(f'pod "{request.name}" not found')
                self._ledger.put_pod(pod, self._clock.now(), by_watch=False)
        elif not pod.bound_node and self._is_open(pod.uid):
            with contextlib.suppress(KubeError):
                found = await self._stored(pod)
                pod = found if found is not None and not self._ledger.is_gone(pod.uid) else pod
        if pod.uid != request.uid or (pod.namespace, pod.name) != (request.namespace, request.name):
            self._release_held(request.uid)
            raise PodNotFoundError(f'pod "{request.name}" not found')
        return pod

    async def _get(self, request: BindRequest) -> JsonObject:
        try:
            return await self._api.get_pod(request.namespace, request.name)
        except ValueError as error:  # a text that is no name of an object
            raise PodNotFoundError(f'pod "{request.name}" not found') from error

    async def _stored(self, pod: Pod) -> Pod | None:
        """The pod by a quorum read, None when it is gone. Raises `KubeError`."""
        try:
            found = pod_of(await self._api.get_pod(pod.namespace, pod.name))
        except NotFound:
            return None
        return found if found.uid == pod.uid else None

    def _is_open(self, uid: str) -> bool:
        """Whether a Binding of the pod may be under way, or its outcome is not known."""
        reservation = self._ledger.reservation(uid)
        return reservation is not None and reservation.phase is not Phase.HELD

    def _release_held(self, uid: str) -> None:
        if not self._is_open(uid):
            self._ledger.release(uid)

    def _check_bound(self, pod: Pod, node: str) -> None:
        """Repeating a bind is a success only where the pod stands with the cards we have in the books."""
        reservation, holding = self._ledger.reservation(pod.uid), self._ledger.holding(pod.uid)
        if pod.bound_node != node:
            raise BindError(f"pod {pod.namespace}/{pod.name} is already bound to node {pod.bound_node}")
        ours = reservation.allocation if reservation is not None else holding.allocation if holding is not None else ()
        if not carries(pod.annotations, ours, self._ledger.config):
            raise BindError(f"pod {pod.namespace}/{pod.name} is already bound to node {node} with other cards")

    async def _bind(self, pod: Pod, request: BindRequest, term: Term) -> None:
        node = request.node
        reservation = self._reservation(pod, node)
        keys = self._lock_keys(reservation, node)
        taken: list[str] = []
        if reservation is not None:
            self._ledger.set_phase(pod.uid, Phase.BINDING)
        try:
            async with term.in_force():
                for key in keys:
                    # Taken from here on: a try that is broken off, or whose reply was lost, may have set the lock.
                    taken.append(key)
                    try:
                        await self._locks.acquire(pod, node, key, _is_gang(pod), request.deadline_s)
                    except LockContentionError:
                        taken.pop()
                        raise
            if reservation is not None and not self._engine.still_good(reservation):
                raise BindError(
                    f"the cards reserved for pod {pod.namespace}/{pod.name} on node {node} are no longer available"
                )
            body = self._binding(pod, node, reservation)
        except BaseException as error:  # whatever happens, also a caller that goes away: give back, then pass it on
            # The locks first: kube-scheduler may be back for this node as soon as it has our answer.
            await self._beside(self._give_back(pod, node, taken))
            if isinstance(error, BindingMetadataError):
                raise BindError(str(error)) from error
            raise
        gone = asyncio.Event()
        try:
            await self._beside(self._send(pod, request, reservation, taken, body, gone, term))
        except asyncio.CancelledError:
            gone.set()
            raise

    def _reservation(self, pod: Pod, node: str) -> Reservation | None:
        """The pod's reservation on this node; made now where it is gone or elsewhere. None for a pod without devices."""
        reservation = self._ledger.reservation(pod.uid)
        if reservation is not None and reservation.node == node:
            if reservation.phase is not Phase.HELD:
                raise BindError(f"an earlier binding of pod {pod.namespace}/{pod.name} is not settled yet")
            return reservation
        placed = self._engine.place(pod, node, self._clock.now())
        if isinstance(placed, Reservation):
            return placed
        if placed.outcome == "plain":
            return None
        raise BindError(_why_not(placed, node))

    def _lock_keys(self, reservation: Reservation | None, node: str) -> list[str]:
        """Distinct locks of the vendors in the allocation, in the order of the vendors' keys."""
        if reservation is None or self._settings.node_lock == "never":
            return []
        found = self._ledger.node_object(node)
        if self._settings.node_lock == "auto" and found is not None and found.annotations.get(NODE_LOCK_MODE) == "none":
            return []
        holders = {entry.vendor for entries in reservation.allocation for entry in entries}
        vendors = (self._ledger.config.vendor(key) for key in sorted(holders))
        return list(dict.fromkeys(v.node_lock for v in vendors if v is not None and v.node_lock))

    def _binding(self, pod: Pod, node: str, reservation: Reservation | None) -> JsonObject:
        metadata: dict[str, object] = {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid}
        if reservation is not None:
            seen = self._ledger.pod(pod.uid) or pod
            state = self._ledger.state(node)
            extra = carried(node, reservation.allocation, self._ledger.config, seen, state, self._clock.now())
            metadata["annotations"], metadata["labels"] = dict(extra.annotations), dict(extra.labels)
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        return {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}

    async def _send(
        self,
        pod: Pod,
        request: BindRequest,
        reservation: Reservation | None,
        taken: list[str],
        body: JsonObject,
        caller_gone: asyncio.Event,
        term: Term,
    ) -> None:
        node = request.node

        def check() -> None:
            # The client may have waited for its turn: nobody may want the pod bound any more, or its cards may be gone.
            if caller_gone.is_set():
                raise BindError(f"the caller that asked to bind pod {pod.namespace}/{pod.name} has gone")
            why = term.refusal()
            if why is not None:
                raise NotLeadingError(why)
            if reservation is not None and not self._engine.still_good(reservation):
                raise BindError(
                    f"the cards reserved for pod {pod.namespace}/{pod.name} on node {node} are no longer available"
                )

        try:
            await self._api.bind(pod.namespace, pod.name, body, self._settings.timeout_s, before_send=check)
        except OutcomeUnknown as error:
            await self._lost_reply(pod, request, reservation, taken, error)
        except Conflict as error:
            # An earlier, lost Binding may have done it; refused it is only once a read has shown so.
            bound = await self._outcome(pod, node, reservation)
            if bound is None:
                raise self._later(pod, node, reservation, taken, self._clock.now()) from error
            if not bound:
                await self._give_back(pod, node, taken)
                raise BindError(str(error)) from error
        except (KubeError, BindError) as error:
            await self._give_back(pod, node, taken)
            raise BindError(str(error)) from error

    async def _give_back(self, pod: Pod, node: str, taken: list[str]) -> None:
        for key in reversed(taken):
            await self._locks.release(pod, node, key)
        self._ledger.release(pod.uid)

    async def _lost_reply(
        self,
        pod: Pod,
        request: BindRequest,
        reservation: Reservation | None,
        taken: list[str],
        error: OutcomeUnknown,
    ) -> None:
        """Hold the cards until it is known; kube-scheduler waits with us as long as it can be told in time."""
        node = request.node
        self._ledger.set_phase(pod.uid, Phase.UNSETTLED)
        _LOG.warning("pod %s/%s: the outcome of its binding to %s is open: %s", pod.namespace, pod.name, node, error)
        # Until the request's own time-out has run out, a read proves nothing: the write may still land.
        settled_at = self._clock.now() + self._settings.timeout_s
        in_time = request.deadline_s is None or settled_at + _READ_RETRY_S < request.deadline_s
        if in_time:
            await self._clock.wait(asyncio.Event(), self._settings.timeout_s)
        bound = await self._outcome(pod, node, reservation) if in_time else None
        if bound is None:
            raise self._later(pod, node, reservation, taken, settled_at) from error
        if not bound:
            await self._give_back(pod, node, taken)
            raise BindError(f"binding pod {pod.namespace}/{pod.name} to node {node} failed: {error}") from error

    async def _outcome(self, pod: Pod, node: str, reservation: Reservation | None) -> bool | None:
        """Whether the pod stands on the node with our cards, by a quorum read; None when it cannot be read."""
        try:
            found = await self._stored(pod)
        except KubeError:
            return None
        if found is None or self._ledger.is_gone(pod.uid):
            return False
        if found.bound_node:
            # Wherever it stands, what it carries counts before anything of ours is given back.
            self._ledger.put_pod(found, self._clock.now(), by_watch=False)
        allocation = reservation.allocation if reservation is not None else ()
        return found.bound_node == node and carries(found.annotations, allocation, self._ledger.config)

    def _later(
        self, pod: Pod, node: str, reservation: Reservation | None, taken: list[str], settled_at: float
    ) -> BindError:
        """Go on asking for the outcome, without a caller; what to tell the present one."""
        self._ledger.set_phase(pod.uid, Phase.UNSETTLED)
        work = self._settle_later(pod, node, reservation, taken, settled_at)
        task = asyncio.create_task(work, name=f"settle {pod.namespace}/{pod.name}")
        self._unsettled.add(task)
        task.add_done_callback(self._unsettled.discard)
        return BindError(f"the outcome of binding pod {pod.namespace}/{pod.name} to node {node} is not known yet")

    async def _settle_later(
        self, pod: Pod, node: str, reservation: Reservation | None, taken: list[str], settled_at: float
    ) -> None:
        await self._clock.wait(asyncio.Event(), settled_at - self._clock.now())
        while (bound := await self._outcome(pod, node, reservation)) is None:
            await self._clock.wait(asyncio.Event(), _READ_RETRY_S)
        if not bound:
            await self._give_back(pod, node, taken)

    async def _beside(self, work: Coroutine[object, object, None]) -> None:
        """Finish `work` even if the caller goes away meanwhile."""
        task = asyncio.ensure_future(work)
        self._unsettled.add(task)
        task.add_done_callback(self._unsettled.discard)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_log_outcome)
            raise

    def _failed(self, pod: Pod, text: str) -> None:
        self._events.emit(pod, EventText(WARNING, BINDING_FAILED, text))


def _log_outcome(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _LOG.warning("after its caller had gone: %s", error)


def _is_gang(pod: Pod) -> bool:
    group = pod.spec.scheduling_group
    return bool(pod.labels.get(POD_GROUP_LABEL)) or bool(group is not None and group.pod_group_name)


def _why_not(placed: Filtered, node: str) -> str:
    if placed.error:
        return placed.error
    return f"node {node}: {(placed.failed or {}).get(node, 'the pod does not fit any more')}"
