"""What people run: Deployments, Jobs and StatefulSets of device pods, made by the real controllers, on fake nodes and cards."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from devices.kube.protocols import JsonObject
from devices.kube.resources import Resource
from devices.objects import Pod
from lab.cluster import Cluster
from lab.control_plane import ControlPlane
from lab.names import RUN_SECONDS
from lab.nodes import uniform_nodes
from tests.cluster.books import leader_agrees, recounted
from tests.cluster.slotwise import Slotwise

DEPLOYMENTS = Resource("deployments", "apps")
STATEFUL_SETS = Resource("statefulsets", "apps")
JOBS = Resource("jobs", "batch")
NAMESPACE = "team-workloads"
SHARE_MIB = 3000
PATIENCE_S = 90.0


@pytest.fixture
async def team(cluster: Cluster) -> Cluster:
    """Three nodes of two cards, 15,360 MiB and 10 slots each: five shares fit a card."""
    for spec in uniform_nodes(3, 2):
        await cluster.add_node(spec)
    await cluster.add_namespace(NAMESPACE)
    return cluster


def template(name: str, restart: str = "Always", annotations: dict[str, str] | None = None) -> JsonObject:
    limits: JsonObject = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(SHARE_MIB)}
    container: JsonObject = {"name": "main", "image": "registry.k8s.io/pause:3.10", "resources": {"limits": limits}}
    return {
        "metadata": {"labels": {"app": name}, "annotations": dict(annotations or {})},
        "spec": {"containers": [container], "restartPolicy": restart, "terminationGracePeriodSeconds": 0},
    }


@asynccontextmanager
async def workload(
    plane: ControlPlane, cluster: Cluster, resource: Resource, name: str, spec: JsonObject
) -> AsyncIterator[None]:
    """It is there inside, and afterwards it and its pods are gone."""
    await cluster.client.create(resource, {"metadata": {"name": name}, "spec": spec}, NAMESPACE)
    try:
        yield
    finally:
        # As kubectl does it: left to itself the API server would keep the pods of a Job.
        status, answer = plane.request("DELETE", resource.item(name, NAMESPACE), {"propagationPolicy": "Background"})
        assert status == 200, answer
        # The garbage collector takes them, and the lab's kubelet sees each of them to its end.
        assert await cluster.pods.wait_for(lambda: pods(cluster) == [], PATIENCE_S), pods(cluster)


def pods(cluster: Cluster) -> list[Pod]:
    return [pod for pod in cluster.all_pods() if pod.namespace == NAMESPACE]


def running(cluster: Cluster) -> list[Pod]:
    return [pod for pod in pods(cluster) if pod.status.phase == "Running" and not pod.is_terminating]


class Watched:
    """Looks at all cards after every change of any pod."""

    def __init__(self, cluster: Cluster) -> None:
        self.violations: set[str] = set()
        self.most_mib = 0
        """Most memory that was held at a time."""
        self._cluster = cluster
        cluster.pods.listen(lambda _before, _after: self._look())

    def _look(self) -> None:
        self.violations |= {str(found) for found in self._cluster.violations()}
        self.most_mib = max(self.most_mib, sum(card.used_memory_mib for card in self._cluster.usage()))


async def until(cluster: Cluster, holds: Callable[[], bool], what: str) -> None:
    assert await cluster.pods.wait_for(holds, PATIENCE_S), (
        f"{what}: {[(p.name, p.status.phase) for p in pods(cluster)]}"
    )


async def test_a_deployment_rolls_and_shrinks(control_plane: ControlPlane, team: Cluster, slotwise: Slotwise) -> None:
    watched = Watched(team)
    spec: JsonObject = {
        "replicas": 20,
        "selector": {"matchLabels": {"app": "web"}},
        "template": template("web"),
    }
    async with workload(control_plane, team, DEPLOYMENTS, "web", spec):
        await until(team, lambda: len(running(team)) == 20, "20 replicas run")
        assert await leader_agrees(team, slotwise) == ""
        before = {pod.uid for pod in pods(team)}

        newer: JsonObject = {"spec": {"template": {"metadata": {"annotations": {"release": "2"}}}}}
        await team.client.merge_patch(DEPLOYMENTS, "web", newer, NAMESPACE)
        await until(
            team,
            lambda: len(running(team)) == 20 == len(pods(team)) and before.isdisjoint(pod.uid for pod in pods(team)),
            "20 other replicas run",
        )
        assert await leader_agrees(team, slotwise) == ""

        await team.client.merge_patch(DEPLOYMENTS, "web", {"spec": {"replicas": 5}}, NAMESPACE)
        await until(team, lambda: len(pods(team)) == 5, "5 replicas are left")
        assert await leader_agrees(team, slotwise) == ""
        assert sum(held[1] for held in recounted(team).values()) == 5 * SHARE_MIB
    assert watched.violations == set()
    assert watched.most_mib >= 20 * SHARE_MIB


async def test_a_job_of_fifty_runs_to_its_end(control_plane: ControlPlane, team: Cluster, slotwise: Slotwise) -> None:
    watched = Watched(team)
    spec: JsonObject = {
        "completions": 50,
        "parallelism": 25,
        "template": template("batch", "Never", {RUN_SECONDS: "0.2"}),
    }
    async with workload(control_plane, team, JOBS, "batch", spec):
        await until(team, lambda: [p.status.phase for p in pods(team)] == ["Succeeded"] * 50, "50 pods have succeeded")
        assert await leader_agrees(team, slotwise) == ""
        assert recounted(team) == {}
    assert watched.violations == set()


async def test_a_stateful_set_comes_up_in_order(control_plane: ControlPlane, team: Cluster, slotwise: Slotwise) -> None:
    watched = Watched(team)
    created: list[str] = []
    team.pods.listen(lambda before, after: created.append(after.pod.name) if before is None and after else None)
    spec: JsonObject = {
        "replicas": 5,
        "serviceName": "store",
        "selector": {"matchLabels": {"app": "store"}},
        "template": template("store"),
    }
    async with workload(control_plane, team, STATEFUL_SETS, "store", spec):
        await until(team, lambda: len(running(team)) == 5, "5 replicas run")
        assert created == [f"store-{number}" for number in range(5)]
        assert await leader_agrees(team, slotwise) == ""
    assert watched.violations == set()


async def test_a_deployment_beyond_its_quota_gets_what_the_quota_allows(
    control_plane: ControlPlane, team: Cluster, slotwise: Slotwise
) -> None:
    watched = Watched(team)
    await team.put_quota(NAMESPACE, "memory", {"limits.nvidia.com/gpumem": str(12 * SHARE_MIB + 1)})
    spec: JsonObject = {
        "replicas": 20,
        "selector": {"matchLabels": {"app": "greedy"}},
        "template": template("greedy"),
    }
    async with workload(control_plane, team, DEPLOYMENTS, "greedy", spec):
        await until(team, lambda: len(running(team)) == 12, "12 replicas run")
        assert await leader_agrees(team, slotwise) == ""
        assert len(pods(team)) == 12
        await team.put_quota(NAMESPACE, "memory", {"limits.nvidia.com/gpumem": str(20 * SHARE_MIB)})
        await until(team, lambda: len(running(team)) == 20, "20 replicas run once the quota allows it")
    assert watched.violations == set()
    assert watched.most_mib == 20 * SHARE_MIB
