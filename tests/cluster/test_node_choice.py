"""Wishes that kube-scheduler weighs: honoured with `--node-choice=scheduler`, outvoted by the extender's own order without."""

from collections import Counter
from collections.abc import Iterator
from functools import partial

import pytest

from devices.kube.protocols import JsonObject
from lab.cluster import Cluster
from lab.control_plane import ADMIN
from lab.nodes import CardSpec, NodeSpec
from lab.pods import pod_document
from lab.scenario import PodForm
from tests.cluster.rendered import Changes
from tests.cluster.slotwise import Slotwise

SHARE = PodForm(limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000}, labels={"app": "wishes"})
KUBE_SCHEDULER_CHOOSES = Changes(
    key_writers=(ADMIN.name,),
    extender=("--node-choice=scheduler",),
    extender_fields={"prioritizeVerb": "prioritize", "weight": 1},
)
NEAR_NODE_2: JsonObject = {
    "affinity": {
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 100,
                    "preference": {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["fast"]}]},
                }
            ]
        }
    }
}
SPREAD: JsonObject = {
    "topologySpreadConstraints": [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {"app": "wishes"}},
        }
    ]
}


@pytest.fixture(scope="module")
def kube_scheduler_chooses(slotwise: Slotwise) -> Iterator[None]:
    slotwise.use(KUBE_SCHEDULER_CHOOSES)
    yield
    slotwise.use(Changes(key_writers=(ADMIN.name,)))


async def placed(cluster: Cluster, wish: JsonObject) -> Counter[str]:
    """Where four equal pods go, one after the other, on two equal nodes."""
    for name, labels in {"node-1": {}, "node-2": {"disk": "fast"}}.items():
        await cluster.add_node(NodeSpec(name, (CardSpec(f"GPU-{name}"),), labels=labels))
    nodes: Counter[str] = Counter()
    for number in range(4):
        name = f"pod-{number}"
        document = pod_document(PodForm(name=name), SHARE)
        spec = document["spec"]
        assert isinstance(spec, dict)
        await cluster.create_pod({**document, "spec": {**spec, **wish}}, "default")

        assert await cluster.pods.wait_for(partial(is_bound, cluster, name), cluster.settings.settle_s)
        pod = cluster.pod("default", name)
        nodes[pod.bound_node if pod else ""] += 1
    return nodes


def is_bound(cluster: Cluster, name: str) -> bool:
    pod = cluster.pod("default", name)
    return pod is not None and bool(pod.bound_node)


WISHES = {
    "soft node affinity": (NEAR_NODE_2, {"node-2": 4}),
    "soft topology spread": (SPREAD, {"node-1": 2, "node-2": 2}),
}


@pytest.mark.parametrize("wish", [wish for wish, _ in WISHES.values()], ids=list(WISHES))
async def test_the_extender_fills_its_first_node(cluster: Cluster, wish: JsonObject) -> None:
    assert await placed(cluster, wish) == {"node-1": 4}


@pytest.mark.usefixtures("kube_scheduler_chooses")
@pytest.mark.parametrize(("wish", "expected"), WISHES.values(), ids=WISHES)
async def test_kube_scheduler_honours_the_wish(cluster: Cluster, wish: JsonObject, expected: dict[str, int]) -> None:
    assert await placed(cluster, wish) == expected
