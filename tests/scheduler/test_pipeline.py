"""Screen and memo may be faster than the evaluator, never different; order of names, vendors with scores of their own."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devices.config import DeviceConfig
from devices.errors import MalformedValue, WeightsError
from devices.fit import Headroom
from devices.ledger import Ledger
from devices.model import NO_CHARGE, Entry, NodeState
from devices.objects import Pod
from devices.reasons import NODE_UNREGISTERED
from devices.vendor import ScoreContext, Vendor
from scheduler.ask import Ask, Defaults, ask_of
from scheduler.engine import Engine, Filtered
from scheduler.evaluate import Fit, Headrooms, NotFit, Verdict, evaluate
from scheduler.memo import Memo
from scheduler.pipeline import Pipeline
from scheduler.policies import NODE_POLICIES
from tests.builders import card, container_document, entry, node, pod, quota
from tests.scheduler.builders import CONFIG, World, ask
from tests.scheduler.histories import Step, nodes, steps

DEFAULTS = Defaults()


def headrooms_of(ledger: Ledger, namespace: str) -> Headrooms:
    limits = {name: limit.value for name, limit in ledger.limits(namespace).items()}
    used = ledger.used(namespace)
    found = {v.key: v.headroom_of(limits, used.get(v.key, NO_CHARGE)) for v in ledger.config.vendors}
    return {key: headroom for key, headroom in found.items() if headroom is not None}


class Plainly:
    """What every offered node answers to the pod, evaluated one by one without screen or memory."""

    def __init__(self, ledger: Ledger, pod: Pod, names: Sequence[str]) -> None:
        self.ask = ask_of(pod, ledger.config, DEFAULTS)
        headrooms = headrooms_of(ledger, pod.namespace)
        states = {name: state for name in names if (state := ledger.state(name)) is not None}
        self.verdicts: dict[str, Verdict] = {
            name: evaluate(state, self.ask, ledger.config, headrooms) for name, state in states.items()
        }
        self.failed = {n: v.text for n, v in self.verdicts.items() if isinstance(v, NotFit)}
        self.failed |= {name: NODE_UNREGISTERED for name in names if name not in states}
        fits = {name: verdict for name, verdict in self.verdicts.items() if isinstance(verdict, Fit)}
        factor = NODE_POLICIES[self.ask.node_policy]
        self.node = min(fits, key=lambda name: (factor * fits[name].score, name)) if fits else None
        self.allocation = fits[self.node].allocation if self.node is not None else None

    def agrees_with(self, found: Filtered) -> None:
        assert found.decision is not None
        assert (found.nodes, found.allocation) == ((self.node,) if self.node else None, self.allocation)
        complete = found.decision.complete()
        assert complete.verdicts == self.verdicts
        assert dict(complete.failed) == self.failed
        assert complete.evaluated == complete.offered


@given(st.data(), st.sampled_from((1, 2, 256)))
def test_screen_and_memory_never_change_an_answer(data: st.DataObject, shapes: int) -> None:
    ledger = Ledger(CONFIG)
    engine = Engine(ledger, DEFAULTS, shapes=shapes)
    for n in data.draw(st.lists(nodes(), min_size=1, max_size=4)):
        ledger.put_node(n)
    whats = ("filter", "filter", "filter", "filter", "delete", "node", "gone", "quota")
    for step in data.draw(st.lists(steps(whats), min_size=1, max_size=14)):
        change(ledger, engine, step)


def change(ledger: Ledger, engine: Engine, step: Step) -> None:
    if step.what == "delete":
        ledger.release(step.pod.uid)
    elif step.what == "node":
        ledger.put_node(step.node)
    elif step.what == "gone":
        ledger.delete_node(step.node.name)
    elif step.what == "quota":
        ledger.put_quota(quota("q", step.pod.namespace, gpumem=step.limit, gpu=3))
    else:
        ledger.answer(step.pod, 0.0)
        try:
            plainly = Plainly(ledger, step.pod, step.names)
        except (MalformedValue, WeightsError):
            plain = not any(c.resources for c in (*step.pod.init_containers, *step.pod.containers))
            assert engine.filter(step.pod, step.names, 0.0).outcome == ("plain" if plain else "malformed")
            return
        found = engine.filter(step.pod, step.names, 0.0)
        if found.outcome == "plain":
            assert found.nodes == step.names
        else:
            plainly.agrees_with(found)
            assert set(found.nodes or ()) <= set(step.names)
            assert set(found.failed or ()) <= set(step.names)


@given(st.data())
def test_order_of_offered_names_and_of_nodes_never_matters(data: st.DataObject) -> None:
    listed = data.draw(st.lists(nodes(), min_size=1, max_size=5))
    step = data.draw(steps(("filter",)))
    answers = []
    for around in (list, lambda names: list(reversed(list(names)))):
        ledger = Ledger(CONFIG)
        for n in around({n.name: n for n in listed}.values()):
            ledger.put_node(n)
        found = Engine(ledger, DEFAULTS).filter(step.pod, around(step.names), 0.0)
        if found.outcome == "plain":
            return
        answers.append((found.nodes, found.allocation, found.failed, found.unresolvable, found.error))
    assert answers[0] == answers[1]


def test_ties_between_nodes_go_by_name() -> None:
    for policy in ("binpack", "spread"):
        world = World(*(node(name, card(f"g-{name}")) for name in ("n3", "n1", "n2")))
        asked = pod(annotations={"hami.io/node-scheduler-policy": policy})
        assert world.filter(asked, "n2", "n3", "n1").nodes == ("n1",)


def test_a_name_offered_twice_counts_once() -> None:
    """It was counted as another node in the Event of the placement."""
    world = World(node("n1", card()))
    found = world.filter(pod(), "n1", "n1")
    assert found.decision is not None
    assert (found.nodes, found.decision.offered, found.decision.evaluated) == (("n1",), 1, 1)


def test_the_refusal_names_the_container_of_this_pod_and_not_of_a_like_one_before() -> None:
    """Outcomes are remembered by shape, and a refusal carries the container's name."""
    world = World(node("n1", card(memory_mib=500)))
    named = []
    for name in ("first", "second"):
        found = world.filter(pod(container_document(name, gpu=1, gpumem=1000), name=name))
        assert found.decision is not None
        verdict = found.decision.verdicts["n1"]
        assert isinstance(verdict, NotFit)
        named.append(verdict.container)
    assert named == ["first", "second"]


