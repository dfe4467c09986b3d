import json
from pathlib import Path

import pytest

from lab.errors import ScenarioError
from lab.families import every_family
from lab.nodes import CardSpec, node_document
from lab.scenario import (
    Expect,
    load_scenario,
    read_scenario,
    scenario_groups,
    shipped_scenarios,
)

HEAD = """\
name: small
title: A small one
nodes:
- name: node-1
  card: {memory_mib: 8000, healthy: false}
  cards: [GPU-A, {uuid: GPU-B, numa: 1, healthy: true, memory_mib: 0}]
steps:
"""


def test_a_scenario_becomes_frozen_values() -> None:
    scenario = read_scenario(
        HEAD
        + "- create: {name: a, limits: {nvidia.com/gpu: 1}}\n"
        + '  expect: {allocated: "GPU-B,NVIDIA,1000,0:;"}\n'
        + "- delete: default/a\n",
        "small.yaml",
    )
    assert scenario.nodes[0].cards == (
        CardSpec("GPU-A", memory_mib=8000, healthy=False),
        CardSpec("GPU-B", memory_mib=0, numa=1, healthy=True),
    )
    assert [step.action for step in scenario.steps] == ["create", "delete"]
    assert scenario.steps[0].expect == Expect(allocated="GPU-B,NVIDIA,1000,0:;")
    assert scenario.rounds == 1


WRONG = {
    "unknown key at the top": ("nmae: x\n" + HEAD + "- delete: a\n", "x.yaml:1: nmae: unknown key"),
    "unknown key of a node": (
        HEAD.replace("card:", "crad:") + "- delete: a\n",
        "x.yaml:5: nodes[0].crad: unknown key",
    ),
    "unknown key of a pod": (HEAD + "- create: {name: a, limit: {}}\n", "x.yaml:8: steps[0].create.limit: unknown key"),
    "unknown expectation": (
        HEAD + "- create: {name: a}\n  expect:\n    crads: [A]\n",
        "x.yaml:10: steps[0].expect.crads: unknown key",
    ),
    "missing title": ("name: x\nsteps: []\n", "x.yaml:1: object missing required field `title`"),
    "wrong type": (
        HEAD + "- create:\n    name: 5\n",
        "x.yaml:9: steps[0].create.name: expected `str`, got `int`",
    ),
    "wrong type in a mapping": (
        HEAD + "- create:\n    name: a\n    limits:\n      nvidia.com/gpu: [1]\n",
        "x.yaml:10: steps[0].create.limits: expected `int | str`, got `array`",
    ),
    "annotation that is no text": (
        HEAD + "- create:\n    name: a\n    annotations: {x: true}\n",
        "x.yaml:10: steps[0].create.annotations: expected `str`, got `bool`",
    ),
    "no YAML": ("name: [\n", "x.yaml: no YAML: "),
    "nested so deeply that it ended in a traceback": ("[" * 3000, "x.yaml: no YAML: maximum recursion depth"),
    "a date that is none ended in a traceback": ("name: 2026-13-01\n", "x.yaml: no YAML: month must be in 1..12"),
    "no mapping": ("- a\n", "x.yaml:1: expected `object`, got `array`"),
    "key twice": (HEAD + "- create: {name: a}\n  create: {name: b}\n", "x.yaml:9: steps[0].create: stands twice"),
    "no action": (HEAD + "- title: hello\n", "x.yaml:8: steps[0]: a step needs exactly one of create, "),
    "two actions": (
        HEAD + "- create: {name: a}\n  delete: a\n",
        "this one has 2: create, delete",
    ),
    "no steps": (HEAD.replace("steps:\n", "steps: []\n"), "x.yaml:7: steps: a scenario needs at least one step"),
    "pod without a name": (HEAD + "- create: {limits: {}}\n", "x.yaml:8: steps[0].create: a pod needs a name"),
    "pod nobody created": (
        HEAD + "- create: {name: a}\n- finish: b\n",
        "x.yaml:9: steps[1].finish: no earlier step creates a pod 'b'",
    ),
    "scores of a pod nobody created": (
        HEAD + "- scores: {pod: b, cards: {}}\n",
        "steps[0].scores: no earlier step creates a pod 'b'",
    ),
    "card that is not there": (
        HEAD + "- usage:\n    node-1/GPU-C: {slots: 0, memory_mib: 0}\n",
        "x.yaml:9: steps[0].usage.node-1/GPU-C: no such card; known are node-1/GPU-A, node-1/GPU-B",
    ),
    "node with nothing": (
        HEAD.replace("steps:", "- {name: node-2, labels: {a: b}}\nsteps:") + "- fresh_cluster: true\n",
        "x.yaml:7: nodes[1]: a node needs cards, or annotations or capacity that tell of some",
    ),
    "look without an expectation": (
        HEAD + "- create: {name: a}\n- pod: a\n",
        "x.yaml:9: steps[1]: pod needs an expect",
    ),
    "expectation of a deletion": (
        HEAD + "- create: {name: a}\n- delete: a\n  expect: {node: n}\n",
        "x.yaml:10: steps[1].expect: delete takes no expect",
    ),
    "count for one pod": (
        HEAD + "- create: {name: a}\n  expect: {placed: 0}\n",
        "x.yaml:9: steps[0].expect: placed are for create_together",
    ),
    "cards of many pods": (
        HEAD + "- create_together: [{name: a}]\n  expect: {cards: [GPU-A], placed: 1}\n",
        "x.yaml:9: steps[0].expect: create_together takes placed and waiting only",
    ),
    "placed and pending": (
        HEAD + "- create: {name: a}\n  expect: {node: n, pending: x}\n",
        "x.yaml:9: steps[0].expect: a pod is placed, pending or denied: one of these",
    ),
    "existing pod denied": (
        HEAD + "- create: {name: a}\n- pod: a\n  expect: {denied: x}\n",
        "x.yaml:10: steps[1].expect.denied: a pod that exists was not denied",
    ),
    "card twice": (
        HEAD.replace("uuid: GPU-B", "uuid: GPU-A") + "- fresh_cluster: true\n",
        "x.yaml:6: nodes[0].cards[1]: card GPU-A stands twice on node node-1",
    ),
    "card that allocations cannot name": (
        HEAD.replace("uuid: GPU-B", "uuid: 'GPU:B'") + "- fresh_cluster: true\n",
        "x.yaml:6: nodes[0].cards[1]: uuid 'GPU:B' must not be empty nor hold , : or ;",
    ),
    "no rounds": ("rounds: 0\n" + HEAD + "- fresh_cluster: true\n", "x.yaml:1: rounds: is 0; at least 1 is needed"),
    "fresh cluster, false": (HEAD + "- fresh_cluster: false\n", "x.yaml:8: steps[0].fresh_cluster: false does nothing"),
    "burst of nothing": (
        HEAD + "- burst: {nodes: 1, cards: 1, pods: 0, placed: 0}\n",
        "x.yaml:8: steps[0].burst: nodes, cards and pods must be at least 1",
    ),
}


