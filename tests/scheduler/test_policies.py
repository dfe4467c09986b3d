"""Walk orders and node choice: the worked examples of the decision rules, and what a policy word means."""

import pytest

from devices.model import CardState, NodeState
from scheduler.evaluate import Fit, NotFit, evaluate, sort_scores
from scheduler.policies import card_order, policy_tokens, unknown_defaults, unknown_tokens
from tests.builders import card, card_state, container_document, node, pod
from tests.scheduler.builders import CONFIG, World, ask, uuids

FOUR = (
    card_state("g0", index=0, numa=0),
    card_state("g1", (2, 4000, 0), index=1, numa=0),
    card_state("g2", (1, 1000, 0), index=2, numa=1),
    card_state("g3", (1, 1000, 0), index=3, numa=1),
)

ORDERS = {
    "spread": ("spread", False, "g0 g3 g2 g1"),
    "spread, then numa": ("spread,numa", False, "g0 g3 g2 g1"),
    "empty value": ("", False, "g0 g3 g2 g1"),
    "unknown word acts as spread": ("bogus", False, "g0 g3 g2 g1"),
    "topology-aware sorts as spread": ("topology-aware", False, "g0 g3 g2 g1"),
    "binpack": ("binpack", False, "g1 g3 g2 g0"),
    "a trailing comma makes a chain": ("binpack,", False, "g1 g3 g2 g0"),
    "binpack, then numa": ("binpack,numa", False, "g1 g3 g2 g0"),
    "mutex": ("mutex", False, "g0 g3 g2 g1"),
    "mutex is no sort key of a chain": ("mutex,binpack", False, "g1 g3 g2 g0"),
    "numa is a chain of one": ("numa", False, "g3 g2 g1 g0"),
    "numa, then spread": ("numa,spread", False, "g3 g2 g0 g1"),
    "numa, then binpack": ("numa,binpack", False, "g3 g2 g1 g0"),
    "a word counts once, where it first stands": ("numa,binpack,spread,binpack", False, "g3 g2 g1 g0"),
    "spaces within a chain": (" numa , spread ", False, "g3 g2 g0 g1"),
    "nothing known left in a chain": ("mutex,bogus", False, "g0 g3 g2 g1"),
    "only a comma": (",", False, "g0 g3 g2 g1"),
    "case counts": ("Binpack", False, "g0 g3 g2 g1"),
    "spread with numa-bind": ("spread", True, "g3 g2 g0 g1"),
    "spread, numa with numa-bind": ("spread,numa", True, "g3 g2 g0 g1"),
    "unknown with numa-bind": ("bogus", True, "g3 g2 g0 g1"),
    "binpack with numa-bind starts at the lowest NUMA": ("binpack", True, "g1 g0 g3 g2"),
    "a chain with numa-bind": ("binpack,spread", True, "g3 g2 g1 g0"),
    "numa with numa-bind": ("numa", True, "g3 g2 g1 g0"),
    "mutex with numa-bind": ("mutex", True, "g0 g3 g2 g1"),
}


def walk_order(states: tuple[CardState, ...], policy: str, numa_bind: bool) -> str:
    present = list(reversed(states))
    scores = sort_scores(present, ask(), ())
    return " ".join(state.card.uuid for state in card_order(present, scores, policy, numa_bind))


@pytest.mark.parametrize(("policy", "numa_bind", "expected"), ORDERS.values(), ids=ORDERS)
def test_walk_order(policy: str, numa_bind: bool, expected: str) -> None:
    assert walk_order(FOUR, policy, numa_bind) == expected


@pytest.mark.parametrize("policy", ["spread", "binpack", "mutex", "numa", "binpack,spread", ""])
def test_a_full_tie_goes_to_the_card_registered_last(policy: str) -> None:
    idle = tuple(card_state(f"g{n}", index=n) for n in range(14))
    assert walk_order(idle, policy, False) == " ".join(f"g{n}" for n in range(13, -1, -1))


