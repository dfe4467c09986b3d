"""The main job on a real control plane: real API server, controllers and kube-scheduler, Slotwise's own two processes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from devices.kube.client import KubeClient
from devices.kube.protocols import JsonObject
from lab.cluster import Cluster, ClusterSettings
from lab.control_plane import ControlPlane
from lab.nodes import CardSpec, NodeSpec
from lab.pods import pod_document
from lab.records import ScenarioDone, StepDone
from lab.runner import run_scenario
from lab.scenario import PodForm, load_scenario, shipped_scenarios
from tests.cluster.slotwise import Slotwise

SETTLE_S = 30.0
SHARE = PodForm(limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000})


@pytest.fixture
def settings(slotwise: Slotwise) -> ClusterSettings:
    return slotwise.lab()


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
