"""One object of the API server, kept as it is now: followed by name, and brought up to what our own writes return."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import orjson

from devices.kube.consumer import ListWatch
from devices.kube.metrics import ReflectorMetrics
from devices.kube.protocols import JsonObject
from devices.kube.reflector import Reflector, ReflectorSettings
from devices.kube.resources import Resource
from devices.kube.seen import SeenObject

__all__ = ["WatchedObject"]

_QUIET_S: Final = 90.0


class WatchedObject:
    """Follows the one object of `name` while `run` runs. `changed` listeners are called after each change.

    Asks for list and watch with a field selector on the name, which RBAC can allow for that name alone.
    """

    def __init__(
        self,
        client: ListWatch,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        metrics: ReflectorMetrics | None = None,
        quiet_s: float = _QUIET_S,
    ) -> None:
        self.changed: list[Callable[[], None]] = []
        self._held: dict[str, JsonObject] = {}
        self._doubted = False
        self._name = name
        settings = ReflectorSettings(namespace=namespace, field_selector=f"metadata.name={name}", quiet_s=quiet_s)
        self._reflector = Reflector(client, resource, _decode, self, settings, metrics=metrics or ReflectorMetrics())

    @property
    def resource(self) -> Resource:
        """Of what kind it is."""
        return self._reflector.resource

    @property
    def name(self) -> str:
        """What it is called."""
        return self._name

    @property
    def synced(self) -> bool:
        """Whether it is known if there is such an object."""
        return self._reflector.synced.is_set()

    @property
    def age_s(self) -> float:
        """Seconds since the API server last told us anything about it, that nothing has changed included."""
        return self._reflector.last_event_age_s

    @property
    def current(self) -> JsonObject | None:
        """As it is now; None where there is none. Not to be changed."""
        return max(self._held.values(), key=_revision, default=None)

    async def run(self) -> None:
        """Follow it until cancelled."""
        await self._reflector.run()

    def take(self, stored: JsonObject) -> None:
        """Hold what a write of ours has returned, unless the watch was faster."""
        self.put(stored)

    def doubt(self) -> None:
        """Take in what comes next even where it is older: a write of ours met a conflict, so what is held is not what is there."""
        self._doubted = True
        self._reflector.request_resync()

    # --- as the reflector's consumer ---

    def known(self) -> Mapping[str, object]:
        """(Consumer)"""
        return self._held

    def replace(self, items: Sequence[JsonObject]) -> None:
        """(Consumer)"""
        self._held = {_uid(item): item for item in items}
        self._tell()

    def put(self, item: JsonObject) -> None:
        """(Consumer)"""
        held = self.current
        if self._doubted or held is None or _revision(item) > _revision(held):
            self._doubted = False
            self._held = {_uid(item): item}
            self._tell()

    def delete(self, gone: SeenObject) -> None:
        """(Consumer)"""
        held = self._held.get(gone.uid)
        if held is not None and _revision(held) <= gone.revision:
            del self._held[gone.uid]
            self._tell()

    def _tell(self) -> None:
        for listener in self.changed:
            listener()


def _decode(raw: bytes) -> JsonObject:
    decoded = orjson.loads(bytes(raw))  # of a list, it comes as a part of that
    if not isinstance(decoded, dict):
        raise ValueError(f"a {type(decoded).__name__} is no object")
    return decoded


def _metadata(item: JsonObject) -> JsonObject:
    metadata = item.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def _uid(item: JsonObject) -> str:
    return str(_metadata(item).get("uid", ""))


def _revision(item: JsonObject) -> int:
    text = str(_metadata(item).get("resourceVersion", ""))
    return int(text) if text.isascii() and text.isdigit() else 0
