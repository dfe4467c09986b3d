"""The main job on a real control plane: real API server, controllers and kube-scheduler, Slotwise's own two processes."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from devices.kube.client import KubeClient
from devices.kube.protocols import JsonObject
from lab.cluster import Cluster, ClusterSettings
from lab.control_plane import ControlPlane
from lab.external import ExternalSettings
from lab.nodes import CardSpec, NodeSpec
from lab.pods import pod_document
from lab.records import ScenarioDone, StepDone
from lab.runner import run_scenario
from lab.scenario import PodForm, load_scenario, shipped_scenarios
from tests.cluster.slotwise import Slotwise

SETTLE_S = 30.0
SHARE = PodForm(limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000})


@pytest.fixture(scope="module")
def slotwise(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slotwise]:
    with Slotwise(control_plane, tmp_path_factory.mktemp("slotwise")) as running:
        yield running


@pytest.fixture
def settings(control_plane: ControlPlane, slotwise: Slotwise) -> ClusterSettings:
    external = ExternalSettings(str(control_plane.kubeconfig()), slotwise.views)
    return ClusterSettings(settle_s=SETTLE_S, external=external)


@pytest.fixture
async def cluster(settings: ClusterSettings) -> AsyncIterator[Cluster]:
    async with Cluster(settings) as cluster:
        yield cluster


async def until_running(cluster: Cluster, *names: str) -> None:
    def all_run() -> bool:
        pods = [cluster.pod("default", name) for name in names]
        return all(pod is not None and pod.status.phase == "Running" for pod in pods)

    assert await cluster.pods.wait_for(all_run, SETTLE_S), cluster.all_pods()


async def test_four_cards_in_the_words_of_the_documents(settings: ClusterSettings) -> None:
    records = [r async for r in run_scenario(load_scenario(shipped_scenarios()["four-cards"]), settings)]
    done = records[-1]
    assert isinstance(done, ScenarioDone)
    assert done.problems == ()
    texts = [record.text for record in records if isinstance(record, StepDone)]
    refusal = "0/1 nodes are available: 1 4/4 ExclusiveDeviceAllocateConflict."
    assert sum(refusal in text for text in texts) == done.refused == 2


OTHERS = {name: path for name, path in shipped_scenarios().items() if name != "four-cards"}


@pytest.mark.parametrize("path", OTHERS.values(), ids=OTHERS)
async def test_scenario_holds(path: Path, settings: ClusterSettings) -> None:
    records = [record async for record in run_scenario(load_scenario(path), settings)]
    done = records[-1]
    assert isinstance(done, ScenarioDone)
    assert done.problems == ()


def test_the_command_plays_on_a_cluster_named_by_kubeconfig(control_plane: ControlPlane, slotwise: Slotwise) -> None:
    flags = ("--kubeconfig", str(control_plane.kubeconfig()), "--scheduler-url", slotwise.views, "--json")
    played = subprocess.run(
        [sys.executable, "-m", "cli", "lab", "run", "privileged", *flags], capture_output=True, text=True, check=False
    )
    assert played.returncode == 0, played.stderr
    assert json.loads(played.stdout)["passed"] is True


async def test_one_write_for_each_placed_pod(control_plane: ControlPlane, slotwise: Slotwise, cluster: Cluster) -> None:
    await cluster.add_node(NodeSpec("node-1", (CardSpec("GPU-A"), CardSpec("GPU-B"))))
    names = [f"share-{number}" for number in range(5)]
    before = len(list(control_plane.audited()))
    for name in names:
        await cluster.create_pod(pod_document(PodForm(name=name), SHARE), "default")
    await until_running(cluster, *names)
    calls = [call for call in list(control_plane.audited())[before:] if call.is_write and call.resource != "events"]
    ours = Counter((call.verb, call.resource, call.name) for call in calls if call.user == slotwise.scheduler_user)
    assert ours == Counter(("create", "pods/binding", name) for name in names)
    # kube-scheduler leaves binding to the extender, and has nothing to say about a pod that is placed.
    assert [call for call in calls if call.user == "system:kube-scheduler"] == []


async def test_a_pod_on_a_node_with_a_long_name_can_still_be_written(cluster: Cluster) -> None:
    node = "node-" + "x" * 65
    await cluster.add_node(NodeSpec(node, (CardSpec("GPU-A"),)))
    await cluster.create_pod(pod_document(PodForm(name="far"), SHARE), "default")
    await until_running(cluster, "far")
    pod = cluster.pod("default", "far")
    assert pod is not None
    assert (pod.bound_node, pod.annotations["hami.io/vgpu-node"]) == (node, node)
    assert "hami.io/vgpu-node" not in pod.labels
    patched = await cluster.client.patch_pod("default", "far", {"metadata": {"annotations": {"later": "yes"}}})
    assert metadata(patched)["annotations"]["later"] == "yes"


async def test_nothing_is_left_behind(settings: ClusterSettings) -> None:
    async with Cluster(settings) as cluster:
        await cluster.add_namespace("team-left")
        await cluster.add_node(NodeSpec("node-left", (CardSpec("GPU-A"),)))
        await cluster.create_pod(pod_document(PodForm(name="left", namespace="team-left"), SHARE), "team-left")
        assert await cluster.pods.wait_for(lambda: bool(bound(cluster, "team-left", "left")), SETTLE_S)
    async with Cluster(settings) as cluster:  # which refuses a cluster with nodes
        assert cluster.all_pods() == []
        assert await names_of(cluster.client, "team-left") == []


def bound(cluster: Cluster, namespace: str, name: str) -> str:
    pod = cluster.pod(namespace, name)
    return pod.bound_node if pod else ""


def metadata(document: JsonObject) -> dict[str, dict[str, str]]:
    found = document["metadata"]
    assert isinstance(found, dict)
    return found


async def names_of(client: KubeClient, namespace: str) -> list[str]:
    pods, _ = await client.list_pods(namespace)
    return [str(metadata(pod)["name"]) for pod in pods]
