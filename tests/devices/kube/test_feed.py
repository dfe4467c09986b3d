"""The ledger kept equal to the embedded API server: delivery, replaced nodes, missed events, expiry, what is reported."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from msgspec import structs
from prometheus_client import CollectorRegistry

from devices.kube.client import ClientSettings, KubeClient
from devices.kube.config import explicit_access
from devices.kube.feed import LedgerFeed, _Nodes, _Pods, _Quotas
from devices.kube.freshness import HEARTBEAT_ANNOTATION, OwnPod
from devices.kube.reflector import ReflectorSettings
from devices.kube.resources import PODS
from devices.kube.seen import SeenObject
from devices.ledger import Ledger
from devices.objects import Node, Quota, quota_of
from lab.apiserver import ApiServer
from tests.builders import (
    ALLOCATED,
    REGISTER,
    allocated,
    card,
    container_document,
    entry,
    node,
    nvidia_config,
    pod,
    quota,
    registration,
)

EXPIRED = "slotwise_reservations_expired_total"


def pod_document(name: str, uuid: str = "a", **changes: Any) -> dict[str, Any]:
    """A pod bound to n1 that holds 1000 MiB of one card."""
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "annotations": allocated(((entry(uuid),),)),
        },
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
        **changes,
    }


def node_document(name: str = "n1", uid: str = "uid-n1", text: str | None = None) -> dict[str, Any]:
    annotations = {REGISTER: registration(card("a")) if text is None else text}
    return {"metadata": {"name": name, "uid": uid, "annotations": annotations}, "status": {}}


def quota_document(limit: str = "4000", name: str = "q") -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {"hard": {"limits.nvidia.com/gpumem": limit}},
    }


class Following:
    """An API server, a ledger that follows it, and what the feed told its listeners."""

    def __init__(self, api: ApiServer, client: KubeClient) -> None:
        self.api, self.client = api, client
        self.ledger = Ledger(nvidia_config())
        self.registry = CollectorRegistry()
        self.now_s = 0.0
        self.changed: list[str] = []
        self.gone: list[str] = []
        self.feed = self.made()

    def made(self, **settings: Any) -> LedgerFeed:
        self.registry = CollectorRegistry()
        feed = LedgerFeed(
            self.client,
            self.ledger,
            lambda: self.now_s,
            registry=self.registry,
            settings=ReflectorSettings(),
            **settings,
        )
        feed.node_changed.append(self.changed.append)
        feed.node_gone.append(self.gone.append)
        return feed

    async def started(self, feed: LedgerFeed | None = None) -> LedgerFeed:
        self.feed = feed or self.feed
        await self.feed.start()
        async with asyncio.timeout(20):
            await self.feed.wait_synced()
        return self.feed

    def used(self, name: str = "n1") -> int:
        state = self.ledger.state(name)
        return sum(s.used_slots for s in state.cards) if state is not None else 0

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not holds():  # noqa: ASYNC110 - the ledger announces nothing
                await asyncio.sleep(0.005)


@pytest.fixture
async def following() -> AsyncIterator[Following]:
    api = ApiServer()
    await api.start()
    async with KubeClient(explicit_access(api.url), ClientSettings(user_agent="test", qps=0)) as client:
        one = Following(api, client)
        try:
            yield one
        finally:
            await one.feed.stop()
    await api.stop()


async def test_what_there_is_and_what_comes_is_delivered(following: Following) -> None:
    api, ledger = following.api, following.ledger
    api.put("nodes", node_document())
    api.put("pods", pod_document("p1"))
    api.put("resourcequotas", quota_document())
    assert (following.feed.reason(), following.feed.synced) == ("the nodes are not listed yet", False)
    await following.started()
    assert (following.feed.reason(), following.feed.synced) == (None, True)
    assert (following.used(), ledger.limits("default")["nvidia.com/gpumem"].value) == (1, 4000)
    api.put("pods", pod_document("p2"))
    api.put("resourcequotas", quota_document("5000"))
    api.put("nodes", node_document("n2", "uid-n2"))
    await following.until(lambda: following.used() == 2 and following.ledger.state("n2") is not None)
    await following.until(lambda: ledger.limits("default")["nvidia.com/gpumem"].value == 5000)
    assert following.changed == ["n1", "n2"]
    api.remove("pods", "default", "p1")
    api.remove("resourcequotas", "default", "q")
    api.remove("nodes", "", "n2")
    await following.until(lambda: following.gone == ["n2"] and following.used() == 1 and not ledger.limits("default"))
    assert ledger.is_gone("uid-p1")
    assert following.feed.pods_revision > 0
    assert await following.feed.wait_for_pods("1", 1.0)
    assert not await following.feed.wait_for_pods("999999999", 0.0)


async def test_a_full_list_does_not_call_pods_missed_that_the_books_have_no_place_for(following: Following) -> None:
    following.api.put(
        "pods", {**pod_document("plain"), "metadata": {"name": "plain", "namespace": "default", "uid": "u"}, "spec": {}}
    )
    following.api.put("pods", pod_document("done", status={"phase": "Succeeded"}))
    following.api.put("pods", pod_document("held"))
    feed = await following.started()
    feed.resync_pods()

    def lists() -> float | None:
        labels = {"resource": "pods", "cause": "resync"}
        return following.registry.get_sample_value("slotwise_watch_lists_total", labels)

    await following.until(lambda: lists() == 1)
    labels = {"resource": "pods", "cause": "resync", "kind": "missed"}
    assert following.registry.get_sample_value("slotwise_watch_resync_differences_total", labels) == 0


async def test_what_happened_while_the_watches_were_cut_is_made_up_for(following: Following) -> None:
    api, ledger = following.api, following.ledger
    for name in ("n1", "n2"):
        api.put("nodes", node_document(name, f"uid-{name}"))
    for name in ("p1", "p2"):
        api.put("pods", pod_document(name))
    for name in ("q1", "q2"):
        api.put("resourcequotas", quota_document(name=name, limit="7"))
    await following.started()
    for resource in ("pods", "nodes", "resourcequotas"):
        await api.until_watches(resource, 1)
        api.faults.drop_changes(resource, 1)
        api.faults.expire_next_watch(resource)
    api.remove("pods", "default", "p1")
    api.remove("nodes", "", "n2")
    api.remove("resourcequotas", "default", "q1")
    api.faults.cut_watches()
    await following.until(lambda: following.used() == 1 and following.gone == ["n2"])
    await following.until(lambda: ledger.limits("default")["nvidia.com/gpumem"].quota == "q2")
    assert list(ledger.node_names()) == ["n1"]


async def test_an_own_pod_proves_the_watch_fresh(following: Following) -> None:
    spec = {"containers": [{"name": "c", "image": "i"}]}
    body: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "me"}, "spec": spec}
    await following.client.create(PODS, body, "default")
    feed = await following.started(following.made(own_pod=OwnPod("default", "me")))

    def touched() -> bool:
        stored: Any = following.api.get("pods", "default", "me")
        return HEARTBEAT_ANNOTATION in (stored["metadata"].get("annotations") or {})

    await following.until(touched)
    await following.until(lambda: feed.reason() is None)


async def test_overdue_reservations_are_released_counted_and_said(
    following: Following, caplog: pytest.LogCaptureFixture
) -> None:
    following.api.put("nodes", node_document())
    await following.started(following.made(expire_every_s=0.001))
    asked = pod(name="x")
    following.ledger.reserve(asked, "n1", ((entry("a"),),), 0.0)
    assert following.used() == 1
    following.now_s = 661
    await following.until(lambda: following.used() == 0)
    await following.until(lambda: following.registry.get_sample_value(EXPIRED) == 1)
    assert "released the overdue reservations of 1 pods: uid-x" in caplog.text


class Books:
    """The consumers on their own, fed by hand."""

    def __init__(self) -> None:
        self.ledger = Ledger(nvidia_config())
        self.changed: list[str] = []
        self.gone: list[str] = []
        self.changed_pods: list[str] = []
        self.pods = _Pods(self.ledger, lambda: 0.0, [self.changed_pods.append])
        self.nodes = _Nodes(self.ledger, [self.changed.append], [self.gone.append])
        self.quotas = _Quotas(self.ledger)


def seen(uid: str, revision: int = 99) -> SeenObject:
    return SeenObject(uid, "", "", revision)


def again(name: str, uid: str, *uuids: str) -> Node:
    """A node of this name with a UID of its own."""
    made = node(name, *(card(uuid) for uuid in uuids))
    return structs.replace(made, metadata=structs.replace(made.metadata, uid=uid))


def test_a_node_made_again_under_its_name_is_not_gone_with_the_old_one() -> None:
    books = Books()
    books.nodes.put(again("n1", "old", "a"))
    books.nodes.put(again("n1", "new", "b"))
    books.nodes.delete(seen("old"))
    assert (books.gone, books.ledger.state("n1") is not None) == ([], True)
    books.nodes.delete(seen("new"))
    books.nodes.delete(seen("never"))
    assert (books.gone, list(books.ledger.node_names())) == (["n1"], [])


def test_the_first_list_takes_the_place_of_everything() -> None:
    books = Books()
    books.ledger.put_node(node("left", card("z")))
    books.ledger.put_pod(pod(name="left"), 0.0)
    books.ledger.put_quota(quota("left", "default", gpumem=1))
    books.nodes.replace([again("n1", "u1", "a")])
    books.pods.replace([pod(name="p")])
    books.quotas.replace([quota_of(quota_document())])
    assert (list(books.ledger.node_names()), books.gone, books.changed) == (["n1"], ["left"], ["n1"])
    assert [p.uid for p in books.ledger.pods()] == ["uid-p"]
    assert [q.name for q in books.ledger.quotas()] == ["q"]
    assert (set(books.nodes.known()), set(books.pods.known()), set(books.quotas.known())) == (
        {"u1"},
        {"uid-p"},
        {"uid-q"},
    )


def test_a_pod_newer_than_the_list_that_lacks_it_is_not_gone() -> None:
    """A filter call had brought it before the watch did; the list then took its cards away, and for good."""
    books = Books()
    books.ledger.put_node(node("n1", card("a")))
    books.ledger.reserve(pod(name="x", version=50), "n1", ((entry("a"),),), 0.0)
    books.pods.delete(seen("uid-x", 49))
    assert not books.ledger.is_gone("uid-x")
    books.pods.delete(seen("uid-x", 50))
    assert books.ledger.is_gone("uid-x")
    books.pods.delete(seen("unknown", 1))
    assert books.ledger.is_gone("unknown")


def test_a_quota_made_again_under_its_name() -> None:
    books = Books()
    for uid in ("old", "new"):
        document = quota_document()
        document["metadata"]["uid"] = uid
        books.quotas.put(quota_of(document))
    books.quotas.delete(seen("old"))
    assert books.ledger.limits("default")
    books.quotas.delete(seen("new"))
    books.quotas.delete(seen("never"))
    assert not books.ledger.limits("default")


class TestReported:
    @pytest.fixture(autouse=True)
    def _warnings(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.WARNING)

    def test_nodes_once_a_problem(self, caplog: pytest.LogCaptureFixture) -> None:
        books = Books()
        bad = node("n1", annotations={REGISTER: "nonsense"})
        for _ in range(2):
            books.nodes.put(bad)
        assert len(caplog.records) == 1
        assert caplog.records[0].getMessage().startswith("node n1: NVIDIA: ")
        books.nodes.put(node("n1", card("a")))
        assert len(caplog.records) == 1
        books.nodes.put(bad)
        assert len(caplog.records) == 2

    def test_pods_once_a_problem(self, caplog: pytest.LogCaptureFixture) -> None:
        """What held nothing because nobody could read it was said nowhere."""
        books = Books()
        for _ in range(2):
            books.pods.put(pod(name="x", node="n1", annotations={ALLOCATED: "a,b:;", "hami.io/vgpu-node": "n1"}))
        assert [r.getMessage() for r in caplog.records] == [
            "pod default/x: its allocation counts nothing: pod annotation format error, missing fields,"
            " do not use nodeName in task spec"
        ]
        books.pods.put(pod(name="x", node="n1", annotations=allocated(((entry("a"),),))))
        assert caplog.records[1].getMessage() == "pod default/x: its allocation can be read again"
        books.pods.delete(seen("uid-x"))
        assert len(caplog.records) == 2

    def test_quotas_once_a_problem(self, caplog: pytest.LogCaptureFixture) -> None:
        books = Books()
        bad: Quota = quota_of(quota_document("1.5"))
        for _ in range(2):
            books.quotas.put(bad)
        assert [r.getMessage() for r in caplog.records] == [
            "ResourceQuota default/q: limits.nvidia.com/gpumem: '1.5' is not a whole number and limits nothing"
        ]


def test_listeners_hear_of_pods_that_the_books_have_a_place_for() -> None:
    books = Books()
    books.pods.put(pod())
    books.pods.put(pod(container_document(), name="plain"))
    books.pods.replace([pod(version=2)])
    books.pods.put(pod(version=3, phase="Succeeded"))
    assert books.changed_pods == ["uid-a", "uid-a"]