@pytest.mark.parametrize(("text", "error"), WRONG.values(), ids=WRONG)
def test_anything_not_understood_is_an_error(text: str, error: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        read_scenario(text, "x.yaml")
    assert error in str(caught.value)


def test_cards_of_any_family_are_written_as_their_plugin_announces_them() -> None:
    scenario = read_scenario(
        HEAD.replace(
            "steps:", "- {name: node-2, capacity: {a.com/gpu: 2}, annotations: {x: [{id: 1}], y: '[z]'}}\nsteps:"
        )
        + "- usage: {node-2/whatever: {slots: 0, memory_mib: 0}}\n",
        "x.yaml",
    )
    node = scenario.nodes[1]
    assert (node.cards, node.capacity, node.annotations) == ((), {"a.com/gpu": "2"}, {"x": '[{"id":1}]', "y": "[z]"})
    document = json.loads(json.dumps(node_document(node)))
    assert document["metadata"]["annotations"] == {**node.annotations, "slotwise.io/node-lock": "none"}
    assert document["status"]["allocatable"]["a.com/gpu"] == "2"
    assert "nvidia.com/gpu" not in document["status"]["capacity"]


def test_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"none\.yaml: cannot be read"):
        load_scenario(tmp_path / "none.yaml")


def test_every_shipped_file_is_named_after_its_scenario() -> None:
    names = {name: load_scenario(path).name for name, path in shipped_scenarios().items()}
    assert list(scenario_groups()) == ["vendors"]
    assert set(names) >= {"mixed", *scenario_groups()["vendors"]}
    assert set(names) >= {"burst", "four-cards", "mutex", "privileged", "quota", "shares"}
    assert all(name == stem for stem, name in names.items())


def test_every_family_has_a_scenario() -> None:
    asked = set()
    for path in scenario_groups()["vendors"].values():
        scenario = load_scenario(path)
        pods = [pod for step in scenario.steps for pod in [step.create] if pod is not None]
        limits = [scenario.pod.limits, *(pod.limits for pod in pods)]
        asked |= {name for each in limits for name in each or ()}
    silent = [vendor.key for vendor in every_family().vendors if vendor.names.isdisjoint(asked)]
    # Of a family with a vendor for each chip some chips are enough: they share everything but names.
    assert [key for key in silent if not key.startswith(("Ascend", "BI-", "MR-"))] == []
    assert not {"Ascend310P", "Ascend910B3", "Ascend910C", "BI-V150", "MR-V100"} & set(silent)
