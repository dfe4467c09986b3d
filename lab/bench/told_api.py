"""An API server inside the process that follows it: it is told what happens, passes it to its watches and takes every write.

What it keeps are the objects that are there, so a process around it grows only by what follows.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec
import orjson

from devices.kube.client import Page, WatchEvent
from devices.kube.errors import NotFound
from devices.kube.protocols import JsonObject
from devices.kube.resources import NODES, PODS, RESOURCE_QUOTAS, Resource

__all__ = ["ToldApi"]

_BINDING_PHASE: Final = "Running"


@dataclass(slots=True)
class _Kind:
    objects: dict[str, JsonObject] = field(default_factory=dict)
    watches: list[asyncio.Queue[WatchEvent]] = field(default_factory=list)


def _metadata(document: JsonObject) -> JsonObject:
    metadata = document["metadata"]
    assert isinstance(metadata, dict)
    return metadata


class ToldApi:
    """Reads, watches and writes as the extender and its feed need them; everything it answers at once."""

    def __init__(self) -> None:
        self._kinds = {resource.label: _Kind() for resource in (NODES, PODS, RESOURCE_QUOTAS)}
        self._revision = 0
        self.bound = 0
        """Bindings taken so far."""

    # --- what happens ---

    def put(self, resource: Resource, document: JsonObject) -> None:
        """The object is there, or is so now."""
        kind = self._kinds[resource.label]
        uid = str(_metadata(document)["uid"])
        self._tell(kind, "MODIFIED" if uid in kind.objects else "ADDED", document)
        kind.objects[uid] = document

    def delete(self, resource: Resource, uid: str) -> None:
        """The object is gone."""
        kind = self._kinds[resource.label]
        self._tell(kind, "DELETED", kind.objects.pop(uid))

    def object(self, resource: Resource, uid: str) -> JsonObject:
        """An object that is there."""
        return self._kinds[resource.label].objects[uid]

    def _tell(self, kind: _Kind, what: str, document: JsonObject) -> None:
        self._revision += 1
        _metadata(document)["resourceVersion"] = str(self._revision)
        if kind.watches:
            event = WatchEvent(what, orjson.dumps(document))
            for watch in kind.watches:
                watch.put_nowait(event)

    async def delivered(self) -> None:
        """Return once every watch has taken all that was told."""
        for kind in self._kinds.values():
            for watch in kind.watches:
                await watch.join()

    # --- reads ---

    async def list_pages(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        limit: int = 500,
        label_selector: str | None = None,
        field_selector: str | None = None,
    ) -> AsyncGenerator[Page]:
        """All objects in one page; selectors and namespaces are not asked for here."""
        raws = [orjson.dumps(document) for document in self._kinds[resource.label].objects.values()]
        raw = b'{"metadata":{"resourceVersion":"%d"},"items":[%s]}' % (self._revision, b",".join(raws))
        yield Page(raw, str(self._revision), "", [msgspec.Raw(item) for item in raws])

    async def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        resource_version: str,
        timeout_s: float,
        label_selector: str | None = None,
        field_selector: str | None = None,
    ) -> AsyncGenerator[WatchEvent]:
        """What is told from now on. It never ends by itself: the caller is cancelled."""
        queue: asyncio.Queue[WatchEvent] = asyncio.Queue()
        watches = self._kinds[resource.label].watches
        watches.append(queue)
        try:
            while True:
                yield await queue.get()
                queue.task_done()
        finally:
            watches.remove(queue)

    async def get_pod(self, namespace: str, name: str) -> JsonObject:
        """(PodReader)"""
        for pod in self._kinds[PODS.label].objects.values():
            metadata = _metadata(pod)
            if (metadata["namespace"], metadata["name"]) == (namespace, name):
                return pod
        raise NotFound(404, "NotFound", f'pods "{name}" not found')

    async def get_node(self, name: str) -> JsonObject:
        """(NodeReader)"""
        for node in self._kinds[NODES.label].objects.values():
            if _metadata(node)["name"] == name:
                return node
        raise NotFound(404, "NotFound", f'nodes "{name}" not found')

    # --- writes ---

    async def bind(
        self,
        namespace: str,
        name: str,
        body: JsonObject,
        timeout_s: float,
        *,
        before_send: Callable[[], None] | None = None,
    ) -> None:
        """Merge a Binding into its pod, which runs from then on."""
        if before_send is not None:
            before_send()
        binding = _metadata(body)
        pod = self.object(PODS, str(binding["uid"]))
        metadata, spec, target = _metadata(pod), pod["spec"], body["target"]
        assert isinstance(spec, dict)
        assert isinstance(target, dict)
        for key in ("annotations", "labels"):
            metadata[key] = {**_texts(metadata.get(key)), **_texts(binding.get(key))}
        spec["nodeName"] = target["name"]
        pod["status"] = {"phase": _BINDING_PHASE}
        self.bound += 1
        self.put(PODS, pod)

    async def create_event(self, namespace: str, body: JsonObject) -> None:
        """Take an Event and forget it."""

    async def patch_node(self, name: str, body: JsonObject) -> JsonObject:
        """Nothing patches nodes that need no lock and have no handshake."""
        raise AssertionError(f"node {name} was patched: {body}")

    async def patch_pod(self, namespace: str, name: str, body: JsonObject) -> JsonObject:
        """Nothing patches pods where there is no pod of our own."""
        raise AssertionError(f"pod {namespace}/{name} was patched: {body}")


def _texts(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}
