"""The node lock: one pod at a time while a node's device plugin needs to know whose cards it hands out.

Waiters of a node are served in arrival order and woken by the lock's release. Every write carries the node's resourceVersion, so a
lock taken in between is never overwritten (HAMi v2.10 wire contract, node lock).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from devices.errors import LockError
from devices.keys import BIND_PHASE
from devices.kube.errors import Conflict, KubeError, NotFound, OutcomeUnknown
from devices.kube.protocols import JsonObject, NodePatcher, NodeReader, PodReader
from devices.node_lock import OWNED, LockFormat, LockValue, parse, seconds_of
from devices.objects import Pod, node_of, pod_of
from devices.vendor import Vendor
from scheduler.clock import Clock
from scheduler.errors import LockContentionError, LockFailedError
from serving.flags import duration_text

__all__ = ["LockApi", "LockSettings", "NodeLocks", "lock_formats"]

_LOG = logging.getLogger(__name__)
_RETRIES = 5
_FIRST_RETRY_S = 0.1
_UNBOUND_OWNER_S = 30.0
"""kube-scheduler's patience with a whole bind: an owner that is unbound for longer than that has given up."""
_TO_ANSWER_S = 1.0
"""What is left for the rest of a bind after waiting for a lock."""
_CLOCKS_APART_S = 10.0
"""A pod created so much later than a lock was taken is not the one that took it; within it the clocks may disagree."""
_STRATEGY = "{Duration:100ms Factor:2 Jitter:0.5 Steps:5 Cap:0s}"


class LockApi(NodeReader, NodePatcher, PodReader, Protocol):
    """What locking needs of the API server."""


@dataclass(frozen=True, slots=True)
class LockSettings:
    """`expiry_s`: a lock older than this is nobody's. `wait_s`, `gang_wait_s`: how long ordinary pods and gang members wait."""

    expiry_s: float = 300.0
    wait_s: float = 2.0
    gang_wait_s: float = 28.0


@dataclass(slots=True)
class _Node:
    """Waiters of one node in arrival order, and what wakes the first of them."""

    queue: deque[asyncio.Event]
    changed: asyncio.Event


def lock_formats(vendors: Iterable[Vendor]) -> dict[str, LockFormat]:
    """How each lock of these vendors is written, by its key."""
    return {vendor.node_lock: vendor.lock_format for vendor in vendors if vendor.node_lock}


