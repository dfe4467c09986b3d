"""What the scheduler does for bound and for waiting pods, in the whole lab, by what its API server stores."""

import pytest

from lab.apiserver import ApiServerSettings
from lab.cluster import Cluster, ClusterSettings
from lab.nodes import CardSpec, NodeSpec
from lab.pods import pod_document
from lab.scenario import PodForm
from lab.scheduling_queue import Backoff

WHOLE = PodForm(limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": 15000})
LABEL = "hami.io/vgpu-node"
NODE = NodeSpec("node-1", (CardSpec("GPU-A"),))
WAITS_FOR_NEWS = Backoff(initial_s=0.05, longest_s=0.5, flush_s=300.0)
"""A refused pod is not tried again of its own accord."""
SETTLE_S = 20.0


async def create(cluster: Cluster, name: str) -> None:
    await cluster.create_pod(pod_document(PodForm(name=name), WHOLE), "default")


def writes(cluster: Cluster) -> int:
    found = cluster.scheduler_writes()
    assert found is not None
    return found


async def placed(cluster: Cluster, name: str, *, labelled: bool = False) -> bool:
    def holds() -> bool:
        pod = cluster.pod("default", name)
        return pod is not None and bool(pod.bound_node) and (not labelled or LABEL in pod.labels)

    return await cluster.pods.wait_for(holds, SETTLE_S)


@pytest.mark.parametrize(("version", "expected"), [("v1.34.4", 2), ("v1.35.0", 1), ("v1.37.2", 1)])
async def test_writes_for_a_placed_pod(version: str, expected: int) -> None:
    """Before Kubernetes 1.35 a Binding's labels do not go into the pod."""
    async with Cluster(ClusterSettings(api=ApiServerSettings(git_version=version))) as cluster:
        await cluster.add_node(NODE)
        before = writes(cluster)
        await create(cluster, "a")
        assert await placed(cluster, "a", labelled=True)
        pod = cluster.pod("default", "a")
        assert pod is not None
        assert (pod.labels[LABEL], writes(cluster) - before) == ("node-1", expected)


async def test_a_waiting_pod_is_placed_once_its_quota_allows_it() -> None:
    """Nothing that kube-scheduler knows of has changed."""
    async with Cluster(ClusterSettings(backoff=WAITS_FOR_NEWS, settle_s=SETTLE_S)) as cluster:
        await cluster.add_node(NODE)
        await create(cluster, "tenant")
        assert await placed(cluster, "tenant")
        await create(cluster, "waits")
        assert await cluster.pods.wait_for(lambda: says(cluster, "CardInsufficientMemory"), SETTLE_S)
        await cluster.put_quota("default", "memory", {"limits.nvidia.com/gpumem": "10000"})
        await cluster.delete_pod("default", "tenant")
        assert await cluster.pods.wait_for(lambda: says(cluster, "ResourceQuotaNotFit"), SETTLE_S)
        before = writes(cluster)
        await cluster.put_quota("default", "memory", {"limits.nvidia.com/gpumem": "20000"})
        assert await placed(cluster, "waits")
        assert writes(cluster) - before == 2  # the touch, and the Binding


def says(cluster: Cluster, reason: str) -> bool:
    pod = cluster.pod("default", "waits")
    scheduled = pod.scheduled if pod is not None else None
    return scheduled is not None and reason in (scheduled.message or "")
