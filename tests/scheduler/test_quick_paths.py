"""Every shortcut against the plain evaluator, on random clusters that change between decisions.

The nodes here are made of card states directly, so that they also have what no history of pods leads to: cards without capacity, cards
that shrank below their tenants, any mix of families on one node.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from devices.fit import Headroom
from devices.ledger import Ledger
from devices.model import CardState, NodeState
from devices.reasons import NODE_UNREGISTERED
from devices.score import node_score, single
from scheduler.ask import Ask, Defaults, ask_of
from scheduler.columns import Columns, States
from scheduler.evaluate import Fit, NotFit, evaluate
from scheduler.pipeline import Decision, Pipeline
from scheduler.policies import NODE_POLICIES
from scheduler.screen import Screen, needs_of
from tests.builders import Document, card, container_document, mig_card, node, pod
from tests.devices.vendors.samples import CONFIG, VENDORS, asking
from tests.scheduler.builders import CONFIG as NVIDIA_ONLY

NAMES = tuple(f"n{number}" for number in range(7))
FAMILIES = ("NVIDIA", "NVIDIA", "DCU", "AMD", "Biren")
"""Four that differ in their checks."""


class Nodes:
    """A cluster of states, with versions and a log of changes that can be lost."""

    def __init__(self) -> None:
        self.version = 0
        self._states: dict[str, NodeState] = {}
        self._log: list[tuple[int, str]] = []
        self._lost = 0

    def put(self, name: str, cards: Sequence[CardState], score: float | None = None) -> None:
        self.version += 1
        worth = node_score(cards) if score is None else score
        self._states[name] = NodeState(name, self.version, tuple(cards), worth)
        self._log.append((self.version, name))

    def drop(self, name: str) -> None:
        self.version += 1
        self._states.pop(name, None)
        self._log.append((self.version, name))

    def lose_log(self) -> None:
        self._lost = self.version

    def changed_since(self, version: int) -> Iterable[str] | None:
        if version < self._lost:
            return None
        return [name for number, name in self._log if number > version]

    def node_names(self) -> Iterable[str]:
        return self._states.keys()

    def state(self, name: str) -> NodeState | None:
        state = self._states.get(name)
        return state if state is not None and state.cards else None

    def largest_memory_mib(self, vendor: str) -> int:
        return 16_000


@st.composite
def card_states(draw: st.DrawFn, name: str, number: int) -> CardState:
    family = draw(st.sampled_from(FAMILIES))
    uuid = f"{name}-{number}"
    fields: dict[str, Any] = {"index": number, "numa": number % 2}
    if family == "NVIDIA" and draw(st.integers(0, 7)) == 0:
        what = mig_card(uuid, **fields)
    else:
        model = draw(st.sampled_from(("T4", "A100", ""))) if family == "NVIDIA" else ""
        what = structs.replace(
            card(uuid, model=f"{family} {model}".strip(), **fields),
            vendor=family,
            slots=draw(st.sampled_from((10, 10, 2, 0))),
            memory_mib=draw(st.sampled_from((16_000, 16_000, 4_000, 0))),
            cores=draw(st.sampled_from((100, 100, 200, 0))),
        )
    tenants = draw(st.sampled_from((0, 0, 1, 2, 9, 10)))
    return CardState(
        what,
        tenants,
        draw(st.sampled_from((0, 1_000, 7_000, 13_000, 13_001, 16_000, 17_000))) if tenants else 0,
        draw(st.sampled_from((0, 0, 60, 61, 99, 100, 200))) if tenants else 0,
        healthy=draw(st.integers(0, 5)) > 0,
        cordoned=draw(st.integers(0, 5)) == 0,
    )


@st.composite
def node_cards(draw: st.DrawFn, name: str) -> list[CardState]:
    return [draw(card_states(name, number)) for number in range(draw(st.integers(0, 4)))]


def _asked(*containers: Document, init: Sequence[Document] = (), **annotations: str) -> Ask:
    full = {key.replace("_", "-"): value for key, value in annotations.items()}
    known = {
        "policy": "hami.io/gpu-scheduler-policy",
        "nodes": "hami.io/node-scheduler-policy",
        "types": "nvidia.com/use-gputype",
        "cards": "nvidia.com/use-gpuuuid",
        "not-cards": "nvidia.com/nouse-gpuuuid",
        "mode": "nvidia.com/vgpu-mode",
        "numa": "nvidia.com/numa-bind",
    }
    made = pod(*containers, init=init, annotations={known[key]: value for key, value in full.items()})
    return ask_of(made, CONFIG, Defaults())


_G = container_document
ASKS: Mapping[str, Ask] = {
    "base": _asked(_G(gpu=1, gpumem=3000)),
    "two cards": _asked(_G(gpu=2, gpumem=3000)),
    "more memory": _asked(_G(gpu=1, gpumem=9000)),
    "a percentage": _asked(_G(gpu=1, percentage=50)),
    "compute": _asked(_G(gpu=1, gpumem=3000, gpucores=40)),
    "all compute": _asked(_G(gpu=1, gpumem=3000, gpucores=100)),
    "a whole card": _asked(_G(gpu=1)),
    "mutex": _asked(_G(gpu=1, gpumem=3000), policy="mutex"),
    "topology": _asked(_G(gpu=2, gpumem=3000), policy="topology-aware"),
    "spread over nodes": _asked(_G(gpu=1, gpumem=3000), nodes="spread"),
    "one type": _asked(_G(gpu=1, gpumem=3000), types="A100"),
    "named cards": _asked(_G(gpu=1, gpumem=3000), cards="n1-0,n2-1,n3-2"),
    "all but named cards": _asked(_G(gpu=1, gpumem=3000), not_cards="n1-0,n2-0,n3-0"),
    "MIG only": _asked(_G(gpu=1, gpumem=3000), mode="mig"),
    "shared only": _asked(_G(gpu=2, gpumem=3000), mode="hami-core"),
    "one NUMA node": _asked(_G(gpu=2, gpumem=3000), numa="true"),
    "two containers": _asked(_G("a", gpu=1, gpumem=9000), _G("b", gpu=1, gpumem=3000)),
    "two containers, the other way round": _asked(_G("a", gpu=1, gpumem=3000), _G("b", gpu=1, gpumem=9000)),
    "two containers, more of one": _asked(_G("a", gpu=1, gpumem=9000), _G("b", gpu=2, gpumem=3000)),
    "two containers, another order of cards": _asked(
        _G("a", gpu=1, gpumem=9000), _G("b", gpu=1, gpumem=3000), policy="binpack"
    ),
    "two containers on one NUMA node each": _asked(
        _G("a", gpu=1, gpumem=9000), _G("b", gpu=1, gpumem=3000), numa="true"
    ),
    "two containers, linked cards": _asked(
        _G("a", gpu=1, gpumem=9000), _G("b", gpu=1, gpumem=3000), policy="topology-aware"
    ),
    "an init container": _asked(_G("b", gpu=1, gpumem=3000), init=[_G("a", gpu=1, gpumem=9000)]),
    "a sidecar": _asked(_G("b", gpu=1, gpumem=3000), init=[_G("a", gpu=1, gpumem=9000, sidecar=True)]),
    "more than there is": _asked(_G(gpu=1, gpumem=40_000)),
    "more cards than there are": _asked(_G(gpu=9, gpumem=100)),
    "another family": _asked(asking("main", {"hygon.com/dcunum": 1, "hygon.com/dcumem": 3000})),
    "whole compute of another family": _asked(asking("main", {"hygon.com/dcunum": 1, "hygon.com/dcucores": 100})),
    "a family that counts alone": _asked(asking("main", {VENDORS["Biren"].count_resource: 2})),
    "two families": _asked(
        asking("main", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000, "hygon.com/dcunum": 1, "hygon.com/dcumem": 100})
    ),
}
HEADROOMS: Sequence[Mapping[str, Headroom]] = (
    {},
    {},
    {"NVIDIA": Headroom(memory_mib=10**9)},
    {"NVIDIA": Headroom(memory_mib=5000)},
    {"NVIDIA": Headroom(memory_mib=12_000)},
    {"NVIDIA": Headroom(cards=1)},
)


def check(decision: Decision, nodes: Nodes, ask: Ask, names: Sequence[str], headrooms: Mapping[str, Headroom]) -> None:
    """As deciding by looking at every node would have it."""
    states = {name: state for name in names if (state := nodes.state(name)) is not None}
    exact = {name: evaluate(state, ask, CONFIG, headrooms) for name, state in states.items()}
    factor = NODE_POLICIES[ask.node_policy]
    fits = {name: verdict for name, verdict in exact.items() if isinstance(verdict, Fit)}
    best = min(fits, key=lambda name: (factor * fits[name].score, name), default=None)
    assert (decision.node.name if decision.node else None) == best
    assert decision.fit == (fits[best] if best is not None else None)
    assert all(exact[name] == verdict for name, verdict in decision.verdicts.items())
    # The texts and groups of a refusal come by another way than its verdicts.
    missing = {name: NODE_UNREGISTERED for name in names if name not in states}
    refused = {n: v.text for n, v in exact.items() if isinstance(v, NotFit) and n in decision.verdicts}
    assert decision.failed == {**refused, **missing}
    assert {(n, v.text) for v, group in decision.refusals for n in group} == set(refused.items())
    texts: Counter[str] = Counter()
    for verdict, count in decision.verdict_counts:
        texts[verdict.text] += count
    assert texts == Counter(refused.values())
    if best is None:
        assert list(decision.verdicts) == sorted(states)
    assert decision.complete().verdicts == exact


@settings(max_examples=150)
@given(st.data())
def test_decisions_from_columns_are_those_of_looking_at_every_node(data: st.DataObject) -> None:
    nodes, pipeline = Nodes(), Pipeline(CONFIG, shapes=data.draw(st.sampled_from((2, 256))))
    for name in NAMES[: data.draw(st.integers(1, len(NAMES)))]:
        nodes.put(name, data.draw(node_cards(name)))
    for _ in range(data.draw(st.integers(1, 8))):
        ask = ASKS[data.draw(st.sampled_from(sorted(ASKS)))]
        names = tuple(data.draw(st.permutations(NAMES))[: data.draw(st.integers(1, len(NAMES)))])
        names += tuple(data.draw(st.lists(st.sampled_from(NAMES), max_size=1)))
        headrooms = data.draw(st.sampled_from(HEADROOMS))
        earlier = pipeline.decide(ask, names, nodes, headrooms)
        check(earlier, nodes, ask, names, headrooms)
        left = pipeline.decide(ask, names, nodes, headrooms)
        kept = left.kept(2)
        then = {name: state for name in names if (state := nodes.state(name)) is not None}
        for name in data.draw(st.lists(st.sampled_from(NAMES), max_size=3)):
            if data.draw(st.integers(0, 4)) == 0:
                nodes.drop(name)
            else:
                nodes.put(name, data.draw(node_cards(name)))
        if data.draw(st.integers(0, 9)) == 0:
            nodes.lose_log()
        pipeline.decide(ASKS["base"], NAMES, nodes, {})
        # What was left open is looked at as it was.
        assert left.complete().verdicts == {n: evaluate(s, ask, CONFIG, headrooms) for n, s in then.items()}
        shown = sorted(name for name, verdict in kept.verdicts.items() if isinstance(verdict, NotFit))[:2]
        assert {name: kept.states.get(name) for name in shown} == {name: then[name] for name in shown}


@settings(max_examples=150)
@given(st.data(), st.sampled_from(sorted(ASKS)))
def test_the_screen_never_drops_a_node_that_fits(data: st.DataObject, which: str) -> None:
    nodes, columns, ask = Nodes(), Columns(), ASKS[which]
    screen = Screen(needs_of(ask, CONFIG))
    for _ in range(3):
        for name in data.draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=len(NAMES), unique=True)):
            nodes.put(name, data.draw(node_cards(name)))
        columns.follow(nodes)
        may = screen.may_fit(columns)
        for name in nodes.node_names():
            state = nodes.state(name)
            if state is not None and isinstance(evaluate(state, ask, CONFIG, {}), Fit):
                assert may[columns.slot_of[name]]


def test_the_screen_drops_full_nodes_at_once() -> None:
    """A screen that lets everything through would pass every other test here."""
    nodes, columns, ask = Nodes(), Columns(), ASKS["base"]
    full = {
        "memory": CardState(card(memory_mib=16_000), 1, 14_000),
        "slots": CardState(card(slots=2), 2, 100),
        "compute": CardState(card(), 1, 100, 100),
        "sick": CardState(card(), healthy=False),
        "cordoned": CardState(card(), cordoned=True),
        "foreign": CardState(structs.replace(card(), vendor="DCU", model="DCU")),
        "open": CardState(card()),
    }
    for name, state in full.items():
        nodes.put(name, [state])
    columns.follow(nodes)
    may = Screen(needs_of(ask, CONFIG)).may_fit(columns)
    assert [name for name in full if may[columns.slot_of[name]]] == ["open"]


SCORES = st.floats(-30, 30, width=32).map(single) | st.sampled_from((0.0, -0.0, 1.5, 1.5))


@given(st.dictionaries(st.text(st.characters(codec="ascii"), min_size=1, max_size=3), SCORES, max_size=12), st.data())
def test_the_order_of_nodes_is_that_of_sorting_them(scores: Mapping[str, float], data: st.DataObject) -> None:
    nodes, columns, now = Nodes(), Columns(), dict(scores)
    for name, score in now.items():
        nodes.put(name, [CardState(card())], score)
    columns.follow(nodes)
    for name in list(now)[:3]:
        now[name] = data.draw(SCORES)
        nodes.put(name, [CardState(card())], now[name])
    columns.follow(nodes)
    names = list(now)
    slots = np.array([columns.slot_of[name] for name in names], np.int64)
    for policy, factor in NODE_POLICIES.items():
        ordered = [names[place] for place in np.argsort(columns.order[policy][slots])]
        assert ordered == sorted(names, key=lambda name: (factor * now[name], name))


@settings(max_examples=30)
@given(st.data())
def test_states_of_a_moment_stay_as_they_were(data: st.DataObject) -> None:
    nodes, columns = Nodes(), Columns()
    names = [f"n{number}" for number in range(200)]
    kept: list[tuple[States, dict[int, NodeState | None]]] = []
    for _ in range(data.draw(st.integers(1, 6))):
        for name in data.draw(st.lists(st.sampled_from(names), max_size=100)):
            if data.draw(st.integers(0, 3)):
                nodes.put(name, [CardState(card())])
            else:
                nodes.drop(name)
        if data.draw(st.integers(0, 4)) == 0:
            nodes.lose_log()
        columns.follow(nodes)
        kept.append((columns.present(), {slot: nodes.state(name) for name, slot in columns.slot_of.items()}))
    for states, then in kept:
        assert {slot: states.of(slot) for slot in then} == then


def test_columns_of_nodes_that_come_and_go_do_not_grow() -> None:
    nodes, columns = Nodes(), Columns()
    for number in range(3000):
        nodes.put("stays", [CardState(card())] * (1 + number % 3))
        nodes.put(f"n{number}", [CardState(card())] * 2)
        if number:
            nodes.drop(f"n{number - 1}")
        columns.follow(nodes)
    assert sorted(columns.slot_of) == ["n2999", "stays"]
    assert columns.slots == 64
    assert columns.rows < 2500


def test_the_ledger_tells_which_nodes_changed_and_says_when_it_does_not_know() -> None:
    ledger = Ledger(NVIDIA_ONLY)
    assert ledger.changed_since(-1) is None
    ledger.put_node(node("n1", card("a")))
    seen = ledger.version
    assert tuple(ledger.changed_since(seen) or ()) == ()
    ledger.put_node(node("n2", card("b")))
    ledger.put_node(node("n2", card("b"), cordon="b"))
    ledger.delete_node("n1")
    assert sorted(ledger.changed_since(seen) or ()) == ["n1", "n2"]
    for number in range(10_001):
        ledger.put_node(node("n2", card("b"), cordon="b" if number % 2 else None))
    assert ledger.changed_since(seen) is None
    assert ledger.changed_since(ledger.version - 1) == ("n2",)


def test_rows_are_found_by_uuid_after_every_change() -> None:
    """Two nodes may claim one card; a node may swap its cards, or go."""
    nodes, columns = Nodes(), Columns()

    def named(*uuids: str) -> list[str]:
        columns.follow(nodes)
        slots = columns.owner[columns.rows_named(uuids)].tolist()
        return sorted(name for name, slot in columns.slot_of.items() if slot in slots)

    nodes.put("n1", [CardState(card("a")), CardState(card("b"))])
    nodes.put("n2", [CardState(card("b"))])
    assert (named("a"), named("b"), named("c"), named()) == (["n1"], ["n1", "n2"], [], [])
    nodes.put("n2", [CardState(card("c"))])
    assert (named("b"), named("a", "c")) == (["n1"], ["n1", "n2"])
    nodes.put("n1", [CardState(card("b"))])
    assert (named("a"), named("b")) == ([], ["n1"])
    nodes.drop("n1")
    assert named("b") == []


def test_only_nodes_that_changed_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, columns = Nodes(), Columns()
    for name in NAMES:
        nodes.put(name, [CardState(card())])
    columns.follow(nodes)
    asked: list[str] = []

    def state(name: str) -> NodeState | None:
        asked.append(name)
        return Nodes.state(nodes, name)

    monkeypatch.setattr(nodes, "state", state)
    columns.follow(nodes)
    assert asked == []
    nodes.put("n3", [CardState(card(), 1)])
    columns.follow(nodes)
    assert asked == ["n3"]
