"""The lab on a control plane that is there already: here the embedded one, reached by a kubeconfig as a real one would be."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from devices.kube.protocols import JsonObject
from devices.kube.resources import NODES, PODS
from lab.cluster import Cluster, ClusterSettings
from lab.embedded import EmbeddedBackend
from lab.errors import LabError
from lab.external import ExternalSettings
from lab.follow import follow_nodes, follow_pods
from lab.nodes import CardSpec, NodeSpec
from lab.pods import pod_document
from lab.records import ScenarioDone
from lab.runner import run_scenario
from lab.scenario import PodForm, load_scenario, read_scenario, shipped_scenarios
from lab.scheduling_queue import Backoff

SETTLE_S = 5.0
LAG_S = 0.05


@dataclass
class ThereAlready:
    """An API server with Slotwise and kube-scheduler, and the file that leads to it."""

    backend: EmbeddedBackend
    settings: ClusterSettings

    def names(self, resource: str) -> list[str]:
        return sorted(str(_metadata(item)["name"]) for item in self.backend.api.objects(resource))


def _metadata(item: JsonObject) -> JsonObject:
    found = item["metadata"]
    assert isinstance(found, dict)
    return found


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[ThereAlready]:
    async with AsyncExitStack() as stack:
        backend = EmbeddedBackend(Backoff(initial_s=0.05, longest_s=0.5, flush_s=0.5))
        await backend.start(stack)
        client = await backend.new_client(stack, "test")
        pods, nodes = follow_pods(client), follow_nodes(client)
        await backend.start_scheduler(stack, pods, nodes)
        for part in (nodes, pods):
            await part.start()
            stack.push_async_callback(part.stop)
        kubeconfig = tmp_path / "kubeconfig"
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": backend.address}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        kubeconfig.write_text(json.dumps(document))
        external = ExternalSettings(str(kubeconfig), backend.views, LAG_S)
        yield ThereAlready(backend, ClusterSettings(settle_s=SETTLE_S, external=external))


async def test_a_scenario_holds_and_nothing_is_left(there: ThereAlready) -> None:
    before = there.names("namespaces")
    records = [r async for r in run_scenario(load_scenario(shipped_scenarios()["four-cards"]), there.settings)]
    done = records[-1]
    assert isinstance(done, ScenarioDone)
    assert done.problems == ()
    assert (there.names("nodes"), there.names("pods"), there.names("namespaces")) == ([], [], before)


async def test_quotas_go_with_the_cluster(there: ThereAlready) -> None:
    async with Cluster(there.settings) as cluster:
        await cluster.put_quota("default", "tight", {"limits.nvidia.com/gpumem": "1000"})
        assert there.names("resourcequotas") == ["tight"]
    assert there.names("resourcequotas") == []


async def test_nodes_show_signs_of_life(there: ThereAlready) -> None:
    async with Cluster(there.settings) as cluster:
        await cluster.add_node(NodeSpec("node-1", (CardSpec("GPU-A"),)))
        node = cluster.nodes.objects["node-1"]
        assert await cluster.settled(lambda: there.names("leases") == ["node-1"])
        (lease,) = there.backend.api.objects("leases")
        assert _metadata(lease)["ownerReferences"] == [
            {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": node.uid}
        ]


async def test_a_cluster_with_nodes_of_its_own_is_left_alone(there: ThereAlready) -> None:
    async with Cluster(there.settings) as first:
        await first.add_node(NodeSpec("theirs", (CardSpec("GPU-A"),)))
        with pytest.raises(LabError, match=r"has nodes that take pods \(theirs\): the lab brings its own and needs"):
            async with Cluster(there.settings):
                pass
        assert there.names("nodes") == ["theirs"]


async def test_closed_nodes_are_left_alone_and_not_counted(there: ThereAlready) -> None:
    async with AsyncExitStack() as stack:
        client = await there.backend.new_client(stack, "somebody else")
        taint = {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}
        await client.create(NODES, {"metadata": {"name": "closed"}, "spec": {"taints": [taint]}})
        await client.create(NODES, {"metadata": {"name": "cordoned"}, "spec": {"unschedulable": True}})
        containers = [{"name": "main", "image": "pause"}]
        spec = {"nodeName": "closed", "schedulerName": "other", "containers": containers}
        system = {"metadata": {"name": "system"}, "spec": spec}
        await client.create(PODS, system, "default")
        before = there.backend.api.objects("nodes")
        async with Cluster(there.settings) as cluster:
            await cluster.add_node(NodeSpec("node-1", (CardSpec("GPU-A"),)))
            assert list(cluster.nodes.objects) == ["node-1"]
            assert cluster.all_pods() == []
            assert await cluster.settled(lambda: there.names("leases") == ["node-1"])
        assert there.backend.api.objects("nodes") == before
        assert there.names("pods") == ["system"]


async def test_a_kubeconfig_that_is_not_there(tmp_path: Path) -> None:
    settings = ClusterSettings(external=ExternalSettings(str(tmp_path / "none")))
    with pytest.raises(LabError, match="no such file"):
        async with Cluster(settings):
            pass


async def test_scores_need_to_know_the_scheduler(there: ThereAlready) -> None:
    assert there.settings.external is not None
    blind = ClusterSettings(
        settle_s=SETTLE_S, external=ExternalSettings(there.settings.external.kubeconfig, None, LAG_S)
    )
    scenario = read_scenario(
        "name: blind\ntitle: Blind\nnodes: [{name: node-1, cards: [GPU-A]}]\n"
        "pod: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 1000}}\n"
        "steps:\n- create: {name: a}\n- scores: {pod: a, cards: {GPU-A: 0}}\n",
        "blind.yaml",
    )
    done = [record async for record in run_scenario(scenario, blind)][-1]
    assert isinstance(done, ScenarioDone)
    assert done.problems == ("step 2: the decision for default/a cannot be asked for without --scheduler-url",)


async def test_pods_that_others_made_stay(there: ThereAlready) -> None:
    async with AsyncExitStack() as stack:
        client = await there.backend.new_client(stack, "somebody else")
        document = pod_document(PodForm(name="theirs", scheduler="other"), PodForm())
        async with Cluster(there.settings) as cluster:
            await cluster.create_pod(pod_document(PodForm(name="ours", scheduler="other"), PodForm()), "default")
            await client.create(PODS, document, "default")
        assert there.names("pods") == ["theirs"]
