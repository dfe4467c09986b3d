"""What the fixture sees of one kind of object: all of them, as a watch shows them."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import msgspec

from devices.kube.client import KubeClient
from devices.kube.reflector import Reflector, ReflectorSettings
from devices.kube.resources import Resource
from devices.kube.seen import SeenObject

__all__ = ["Mirror", "RawObject"]

_SYNC_S: Final = 30.0


class _Metadata(msgspec.Struct):
    uid: str
    name: str
    namespace: str = ""


class _Object(msgspec.Struct):
    metadata: _Metadata


@dataclass(frozen=True)
class RawObject:
    """An object as the watch delivered it."""

    uid: str
    namespace: str
    name: str
    raw: bytes


def _decode(raw: bytes) -> RawObject:
    metadata = msgspec.json.decode(raw, type=_Object).metadata
    return RawObject(metadata.uid, metadata.namespace, metadata.name, bytes(raw))


class Mirror:
    """Follows from `start` to `stop`; `changed` is called after each change with the object, or with None and the UID of one that is gone."""

    def __init__(
        self,
        client: KubeClient,
        resource: Resource,
        namespace: str | None = None,
        changed: Callable[[RawObject | None, str], None] = lambda _object, _uid: None,
    ) -> None:
        self.objects: dict[str, RawObject] = {}
        """By UID."""
        self._changed = changed
        settings = ReflectorSettings(namespace=namespace)
        self._reflector: Reflector[RawObject] = Reflector(client, resource, _decode, self, settings)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns once everything there is has been seen. Raises TimeoutError."""
        self._task = asyncio.create_task(self._reflector.run())
        async with asyncio.timeout(_SYNC_S):
            await self._reflector.synced.wait()

    async def stop(self) -> None:
        """End the watch; what was seen stays."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def known(self) -> Mapping[str, object]:
        """(Consumer)"""
        return self.objects

    def replace(self, items: Sequence[RawObject]) -> None:
        """(Consumer)"""
        fresh = {item.uid for item in items}
        for uid in [uid for uid in self.objects if uid not in fresh]:
            self._remove(uid)
        for item in items:
            self.put(item)

    def put(self, item: RawObject) -> None:
        """(Consumer)"""
        self.objects[item.uid] = item
        self._changed(item, item.uid)

    def delete(self, gone: SeenObject) -> None:
        """(Consumer)"""
        self._remove(gone.uid)

    def _remove(self, uid: str) -> None:
        if self.objects.pop(uid, None) is not None:
            self._changed(None, uid)
