"""The client of the API server: raw JSON in and out, one method a verb, and the few calls that callers ask for."""

import asyncio
import math
import random as random_module
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import aiohttp
import msgspec
import orjson
from prometheus_client import CollectorRegistry

from devices.kube.config import ClusterAccess
from devices.kube.errors import MalformedReply, OutcomeUnknown
from devices.kube.protocols import JsonObject
from devices.kube.resources import (
    CONFIG_MAPS,
    EVENTS,
    LEASES,
    MUTATING_WEBHOOKS,
    NODES,
    PODS,
    RESOURCE_QUOTAS,
    SECRETS,
    VALIDATING_WEBHOOKS,
    Resource,
)
from devices.kube.transport import Call, ClientSettings, Transport, unreachable

__all__ = ["MALFORMED", "ClientSettings", "KubeClient", "Page", "WatchEvent"]

# One event is one object: etcd holds at most 1.5 MiB, JSON with managed fields a little more.
_LONGEST_EVENT_BYTES: Final = 16 * 1024 * 1024
# Time beyond the server's own limit of a watch before we give up on it.
_WATCH_GRACE_S: Final = 30.0
MALFORMED: Final = "MALFORMED"
_MERGE_PATCH: Final = "application/merge-patch+json"
_JSON_PATCH: Final = "application/json-patch+json"


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list: `raw` is the whole List object, `items` are its objects, each a part of it not looked into yet.

    `continue_token` is empty on the last page.
    """

    raw: bytes
    resource_version: str
    continue_token: str
    items: Sequence[msgspec.Raw]


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One line of a watch: ADDED, MODIFIED, DELETED, BOOKMARK or ERROR, and the object's JSON.

    Of type MALFORMED, which is ours, it is a line that is no event, as it came.
    """

    type: str
    raw: bytes


