"""Pods that wait for room on a real control plane in which nothing else happens: no device plugin gives signs of life."""

from collections.abc import AsyncIterator

import pytest

from lab.cluster import Cluster, ClusterSettings
from lab.control_plane import ControlPlane
from lab.external import ExternalSettings
from lab.nodes import CardSpec, NodeSpec
from lab.pods import pod_document
from lab.scenario import PodForm
from tests.cluster.slotwise import Slotwise

SETTLE_S = 30.0
"""kube-scheduler would try a refused pod of its own accord after five minutes."""
ROUNDS = 10
WHOLE = PodForm(limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": 15000})


@pytest.fixture
async def cluster(control_plane: ControlPlane, slotwise: Slotwise) -> AsyncIterator[Cluster]:
    """One node with one card."""
    external = ExternalSettings(str(control_plane.kubeconfig()), slotwise.views, plugin_heartbeats=False)
    async with Cluster(ClusterSettings(settle_s=SETTLE_S, external=external)) as cluster:
        await cluster.add_node(NodeSpec("node-1", (CardSpec("GPU-A", memory_mib=15360),)))
        yield cluster


async def create(cluster: Cluster, name: str) -> None:
    await cluster.create_pod(pod_document(PodForm(name=name), WHOLE), "default")


async def until(cluster: Cluster, name: str, *, placed: bool) -> None:
    def holds() -> bool:
        pod = cluster.pod("default", name)
        return pod is not None and (bool(pod.bound_node) if placed else pod.is_unschedulable)

    assert await cluster.pods.wait_for(holds, SETTLE_S), [(p.name, p.bound_node) for p in cluster.all_pods()]


async def test_a_pod_gets_the_quota_that_is_raised_for_it(cluster: Cluster) -> None:
    """kube-scheduler knows nothing of quotas: without a touch the pod would wait for minutes."""
    await create(cluster, "tenant")
    await until(cluster, "tenant", placed=True)
    await create(cluster, "waits")
    await until(cluster, "waits", placed=False)
    await cluster.put_quota("default", "memory", {"limits.nvidia.com/gpumem": "10000"})
    # Created once the services have surely seen the quota.
    await cluster.create_pod(pod_document(PodForm(name="plain"), PodForm()), "default")
    await cluster.delete_pod("default", "tenant")

    def over_quota() -> bool:
        pod = cluster.pod("default", "waits")
        scheduled = pod.scheduled if pod is not None else None
        return scheduled is not None and "ResourceQuotaNotFit" in (scheduled.message or "")

    assert await cluster.pods.wait_for(over_quota, SETTLE_S), cluster.all_pods()
    await cluster.put_quota("default", "memory", {"limits.nvidia.com/gpumem": "20000"})
    await until(cluster, "waits", placed=True)


async def test_a_pod_gets_the_room_that_another_leaves_whoever_hears_of_it_first(cluster: Cluster) -> None:
    await create(cluster, "tenant-0")
    await until(cluster, "tenant-0", placed=True)
    for number in range(ROUNDS):
        waits = f"tenant-{number + 1}"
        await create(cluster, waits)
        await until(cluster, waits, placed=False)
        await cluster.delete_pod("default", f"tenant-{number}")
        await until(cluster, waits, placed=True)
    assert cluster.violations() == ()
