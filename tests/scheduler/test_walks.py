"""The walk over columns against the plain evaluator, node by node: random pods of several containers, on nodes of every kind of card."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from devices.fit import Headroom, Refusal
from devices.model import CardState, NodeState, Placement
from devices.objects import Pod
from devices.reasons import Reason
from devices.score import card_score
from scheduler.ask import Ask, Defaults, ask_of
from scheduler.card_table import card_tables
from scheduler.columns import Columns
from scheduler.evaluate import Fit, Headrooms, NotFit, evaluate
from scheduler.offer import Offers
from scheduler.refusals import Refusals
from scheduler.screen import needs_of
from scheduler.walks import Walks
from tests.builders import Document, card, card_state, container_document, mig_card, pod
from tests.devices.vendors.samples import CONFIG, VENDORS
from tests.scheduler.test_quick_paths import Nodes

NAMES = tuple(f"n{number}" for number in range(4))
POLICY = "hami.io/gpu-scheduler-policy"
PLACEMENTS = (Placement(0, 2), Placement(2, 2), Placement(3, 1), Placement(4, 1), Placement(5, 1), Placement(4, 4))
PLAIN_POLICIES = ("", "binpack", "spread", "mutex", "numa", "mutex,binpack,numa", "spread,numa", "binpack,")
TOLD = frozenset({"NVIDIA", "DCU"})
"""Families of which columns tell everything, unless a card hands out instances or all cards are to be collected."""


@st.composite
def states(draw: st.DrawFn, name: str, number: int, families: Sequence[str]) -> CardState:
    family = draw(st.sampled_from(families))
    uuid = f"{name}-{number}"
    fields: dict[str, Any] = {"index": draw(st.sampled_from((number, number // 2))), "numa": draw(st.integers(0, 2))}
    if family == "MIG":
        what = mig_card(uuid, **fields)
    else:
        # DCU alone is registered with its vendor key as type, whose requests then count in the score.
        model = family if family == "DCU" else f"{family} {draw(st.sampled_from(('T4', 'A100')))}"
        what = structs.replace(
            card(uuid, model=model, **fields),
            vendor=family,
            slots=draw(st.sampled_from((10, 10, 2, 1, 0))),
            memory_mib=draw(st.sampled_from((16_000, 16_000, 9_000))),
            cores=draw(st.sampled_from((100, 100, 200, 0))),
            pair_scores={f"{name}-{other}": (number * other) % 3 for other in range(6)},
        )
    tenants = draw(st.sampled_from((0, 0, 0, 1, 1, 2)))
    if family == "MIG":
        placements = tuple(draw(st.sets(st.sampled_from(PLACEMENTS), max_size=4)))
        return card_state(
            what, (draw(st.sampled_from((0, 1, 4, 6, 7))), 5_000 * len(placements), 0), placements=placements
        )
    return CardState(
        what,
        tenants,
        draw(st.sampled_from((0, 1_000, 4_000, 9_001, 17_000))) if tenants else 0,
        draw(st.sampled_from((0, 0, 60, 100))) if tenants else 0,
        healthy=draw(st.integers(0, 9)) > 0,
        cordoned=draw(st.integers(0, 9)) == 0,
    )


@st.composite
def limits(draw: st.DrawFn, families: Sequence[str]) -> dict[str, object]:
    found: dict[str, object] = {}
    for family in draw(st.sets(st.sampled_from(families), min_size=1, max_size=2)):
        vendor = VENDORS[family]
        found[vendor.count_resource] = draw(st.sampled_from((1, 1, 2, 2, 3, 5, 9)))
        memory = draw(st.sampled_from((0, 1_000, 3_000, 5_000, 9_000, 15_000, 20_000)))
        if memory and vendor.memory_resource:
            found[vendor.memory_resource] = memory
        elif vendor.percentage_resource and draw(st.booleans()):
            found[vendor.percentage_resource] = 30
        cores = draw(st.sampled_from((None, None, 0, 40, 100)))
        if cores is not None and vendor.core_resource and (cores or family != "AMD"):
            found[vendor.core_resource] = cores
    return found


@st.composite
def pods(draw: st.DrawFn, families: Sequence[str], policies: Sequence[str]) -> Pod:
    def container(name: str, sidecar: bool = False) -> Document:
        asked = draw(limits(families)) if draw(st.integers(0, 7)) else {}
        found: Document = {"name": name, "resources": {"limits": asked}}
        return {**found, "restartPolicy": "Always"} if sidecar else found

    apps = [container(f"app-{number}") for number in range(draw(st.integers(1, 3)))]
    init = [container(f"init-{number}", draw(st.booleans())) for number in range(draw(st.integers(0, 2)))]
    annotations = {}
    for key, values in (
        (POLICY, policies),
        ("nvidia.com/numa-bind", ("", "true")),
        ("nvidia.com/use-gputype", ("", "", "", "T4")),
        ("nvidia.com/vgpu-mode", ("", "", "", "hami-core")),
        ("nvidia.com/nouse-gpuuuid", ("", "", "", "n1-0,n2-1,n3-0")),
        ("nvidia.com/use-gpuuuid", ("", "", "", "n0-0,n0-1,n1-1,n2-0,n2-2,n9-9")),
        ("hami.io/device-scoring-weights", ("", "", "", "slot=0,core=0,memory=5", "slot=7,core=1,memory=3")),
    ):
        value = draw(st.sampled_from(values))
        if value:
            annotations[key] = value
    return pod(*apps, init=init, annotations=annotations)


def headrooms(families: Sequence[str]) -> st.SearchStrategy[Headrooms]:
    limit = st.none() | st.sampled_from((-1, 1, 2, 4, 60, 140, 3_000, 8_000, 14_000, 30_000))
    one = st.builds(Headroom, limit, st.none() | limit, st.none() | st.integers(0, 6))
    return st.just({}) | st.dictionaries(st.sampled_from([f for f in families if f != "MIG"]), one, max_size=2)


def _never(slot: int, state: NodeState) -> NotFit:
    raise AssertionError(f"{state.name} is told by columns, and evaluated all the same")


class Cluster:
    """Nodes, their columns, and what the walk tells of them."""

    def __init__(self, ask: Ask, headrooms: Headrooms) -> None:
        self.nodes, self.columns, self.offers = Nodes(), Columns(), Offers()
        self.ask, self.headrooms = ask, headrooms
        self.refusals = Refusals(ask, needs_of(ask, CONFIG), headrooms)

    def told(self) -> dict[str, NotFit | None]:
        """The refusal of every node; None where columns cannot tell."""
        self.columns.follow(self.nodes)
        offered = self.offers.of(NAMES, self.columns)
        may = self.refusals.may_fit(self.columns, offered.slots).tolist()
        refused = self.offers.of(
            [name for name, left in zip(offered.names, may, strict=True) if not left], self.columns
        )
        told: dict[str, NotFit | None] = dict.fromkeys(offered.names)
        for verdict, names in self.refusals.of(self.columns, refused, _never).groups:
            told.update(dict.fromkeys(names, verdict))
        return told

    def exact(self, name: str) -> Fit | NotFit:
        state = self.nodes.state(name)
        assert state is not None
        return evaluate(state, self.ask, CONFIG, self.headrooms)


def drawn(data: st.DataObject, families: Sequence[str], policies: Sequence[str]) -> Cluster:
    asked = [family for family in dict.fromkeys(families) if family != "MIG"]
    ask = ask_of(data.draw(pods(asked, policies)), CONFIG, Defaults())
    cluster = Cluster(ask, data.draw(headrooms(families)))
    for name in NAMES:
        count = data.draw(st.integers(1, 5))
        cluster.nodes.put(name, [data.draw(states(name, number, families)) for number in range(count)])
    return cluster


@settings(max_examples=300)
@given(st.data())
def test_what_the_walk_tells_is_what_the_evaluator_says(data: st.DataObject) -> None:
    families = ("NVIDIA", "NVIDIA", "DCU", "AMD", "Biren", "MIG")
    cluster = drawn(data, families, (*PLAIN_POLICIES, "topology-aware"))
    for _ in range(2):
        for name, verdict in cluster.told().items():
            assert verdict is None or verdict == cluster.exact(name)
        name = data.draw(st.sampled_from(NAMES))
        cluster.nodes.put(
            name, [data.draw(states(name, number, families)) for number in range(data.draw(st.integers(1, 9)))]
        )


@settings(max_examples=200)
@given(st.data())
def test_every_refusal_of_plain_families_is_told(data: st.DataObject) -> None:
    """A walk that tells nothing would pass the test above."""
    cluster = drawn(data, ("NVIDIA", "NVIDIA", "DCU"), PLAIN_POLICIES)
    if not cluster.ask.request.asks:
        return
    assert TOLD.issuperset(cluster.ask.request.vendors)
    for name, verdict in cluster.told().items():
        exact = cluster.exact(name)
        assert verdict == (None if isinstance(exact, Fit) else exact)


@settings(max_examples=200)
@given(st.data())
def test_every_refusal_of_one_container_is_told_where_cards_hand_out_instances(data: st.DataObject) -> None:
    asked = {"name": "a", "resources": {"limits": data.draw(limits(["NVIDIA"]))}}
    policy = data.draw(st.sampled_from((*PLAIN_POLICIES[1:], "topology-aware")))
    mode = data.draw(st.sampled_from(("mig", "hami-core", "mig,hami-core")))
    made = pod(asked, annotations={POLICY: policy, "nvidia.com/vgpu-mode": mode})
    cluster = Cluster(ask_of(made, CONFIG, Defaults()), {})
    for name in NAMES:
        count = data.draw(st.integers(1, 4))
        cluster.nodes.put(name, [data.draw(states(name, number, ("NVIDIA", "MIG", "MIG"))) for number in range(count)])
    for name, verdict in cluster.told().items():
        exact = cluster.exact(name)
        assert verdict == (None if isinstance(exact, Fit) else exact)


_G = container_document
_NUMA = {"nvidia.com/numa-bind": "true"}


def _cards(*numas: int, **fields: Any) -> list[CardState]:
    return [card_state(card(f"c{number}", index=number, numa=numa, **fields)) for number, numa in enumerate(numas)]


CASES: Mapping[str, tuple[Pod, Headrooms, NotFit | None]] = {
    "the second container finds what the first has left": (
        pod(_G("a", gpu=3, gpumem=9000), _G("b", gpu=2, gpumem=9000)),
        {},
        NotFit("b", Refusal({Reason.CARD_INSUFFICIENT_MEMORY: 3, Reason.CARDS_INSUFFICIENT: 1}, 4)),
    ),
    "an init container gives back what it had": (
        pod(_G("a", gpu=4, gpumem=9000), init=[_G("i", gpu=4, gpumem=9000)]),
        {},
        None,
    ),
    "a sidecar does not": (
        pod(_G("a", gpu=4, gpumem=9000), init=[_G("s", gpu=4, gpumem=9000, sidecar=True)]),
        {},
        NotFit("a", Refusal({Reason.CARD_INSUFFICIENT_MEMORY: 4}, 4)),
    ),
    "a run of equal NUMA numbers that ends counts against its cards": (
        pod(_G("a", gpu=3, gpumem=1000), annotations=_NUMA),
        {},
        NotFit("a", Refusal({Reason.NUMA_NOT_FIT: 2, Reason.CARDS_INSUFFICIENT: 2}, 4)),
    ),
    "what the namespace cannot pay for counts from the second card on": (
        pod(_G("a", gpu=3, gpumem=1000)),
        {"NVIDIA": Headroom(memory_mib=2500)},
        NotFit("a", Refusal({Reason.QUOTA_NOT_FIT: 2, Reason.CARDS_INSUFFICIENT: 2}, 4)),
    ),
    "what an earlier container costs counts": (
        pod(_G("a", gpu=2, gpumem=1000), _G("b", gpu=1, gpumem=1000)),
        {"NVIDIA": Headroom(cards=2)},
        NotFit("b", Refusal({Reason.QUOTA_NOT_FIT: 4}, 4)),
    ),
    "a new run does not pay for the one before": (
        pod(_G("a", gpu=2, gpumem=1000), annotations=_NUMA),
        {"NVIDIA": Headroom(cards=2)},
        None,
    ),
    "of runs that ended nothing is taken": (
        pod(
            _G("a", gpu=2, gpumem=9000),
            _G("b", gpu=2, gpumem=9000),
            annotations={**_NUMA, "nvidia.com/nouse-gpuuuid": "c3"},
        ),
        {},
        NotFit(
            "b",
            Refusal(
                {Reason.CARD_UUID_MISMATCH: 1, Reason.CARD_INSUFFICIENT_MEMORY: 2, Reason.CARDS_INSUFFICIENT: 1}, 4
            ),
        ),
    ),
    "more cards than there are": (pod(_G("a", gpu=5, gpumem=1000)), {}, NotFit("a", Refusal({}, 4))),
}


@pytest.mark.parametrize(("asked", "headrooms", "expected"), CASES.values(), ids=CASES)
def test_a_node_of_four_idle_cards(asked: Pod, headrooms: Headrooms, expected: NotFit | None) -> None:
    cluster = Cluster(ask_of(asked, CONFIG, Defaults()), headrooms)
    cluster.nodes.put("n1", _cards(0, 0, 1, 1))
    exact = cluster.exact("n1")
    assert (None if isinstance(exact, Fit) else exact) == expected
    assert cluster.told()["n1"] == expected


def test_numbers_that_columns_cannot_add_up_are_left_to_the_evaluator() -> None:
    cluster = Cluster(ask_of(pod(_G(gpu=1, gpumem=1000)), CONFIG, Defaults()), {})
    cluster.nodes.put("n1", [card_state(card("a"), (1, 2**70, 0))])
    cluster.nodes.put("n2", [card_state(card("a"), (1, 15_000, 0))])
    told = cluster.told()
    assert told["n1"] is None
    assert told["n2"] == cluster.exact("n2")


@st.composite
def scored(draw: st.DrawFn, uuid: str) -> CardState:
    """A card with any numbers, none of them round."""
    what = card(
        uuid,
        model=draw(st.sampled_from(("NVIDIA T4", "DCU", "DCU"))),
        slots=draw(st.sampled_from((0, 1, 3, 7, 10))),
        memory_mib=draw(st.integers(0, 2**25)),
        cores=draw(st.sampled_from((0, 60, 100, 333))),
    )
    used = st.tuples(st.integers(0, 12), st.integers(0, 2**25), st.integers(0, 400))
    return card_state(structs.replace(what, vendor=what.model.partition(" ")[0]), draw(used))


@settings(max_examples=200)
@given(st.data())
def test_scores_in_columns_are_those_of_the_evaluator_to_the_last_bit(data: st.DataObject) -> None:
    """Between two cards whose scores differ in the last place alone the walk takes the same one."""
    weight = st.sampled_from((0, 1, 3, 7, 11, 2**24 + 1, 2**63 - 1))
    weights = data.draw(st.tuples(weight, weight, weight).filter(any))
    asked = {"name": "a", "resources": {"limits": data.draw(limits(("NVIDIA", "DCU")))}}
    text = ",".join(f"{name}={value}" for name, value in zip(("slot", "core", "memory"), weights, strict=True))
    ask = ask_of(pod(asked, annotations={"hami.io/device-scoring-weights": text}), CONFIG, Defaults())
    cluster = Cluster(ask, {})
    for name in NAMES:
        cluster.nodes.put(name, [data.draw(scored(f"{name}-{n}")) for n in range(data.draw(st.integers(1, 6)))])
    cluster.columns.follow(cluster.nodes)
    walks, requests = Walks(ask, needs_of(ask, CONFIG), {}), ask.request.containers[0].devices
    for slots, cards in card_tables(cluster.columns, cluster.offers.of(NAMES, cluster.columns).slots):
        for slot, line in zip(slots.tolist(), walks.scores(cards, 0).tolist(), strict=True):
            state = cluster.columns.states[slot]
            assert state is not None
            exact = [card_score(of, ask.weights, requests) for of in state.cards]
            assert line[: len(exact)] == exact
