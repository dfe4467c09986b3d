"""Binding through the real client against the embedded API server and its faults."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from devices.kube.client import ClientSettings, KubeClient
from devices.kube.config import explicit_access
from devices.kube.feed import LedgerFeed
from devices.kube.resources import PODS
from devices.ledger import Ledger
from devices.objects import Pod, pod_of
from lab.apiserver import ApiServer
from lab.nodes import CardSpec, NodeSpec, node_document
from scheduler.ask import Defaults
from scheduler.bind import BindRequest, BindSettings, PodBinder
from scheduler.engine import Engine
from scheduler.errors import BindError
from scheduler.nodelock import LockSettings, NodeLocks
from tests.scheduler.builders import CONFIG, LOCK, NOW, NOW_S, Clock, Said
from tests.serving.running import until

AGENT = "slotwise-scheduler"


class Cluster:
    """An API server with nodes n1 (no lock) and n2 (its plugin needs the lock), followed, and the binder on top."""

    def __init__(self, api: ApiServer, client: KubeClient) -> None:
        self.api, self.client, self.clock = api, client, Clock()
        self.ledger = Ledger(CONFIG)
        self.feed = LedgerFeed(client, self.ledger, self.clock.now)
        self.engine = Engine(self.ledger, Defaults())
        self.locks = NodeLocks(client, self.clock, LockSettings())
        self.feed.node_changed.append(self.locks.node_changed)
        self.binder = PodBinder(self.engine, client, self.locks, self.clock, Said(), BindSettings())

    async def created(self, name: str = "p") -> Pod:
        limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000"}
        body: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"containers": [{"name": "c", "image": "i", "resources": {"limits": limits}}]},
        }
        return pod_of(await self.client.create(PODS, body, "default"))

    async def reserved(self, node: str = "n1", name: str = "p") -> BindRequest:
        """A pod that is created and filtered."""
        made = await self.created(name)
        found = self.engine.filter(made, [node], self.clock.now())
        assert found.nodes == (node,)
        return BindRequest("default", name, made.uid, node)

    async def bind(self, request: BindRequest) -> str:
        try:
            await self.binder.bind(request)
        except BindError as error:
            return str(error)
        return ""

    def stored(self, name: str = "p") -> Pod:
        return pod_of(self.api.get("pods", "default", name))

    def lock(self, node: str = "n2") -> str | None:
        found = self.api.get("nodes", "", node)
        assert found is not None
        value: str | None = found["metadata"]["annotations"].get(LOCK)
        return value

    def used(self, node: str = "n1") -> int:
        state = self.ledger.state(node)
        return sum(s.used_slots for s in state.cards) if state is not None else 0

    def writes(self) -> dict[tuple[str, str, str], int]:
        counted = self.api.requests.written
        return {(k.verb, k.resource, k.subresource): n for k, n in counted.items() if k.user_agent == AGENT}


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    api = ApiServer(now=lambda: datetime.fromtimestamp(NOW_S, UTC))
    await api.start()
    api.put("nodes", node_document(NodeSpec("n1", (CardSpec("a"),))))
    api.put("nodes", node_document(NodeSpec("n2", (CardSpec("b"),), node_lock=True)))
    long = "n" * 70
    api.put("nodes", node_document(NodeSpec(long, (CardSpec("c"),))))
    async with KubeClient(explicit_access(api.url), ClientSettings(user_agent=AGENT, qps=0)) as client:
        one = Cluster(api, client)
        await one.feed.start()
        await one.feed.wait_synced()
        try:
            yield one
        finally:
            await one.binder.stop()
            await one.feed.stop()
    await api.stop()


async def test_one_write_after_which_the_pod_has_everything(cluster: Cluster) -> None:
    request = await cluster.reserved()
    before = cluster.writes()
    assert await cluster.bind(request) == ""
    after = cluster.writes()
    assert {key: n - before.get(key, 0) for key, n in after.items() if n != before.get(key, 0)} == {
        ("create", "pods", "binding"): 1
    }
    bound = cluster.stored()
    assert bound.bound_node == "n1"
    assert bound.labels == {"hami.io/vgpu-node": "n1"}
    assert bound.annotations == {
        "hami.io/vgpu-node": "n1",
        "hami.io/vgpu-time": str(int(NOW_S)),
        "hami.io/bind-phase": "allocating",
        "hami.io/bind-time": str(int(NOW_S)),
        "hami.io/vgpu-devices-to-allocate": "a,NVIDIA,1000,0:;",
        "hami.io/vgpu-devices-allocated": "a,NVIDIA,1000,0:;",
    }
    assert await cluster.bind(request) == ""
    assert cluster.writes() == after
    assert cluster.used() == 1


async def test_a_node_name_of_70_characters_leaves_the_pod_patchable(cluster: Cluster) -> None:
    request = await cluster.reserved("n" * 70)
    assert await cluster.bind(request) == ""
    patched = await cluster.client.patch_pod("default", "p", {"metadata": {"annotations": {"x": "y"}}})
    bound = pod_of(patched)
    assert (bound.bound_node, bound.labels, bound.annotations["x"]) == ("n" * 70, {}, "y")


async def test_the_lock_is_taken_and_conflicts_on_the_way_are_tried_again(cluster: Cluster) -> None:
    request = await cluster.reserved("n2")
    cluster.api.faults.answer(409, verb="patch", resource="nodes")
    task = asyncio.create_task(cluster.bind(request))
    await cluster.clock.until_waiting()
    await cluster.clock.advance(0.1)
    assert await task == ""
    assert cluster.lock() == f"{NOW},default,p"


async def test_waiting_for_the_lock_ends_with_the_nodes_event(cluster: Cluster) -> None:
    await cluster.client.patch_node("n2", {"metadata": {"annotations": {LOCK: f"{NOW},default,other"}}})
    await cluster.created("other")
    request = await cluster.reserved("n2")
    task = asyncio.create_task(cluster.bind(request))
    await cluster.clock.until_waiting()
    await cluster.client.patch_node("n2", {"metadata": {"annotations": {LOCK: None}}})
    assert await task == ""
    assert (cluster.lock(), cluster.clock.now()) == (f"{NOW},default,p", NOW_S)


@pytest.mark.parametrize("done", [True, False])
async def test_a_lost_reply_holds_the_cards_until_a_read_shows_the_outcome(cluster: Cluster, done: bool) -> None:
    request = await cluster.reserved("n2")
    if done:
        cluster.api.faults.drop_changes("pods")  # the watch does not tell either
        cluster.api.faults.lose_reply(verb="create", resource="pods", subresource="binding")
    else:
        cluster.api.faults.answer(500, verb="create", resource="pods", subresource="binding")
    task = asyncio.create_task(cluster.bind(request))
    await cluster.clock.until_waiting()
    assert cluster.used("n2") == 1
    assert cluster.engine.filter(cluster.stored(), ["n1"], NOW_S).outcome == ("bound" if done else "held")
    await cluster.clock.advance(5)
    text = await task
    if done:
        assert (text, cluster.used("n2"), cluster.lock()) == ("", 1, f"{NOW},default,p")
    else:
        assert text.startswith("binding pod default/p to node n2 failed: ")
        assert (cluster.used("n2"), cluster.lock(), cluster.stored().bound_node) == (0, None, "")


async def test_an_api_server_out_of_reach_and_back(cluster: Cluster) -> None:
    request = await cluster.reserved()
    url = cluster.api.url
    await cluster.api.stop()
    text = await cluster.bind(request)
    assert text
    assert cluster.used() == 0  # nothing was sent
    cluster.api._settings = type(cluster.api._settings)(port=int(url.rpartition(":")[2]))
    await cluster.api.start()
    assert await cluster.bind(request) == ""
    assert cluster.stored().bound_node == "n1"
    assert cluster.used() == 1


async def test_a_definite_refusal_gives_back(cluster: Cluster) -> None:
    request = await cluster.reserved("n2")
    cluster.api.faults.answer(429, verb="create", resource="pods", subresource="binding")
    assert "429" in await cluster.bind(request)
    assert (cluster.used("n2"), cluster.lock()) == (0, None)


async def test_a_pod_made_again_under_its_name_is_not_bound(cluster: Cluster) -> None:
    request = await cluster.reserved()
    cluster.api.faults.drop_changes("pods", 2)
    cluster.api.remove("pods", "default", "p")
    await cluster.created()
    assert "Precondition failed" in await cluster.bind(request)
    assert (cluster.stored().bound_node, cluster.used()) == ("", 0)


async def test_a_pod_deleted_meanwhile(cluster: Cluster) -> None:
    request = await cluster.reserved()
    cluster.api.remove("pods", "default", "p")

    async def gone() -> bool:
        return cluster.ledger.is_gone(request.uid)

    await until(gone)
    assert await cluster.bind(request) == 'pod "p" not found'
    assert cluster.used() == 0
