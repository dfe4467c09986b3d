"""The lab's own eyes on the cluster: every pod and node as the watches show them, shared by all who act on them."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Generic, TypeVar

import msgspec
import orjson

from devices.kube.client import KubeClient
from devices.kube.reflector import Reflector, ReflectorSettings
from devices.kube.resources import NODES, PODS, Resource
from devices.kube.seen import SeenObject
from devices.objects import Node, Pod, decode_node, decode_pod
from lab.strangers import field_selector

__all__ = ["Followed", "SeenNode", "SeenPod", "follow_nodes", "follow_pods"]

_SYNC_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class SeenPod:
    """A pod as the watch delivered it: `raw` is its whole JSON."""

    pod: Pod
    raw: bytes

    @property
    def uid(self) -> str:
        """`metadata.uid`."""
        return self.pod.uid

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.pod.namespace}/{self.pod.name}"

    @property
    def conditions(self) -> list[dict[str, object]]:
        """`status.conditions` in full, decoded on each call."""
        status = orjson.loads(self.raw).get("status") or {}
        return list(status.get("conditions") or ())


class _NodeSpec(msgspec.Struct, frozen=True):
    unschedulable: bool = False


class _NodeWithSpec(msgspec.Struct, frozen=True):
    spec: _NodeSpec = _NodeSpec()


@dataclass(frozen=True, slots=True)
class SeenNode:
    """A node as the watch delivered it: `raw` is its whole JSON."""

    node: Node
    raw: bytes
    unschedulable: bool

    @property
    def uid(self) -> str:
        """`metadata.uid`."""
        return self.node.metadata.uid

    @property
    def key(self) -> str:
        """The node's name."""
        return self.node.name


ObjectT = TypeVar("ObjectT", SeenPod, SeenNode)

Listener = Callable[[ObjectT | None, ObjectT | None], None]
"""Told of every change: the object before (None: new) and after (None: gone)."""


class Followed(Generic[ObjectT]):
    """All objects of one kind, by `key`; listeners hear of each change after it is in `objects`.

    Listeners run on the event loop and must not block. They are added before `start`.
    """

    def __init__(
        self,
        client: KubeClient,
        resource: Resource,
        decode: Callable[[bytes], ObjectT],
        field_selector: str | None = None,
    ) -> None:
        self._by_uid: dict[str, ObjectT] = {}
        self._by_key: dict[str, ObjectT] = {}
        self._listeners: list[Listener[ObjectT]] = []
        self._waiting: set[asyncio.Event] = set()
        settings = ReflectorSettings(field_selector=field_selector)
        self._reflector: Reflector[ObjectT] = Reflector(client, resource, decode, self, settings)
        self._task: asyncio.Task[None] | None = None

    @property
    def objects(self) -> Mapping[str, ObjectT]:
        """What the watch has shown, by key. A live view: copy it before an await."""
        return MappingProxyType(self._by_key)

    def listen(self, listener: Listener[ObjectT]) -> None:
        """Tell `listener` of every change from now on."""
        self._listeners.append(listener)

    async def start(self) -> None:
        """Follow; returns once everything there is has been seen. Raises TimeoutError if that takes too long."""
        self._task = asyncio.create_task(self._reflector.run(), name="lab watch")
        async with asyncio.timeout(_SYNC_S):
            await self._reflector.synced.wait()

    async def stop(self) -> None:
        """End the watch; what was seen stays."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def wait_for(self, holds: Callable[[], bool], timeout_s: float) -> bool:
        """True as soon as `holds` does; it is asked now and after each change. False after `timeout_s`."""
        if holds():
            return True
        changed = asyncio.Event()
        self._waiting.add(changed)
        try:
            async with asyncio.timeout(timeout_s):
                while not holds():
                    changed.clear()
                    await changed.wait()
        except TimeoutError:
            return holds()
        finally:
            self._waiting.discard(changed)
        return True

    # --- what the reflector calls ---

    def known(self) -> Mapping[str, object]:
        """(Consumer)"""
        return self._by_uid

    def replace(self, items: Sequence[ObjectT]) -> None:
        """(Consumer)"""
        fresh = {item.uid for item in items}
        for uid in [uid for uid in self._by_uid if uid not in fresh]:
            self._remove(uid)
        for item in items:
            self.put(item)

    def put(self, item: ObjectT) -> None:
        """(Consumer)"""
        before = self._by_uid.get(item.uid)
        self._by_uid[item.uid] = item
        self._by_key[item.key] = item
        self._tell(before, item)

    def delete(self, gone: SeenObject) -> None:
        """(Consumer)"""
        self._remove(gone.uid)

    def _remove(self, uid: str) -> None:
        before = self._by_uid.pop(uid, None)
        if before is None:
            return
        if self._by_key.get(before.key) is before:  # a pod of the same name may have come since
            del self._by_key[before.key]
        self._tell(before, None)

    def _tell(self, before: ObjectT | None, after: ObjectT | None) -> None:
        for listener in self._listeners:
            listener(before, after)
        for waiting in self._waiting:
            waiting.set()


def _pod(raw: bytes) -> SeenPod:
    return SeenPod(decode_pod(raw), bytes(raw))


def _node(raw: bytes) -> SeenNode:
    spec = msgspec.json.decode(raw, type=_NodeWithSpec).spec
    return SeenNode(decode_node(raw), bytes(raw), spec.unschedulable)


def follow_pods(client: KubeClient, strangers: tuple[str, ...] = ()) -> Followed[SeenPod]:
    """All pods of the cluster but those on nodes that are `strangers`; not started."""
    return Followed(client, PODS, _pod, field_selector("spec.nodeName", strangers))


def follow_nodes(client: KubeClient, strangers: tuple[str, ...] = ()) -> Followed[SeenNode]:
    """All nodes of the cluster but `strangers`; not started."""
    return Followed(client, NODES, _node, field_selector("metadata.name", strangers))
