"""The server as a whole: built from its parts, started on a loopback port, looked into from the same process."""

from __future__ import annotations

import asyncio
import random
import ssl
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from aiohttp import web

from . import bootstrap, discovery
from .admission import Admission, AdmissionCounts
from .calls import WebhookCaller
from .documents import JsonObject, metadata
from .faults import Faults
from .frontend import Frontend, FrontendSettings, RequestCounts
from .reads import Reader
from .resources import RESOURCES, Resource
from .store import Change, Store
from .watch import Sleep, WatchHub
from .writes import Writer

_BINDING_LABELS = (1, 35)


@dataclass(frozen=True, slots=True)
class ApiServerSettings:
    """How the embedded API server behaves."""

    host: str = "127.0.0.1"
    port: int = 0
    """0 takes a free one."""
    window_events: int = 10_000
    """Changes kept a kind; what rests on an older revision is answered with 410."""
    bookmark_interval_s: float = 60.0
    max_body_bytes: int = 3 * 1024 * 1024
    git_version: str = "v1.37.2"
    """The version clients are told; before 1.35 a Binding's labels do not go into the pod."""


class ApiServer:
    """An in-memory Kubernetes API server.

    Objects handed out belong to the store and must not be changed.

    Args:
        settings: see there.
        tokens: bearer token to user name; None lets everybody in as `system:anonymous`.
        ssl_context: serves TLS when given, else plain HTTP.
        now: the server's clock.
        sleep: waits out the delays of faults.
        rng: source of generated names.
    """

    def __init__(
        self,
        settings: ApiServerSettings = ApiServerSettings(),
        *,
        tokens: Mapping[str, str] | None = None,
        ssl_context: ssl.SSLContext | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        sleep: Sleep = asyncio.sleep,
        rng: random.Random | None = None,
    ) -> None:
        self._settings = settings
        self._ssl_context = ssl_context
        self._now = now
        self._hub = WatchHub()
        self._store = Store(settings.window_events, self._publish)
        self.faults = Faults(self._hub.cut, self._store.forget_changes)
        self._caller = WebhookCaller()
        self._admission = Admission(self._store, self._caller)
        self._frontend = Frontend(
            FrontendSettings(settings.git_version, settings.bookmark_interval_s, settings.max_body_bytes),
            self._store,
            Reader(self._store, self.faults),
            Writer(
                self._store,
                self._admission,
                now,
                rng or random.Random(),
                discovery.release(settings.git_version) >= _BINDING_LABELS,
            ),
            self._hub,
            self.faults,
            tokens,
            sleep,
        )
        self._runner: web.AppRunner | None = None
        self.url = ""
        """Base URL while the server runs."""
        for name in bootstrap.SYSTEM_NAMESPACES:
            self.put("namespaces", bootstrap.namespace(name, str(uuid.uuid4()), self._timestamp()))

    @property
    def requests(self) -> RequestCounts:
        """Requests received and writes stored, by verb, resource, subresource and user agent."""
        return self._frontend.counts

    @property
    def admission(self) -> AdmissionCounts:
        """Webhook calls by outcome."""
        return self._admission.counts

    @property
    def revision(self) -> int:
        """The resourceVersion of the last write."""
        return self._store.revision

    async def start(self) -> str:
        """Listen, and return the base URL.

        Raises:
            RuntimeError: the server runs already.
            OSError: the port is taken.
        """
        if self._runner is not None:
            raise RuntimeError("the API server runs already")
        app = web.Application(client_max_size=self._settings.max_body_bytes)
        app.router.add_route("*", "/{path:.*}", self._frontend.handle)
        runner = web.AppRunner(
            app,
            access_log=None,
            handler_cancellation=True,  # a watch whose client has gone, or a write still in admission, ends with it
            keepalive_timeout=95,  # longer than the idle time of Go clients
            shutdown_timeout=2,
        )
        await runner.setup()
        site = web.TCPSite(runner, self._settings.host, self._settings.port, ssl_context=self._ssl_context)
        try:
            await site.start()
        except OSError:
            await runner.cleanup()
            raise
        self._runner = runner
        scheme = "http" if self._ssl_context is None else "https"
        self.url = f"{scheme}://{self._settings.host}:{runner.addresses[0][1]}"
        return self.url

    async def stop(self) -> None:
        """End all watches and connections. Objects stay; the server can be started again."""
        self._hub.end()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
            self.url = ""
        await self._caller.close()

    def get(self, plural: str, namespace: str, name: str) -> JsonObject | None:
        """Return an object, or None. `namespace` is empty for kinds outside namespaces."""
        resource = self._resource(plural)
        version = self._store.get(resource, resource.key(namespace, name))
        return None if version is None else version.obj

    def objects(self, plural: str, namespace: str | None = None) -> list[JsonObject]:
        """Return all objects of a kind, or those of one namespace, in key order."""
        return [
            version.obj
            for version in self._store.ordered(self._resource(plural))
            if namespace is None or metadata(version.obj).get("namespace") == namespace
        ]

    def put(self, plural: str, obj: JsonObject) -> JsonObject:
        """Store an object past admission and validation, and return it; uid and time are filled in.

        Raises:
            ValueError: it has no name, or no namespace where its kind needs one.
        """
        resource = self._resource(plural)
        meta = {"uid": str(uuid.uuid4()), "creationTimestamp": self._timestamp(), **metadata(obj)}
        if not meta.get("name") or (resource.namespaced and not meta.get("namespace")):
            raise ValueError(f"metadata of the {resource.kind} is {metadata(obj)}; name and namespace are needed")
        key = resource.key(meta.get("namespace", ""), meta["name"])
        return self._store.put(resource, key, {**obj, "metadata": meta}).obj

    def remove(self, plural: str, namespace: str, name: str) -> None:
        """Delete an object at once, past admission and grace period.

        Raises:
            KeyError: it does not exist.
        """
        resource = self._resource(plural)
        self._store.remove(resource, resource.key(namespace, name))

    def watches(self, plural: str) -> int:
        """Return how many watches of a kind are open."""
        return self._hub.count(self._resource(plural))

    async def until_watches(self, plural: str, count: int) -> None:
        """Wait until exactly `count` watches of a kind are open."""
        await self._hub.until(self._resource(plural), count)

    def send_bookmarks(self) -> None:
        """Send a bookmark now to every watch that asked for bookmarks."""
        self._hub.bookmark(self._store.revision)

    def _publish(self, resource: Resource, change: Change) -> None:
        self._admission.configuration_changed(resource)
        self._hub.publish(resource, change, self.faults.take_change(resource))

    def _timestamp(self) -> str:
        return self._now().strftime("%Y-%m-%dT%H:%M:%SZ")

    @staticmethod
    def _resource(plural: str) -> Resource:
        for resource in RESOURCES:
            if resource.plural == plural:
                return resource
        known = ", ".join(resource.plural for resource in RESOURCES)
        raise ValueError(f"plural is {plural!r}; accepted: {known}")
