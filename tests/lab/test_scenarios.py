"""The whole thing: API server, both services, kube-scheduler, kubelet and cards, over real HTTP and TLS."""

from pathlib import Path

import pytest

from lab.burst import BurstOptions, run_burst
from lab.cluster import Cluster, ClusterSettings
from lab.follow import SeenNode
from lab.nodes import CardSpec, NodeSpec
from lab.pods import pod_document
from lab.records import BurstResult, Record, ScenarioDone, StepDone
from lab.runner import run_scenario
from lab.scenario import (
    PodForm,
    Scenario,
    load_scenario,
    read_scenario,
    shipped_scenarios,
)
from lab.scheduling_queue import Backoff

HASTY = ClusterSettings(Backoff(initial_s=0.02, longest_s=0.1, flush_s=0.2), settle_s=1.0)

HEAD = """\
name: small
title: A small one
nodes: [{name: node-1, cards: [GPU-A, GPU-B]}]
pod: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 1000}}
steps:
"""


async def play(scenario: Scenario, settings: ClusterSettings | None = None) -> tuple[ScenarioDone, list[Record]]:
    records = [record async for record in run_scenario(scenario, settings)]
    done = records[-1]
    assert isinstance(done, ScenarioDone)
    return done, records


@pytest.mark.parametrize("path", shipped_scenarios().values(), ids=shipped_scenarios())
async def test_shipped_scenario_holds(path: Path) -> None:
    scenario = load_scenario(path)
    done, records = await play(scenario)
    assert done.problems == ()
    assert done.steps == len(scenario.steps) * scenario.rounds
    steps = [record for record in records if isinstance(record, StepDone)]
    assert len(steps) == done.steps


async def test_a_burst_one_by_one_takes_the_same_cards_again() -> None:
    options = BurstOptions(nodes=3, cards=2, pods=30, creators=1)
    digests = []
    for _ in range(2):
        async for record in run_burst(options):
            if isinstance(record, BurstResult):
                digests.append(record.digest)
    assert len(digests) == 2
    assert digests[0] == digests[1]


