"""What one placed pod costs the API server, by its own audit log: one write, one more with a node lock, one more for the label on 1.34."""

from collections import Counter

import pytest

from lab.cluster import Cluster
from lab.control_plane import AuditedCall, ControlPlane
from lab.nodes import CardSpec, NodeSpec
from lab.pods import pod_document
from lab.scenario import PodForm
from tests.cluster.slotwise import Slotwise
from tests.cluster.switch import a_binding_carries_labels

SHARE = PodForm(limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000})
NAMES = [f"share-{number}" for number in range(5)]
NODE = "node-1"


def is_counted(call: AuditedCall) -> bool:
    """What was stored of this test's pods and node: pods that others left waiting are placed meanwhile. Events are apart."""
    is_stored = call.is_write and call.code in (200, 201)
    return is_stored and call.resource != "events" and call.namespace in ("", "default") and call.name in (*NAMES, NODE)


@pytest.mark.parametrize("node_lock", [False, True], ids=["without a node lock", "with a node lock"])
async def test_writes_for_each_placed_pod(
    node_lock: bool, control_plane: ControlPlane, slotwise: Slotwise, cluster: Cluster
) -> None:
    await cluster.add_node(NodeSpec(NODE, (CardSpec("GPU-A"), CardSpec("GPU-B")), node_lock=node_lock))
    before = len(list(control_plane.audited()))
    for name in NAMES:
        await cluster.create_pod(pod_document(PodForm(name=name), SHARE), "default")

    def all_run() -> bool:
        pods = [cluster.pod("default", name) for name in NAMES]
        return all(pod is not None and pod.status.phase == "Running" for pod in pods)

    assert await cluster.pods.wait_for(all_run, cluster.settings.settle_s), cluster.all_pods()
    calls = [call for call in list(control_plane.audited())[before:] if is_counted(call)]
    ours = Counter((call.verb, call.resource, call.name) for call in calls if call.user == slotwise.scheduler_user)
    expected = Counter(("create", "pods/binding", name) for name in NAMES)
    if node_lock:
        expected["patch", "nodes", NODE] = len(NAMES)
    if not a_binding_carries_labels():
        expected += Counter(("patch", "pods", name) for name in NAMES)
    assert ours == expected