class Counted:
    """The names of the nodes that a pipeline evaluates."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.evaluated: list[str] = []
        monkeypatch.setattr("scheduler.pipeline.evaluate", self._evaluate)

    def _evaluate(self, state: NodeState, *rest: object) -> Verdict:
        self.evaluated.append(state.name)
        return evaluate(state, *rest)  # type: ignore[arg-type]  # passed on as they came


def filled(**used_mib: int) -> Ledger:
    """A ledger of nodes with one card each, so much of it in use."""
    ledger = Ledger(CONFIG)
    for name, used in used_mib.items():
        ledger.put_node(node(name, card(f"g-{name}")))
        if used:
            ledger.reserve(pod(name=f"on-{name}"), name, ((entry(f"g-{name}", used),),), 0.0)
    return ledger


def test_best_first_stops_at_the_first_that_fits_and_an_unchanged_node_is_not_evaluated_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted, ledger = Counted(monkeypatch), filled(n1=15000, n2=9000, n3=0)
    pipeline = Pipeline(CONFIG)

    def decide(names: Sequence[str] = ("n1", "n2", "n3"), asked: Ask | None = None) -> str | None:
        decision = pipeline.decide(asked or ask(), names, ledger, {})
        return decision.node.name if decision.node else None

    assert decide() == "n2"
    assert counted.evaluated == ["n2"]  # n1 is fuller, but the screen sees that nothing is left there
    assert decide() == "n2"
    assert counted.evaluated == ["n2"]
    ledger.reserve(pod(name="another"), "n2", ((entry("g-n2", 1000),),), 0.0)
    assert decide() == "n2"
    assert counted.evaluated == ["n2", "n2"]
    assert decide(["n1"]) is None
    assert counted.evaluated == ["n2", "n2"]  # the reasons are counted over the columns
    several = pod(*(container_document(name, gpu=1, gpumem=1000) for name in ("a", "b")))
    assert decide(["n1"], ask(several)) is None
    assert counted.evaluated == ["n2", "n2"]


def _two(mib: int) -> Pod:
    return pod(*(container_document(name, gpu=1, gpumem=mib) for name in ("a", "b")))


UNSCREENED: dict[str, tuple[Pod, Headrooms]] = {
    "several containers": (_two(5000), {}),
    "a quota that binds": (pod(container_document(gpu=1, gpumem=5000)), {"NVIDIA": Headroom(memory_mib=4999)}),
    "cards of one NUMA node": (
        pod(container_document(gpu=2, gpumem=5000), annotations={"nvidia.com/numa-bind": "true"}),
        {},
    ),
}


@pytest.mark.parametrize(("asked", "headrooms"), UNSCREENED.values(), ids=UNSCREENED)
def test_few_nodes_are_evaluated_where_the_screen_cannot_tell(
    asked: Pod, headrooms: Headrooms, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each container would fit on every node, and every card is within the quota; one node has room for all of it."""
    counted, ledger = Counted(monkeypatch), Ledger(CONFIG)
    for number in range(60):
        cards = [card(f"g-{number}-{place}", index=place, numa=place, memory_mib=9000) for place in range(2)]
        ledger.put_node(node(f"n{number:02}", *cards))
        if asked.containers[1:]:
            ledger.reserve(pod(name=f"on-{number}"), f"n{number:02}", ((entry(f"g-{number}-0", 9000),),), 0.0)
    pipeline, names = Pipeline(CONFIG), sorted(ledger.node_names())
    assert pipeline.decide(ask(asked), names, ledger, headrooms).node is None
    ledger.put_node(node("roomy", card("a", index=0), card("b", index=1)))
    last = pipeline.decide(ask(asked), [*names, "roomy"], ledger, headrooms)
    assert (last.node.name if last.node else None) == (None if headrooms else "roomy")
    assert len(counted.evaluated) <= 20