TWO_OF_FOUR = {
    "spread": ("spread", {}, "g0 g3"),
    "binpack": ("binpack", {}, "g1 g3"),
    "binpack with spaces around it": (" binpack ", {}, "g1 g3"),
    "topology-aware without scores": ("topology-aware", {}, "g0 g3"),
    "numa": ("numa", {}, "g3 g2"),
    "mutex": ("mutex", {}, "1/4 AllocatedCardsInsufficientRequest, 3/4 ExclusiveDeviceAllocateConflict"),
    "mutex in a chain": (
        "mutex,binpack",
        {},
        "1/4 AllocatedCardsInsufficientRequest, 3/4 ExclusiveDeviceAllocateConflict",
    ),
    "binpack with numa-bind": ("binpack", {"nvidia.com/numa-bind": "true"}, "g1 g0"),
    "spread with numa-bind": ("spread", {"nvidia.com/numa-bind": "1"}, "g3 g2"),
    "mutex with numa-bind names the right reason": (
        "mutex",
        {"nvidia.com/numa-bind": "t"},
        "1/4 AllocatedCardsInsufficientRequest, 3/4 ExclusiveDeviceAllocateConflict",
    ),
}


@pytest.mark.parametrize(("policy", "extra", "expected"), TWO_OF_FOUR.values(), ids=TWO_OF_FOUR)
def test_two_cards_of_four(policy: str, extra: dict[str, str], expected: str) -> None:
    asking = pod(container_document(gpu=2, gpumem=1000), annotations={"hami.io/gpu-scheduler-policy": policy, **extra})
    verdict = evaluate(NodeState("n", 1, FOUR, 0.0), ask(asking), CONFIG, {})
    if isinstance(verdict, Fit):
        assert " ".join(e.uuid for e in verdict.allocation[0]) == expected
    else:
        assert verdict.text == expected


SEQUENCES = {
    "six policies on four idle cards": (
        ("spread", "D"),
        ("spread", "C"),
        ("binpack", "D"),
        ("binpack", "D"),
        ("mutex", "B"),
        ("mutex", "A"),
        ("mutex", "4/4 ExclusiveDeviceAllocateConflict"),
    ),
    "filter words before sort keys": (
        ("spread", "D"),
        ("mutex,binpack", "C"),
        ("mutex,binpack", "B"),
        ("binpack", "D"),
    ),
}


@pytest.mark.parametrize("steps", SEQUENCES.values(), ids=SEQUENCES)
def test_sequences_on_four_idle_cards(steps: tuple[tuple[str, str], ...]) -> None:
    world = World(node("n1", *(card(uuid, index=n) for n, uuid in enumerate("ABCD"))))
    for number, (policy, expected) in enumerate(steps):
        found = world.filter(pod(name=f"p{number}", annotations={"hami.io/gpu-scheduler-policy": policy}))
        assert uuids(found) == [expected] if found.allocation else found.failed == {"n1": expected}


def test_mutex_takes_a_card_again_once_its_tenant_is_gone() -> None:
    world = World(node("n1", card("A"), card("B", index=1)), card_policy="mutex")
    first, second = world.filtered(pod(name="p1")), world.filtered(pod(name="p2"))
    assert world.filter(pod(name="p3")).failed == {"n1": "2/2 ExclusiveDeviceAllocateConflict"}
    assert world.held() == {"A": (1, 1000, 0), "B": (1, 1000, 0)}
    world.ledger.delete_pod(first.uid)
    assert uuids(world.filter(pod(name="p3"))) == ["B"]
    world.ledger.delete_pod(second.uid)


def test_words_of_a_policy() -> None:
    assert policy_tokens(" binpack ,, numa,") == ("binpack", "numa")
    assert unknown_tokens("binpack,Numa,mutex,topology-aware, x") == ("Numa", "x")


def test_refusals_name_what_no_freed_card_would_change() -> None:
    world = World(node("n1", card("A")))
    few = world.filter(pod(container_document(gpu=2, gpumem=1)))
    assert isinstance(few.decision and few.decision.verdicts["n1"], NotFit)
    assert few.unresolvable == few.failed == {"n1": "NodeInsufficientDevice"}


def test_defaults_that_are_no_policy_are_named_with_what_they_act_as() -> None:
    assert unknown_defaults("numa, binpack", " spread") == ()
    assert unknown_defaults("Numa,mutex", "packed") == (
        "--gpu-scheduler-policy: 'Numa' is unknown and acts as spread; known are binpack, spread, numa, mutex, topology-aware",
        "--node-scheduler-policy: 'packed' is unknown and acts as binpack; known are binpack, spread",
    )
