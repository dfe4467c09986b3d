"""One container of a pod as a process that is kept running: started, probed, started again."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import aiohttp

from devices.kube.protocols import JsonObject
from tests.cluster import container as runtime
from tests.cluster.addresses import moved
from tests.cluster.container import Bind, ContainerSpec
from tests.cluster.images import Image
from tests.cluster.pod_spec import Container, Pod, UnsupportedPodError, VolumeMount
from tests.cluster.probes import Prober

__all__ = ["ContainerProcess", "Placed"]

_LONGEST_BACKOFF_S: Final = 10.0
_HEALTHY_S: Final = 30.0
_LIVENESS_GRACE_S: Final = 5.0


@dataclass(frozen=True)
class Placed:
    """What all containers of a pod share."""

    pod: Pod
    address: str
    """Where it listens."""
    folder: Path
    volumes: Path
    """A folder with one for every volume."""
    environment: Mapping[str, str]
    session: aiohttp.ClientSession


class ContainerProcess:
    """`keep_running` until cancelled or `end`ed; `changed` is called whenever the pod's status has changed by it."""

    def __init__(
        self,
        container: Container,
        image: Image,
        placed: Placed,
        environment: Mapping[str, str],
        changed: Callable[[], None],
    ) -> None:
        self.name = container.name
        self.log = placed.folder / f"{container.name}.log"
        self.starts = 0
        """How often it was started."""
        self.ready = False
        self._container = container
        self._placed = placed
        self._changed = changed
        self._process: asyncio.subprocess.Process | None = None
        self._ending = False
        self._started_at = ""
        self._last_exit: tuple[int, str] | None = None
        self._spec_file = placed.folder / f"{container.name}.json"
        self._spec(image, environment).write(self._spec_file)

    @property
    def is_running(self) -> bool:
        """Whether its process is there; known the moment it ends, before anybody has waited for it."""
        if self._process is None or self._process.returncode is not None:
            return False
        try:
            return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:
            return False  # somebody has just waited for it

    @property
    def pid(self) -> int:
        """Its process id. Raises LookupError while it does not run."""
        if self._process is None or self._process.returncode is not None:
            raise LookupError(f"{self.name} does not run")
        return self._process.pid

    def _spec(self, image: Image, environment: Mapping[str, str]) -> ContainerSpec:
        pod, own = self._placed.pod.spec.security_context, self._container.security_context
        user = pod.run_as_user if own.run_as_user is None else own.run_as_user
        if user == 0 and (pod.run_as_non_root if own.run_as_non_root is None else own.run_as_non_root):
            raise UnsupportedPodError(f"container {self.name}: runAsNonRoot without a user: images have none here")
        root = self._placed.folder / f"{self.name}.root"
        root.mkdir()
        arguments = [moved(text, self._placed.address) for text in self._expanded(environment)]
        return ContainerSpec(
            root=str(root),
            hostname=self._placed.pod.spec.hostname or self._placed.pod.metadata.name,
            command=image.arguments(arguments, self._placed.address),
            environment={"HOME": "/", **image.environment, **self._placed.environment, **environment},
            binds=[*image.binds, *(self._bind(mount) for mount in self._container.volume_mounts)],
            read_only_root=own.read_only_root_filesystem,
            user=user,
            group=pod.run_as_group if own.run_as_group is None else own.run_as_group,
            groups=[] if pod.fs_group is None else [pod.fs_group],
            no_new_privileges=not own.allow_privilege_escalation,
            parent=os.getpid(),
        )

    def _expanded(self, environment: Mapping[str, str]) -> list[str]:
        texts = [*self._container.command, *self._container.args]
        for name, value in environment.items():
            texts = [text.replace(f"$({name})", value) for text in texts]
        return texts

    def _bind(self, mount: VolumeMount) -> Bind:
        volume = next((v for v in self._placed.pod.spec.volumes if v.name == mount.name), None)
        assert volume is not None  # the API server has checked that
        read_only = mount.read_only or volume.empty_dir is None
        return Bind(str(self._placed.volumes / mount.name / mount.sub_path), mount.mount_path, read_only)

    # --- its life ---

    async def keep_running(self) -> None:
        """Start it, and again whenever it ends; shorter pauses than the kubelet's. Until cancelled or ended."""
        loop = asyncio.get_running_loop()
        failures = 0
        while not self._ending:
            began = loop.time()
            await self._start()
            watch = asyncio.create_task(self._probe())
            try:
                assert self._process is not None
                status = await self._process.wait()
            finally:
                watch.cancel()
                with suppress(asyncio.CancelledError):
                    await watch
            self._last_exit = (status, _now())
            self._set_ready(False)
            self._changed()
            failures = 0 if loop.time() - began > _HEALTHY_S else failures + 1
            if not self._ending:
                await asyncio.sleep(0 if failures <= 1 else min(2.0 ** (failures - 2), _LONGEST_BACKOFF_S))

    async def _start(self) -> None:
        with self.log.open("ab") as out:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", str(Path(runtime.__file__)), str(self._spec_file)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self.starts += 1
        self._started_at = _now()
        self._changed()

    async def _probe(self) -> None:
        container = self._container
        prober = Prober(self._placed.session, self._placed.address, container.port)
        if container.startup_probe is not None and not await prober.until_success(container.startup_probe):
            await self._end_unhealthy("startup")
            return
        async with asyncio.TaskGroup() as group:
            if container.liveness_probe is not None:
                group.create_task(self._watch_liveness(prober))
            if container.readiness_probe is None:
                self._set_ready(True)
            else:
                group.create_task(prober.follow(container.readiness_probe, self._set_ready))

    async def _watch_liveness(self, prober: Prober) -> None:
        failed = asyncio.Event()
        probe = self._container.liveness_probe
        assert probe is not None
        following = asyncio.create_task(prober.follow(probe, lambda alive: None if alive else failed.set()))
        try:
            await failed.wait()
        finally:
            following.cancel()
        await self._end_unhealthy("liveness")

    async def _end_unhealthy(self, which: str) -> None:
        with self.log.open("a") as out:
            out.write(f"kubelet: the {which} probe fails, so the container is ended\n")
        self.signal(signal.SIGTERM)
        await asyncio.sleep(_LIVENESS_GRACE_S)
        self.signal(signal.SIGKILL)

    def _set_ready(self, ready: bool) -> None:
        if ready != self.ready:
            self.ready = ready
            self._changed()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it runs."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def end(self, grace_s: float) -> None:
        """`preStop`, SIGTERM, and SIGKILL once the time for both is over. It does not start again."""
        self._ending = True
        if not self.is_running:
            return
        assert self._process is not None
        try:
            async with asyncio.timeout(grace_s):
                if self._container.lifecycle.pre_stop is not None:
                    await asyncio.sleep(self._container.lifecycle.pre_stop.sleep.seconds)
                self.signal(signal.SIGTERM)
                await self._process.wait()
        except TimeoutError:
            await self.kill()

    async def kill(self) -> None:
        """End it by force, for good."""
        self._ending = True
        self.signal(signal.SIGKILL)
        if self._process is not None:
            await self._process.wait()

    def status(self) -> JsonObject:
        """As in `containerStatuses`."""
        state: JsonObject = {"waiting": {"reason": "CrashLoopBackOff" if self.starts else "ContainerCreating"}}
        if self.is_running:
            state = {"running": {"startedAt": self._started_at}}
        ended: JsonObject = {}
        if self._last_exit is not None:
            status, at = self._last_exit
            ended = {"terminated": {"exitCode": status if status >= 0 else 128 - status, "finishedAt": at}}
        return {
            "name": self.name,
            "image": self._container.image,
            "imageID": "",
            "ready": self.ready and self.is_running,
            "started": self.is_running,
            "restartCount": max(self.starts - 1, 0),
            "state": state,
            "lastState": ended,
        }


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
