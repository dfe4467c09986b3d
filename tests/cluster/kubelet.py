"""The fixture's kubelet: runs the pods of one namespace as processes of this machine, the way their manifests say.

What is real: the files of volumes at their paths, a token of the pod's account that lives as long as the pod, environment, host name, user
and group, a read-only file system, probes and what follows from them, restarts, `preStop`, SIGTERM and the grace period. What is not:
everybody shares the network (see `addresses`), limits limit nothing, and a changed ConfigMap does not reach a running pod.
"""

import asyncio
import signal
from collections.abc import Coroutine, Mapping
from contextlib import suppress

from devices.kube.errors import NotFound
from devices.kube.resources import PODS
from tests.cluster.addresses import pod_addresses
from tests.cluster.mirror import Mirror, RawObject
from tests.cluster.pod_process import ContainerProcess
from tests.cluster.pod_run import PodRun, Runtime
from tests.cluster.pod_spec import Pod, UnsupportedPodError, decode_pod

__all__ = ["Kubelet"]


class Kubelet:
    """Acts for all nodes, in one namespace, from `start` to `stop`."""

    def __init__(self, runtime: Runtime, namespace: str) -> None:
        self.problems: list[str] = []
        """What kept a pod from being run as it is written."""
        self._runtime = runtime
        self._addresses = pod_addresses()
        self._runs: dict[str, PodRun] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._pods = Mirror(runtime.client, PODS, namespace, self._changed)

    async def start(self) -> None:
        """Begin, with the pods that are there."""
        await self._pods.start()

    async def stop(self) -> None:
        """End; processes that still run are killed."""
        await self._pods.stop()
        for task in (ending := list(self._tasks)):
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        await asyncio.gather(*(run.kill() for run in list(self._runs.values())))

    # --- what tests ask and do ---

    def pods(self) -> list[str]:
        """Names of the pods that run and are not about to end."""
        return sorted(run.pod.metadata.name for run in list(self._runs.values()) if not run.ending)

    def ending(self) -> list[str]:
        """Names of the pods that are about to end."""
        return sorted(run.pod.metadata.name for run in list(self._runs.values()) if run.ending)

    def address(self, pod: str) -> str:
        """A pod's IP. Raises KeyError for a pod that does not run."""
        return self._run_of(pod).address

    def processes(self, pod: str) -> Mapping[str, ContainerProcess]:
        """The containers of a pod by name. Raises KeyError for a pod that does not run."""
        return {process.name: process for process in self._run_of(pod).processes}

    def signal(self, pod: str, number: signal.Signals) -> None:
        """Send a signal to all processes of a pod; as containers that have ended they are started again."""
        for process in self._run_of(pod).processes:
            process.signal(number)

    def is_serving(self, address: str) -> bool:
        """Whether all containers of the pod at this address run right now; known before the API server is told."""
        return any(run.address == address and run.is_serving for run in list(self._runs.values()))

    def report(self) -> str:
        """What stands in the way, and the last lines of every container, for a test that failed."""
        logs = sorted(self._runtime.folder.glob("*/*.log"))
        tails = [f"--- {log} ---\n" + "\n".join(log.read_text(errors="replace").splitlines()[-15:]) for log in logs]
        return "\n".join((*self.problems, *(run.state for run in list(self._runs.values())), *tails))

    def _run_of(self, pod: str) -> PodRun:
        for run in list(self._runs.values()):
            if run.pod.metadata.name == pod:
                return run
        raise KeyError(f"pod {pod} does not run; there are {self.pods()}")

    # --- what the watch shows ---

    def _changed(self, seen: RawObject | None, uid: str) -> None:
        run = self._runs.get(uid)
        if seen is None:
            if run is not None:
                self._spawn(self._forget(uid))
            return
        try:
            pod = decode_pod(seen.raw)
        except UnsupportedPodError as error:
            self.problems.append(str(error))
            if b'"deletionTimestamp"' in seen.raw:
                self._spawn(self._let_go(seen))
            return
        is_going = pod.metadata.deletion_timestamp is not None
        if run is None:
            if pod.spec.node_name:
                self._spawn(self._delete(pod) if is_going else self._begin(pod).live())
        elif is_going and not run.ending:
            run.ending = True
            self._spawn(self._end(run, pod))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, NotFound):
            self.problems.append(f"{type(error).__name__}: {error}")

    def _begin(self, pod: Pod) -> PodRun:
        run = self._runs[pod.metadata.uid] = PodRun(pod, next(self._addresses), self._runtime)
        return run

    async def _end(self, run: PodRun, pod: Pod) -> None:
        grace_s = pod.metadata.deletion_grace_period_seconds
        await run.end(pod.spec.termination_grace_period_seconds if grace_s is None else grace_s)
        await self._delete(pod)

    async def _delete(self, pod: Pod) -> None:
        meta = pod.metadata
        with suppress(NotFound):
            await self._runtime.client.delete(PODS, meta.name, meta.namespace, uid=meta.uid, grace_s=0)

    async def _let_go(self, seen: RawObject) -> None:
        """A pod that never ran must not wait for us to end it."""
        with suppress(NotFound):
            await self._runtime.client.delete(PODS, seen.name, seen.namespace, uid=seen.uid, grace_s=0)

    async def _forget(self, uid: str) -> None:
        """It is gone from the API server: deleted by force, or after `_end`."""
        await self._runs.pop(uid).kill()
