"""The drop-in on a real control plane: HAMi's roles, HAMi's kube-scheduler configuration and webhook, our image."""

import asyncio
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from devices.kube.errors import ApiStatusError
from devices.kube.resources import PODS
from lab.cluster import Cluster, ClusterSettings
from lab.control_plane import ControlPlane
from lab.external import ExternalSettings
from lab.nodes import CardSpec, NodeSpec
from lab.pods import pod_document
from lab.scenario import PodForm
from tests.cluster.hami import POD, Hami
from tests.cluster.switch import a_binding_carries_labels
from tests.drop_in.chart import EXTENDER, NAMESPACE, deployment
from tests.drop_in.hami_reader import held_by

SETTLE_S = 40.0
SHARE = PodForm(limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000})


@pytest.fixture(scope="module")
def hami(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hami]:
    with Hami(control_plane, tmp_path_factory.mktemp("hami")) as running:
        yield running


@pytest.fixture
async def cluster(control_plane: ControlPlane, hami: Hami) -> AsyncIterator[Cluster]:
    external = ExternalSettings(str(control_plane.kubeconfig()), hami.views)
    async with Cluster(ClusterSettings(settle_s=SETTLE_S, external=external)) as cluster:
        await cluster.add_node(NodeSpec("node-1", (CardSpec("GPU-A"), CardSpec("GPU-B")), node_lock=True))
        yield cluster


async def until_running(cluster: Cluster, *names: str) -> None:
    def all_run() -> bool:
        pods = [cluster.pod("default", name) for name in names]
        return all(pod is not None and pod.status.phase == "Running" for pod in pods)

    assert await cluster.pods.wait_for(all_run, SETTLE_S), cluster.all_pods()


async def test_pods_run_with_hami_s_rights_alone(control_plane: ControlPlane, hami: Hami, cluster: Cluster) -> None:
    before = len(list(control_plane.audited()))
    names = [f"share-{number}" for number in range(4)]
    for name in names:
        await cluster.create_pod(pod_document(PodForm(name=name), SHARE), "default")
    await until_running(cluster, *names)
    calls = [call for call in list(control_plane.audited())[before:] if call.user == hami.user]
    assert [call for call in calls if call.code in (401, 403)] == []
    bound = Counter(call.name for call in calls if call.resource == "pods/binding" and call.code == 201)
    assert bound == Counter(names)
    # The role label and the heartbeat are on its own pod; nobody else's is written to but by the Binding, and its label on 1.34.
    written = Counter(call.name for call in calls if call.is_write and call.resource == "pods" and call.name != POD)
    assert written == (Counter() if a_binding_carries_labels() else Counter(names))
    for name in names:
        stored = await cluster.client.get(PODS, name, "default")
        (held,) = held_by(stored)
        assert (held.family, held.memory_mib) == ("NVIDIA", 3000)


async def test_the_chart_s_service_finds_the_leader(hami: Hami) -> None:
    async with asyncio.timeout(SETTLE_S):
        while hami.role() != "leader":  # noqa: ASYNC110 - the label announces itself to nobody
            await asyncio.sleep(0.1)


async def test_quota_is_checked_at_creation(cluster: Cluster) -> None:
    await cluster.put_quota("default", "small", {"limits.nvidia.com/gpumem": "4000"})
    await cluster.create_pod(pod_document(PodForm(name="fits"), SHARE), "default")
    await until_running(cluster, "fits")
    with pytest.raises(ApiStatusError, match=r"exceeding resource quota: default/small limits\.nvidia\.com/gpumem"):
        await cluster.create_pod(pod_document(PodForm(name="over"), SHARE), "default")


async def test_a_privileged_pod_is_refused_in_hami_s_words(cluster: Cluster) -> None:
    with pytest.raises(
        ApiStatusError, match=r'admission webhook "vgpu\.hami\.io" denied the request: container main is privileged'
    ):
        await cluster.create_pod(pod_document(PodForm(name="root", privileged=True), SHARE), "default")


async def test_a_pod_that_hami_left_half_way_is_placed_anew(cluster: Cluster) -> None:
    document: Any = pod_document(
        PodForm(name="half", scheduler="hami-scheduler", labels={"hami.io/webhook": "ignore"}), SHARE
    )
    document["metadata"]["annotations"] = {
        "hami.io/vgpu-node": "node-gone",
        "hami.io/vgpu-time": str(int(time.time()) - 60),
        "hami.io/vgpu-devices-to-allocate": "GPU-X,NVIDIA,3000,0:;",
        "hami.io/vgpu-devices-allocated": "GPU-X,NVIDIA,3000,0:;",
        "hami.io/bind-phase": "allocating",
    }
    await cluster.create_pod(document, "default")
    await until_running(cluster, "half")
    (held,) = held_by(await cluster.client.get(PODS, "half", "default"))
    assert held.uuid in {"GPU-A", "GPU-B"}


def test_the_overlay_changes_one_image_of_an_installed_hami(control_plane: ControlPlane, hami: Hami) -> None:
    deployments = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
    installed: Any = control_plane.create(deployments, deployment())
    try:
        overlay = subprocess.run(
            [sys.executable, "-m", "cli", "manifests", "hami-drop-in"], capture_output=True, text=True, check=True
        )
        applied = subprocess.run(
            [
                *(str(control_plane.programs.kubectl), f"--kubeconfig={control_plane.kubeconfig()}"),
                *("apply", "--server-side", "--force-conflicts", "-f", "-"),
            ],
            input=overlay.stdout,
            capture_output=True,
            text=True,
            check=False,
        )
        assert applied.returncode == 0, applied.stderr
        _, found = control_plane.request("GET", f"{deployments}/hami-scheduler")
        changed: Any = found
        for container in changed["spec"]["template"]["spec"]["containers"]:
            if container["name"] == EXTENDER:
                assert container["image"].startswith("slotwise:")
                container["image"] = "docker.io/projecthami/hami:v2.10.0"
        assert changed["spec"] == installed["spec"]
    finally:
        control_plane.request("DELETE", f"{deployments}/hami-scheduler")