def test_the_rest_is_evaluated_on_the_states_of_the_decision() -> None:
    world = World(node("n1", card("a")), node("n2", card("b")))
    first = world.filter(pod(name="p1"))
    assert first.decision is not None
    assert (first.nodes, first.decision.evaluated, dict(first.decision.fitting)) == (("n1",), 1, {"n1": 0.0})
    world.ledger.delete_node("n2")
    assert dict(first.decision.complete().fitting) == {"n1": 0.0, "n2": 0.0}
    assert first.decision.complete().evaluated == 2


def test_headroom_counts_for_what_is_remembered_once_it_could_matter() -> None:
    world = World(node("n1", card(memory_mib=10_000)))
    for number, expected in enumerate((("n1",), ("n1",), None)):
        world.ledger.put_quota(quota(gpumem=5000))
        found = world.filter(pod(container_document(gpu=1, gpumem=2000), name=f"p{number}"))
        assert found.nodes == expected
    assert found.failed == {"n1": "1/1 ResourceQuotaNotFit"}
    world.ledger.put_quota(quota(gpumem=50_000))
    assert world.filter(pod(container_document(gpu=1, gpumem=2000), name="p2")).nodes == ("n1",)


def test_memory_keeps_so_many_shapes() -> None:
    memo: Memo[list[int]] = Memo(2)
    memo.of("a", list).append(1)
    memo.of("b", list)
    memo.of("a", list)
    memo.of("c", list)
    assert len(memo) == 2
    assert memo.of("a", list) == [1]
    memo.of("b", list)
    assert len(memo) == 2


def favourites(favourite: str) -> DeviceConfig:
    """A made-up vendor that adds to the score of a node whose chosen card is its favourite."""
    nvidia = CONFIG.vendors[0]

    def score(vendor: Vendor, entries: Sequence[tuple[Entry, ...]], context: ScoreContext) -> float:
        return 7.5 if any(e.uuid == favourite for cards in entries for e in cards) else 0.0

    return DeviceConfig((replace(nvidia, hooks=replace(nvidia.hooks, score=score)),))


@pytest.mark.parametrize(("policy", "expected"), [("binpack", "n3"), ("spread", "n1")])
def test_a_vendor_with_a_score_of_its_own_has_every_node_evaluated(policy: str, expected: str) -> None:
    world = World(*(node(name, card(f"g-{name}")) for name in ("n1", "n2", "n3")), config=favourites("g-n3"))
    found = world.filter(pod(annotations={"hami.io/node-scheduler-policy": policy}))
    assert found.nodes == (expected,)
    assert found.decision is not None
    assert found.decision.evaluated == 3
    assert dict(found.decision.fitting) == {"n1": 0.0, "n2": 0.0, "n3": 7.5}


def test_a_vendor_with_a_score_of_its_own_and_nothing_that_fits() -> None:
    world = World(node("n1", card(memory_mib=10)), config=favourites("x"))
    assert world.filter(pod()).failed == {"n1": "1/1 CardInsufficientMemory"}
