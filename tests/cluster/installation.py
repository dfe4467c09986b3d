"""Slotwise installed on the control plane as users install it: manifests applied with kubectl, pods made by the real controllers and
bound by a real kube-scheduler, and their processes run by the fixture's kubelet."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

import aiohttp

from devices.kube.client import ClientSettings, KubeClient
from devices.kube.config import load_access
from lab.control_plane import ControlPlane
from lab.processes import LOOPBACK
from tests.cluster.addresses import loopback_of
from tests.cluster.background import Background
from tests.cluster.container import may_run_containers
from tests.cluster.images import Images
from tests.cluster.kubectl import Kubectl
from tests.cluster.kubelet import Kubelet
from tests.cluster.pod_run import Runtime
from tests.cluster.pod_spec import Pod, TokenSource
from tests.cluster.rendered import Document, as_stream
from tests.cluster.service_proxy import ServiceProxy
from tests.cluster.system_nodes import SystemNodes

__all__ = ["NAMESPACE", "Installation", "InstallationError"]

NAMESPACE: Final = "slotwise-system"
_READY_S: Final = 120.0
_LOOK_S: Final = 0.1
_PLAIN_SCHEDULER: Final = {"profiles": [{"schedulerName": "default-scheduler"}]}


class InstallationError(Exception):
    """It did not come up; the text says what stands in the way."""


class Installation:
    """A context manager: `documents` are applied and everything runs inside; afterwards all of it is gone from the API server."""

    kubelet: Kubelet
    """Runs the pods, in a thread of its own."""

    def __init__(self, plane: ControlPlane, documents: Sequence[Document], folder: Path) -> None:
        self.plane = plane
        self.kubectl = Kubectl(plane.programs.kubectl, plane.kubeconfig())
        self.documents = list(documents)
        """What is applied."""
        self._folder = folder
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        if not may_run_containers():
            raise InstallationError("pods get their own file tree and host name here, and only root may give them that")
        with ExitStack() as stack:
            self._start(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self, stack: ExitStack) -> None:
        run = stack.enter_context(Background()).run
        scheduler = self.plane.start_scheduler(_PLAIN_SCHEDULER)
        stack.callback(scheduler.stop)
        run(self._open(), _READY_S)
        stack.callback(lambda: run(self._close(), _READY_S))
        self.apply()
        stack.callback(self.uninstall)
        self.wait_ready()

    async def _open(self) -> None:
        access = await load_access(str(self.plane.kubeconfig()))
        self._client = KubeClient(access, ClientSettings(user_agent="kubelet/fixture", qps=0))
        self._session = aiohttp.ClientSession()
        environment = {
            "KUBERNETES_SERVICE_HOST": LOOPBACK,
            "KUBERNETES_SERVICE_PORT": self.plane.url.rsplit(":", 1)[1],
        }
        images = Images(self.plane.programs.scheduler)
        runtime = Runtime(self._client, self._token, self._folder, images, environment, self._session)
        self.kubelet = Kubelet(runtime, NAMESPACE)
        self._proxy = ServiceProxy(self._client, NAMESPACE, self.kubelet.is_serving)
        self._nodes = SystemNodes(self._client)
        for part in (self._nodes, self.kubelet, self._proxy):
            await part.start()

    async def _close(self) -> None:
        for part in (self._proxy, self.kubelet, self._nodes):
            await part.stop()
        await self._session.close()
        await self._client.close()

    async def _token(self, pod: Pod, source: TokenSource) -> str:
        account, bound = pod.spec.service_account_name, (pod.metadata.name, pod.metadata.uid)
        request = self.plane.service_account_token
        return await asyncio.to_thread(request, pod.metadata.namespace, account, source.expiration_seconds, bound)

    # --- what tests ask and do ---

    def apply(self) -> None:
        """Apply the manifests, validated strictly by the API server. Raises `KubectlError`."""
        self.kubectl.run("apply", "--validate=strict", "-f", "-", text=as_stream(self.documents))

    def uninstall(self) -> None:
        """Delete everything again, what touches other pods first; returns once it is gone. Raises `KubectlError`."""
        stream = as_stream(list(reversed(self.documents)))
        self.kubectl.run("delete", "--ignore-not-found", "-f", "-", text=stream)

    def scale(self, deployment: str, replicas: int) -> None:
        """Give a Deployment so many replicas; returns once exactly they are there and ready. Raises `InstallationError`."""
        self.kubectl.run("scale", "deployment", deployment, f"--replicas={replicas}", f"--namespace={NAMESPACE}")
        self.wait_ready()
        component = deployment.removeprefix("slotwise-")
        deadline = time.monotonic() + _READY_S
        while len(self.pods(component)) != replicas or self.ending():
            if time.monotonic() > deadline:
                raise InstallationError(f"{deployment} does not get {replicas} pods\n{self.report()}")
            time.sleep(_LOOK_S)

    def ending(self) -> list[str]:
        """Names of the pods that are about to end and still have processes."""
        return self.kubelet.ending()

    def wait_ready(self) -> None:
        """Return once every Deployment has all its replicas ready, and one of the schedulers leads.

        Raises `InstallationError` saying what is not so.
        """
        deadline = time.monotonic() + _READY_S
        while waiting := self._what_is_missing():
            if self.kubelet.problems or time.monotonic() > deadline:
                raise InstallationError(f"not ready: {', '.join(waiting)}\n{self.report()}")
            time.sleep(_LOOK_S)  # nothing tells us but the next look

    def _what_is_missing(self) -> list[str]:
        missing = [name for name in self._deployments() if not self._is_available(name)]
        return missing if self.leader() in self.kubelet.pods() else [*missing, "a leading scheduler"]

    def report(self) -> str:
        """What the processes of all pods said last, for a test that failed."""
        pods = self.kubectl.run("get", "pods,events", f"--namespace={NAMESPACE}", "-o", "wide")
        return f"{pods}\n{self.kubelet.report()}"

    def leader(self) -> str:
        """Name of the pod whose kube-scheduler holds the Lease; empty where none does."""
        path = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/slotwise-scheduler"
        _, lease = self.plane.request("GET", path)
        spec = lease.get("spec")
        # kube-scheduler calls itself by its host's name and something random.
        return str(spec.get("holderIdentity") or "").partition("_")[0] if isinstance(spec, dict) else ""

    def pods(self, component: str) -> list[str]:
        """Names of the running pods of `webhook` or `scheduler`."""
        return [name for name in self.kubelet.pods() if name.startswith(f"slotwise-{component}-")]

    def url(self, pod: str, port: int) -> str:
        """Base address of a plain port of a pod."""
        return f"http://{loopback_of(self.kubelet.address(pod))}:{port}"

    def _deployments(self) -> list[str]:
        return [document["metadata"]["name"] for document in self.documents if document["kind"] == "Deployment"]

    def _is_available(self, name: str) -> bool:
        _, found = self.plane.request("GET", f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{name}")
        metadata, spec, status = (found.get(key) or {} for key in ("metadata", "spec", "status"))
        assert isinstance(metadata, dict)
        assert isinstance(spec, dict)
        assert isinstance(status, dict)
        wanted = spec.get("replicas")
        counted = [status.get(key, 0) for key in ("replicas", "updatedReplicas", "availableReplicas")]
        return status.get("observedGeneration") == metadata.get("generation") and counted == [wanted] * len(counted)
