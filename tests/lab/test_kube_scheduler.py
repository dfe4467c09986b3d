import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from devices.kube.resources import NODES, PODS
from lab.extender_client import FilterAnswer
from lab.kube_scheduler import KubeScheduler, KubeSchedulerSettings, failure_text
from lab.scheduling_queue import Backoff
from tests.lab.small_cluster import (
    FakeExtender,
    SmallCluster,
    container,
    fake_extender,
    small_cluster,
)

TEXT = (
    "0/1 nodes are available: 1 4/4 ExclusiveDeviceAllocateConflict. preemption: 0/1 nodes are available: "
    "1 No preemption victims found for incoming pod."
)
FAST = Backoff(initial_s=0.01, longest_s=0.02, flush_s=300.0)


@asynccontextmanager
async def scheduling(
    *nodes: str, backoff: Backoff = FAST, before: "Callable[[FakeExtender], None] | None" = None
) -> AsyncIterator[tuple[SmallCluster, FakeExtender]]:
    async with small_cluster(*nodes) as cluster, fake_extender(cluster) as extender:
        if before:
            before(extender)
        settings = KubeSchedulerSettings(extender.url, frozenset({"nvidia.com/gpu"}), backoff=backoff)
        scheduler = KubeScheduler(settings, cluster.client, cluster.pods, cluster.nodes)
        await cluster.nodes.start()
        await cluster.pods.start()
        await scheduler.start()
        try:
            yield cluster, extender
        finally:
            await scheduler.stop()


def is_bound(cluster: SmallCluster, name: str) -> "Callable[[], bool]":
    return lambda: bool((seen := cluster.pods.objects.get(f"default/{name}")) and seen.pod.bound_node)


def says(cluster: SmallCluster, name: str, text: str) -> "Callable[[], bool]":
    def holds() -> bool:
        seen = cluster.pods.objects.get(f"default/{name}")
        return seen is not None and any(c.get("message") == text for c in seen.conditions)

    return holds


ANSWERS = {
    "one node": (1, {"n1": "4/4 ExclusiveDeviceAllocateConflict"}, {}, TEXT),
    "equal texts are counted, different ones sorted": (
        3,
        {"n1": "node unregistered", "n2": "2/2 CardInsufficientMemory", "n3": "2/2 CardInsufficientMemory"},
        {},
        "0/3 nodes are available: 1 node unregistered, 2 2/2 CardInsufficientMemory. preemption: 0/3 nodes are "
        "available: 3 No preemption victims found for incoming pod.",
    ),
    "hopeless nodes are named by preemption": (
        2,
        {"n1": "1/1 CardInsufficientMemory"},
        {"n2": "node unregistered"},
        "0/2 nodes are available: 1 1/1 CardInsufficientMemory, 1 node unregistered. preemption: 0/2 nodes are "
        "available: 1 No preemption victims found for incoming pod, 1 Preemption is not helpful for scheduling.",
    ),
}


@pytest.mark.parametrize(("offered", "failed", "hopeless", "text"), ANSWERS.values(), ids=ANSWERS)
def test_text_of_a_failure(offered: int, failed: dict[str, str], hopeless: dict[str, str], text: str) -> None:
    answer = FilterAnswer(failed_nodes=failed, failed_and_unresolvable_nodes=hopeless)
    assert failure_text(offered, answer) == text


async def test_pod_goes_where_the_extender_says() -> None:
    async with scheduling("n2", "n1", before=lambda e: e.refusals.update(n1="1/1 CardCordoned")) as (cluster, extender):
        await cluster.create_pod("a")
        await cluster.wait(is_bound(cluster, "a"))
        assert cluster.pods.objects["default/a"].pod.bound_node == "n2"
        assert extender.filtered == [("a", ["n1", "n2"])]
        assert extender.bound == [
            {
                "PodName": "a",
                "PodNamespace": "default",
                "PodUID": cluster.pods.objects["default/a"].uid,
                "Node": "n2",
            }
        ]
        assert cluster.messages() == []


async def test_refused_pod_is_told_once_and_placed_when_another_goes() -> None:
    async with scheduling("n1") as (cluster, extender):
        await cluster.create_pod("tenant")
        await cluster.wait(is_bound(cluster, "tenant"))
        extender.refusals["n1"] = "4/4 ExclusiveDeviceAllocateConflict"
        await cluster.create_pod("late")
        await cluster.wait(says(cluster, "late", TEXT))
        attempts = len(extender.filtered)
        condition = next(c for c in cluster.pods.objects["default/late"].conditions if c["type"] == "PodScheduled")
        assert (condition["status"], condition["reason"]) == ("False", "Unschedulable")

        await cluster.create_pod("other", containers=[container("main")])
        await cluster.wait(is_bound(cluster, "other"))
        assert len(extender.filtered) == attempts, "a pod that is placed is no reason to try again"

        extender.refusals.clear()
        await cluster.client.delete(PODS, "tenant", "default", grace_s=0)
        await cluster.wait(is_bound(cluster, "late"))
        assert cluster.messages() == [TEXT]