class _Line(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _ListMeta(msgspec.Struct):
    resource_version: str = msgspec.field(default="", name="resourceVersion")
    continue_token: str | None = msgspec.field(default="", name="continue")


class _List(msgspec.Struct):
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


class KubeClient:
    """Speaks to one API server. Use as an async context manager or call `close`.

    Methods raise the tree of `devices.kube.errors` and nothing of the libraries beneath. A caller that cancels a
    write does not know its outcome. Reads are quorum reads unless they say otherwise.
    """

    def __init__(
        self,
        access: ClusterAccess,
        settings: ClientSettings,
        *,
        registry: CollectorRegistry | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        random: Callable[[], float] = random_module.random,
    ) -> None:
        self.access = access
        self._transport = Transport(access, settings, registry=registry, clock=clock, sleep=sleep, random=random)
        self._lines = msgspec.json.Decoder(_Line)
        self._lists = msgspec.json.Decoder(_List)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection."""
        await self._transport.close()

    # --- any resource ---

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> JsonObject:
        """One object. Raises NotFound."""
        return _object(await self.get_raw(resource, name, namespace))

    async def get_raw(self, resource: Resource, name: str, namespace: str | None = None) -> bytes:
        """One object as it came, for a decoder of the caller's. Raises NotFound."""
        return await self._transport.read(Call("get", resource.label, "GET", resource.item(name, namespace)))

    async def list_pages(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        limit: int = 500,
        label_selector: str | None = None,
        field_selector: str | None = None,
        resource_version: str | None = None,
        timeout_s: float | None = None,
    ) -> AsyncGenerator[Page]:
        """All objects, `limit` a page (0: all at once), each page a call of its own.

        `resource_version` None is a quorum read; "0" takes what the server has at hand, any other value what is at
        least as new. Raises Gone when a continue token has grown too old: start again.
        """
        token = ""
        while True:
            query = _selectors(label_selector, field_selector)
            if limit > 0:
                query["limit"] = str(limit)
            if token:
                query["continue"] = token
            elif resource_version is not None:
                query["resourceVersion"] = resource_version
            call = Call("list", resource.label, "GET", resource.collection(namespace), query, timeout_s=timeout_s)
            raw = await self._transport.read(call)
            try:
                page = self._lists.decode(raw)
            except msgspec.MsgspecError as error:
                raise MalformedReply(f"{call}: no list came back: {error}") from error
            token = page.metadata.continue_token or ""
            yield Page(raw, page.metadata.resource_version, token, page.items or ())
            if not token:
                return

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
        """Events after `resource_version`, bookmarks among them.

        The server ends the watch after `timeout_s` seconds; it ends silently where the connection ends in good order.
        Raises Gone (the HTTP form; an ERROR event is passed on) and every other ApiStatusError when it is opened,
        Unreachable when it breaks.
        """
        query = _selectors(label_selector, field_selector)
        query["watch"] = "true"
        query["allowWatchBookmarks"] = "true"
        query["resourceVersion"] = resource_version
        query["timeoutSeconds"] = str(max(1, math.ceil(timeout_s)))
        path = resource.collection(namespace)
        call = Call("watch", resource.label, "GET", path, query, timeout_s=timeout_s + _WATCH_GRACE_S)
        async with self._transport.stream(call) as response:
            pending = b""
            try:
                async for chunk in response.content.iter_any():
                    *lines, pending = (pending + chunk).split(b"\n")
                    for line in lines:
                        if not line.strip():
                            continue
                        try:
                            decoded = self._lines.decode(line)
                        except msgspec.MsgspecError:
                            yield WatchEvent(MALFORMED, line)
                            continue
                        yield WatchEvent(decoded.type, bytes(decoded.object))
                    if len(pending) > _LONGEST_EVENT_BYTES:
                        raise MalformedReply(f"{call}: an event is longer than {_LONGEST_EVENT_BYTES} bytes")
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise unreachable(str(call), error) from error

    async def create(
        self, resource: Resource, body: JsonObject, namespace: str | None = None, *, dry_run: bool = False
    ) -> JsonObject:
        """Create an object; a dry run asks all who have a say and stores nothing.

        Raises AlreadyExists, Invalid, OutcomeUnknown.
        """
        path = resource.collection(namespace)
        query = {"dryRun": "All"} if dry_run else {}
        return await self._write(Call("create", resource.label, "POST", path, query, body=orjson.dumps(body)))

    async def merge_patch(
        self,
        resource: Resource,
        name: str,
        body: JsonObject,
        namespace: str | None = None,
        *,
        subresource: str | None = None,
    ) -> JsonObject:
        """Merge `body` into an object; `metadata.resourceVersion` and `metadata.uid` in it are preconditions.

        Raises Conflict (another resourceVersion), Invalid (another UID), NotFound, OutcomeUnknown.
        """
        path = resource.item(name, namespace, subresource)
        return await self._write(
            Call("patch", resource.label, "PATCH", path, body=orjson.dumps(body), content_type=_MERGE_PATCH)
        )

    async def json_patch(
        self, resource: Resource, name: str, operations: Sequence[JsonObject], namespace: str | None = None
    ) -> JsonObject:
        """Apply JSON Patch operations, all or none.

        Raises Conflict (an operation sets another resourceVersion), Invalid (one does not apply), NotFound, OutcomeUnknown.
        """
        path = resource.item(name, namespace)
        body = orjson.dumps(list(operations))
        return await self._write(Call("patch", resource.label, "PATCH", path, body=body, content_type=_JSON_PATCH))

    async def replace(
        self, resource: Resource, name: str, body: JsonObject, namespace: str | None = None
    ) -> JsonObject:
        """Put an object in place of the stored one of the same resourceVersion. Raises Conflict, OutcomeUnknown."""
        path = resource.item(name, namespace)
        return await self._write(Call("update", resource.label, "PUT", path, body=orjson.dumps(body)))

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        grace_s: int | None = None,
    ) -> JsonObject:
        """Delete an object, only that of `uid` where given. Raises NotFound, Conflict (another UID), OutcomeUnknown."""
        options: JsonObject = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        path = resource.item(name, namespace)
        return await self._write(Call("delete", resource.label, "DELETE", path, body=orjson.dumps(options)))

    async def _write(self, call: Call) -> JsonObject:
        raw = await self._transport.write(call)
        try:
            return _object(raw)
        except MalformedReply as error:
            raise OutcomeUnknown(f"{call}: {error}") from error

    async def version(self) -> JsonObject:
        """What the API server says of itself: `gitVersion`, `major`, `minor` and more."""
        return _object(await self._transport.read(Call("get", "version", "GET", "/version")))

    # --- by name, as the protocols ask ---

    async def get_pod(self, namespace: str, name: str) -> JsonObject:
        """(PodReader)"""
        return await self.get(PODS, name, namespace)

    async def list_pods(self, namespace: str) -> tuple[list[JsonObject], str]:
        """(PodLister)"""
        return await self._list_all(PODS, namespace)

    async def _list_all(
        self, resource: Resource, namespace: str, label_selector: str | None = None
    ) -> tuple[list[JsonObject], str]:
        found: list[JsonObject] = []
        version = ""
        async for page in self.list_pages(resource, namespace, label_selector=label_selector):
            items = _object(page.raw).get("items")
            for item in items if isinstance(items, list) else ():
                if not isinstance(item, dict):
                    raise MalformedReply(f"list of {resource.label} in {namespace}: an item is no object")
                found.append(item)
            version = version or page.resource_version
        return found, version

    async def patch_pod(self, namespace: str, name: str, body: JsonObject) -> JsonObject:
        """(PodPatcher)"""
        return await self.merge_patch(PODS, name, body, namespace)

    async def get_node(self, name: str) -> JsonObject:
        """(NodeReader)"""
        return await self.get(NODES, name)

    async def patch_node(self, name: str, body: JsonObject) -> JsonObject:
        """(NodePatcher)"""
        return await self.merge_patch(NODES, name, body)

    async def bind(
        self,
        namespace: str,
        name: str,
        body: JsonObject,
        timeout_s: float,
        *,
        before_send: Callable[[], None] | None = None,
    ) -> None:
        """(Binder)"""
        call = Call(
            "create/binding",
            PODS.label,
            "POST",
            PODS.item(name, namespace, "binding"),
            # Whole seconds rounded down: the server must not go on after we have given up.
            {"timeout": f"{max(1, math.floor(timeout_s))}s"},
            body=orjson.dumps(body),
            timeout_s=timeout_s,
            before_send=before_send,
        )
        await self._transport.write(call)

    async def pod_log(self, namespace: str, name: str, container: str, lines: int) -> str:
        """The last lines that a container of a pod has written."""
        query = {"container": container, "tailLines": str(lines)}
        path = PODS.item(name, namespace, "log")
        return (await self._transport.read(Call("get/log", PODS.label, "GET", path, query))).decode(errors="replace")

    async def create_event(self, namespace: str, body: JsonObject) -> None:
        """(EventWriter)"""
        await self.create(EVENTS, body, namespace)

    async def get_config_map(self, namespace: str, name: str) -> JsonObject:
        """(ConfigMapStore)"""
        return await self.get(CONFIG_MAPS, name, namespace)

    async def create_config_map(self, namespace: str, body: JsonObject) -> JsonObject:
        """(ConfigMapStore)"""
        return await self.create(CONFIG_MAPS, body, namespace)

    async def list_config_maps(self, namespace: str, label_selector: str) -> list[JsonObject]:
        """(ConfigMapStore)"""
        return (await self._list_all(CONFIG_MAPS, namespace, label_selector))[0]

    async def patch_config_map(self, namespace: str, name: str, body: JsonObject) -> JsonObject:
        """(ConfigMapStore)"""
        return await self.merge_patch(CONFIG_MAPS, name, body, namespace)

    async def get_secret(self, namespace: str, name: str) -> JsonObject:
        """(SecretReader)"""
        return await self.get(SECRETS, name, namespace)

    async def create_secret(self, namespace: str, body: JsonObject) -> JsonObject:
        """(SecretWriter)"""
        return await self.create(SECRETS, body, namespace)

    async def replace_secret(self, namespace: str, name: str, body: JsonObject) -> JsonObject:
        """(SecretWriter)"""
        return await self.replace(SECRETS, name, body, namespace)

    async def get_lease(self, namespace: str, name: str) -> JsonObject:
        """(LeaseStore)"""
        return await self.get(LEASES, name, namespace)

    async def create_lease(self, namespace: str, body: JsonObject) -> JsonObject:
        """(LeaseStore)"""
        return await self.create(LEASES, body, namespace)

    async def replace_lease(self, namespace: str, name: str, body: JsonObject) -> JsonObject:
        """(LeaseStore)"""
        return await self.replace(LEASES, name, body, namespace)

    async def patch_mutating_webhooks(self, name: str, operations: Sequence[JsonObject]) -> JsonObject:
        """(WebhookPatcher)"""
        return await self.json_patch(MUTATING_WEBHOOKS, name, operations)

    async def patch_validating_webhooks(self, name: str, operations: Sequence[JsonObject]) -> JsonObject:
        """(WebhookPatcher)"""
        return await self.json_patch(VALIDATING_WEBHOOKS, name, operations)

    async def patch_quota(self, namespace: str, name: str, body: JsonObject) -> JsonObject:
        """Merge-patch a ResourceQuota; preconditions as for `merge_patch`."""
        return await self.merge_patch(RESOURCE_QUOTAS, name, body, namespace)


def _selectors(label: str | None, fields: str | None) -> dict[str, str]:
    query: dict[str, str] = {}
    if label:
        query["labelSelector"] = label
    if fields:
        query["fieldSelector"] = fields
    return query


def _object(raw: bytes) -> JsonObject:
    try:
        decoded = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise MalformedReply(f"the API server's answer is no JSON: {error}") from error
    if not isinstance(decoded, dict):
        raise MalformedReply(f"the API server's answer is a JSON {type(decoded).__name__}, not an object")
    return decoded