class NodeLocks:
    """Takes and gives back node locks on behalf of pods. `formats`: how a lock is written that is not of the common form, by key."""

    def __init__(
        self,
        api: LockApi,
        clock: Clock,
        settings: LockSettings,
        formats: Mapping[str, LockFormat] = MappingProxyType({}),
    ) -> None:
        self._api = api
        self._clock = clock
        self._settings = settings
        self._nodes: dict[str, _Node] = {}
        self._formats = formats
        self._first_seen: dict[tuple[str, str], float] = {}
        self._nameless: dict[tuple[str, str], tuple[str, str]] = {}
        """Values we wrote into locks that name nobody, with the pod's UID, by node and key."""

    def node_changed(self, name: str) -> None:
        """The watch has shown the node: whoever waits for its lock looks again."""
        waiting = self._nodes.get(name)
        if waiting is not None:
            waiting.changed.set()

    async def acquire(self, pod: Pod, node: str, key: str, gang: bool, caller_until_s: float | None = None) -> None:
        """Take the lock `key` of the node for the pod, waiting for whoever has it.

        The wait ends early enough for a caller that waits until `caller_until_s` to be told. Raises `LockContentionError` when the wait ends, `LockFailedError` for every other failure; then nothing is held.
        """
        patient = gang and self._settings.gang_wait_s > 0
        patience_s = self._settings.gang_wait_s if patient else self._settings.wait_s
        if caller_until_s is not None:
            patience_s = max(min(patience_s, caller_until_s - self._clock.now() - _TO_ANSWER_S), 0.0)
        deadline = self._clock.now() + patience_s
        waiting = self._nodes.setdefault(node, _Node(deque(), asyncio.Event()))
        turn = asyncio.Event()
        waiting.queue.append(turn)
        if waiting.queue[0] is turn:
            turn.set()
        try:
            if not await self._clock.wait(turn, deadline - self._clock.now()):
                raise LockContentionError(self._contention(node, key))
            await self._attempts(pod, node, key, waiting, deadline)
        except LockContentionError as error:
            if patient:
                waited = duration_text(round(patience_s, 1))
                raise LockContentionError(
                    f"timed out after {waited} waiting for node {node} to be unlocked: node lock contention"
                ) from error
            raise
        finally:
            waiting.queue.remove(turn)
            if waiting.queue:
                waiting.queue[0].set()
            elif self._nodes.get(node) is waiting:
                del self._nodes[node]

    async def _attempts(self, pod: Pod, node: str, key: str, waiting: _Node, deadline: float) -> None:
        while True:
            waiting.changed.clear()
            try:
                return await self._attempt(pod, node, key)
            except LockContentionError:
                if not await self._clock.wait(waiting.changed, deadline - self._clock.now()):
                    raise

    def _format(self, key: str) -> LockFormat:
        return self._formats.get(key, OWNED)

    def _expiry_s(self, key: str) -> float:
        expiry_s = self._format(key).expiry_s
        return self._settings.expiry_s if expiry_s is None else expiry_s

    def _contention(self, node: str, key: str) -> str:
        return self._format(key).contention.format(node=node, expiry=duration_text(self._expiry_s(key)))

    async def _attempt(self, pod: Pod, node: str, key: str) -> None:
        """Read, judge, set; again after a conflict or a lost reply, which leave it open whose lock it is."""
        cause: Exception | None = None
        names_owner = self._format(key).names_owner
        mine = (
            LockValue(self._clock.now(), pod.namespace, pod.name) if names_owner else LockValue(self._clock.now())
        ).text()
        for tries in range(_RETRIES):
            if tries:
                await self._clock.wait(asyncio.Event(), _FIRST_RETRY_S * 2 ** (tries - 1))
            try:
                text, revision = await self._read(node, key)
                if (names_owner and text == mine) or (text and self._is_own(text, pod, node, key)):
                    return
                if text and not await self._is_free_to_take(text, pod, node, key):
                    raise LockContentionError(
                        self._contention(node, key) if not tries else f"node {node} is locked: node lock contention"
                    )
                if not names_owner:
                    self._nameless[node, key] = (mine, pod.uid)
                await _to_its_end(self._api.patch_node(node, _patch(key, mine, revision)))
            except (Conflict, OutcomeUnknown) as error:
                cause = error
            except KubeError as error:
                raise LockFailedError(f"failed to set node lock (node={node}): {error}") from error
            else:
                self._forget(node)
                return
        raise LockFailedError(f"failed to set node lock (node={node}, retry strategy={_STRATEGY}): {cause}") from cause

    async def _read(self, node: str, key: str) -> tuple[str, str]:
        document = await self._api.get_node(node)
        found = node_of(document)
        return found.annotations.get(key, ""), found.metadata.resource_version

    def _is_own(self, text: str, pod: Pod, node: str, key: str) -> bool:
        """A lock of this very pod that still holds; one older than the pod is its predecessor's of the same name.

        Of a lock that names nobody we only know who took it while this process lives.
        """
        try:
            value = parse(text)
        except LockError:
            return False
        holds = self._age_s(node, text, value) <= self._expiry_s(key)
        if not self._format(key).names_owner:
            return holds and self._nameless.get((node, key)) == (text, pod.uid)
        return holds and value.is_of(pod.namespace, pod.name) and value.at_s >= self._created_s(pod)

    @staticmethod
    def _created_s(pod: Pod) -> float:
        try:
            return seconds_of(pod.metadata.creation_timestamp or "")
        except LockError:
            return 0.0

    async def _is_free_to_take(self, text: str, pod: Pod, node: str, key: str) -> bool:
        """Whether the lock found is nobody's: unreadable, expired, or of an owner who cannot need it any more."""
        try:
            value = parse(text)
        except LockError as error:
            if not self._format(key).takes_malformed:
                raise LockFailedError(f"failed to set node lock (node={node}): {error}") from error
            _LOG.warning("node %s: its lock is taken for expired: %s", node, error)
            return True
        if self._age_s(node, text, value) > self._expiry_s(key):
            return True
        if not value.names_owner:
            return False
        if value.is_of(pod.namespace, pod.name):
            return True
        return await self._is_abandoned(text, value, node)

    def _age_s(self, node: str, text: str, value: LockValue) -> float:
        """From the lock's own time; from when we first saw it where that time lies ahead of our clock."""
        now = self._clock.now()
        if value.at_s <= now:
            return now - value.at_s
        return now - self._first_seen.setdefault((node, text), now)

    def _forget(self, node: str) -> None:
        for seen in [seen for seen in self._first_seen if seen[0] == node]:
            del self._first_seen[seen]

    async def _is_abandoned(self, text: str, value: LockValue, node: str) -> bool:
        """Whether the named owner cannot need the lock: gone, ended, served by the plugin, bound elsewhere, or never bound at all.

        From a lock to its Binding a bind takes seconds, so an owner that is still unbound long after will not use it: its bind failed
        and the lock could not be given back.
        """
        try:
            document = await self._api.get_pod(value.namespace, value.name)
        except (NotFound, ValueError):
            return True  # gone, or a text that can be no pod's name
        owner = pod_of(document)
        if self._created_s(owner) > value.at_s + _CLOCKS_APART_S:
            return True  # the lock was its predecessor's of the same name
        if owner.is_finished or owner.annotations.get(BIND_PHASE) in ("success", "failed"):
            return True
        if not owner.bound_node:
            return self._age_s(node, text, value) > _UNBOUND_OWNER_S
        return owner.bound_node != node

    async def release(self, pod: Pod, node: str, key: str) -> None:
        """Give the lock back if it is this pod's. A failure is logged: the lock then goes with its expiry or its owner's end."""
        for tries in range(_RETRIES):
            if tries:
                await self._clock.wait(asyncio.Event(), _FIRST_RETRY_S * 2 ** (tries - 1))
            try:
                text, revision = await self._read(node, key)
                if not (_names(text, pod) if self._format(key).names_owner else self._is_own(text, pod, node, key)):
                    return
                await self._api.patch_node(node, _patch(key, None, revision))
                self._nameless.pop((node, key), None)
            except NotFound:
                return
            except (Conflict, OutcomeUnknown):
                continue
            except KubeError as error:
                _LOG.warning("node %s: its lock could not be given back: %s", node, error)
                return
            else:
                return
        _LOG.warning("node %s: its lock could not be given back in %d tries", node, _RETRIES)

    async def sweep(self, locks: Iterable[tuple[str, str, str]]) -> int:
        """Remove locks (node, key, value) whose owner cannot need them any more; answers how many were removed."""
        removed = 0
        for node, key, text in sorted(locks):
            try:
                value = parse(text)
                if not value.names_owner or not await self._is_abandoned(text, value, node):
                    continue
                present, revision = await self._read(node, key)
                if present == text:
                    await self._api.patch_node(node, _patch(key, None, revision))
                    removed += 1
                    _LOG.info("node %s: removed the lock %s, whose owner does not need it", node, text)
            except LockError:
                continue
            except KubeError as error:
                _LOG.warning("node %s: its stale lock stays for now: %s", node, error)
        return removed


def _names(text: str, pod: Pod) -> bool:
    """Whether a lock's value names the pod. The clock plays no part: whoever wrote it, the name is this pod's now."""
    try:
        return parse(text).is_of(pod.namespace, pod.name)
    except LockError:
        return False


async def _to_its_end(write: Coroutine[object, object, JsonObject]) -> None:
    """A write that has begun is waited for even when its caller goes away: only then is it known what to give back."""
    task = asyncio.ensure_future(write)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()
        raise


def _patch(key: str, value: str | None, revision: str) -> JsonObject:
    metadata: dict[str, object] = {"annotations": {key: value}}
    if revision:
        metadata["resourceVersion"] = revision
    return {"metadata": metadata}
