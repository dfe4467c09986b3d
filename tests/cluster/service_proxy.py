"""The fixture's kube-proxy: connections to a Service's address go to its ready pods, as the endpoints say that the real controller wrote."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Final

import msgspec

from devices.kube.client import KubeClient
from devices.kube.resources import Resource
from lab.balancer import balancer
from tests.cluster.addresses import loopback_of
from tests.cluster.mirror import Mirror, RawObject

__all__ = ["ServiceProxy"]

_SERVICES: Final = Resource("services")
_ENDPOINT_SLICES: Final = Resource("endpointslices", "discovery.k8s.io")


class _Port(msgspec.Struct):
    port: int
    name: str = ""


class _ServiceSpec(msgspec.Struct, rename="camel"):
    cluster_ip: str = msgspec.field(default="", name="clusterIP")
    ports: list[_Port] = []


class _Service(msgspec.Struct):
    spec: _ServiceSpec


class _Conditions(msgspec.Struct):
    ready: bool | None = None


class _Endpoint(msgspec.Struct):
    addresses: list[str]
    conditions: _Conditions = msgspec.field(default_factory=_Conditions)


class _Labelled(msgspec.Struct):
    labels: dict[str, str] = {}


class _Slice(msgspec.Struct):
    metadata: _Labelled
    endpoints: list[_Endpoint] | None = None
    ports: list[_Port] | None = None


class ServiceProxy:
    """Serves the Services of one namespace from `start` to `stop`.

    `is_serving` says of a pod's IP whether the pod is still there: a real kubelet and a real kube-proxy would need some moments.
    """

    def __init__(self, client: KubeClient, namespace: str, is_serving: Callable[[str], bool]) -> None:
        self._is_serving = is_serving
        self._slices: dict[str, _Slice] = {}
        self._open: dict[str, AsyncExitStack] = {}
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._mirrors = (
            Mirror(client, _ENDPOINT_SLICES, namespace, self._slice_changed),
            Mirror(client, _SERVICES, namespace, self._service_changed),
        )

    async def start(self) -> None:
        """Begin, with the Services that are there."""
        for mirror in self._mirrors:
            await mirror.start()

    async def stop(self) -> None:
        """End; connections that are open are closed."""
        for mirror in self._mirrors:
            await mirror.stop()
        await asyncio.gather(*self._tasks)
        for stack in self._open.values():
            await stack.aclose()

    def targets(self, service: str, port: str) -> Sequence[tuple[str, int]]:
        """Where connections to a port of a Service go at the moment."""
        return [
            (loopback_of(address), there.port)
            for found in self._slices.values()
            if found.metadata.labels.get("kubernetes.io/service-name") == service
            for there in found.ports or ()
            if there.name == port
            for endpoint in found.endpoints or ()
            if endpoint.conditions.ready
            for address in endpoint.addresses
            if self._is_serving(address)
        ]

    def _slice_changed(self, seen: RawObject | None, uid: str) -> None:
        if seen is None:
            self._slices.pop(uid, None)
        else:
            self._slices[uid] = msgspec.json.decode(seen.raw, type=_Slice)

    def _service_changed(self, seen: RawObject | None, uid: str) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(seen, uid))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, seen: RawObject | None, uid: str) -> None:
        """Ports of a Service do not change in these tests: it is served from its creation to its end."""
        async with self._turn:
            if seen is None:
                if uid in self._open:
                    await self._open.pop(uid).aclose()
                return
            spec = msgspec.json.decode(seen.raw, type=_Service).spec
            if uid in self._open or not spec.cluster_ip.startswith("127."):
                return
            stack = self._open[uid] = AsyncExitStack()
            for port in spec.ports:
                targets = partial(self.targets, seen.name, port.name)
                await stack.enter_async_context(balancer(targets, spec.cluster_ip, port.port))
