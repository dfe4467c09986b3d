"""One pod on the fixture's nodes, from its files to its end, and what its status says meanwhile."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import aiohttp

from devices.kube.client import KubeClient
from devices.kube.errors import NotFound
from devices.kube.protocols import JsonObject
from devices.kube.resources import PODS
from tests.cluster.addresses import loopback_of
from tests.cluster.images import Images
from tests.cluster.pod_files import NotThereError, PodObjects
from tests.cluster.pod_process import ContainerProcess, Placed
from tests.cluster.pod_spec import Pod, TokenSource

__all__ = ["PodRun", "Runtime"]

_T = TypeVar("_T")
_TRY_AGAIN_S: Final = 0.2


@dataclass(frozen=True)
class Runtime:
    """What all pods share."""

    client: KubeClient
    token: Callable[[Pod, TokenSource], Awaitable[str]]
    """A token of a pod's account."""
    folder: Path
    images: Images
    environment: dict[str, str]
    """Every container gets it."""
    session: aiohttp.ClientSession


class PodRun:
    """`live` from start to end, then `end` or `kill`."""

    def __init__(self, pod: Pod, address: str, runtime: Runtime) -> None:
        self.pod = pod
        self.address = address
        """What the API server knows as its IP."""
        self.processes: list[ContainerProcess] = []
        self.ending = False
        self._runtime = runtime
        self._folder = runtime.folder / f"{pod.metadata.name}-{pod.metadata.uid[:8]}"
        self._dirty = asyncio.Event()
        self._keepers: list[asyncio.Task[None]] = []
        self._waits_for = ""
        self._began_at = _now()

    @property
    def is_serving(self) -> bool:
        """Whether all its containers run."""
        return bool(self.processes) and all(process.is_running for process in self.processes)

    async def live(self) -> None:
        """Start its containers and keep the API server informed. Until cancelled, or the pod is gone."""
        await self._publish()
        await self._prepare()
        for process in self.processes:
            if not self.ending:
                self._keepers.append(asyncio.create_task(process.keep_running()))
        with suppress(NotFound):
            while True:
                await self._publish()
                await self._dirty.wait()
                self._dirty.clear()

    async def end(self, grace_s: float) -> None:
        """End all containers within `grace_s`."""
        self.ending = True
        await asyncio.gather(*(process.end(grace_s) for process in self.processes))
        await self._stop_keepers()

    async def kill(self) -> None:
        """End all containers by force."""
        self.ending = True
        await asyncio.gather(*(process.kill() for process in self.processes))
        await self._stop_keepers()

    async def _stop_keepers(self) -> None:
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)

    async def _prepare(self) -> None:
        pod, runtime = self.pod, self._runtime
        here = loopback_of(self.address)
        objects = PodObjects(pod, self.address, runtime.client.get, lambda source: runtime.token(pod, source))
        volumes = self._folder / "volumes"
        for volume in pod.spec.volumes:
            files = await self._once_there(partial(objects.volume, volume))
            files.write(volumes / volume.name)
        placed = Placed(pod, here, self._folder, volumes, runtime.environment, runtime.session)
        for container in pod.spec.containers:
            image = runtime.images.of(container)
            environment = await self._once_there(partial(objects.environment, container.env))
            self.processes.append(ContainerProcess(container, image, placed, environment, self._dirty.set))

    async def _once_there(self, work: Callable[[], Awaitable[_T]]) -> _T:
        """What `work` gives, as soon as the objects that it needs are there."""
        while True:
            try:
                return await work()
            except NotThereError as error:
                self._waits_for = str(error)
                await asyncio.sleep(_TRY_AGAIN_S)

    @property
    def state(self) -> str:
        """In a few words, for a test that failed."""
        said = ", ".join(f"{p.name} started {p.starts} times, ready: {p.ready}" for p in self.processes)
        return f"{self.pod.metadata.name}: {said or f'waits: {self._waits_for}'}"

    async def _publish(self) -> None:
        """Raises `NotFound` once the pod is gone."""
        metadata = self.pod.metadata
        ready = self.is_serving and all(process.ready for process in self.processes)
        told = {"Initialized": True, "PodReadyToStartContainers": True, "ContainersReady": ready, "Ready": ready}
        conditions: list[JsonObject] = [
            {"type": kind, "status": str(holds), "lastTransitionTime": _now()} for kind, holds in told.items()
        ]
        # A merge patch replaces the list; this one was there before.
        conditions.append({"type": "PodScheduled", "status": "True"})
        status: JsonObject = {
            "phase": "Running" if any(process.starts for process in self.processes) else "Pending",
            "startTime": self._began_at,
            "podIP": self.address,
            "podIPs": [{"ip": self.address}],
            "conditions": [*conditions],
            "containerStatuses": [process.status() for process in self.processes],
        }
        body: JsonObject = {"metadata": {"uid": metadata.uid}, "status": status}
        await self._runtime.client.merge_patch(PODS, metadata.name, body, metadata.namespace, subresource="status")


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