UNMET = {
    "other card": ('- create: {name: a}\n  expect: {allocated: "GPU-A,NVIDIA,1000,0:;"}\n', "allocated: expected"),
    "other cards": ("- create: {name: a}\n  expect: {cards: [GPU-A]}\n", "cards: expected ['GPU-A'], got ['GPU-B']"),
    "other node": ("- create: {name: a}\n  expect: {node: node-2}\n", "node: expected 'node-2', got 'node-1'"),
    "placed, not pending": ("- create: {name: a}\n  expect: {pending: x}\n", "pending: expected 'x', got None"),
    "placed, not denied": ("- create: {name: a}\n  expect: {denied: x}\n", "denied: expected 'x', got None"),
    "pending, not placed": (
        "- create: {name: a, limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 20000}}\n  expect: {cards: [GPU-A]}\n",
        "cards: expected ['GPU-A'], got None",
    ),
    "other refusal": (
        "- create: {name: a, limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 20000}}\n  expect: {pending: x}\n",
        "pending: expected 'x', got '0/1 nodes are available: 1 2/2 CardInsufficientMemory. preemption:",
    ),
    "denied without being asked": ("- create: {name: a, privileged: true}\n  expect: {node: node-1}\n", "denied: expected None, got 'container main is privileged'"),
    "other denial": (
        "- create: {name: a, privileged: true}\n  expect: {denied: because}\n",
        "denied: expected 'because', got 'container main is privileged'",
    ),
    "other limits": (
        "- create: {name: a}\n  expect: {limits: {nvidia.com/gpu: 2}}\n",
        "limits: expected {'nvidia.com/gpu': '2'}, got {'nvidia.com/gpu': '1', 'nvidia.com/gpumem': '1k'}",
    ),
    "other usage": (
        "- create: {name: a}\n- usage: {node-1/GPU-B: {slots: 1, memory_mib: 999}}\n",
        "ledger, node-1/GPU-B (slots, MiB, cores): expected (1, 999, 0), got (1, 1000, 0)",
    ),
    "other score": (
        "- create: {name: a}\n- scores: {pod: a, cards: {GPU-A: 1.5}}\n",
        "score of GPU-A: expected 1.500000, got 0.000000",
    ),
    "score of no card": ("- create: {name: a}\n- scores: {pod: a, cards: {GPU-C: 1}}\n", "score of GPU-C: expected 1.000000, got none"),
    "event that does not come": (
        "- create: {name: a}\n  expect: {events: [{reason: Nothing, message: such}]}\n",
        "event Nothing 'such' did not come; there were: ",
    ),
    "other quota": (
        "- create: {name: a}\n- quota_used: {namespace: default, memory_mib: 1, cores: 0, cards: 1}\n",
        "quota used by default (MiB, cores, cards): expected (1, 0, 1), got (1000, 0, 1)",
    ),
    "other annotation": (
        "- create: {name: a}\n  expect: {annotations: {hami.io/bind-phase: failed, b: null}}\n",
        "annotation hami.io/bind-phase: expected 'failed', got 'success'",
    ),
    "annotation that should not be": (
        "- create: {name: a}\n  expect: {annotations: {hami.io/vgpu-node: null}}\n",
        "annotation hami.io/vgpu-node: expected None, got 'node-1'",
    ),
    "other phase": ("- create: {name: a}\n  expect: {phase: Failed}\n", "phase: expected 'Failed', got 'Running'"),
    "failed instead of running": (
        "- create: {name: a, fail_allocate: true}\n  expect: {node: node-1}\n",
        "the fake kubelet did not run it: phase Failed Allocate failed: told to fail",
    ),
    "fewer at once": (
        "- create_together: [{name: a}, {name: b}]\n  expect: {placed: 1, waiting: 1}\n",
        "placed: expected 1, got 2",
    ),
    "pod that is not there": (
        "- create: {name: a, privileged: true}\n  expect: {denied: container main is privileged}\n- finish: a\n",
        "there is no pod default/a",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("steps", "problem"), UNMET.values(), ids=UNMET)
async def test_unmet_expectation_is_told(steps: str, problem: str) -> None:
    done, _ = await play(read_scenario(HEAD + steps, "x.yaml"), HASTY)
    assert not done.passed
    assert problem in "\n".join(done.problems)


async def test_scenario_goes_on_after_an_unmet_expectation() -> None:
    steps = "- create: {name: a}\n  expect: {node: node-2}\n- create: {name: b}\n  expect: {node: node-1}\n"
    done, _ = await play(read_scenario(HEAD + steps, "x.yaml"))
    assert done.steps == 2
    assert done.problems == ("step 1: node: expected 'node-2', got 'node-1'",)


async def test_node_lock_is_taken_and_released_where_a_plugin_needs_it() -> None:
    async with Cluster() as cluster:
        await cluster.add_node(NodeSpec("node-1", (CardSpec("GPU-A"),), node_lock=True))
        owners: set[str] = set()

        def node_changed(before: SeenNode | None, after: SeenNode | None) -> None:
            lock = after.node.annotations.get("hami.io/mutex.lock") if after else None
            if lock:
                owners.add(lock.rpartition(",")[2])

        cluster.nodes.listen(node_changed)
        default = PodForm(limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000})
        for name in ("a", "b", "c"):
            await cluster.create_pod(pod_document(PodForm(name=name), default), "default")

        def all_run() -> bool:
            return [pod.status.phase for pod in cluster.all_pods()] == ["Running"] * 3

        def unlocked() -> bool:
            return "hami.io/mutex.lock" not in cluster.nodes.objects["node-1"].node.annotations

        assert await cluster.pods.wait_for(all_run, 10)
        assert await cluster.nodes.wait_for(unlocked, 10)
        assert owners == {"a", "b", "c"}


async def burst(options: BurstOptions) -> BurstResult:
    records = [record async for record in run_burst(options)]
    result = records[-1]
    assert isinstance(result, BurstResult)
    return result


async def test_burst_places_all_with_one_write_each() -> None:
    result = await burst(BurstOptions(nodes=3, cards=2, pods=60, gpumem=1000))
    assert (result.placed, result.lost, result.writes_per_pod, result.violations) == (60, 0, 1.0, ())


async def test_burst_beyond_the_cards_loses_what_does_not_fit() -> None:
    result = await burst(BurstOptions(nodes=1, cards=1, pods=12, gpumem=1500, patience_s=0.5))
    assert (result.placed, result.lost, result.violations) == (10, 2, ())


@pytest.mark.parametrize("name", ["nodes", "cards", "pods", "gpumem", "creators"])
def test_burst_of_nothing(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is 0"):
        BurstOptions(**{name: 0})
