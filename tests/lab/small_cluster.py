"""An API server with nodes and pods, a fake extender, and nothing of Slotwise's services."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import orjson
from aiohttp import web

from devices.kube.client import ClientSettings, KubeClient
from devices.kube.config import explicit_access
from devices.kube.protocols import JsonObject
from devices.kube.resources import NODES, PODS
from lab.apiserver.server import ApiServer
from lab.follow import Followed, SeenNode, SeenPod, follow_nodes, follow_pods
from lab.nodes import CardSpec, NodeSpec, node_document

WAIT_S = 5.0


@dataclass
class SmallCluster:
    """What a test needs; pods and nodes are followed once `start_following` was called."""

    api: ApiServer
    client: KubeClient
    pods: Followed[SeenPod]
    nodes: Followed[SeenNode]

    async def create_pod(self, name: str, **changes: object) -> JsonObject:
        """A pod of scheduler `hami-scheduler` with one container that asks for one card; `changes` go over the object."""
        pod: JsonObject = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "annotations": changes.get("annotations", {})},
            "spec": {
                "schedulerName": changes.get("scheduler", "hami-scheduler"),
                "containers": changes.get("containers", [container("main", 1)]),
                **({"initContainers": changes["init_containers"]} if "init_containers" in changes else {}),
            },
        }
        return await self.client.create(PODS, pod, "default")

    async def bind(self, name: str, node: str, annotations: dict[str, str]) -> None:
        """Bind a pod with annotations, as Slotwise's scheduler does."""
        body: JsonObject = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": "default", "annotations": annotations},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        await self.client.bind("default", name, body, 5.0)

    async def wait(self, holds: Callable[[], bool]) -> None:
        """Wait for something the pods show."""
        assert await self.pods.wait_for(holds, WAIT_S), "it did not come"

    def stored(self, name: str) -> JsonObject:
        """The pod as the API server has it."""
        pod = self.api.get("pods", "default", name)
        assert pod is not None
        return pod

    def annotations(self, name: str) -> dict[str, str]:
        """The pod's annotations as the API server has them."""
        metadata = self.stored(name)["metadata"]
        assert isinstance(metadata, dict)
        return dict(metadata.get("annotations") or {})

    def phase(self, name: str) -> object:
        """The pod's phase as the watch has shown it."""
        seen = self.pods.objects.get(f"default/{name}")
        return seen.pod.status.phase if seen else None

    def messages(self, reason: str = "FailedScheduling") -> list[str]:
        """Messages of all events of this reason, sorted."""
        return sorted(str(e["message"]) for e in self.api.objects("events") if e["reason"] == reason)


def container(name: str, count: int = 0, **extra: object) -> JsonObject:
    """A container that asks for `count` cards."""
    resources: JsonObject = {"limits": {"nvidia.com/gpu": str(count)}} if count else {}
    return {"name": name, "image": "pause", "resources": resources, **extra}


@asynccontextmanager
async def small_cluster(*nodes: str) -> AsyncIterator[SmallCluster]:
    """Nodes with two cards each, `<node>-0` and `<node>-1`."""
    api = ApiServer()
    await api.start()
    try:
        async with KubeClient(explicit_access(api.url), ClientSettings(user_agent="test", qps=0)) as client:
            for name in nodes:
                spec = NodeSpec(name, (CardSpec(f"{name}-0"), CardSpec(f"{name}-1")))
                await client.create(NODES, node_document(spec))
            cluster = SmallCluster(api, client, follow_pods(client), follow_nodes(client))
            try:
                yield cluster
            finally:
                await cluster.pods.stop()
                await cluster.nodes.stop()
    finally:
        await api.stop()


@dataclass
class FakeExtender:
    """Answers filter and bind as told, and keeps what it was asked. `url` while it runs."""

    cluster: SmallCluster
    refusals: dict[str, str] = field(default_factory=dict)
    """By node: refused with this text; every other node fits and the first is answered."""
    hopeless: dict[str, str] = field(default_factory=dict)
    error: str = ""
    bind_errors: list[str] = field(default_factory=list)
    """Used up one by one before binds succeed."""
    filtered: list[tuple[str, list[str]]] = field(default_factory=list)
    bound: list[JsonObject] = field(default_factory=list)
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    """Set with every filter call; whoever waits clears it before."""
    url: str = ""

    async def filter(self, request: web.Request) -> web.Response:
        """POST /filter."""
        asked = orjson.loads(await request.read())
        self.asked.set()
        self.filtered.append((asked["Pod"]["metadata"]["name"], asked["NodeNames"]))
        fitting = [n for n in asked["NodeNames"] if n not in self.refusals and n not in self.hopeless]
        return web.json_response(
            {
                "Nodes": None,
                "NodeNames": fitting[:1] or None,
                "FailedNodes": None if fitting else self.refusals,
                "FailedAndUnresolvableNodes": None if fitting else self.hopeless or None,
                "Error": self.error,
            }
        )

    async def bind(self, request: web.Request) -> web.Response:
        """POST /bind."""
        asked = orjson.loads(await request.read())
        self.bound.append(asked)
        if self.bind_errors:
            return web.json_response({"Error": self.bind_errors.pop(0)})
        await self.cluster.bind(asked["PodName"], asked["Node"], {})
        return web.json_response({"Error": ""})


@asynccontextmanager
async def fake_extender(cluster: SmallCluster) -> AsyncIterator[FakeExtender]:
    """A fake extender on a free port."""
    extender = FakeExtender(cluster)
    app = web.Application()
    app.router.add_post("/filter", extender.filter)
    app.router.add_post("/bind", extender.bind)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        extender.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield extender
    finally:
        await runner.cleanup()