async def test_identical_condition_is_not_written_again() -> None:
    refuse = {"n1": "4/4 ExclusiveDeviceAllocateConflict"}
    async with scheduling("n1", before=lambda e: e.refusals.update(refuse)) as (cluster, extender):
        await cluster.create_pod("late")
        await cluster.wait(says(cluster, "late", TEXT))
        version = cluster.pods.objects["default/late"].pod.metadata.resource_version
        extender.asked.clear()
        # A change of the node brings the pod back; the same answer must not be written again.
        await cluster.client.patch_node("n1", {"metadata": {"labels": {"changed": "yes"}}})
        async with asyncio.timeout(5):
            await extender.asked.wait()
        extender.refusals["n1"] = "4/4 CardInsufficientMemory"
        await cluster.client.patch_node("n1", {"metadata": {"labels": {"changed": "again"}}})
        other = TEXT.replace("ExclusiveDeviceAllocateConflict", "CardInsufficientMemory")
        await cluster.wait(says(cluster, "late", other))
        writes = [key for key in cluster.api.requests.received.elements() if key.subresource == "status"]
        assert len(writes) == 2, "one for each text"
        assert version != cluster.pods.objects["default/late"].pod.metadata.resource_version
        assert cluster.messages() == sorted([TEXT, other])


async def test_bind_error_is_told_and_tried_again() -> None:
    text = "node n1 has been locked within 5m0s: node lock contention"
    async with scheduling("n1", before=lambda e: e.bind_errors.append(text)) as (cluster, extender):
        await cluster.create_pod("a")
        await cluster.wait(is_bound(cluster, "a"))
        assert len(extender.bound) == 2
        assert cluster.messages() == [f"binding rejected: {text}"]


async def test_extender_error_is_told_and_tried_again() -> None:
    text = "context cancelled"
    async with scheduling("n1", before=lambda e: setattr(e, "error", text)) as (cluster, extender):
        await cluster.create_pod("a")
        await cluster.wait(says(cluster, "a", text))
        condition = next(c for c in cluster.pods.objects["default/a"].conditions if c["type"] == "PodScheduled")
        assert condition["reason"] == "SchedulerError"
        extender.error = ""
        await cluster.wait(is_bound(cluster, "a"))


async def test_foreign_pods_are_left_alone_and_plain_ones_need_no_extender() -> None:
    async with scheduling("n2", "n1") as (cluster, extender):
        await cluster.create_pod("foreign", scheduler="default-scheduler")
        await cluster.create_pod("plain", containers=[container("main")])
        await cluster.wait(is_bound(cluster, "plain"))
        assert cluster.pods.objects["default/plain"].pod.bound_node == "n1"
        assert not cluster.pods.objects["default/foreign"].pod.bound_node
        assert extender.filtered == []


async def test_cordoned_node_is_not_offered_and_without_nodes_there_is_a_text() -> None:
    async with scheduling("n1") as (cluster, extender):
        await cluster.client.merge_patch(NODES, "n1", {"spec": {"unschedulable": True}})
        await cluster.nodes.wait_for(lambda: cluster.nodes.objects["n1"].unschedulable, 5)
        await cluster.create_pod("a")
        await cluster.wait(says(cluster, "a", "no nodes available to schedule pods"))
        assert extender.filtered == []
        await cluster.client.merge_patch(NODES, "n1", {"spec": {"unschedulable": None}})
        await cluster.wait(is_bound(cluster, "a"))


async def test_pod_deleted_while_it_waits_is_forgotten() -> None:
    refuse = {"n1": "4/4 ExclusiveDeviceAllocateConflict"}
    async with scheduling("n1", before=lambda e: e.refusals.update(refuse)) as (cluster, extender):
        await cluster.create_pod("gone")
        await cluster.wait(says(cluster, "gone", TEXT))
        await cluster.client.delete(PODS, "gone", "default")
        await cluster.wait(lambda: "default/gone" not in cluster.pods.objects)
        tried = len(extender.filtered)
        extender.refusals.clear()
        await cluster.create_pod("next")
        await cluster.wait(is_bound(cluster, "next"))
        assert [name for name, _ in extender.filtered[tried:]] == ["next"]
