"""What a decision reads of a pod: policies, weights, and a shape that differs wherever an answer might."""

import pytest

from devices.errors import MalformedValue, WeightsError
from devices.objects import Pod
from devices.score import Weights
from tests.builders import container_document, pod
from tests.scheduler.builders import ask

CARD, NODE = "hami.io/gpu-scheduler-policy", "hami.io/node-scheduler-policy"

CARD_POLICIES = {
    "absent: the cluster's": ({}, "binpack", ()),
    "blank is absent": ({CARD: "  "}, "binpack", ()),
    "empty is absent": ({CARD: ""}, "binpack", ()),
    "a word": ({CARD: "numa"}, "numa", ()),
    "a single word is trimmed": ({CARD: " mutex "}, "mutex", ()),
    "a chain stays as written": ({CARD: "numa, spread"}, "numa, spread", ()),
    "a comma alone overrides": ({CARD: ","}, ",", ()),
    "case counts": ({CARD: "Spread"}, "Spread", ('unknown card policy word "Spread" acts as spread',)),
    "unknown words are named one by one": (
        {CARD: "binpack,best,,fast"},
        "binpack,best,,fast",
        ('unknown card policy word "best" acts as spread', 'unknown card policy word "fast" acts as spread'),
    ),
}


@pytest.mark.parametrize(("annotations", "policy", "warnings"), CARD_POLICIES.values(), ids=CARD_POLICIES)
def test_card_policy(annotations: dict[str, str], policy: str, warnings: tuple[str, ...]) -> None:
    found = ask(pod(annotations=annotations), card_policy="binpack")
    assert (found.card_policy, found.warnings) == (policy, warnings)


NODE_POLICIES = {
    "absent: the cluster's": ({}, "spread", ()),
    "blank is absent": ({NODE: " "}, "spread", ()),
    "trimmed": ({NODE: " binpack "}, "binpack", ()),
    "unknown acts as binpack": ({NODE: "Spread"}, "binpack", ('unknown node policy "Spread" acts as binpack',)),
}


@pytest.mark.parametrize(("annotations", "policy", "warnings"), NODE_POLICIES.values(), ids=NODE_POLICIES)
def test_node_policy(annotations: dict[str, str], policy: str, warnings: tuple[str, ...]) -> None:
    found = ask(pod(annotations=annotations), node_policy="spread")
    assert (found.node_policy, found.warnings) == (policy, warnings)


def test_weights_and_what_cannot_be_used() -> None:
    key = "hami.io/device-scoring-weights"
    assert ask(pod(annotations={key: "memory=3, slot=1,core=0"})).weights == Weights(1, 0, 3)
    with pytest.raises(WeightsError, match="expected slot, core, and memory weights"):
        ask(pod(annotations={key: "slot=1"}))
    with pytest.raises(MalformedValue, match=r"invalid nvidia.com/gpumem value 16Gi in container main"):
        ask(pod(container_document(gpu=1, gpumem="16Gi")))


ALIKE: dict[str, Pod] = {
    "the base": pod(container_document(gpu=1, gpumem=1000)),
    "count": pod(container_document(gpu=2, gpumem=1000)),
    "memory": pod(container_document(gpu=1, gpumem=1001)),
    "percentage": pod(container_document(gpu=1, percentage=50)),
    "whole card": pod(container_document(gpu=1)),
    "cores": pod(container_document(gpu=1, gpumem=1000, gpucores=1)),
    "a container's name, which refusals carry": pod(container_document("other", gpu=1, gpumem=1000)),
    "position": pod(container_document("p"), container_document(gpu=1, gpumem=1000)),
    "an init container": pod(container_document("p"), init=[container_document(gpu=1, gpumem=1000)]),
    "a sidecar": pod(container_document("p"), init=[container_document(gpu=1, gpumem=1000, sidecar=True)]),
    "twice": pod(*[container_document(gpu=1, gpumem=1000)] * 2),
    **{
        f"{key} {value}": pod(annotations={key: value})
        for key, value in (
            (CARD, "binpack"),
            (CARD, "binpack,"),
            (NODE, "spread"),
            ("hami.io/device-scoring-weights", "slot=2,core=1,memory=1"),
            ("nvidia.com/use-gputype", "T4"),
            ("nvidia.com/nouse-gputype", "T4"),
            ("nvidia.com/use-gpuuuid", "T4"),
            ("nvidia.com/nouse-gpuuuid", "T4"),
            ("nvidia.com/numa-bind", "true"),
            ("nvidia.com/vgpu-mode", "mig"),
        )
    },
}


@pytest.mark.parametrize("what", ALIKE)
def test_pods_that_differ_in_one_input_have_different_shapes(what: str) -> None:
    shape = ask(ALIKE[what]).shape
    assert [other for other, theirs in ALIKE.items() if ask(theirs).shape == shape] == [what]


def test_what_no_answer_depends_on_is_not_in_the_shape() -> None:
    """Pods of one workload share what is remembered: their own names, users' annotations and versions do not count."""
    other = pod(name="b", namespace="else", annotations={"team": "x", "hami.io/vgpu-node": "n9"}, version=77)
    assert ask(pod()).shape == ask(other).shape
    assert hash(ask(pod()).shape) == hash(ask(other).shape)
    assert ask(pod(annotations={CARD: "spread"})).shape == ask(pod()).shape
