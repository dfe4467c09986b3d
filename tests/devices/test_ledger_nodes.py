"""Nodes in the books: what is offered, versions, kinds of cards, simulated nodes; and the limits of namespaces."""

from collections.abc import Callable

import pytest

from devices.ledger import Ledger
from devices.objects import Node
from devices.quota import Limit
from devices.score import node_score
from tests.builders import (
    PAIR_SCORES,
    REGISTER,
    allocated,
    card,
    entry,
    mig_card,
    node,
    nvidia,
    nvidia_config,
    pod,
    quota,
    registration,
)

SCORES = '[{"uuid":"GPU-a","score":{"GPU-b":100}}]'


def books(*nodes: Node, **selector: str) -> Ledger:
    ledger = Ledger(nvidia_config(), node_selector=selector)
    for one in nodes:
        ledger.put_node(one)
    return ledger


def offered(ledger: Ledger, name: str = "n1") -> list[str]:
    state = ledger.state(name)
    return [] if state is None else [s.card.uuid for s in state.cards]


OFFERS: dict[str, tuple[Node, list[str], tuple[str, ...]]] = {
    "cards by index": (node("n1", card("GPU-b", index=1), card("GPU-a")), ["GPU-a", "GPU-b"], ()),
    "no registration": (node("n1"), [], ()),
    "cards gone but still registered": (node("n1", card(), allocatable={"nvidia.com/gpu": "0"}), [], ()),
    "some allocatable": (node("n1", card(), allocatable={"nvidia.com/gpu": "10"}), ["GPU-a"], ()),
    "allocatable of other resources alone": (node("n1", card(), allocatable={"cpu": "1"}), ["GPU-a"], ()),
    "unreadable allocatable": (
        node("n1", card(), allocatable={"nvidia.com/gpu": "many"}),
        [],
        (
            "NVIDIA: 'many' is not a quantity: expected a number with an optional suffix such as 2, 1.5, 500m, 2k or 1Gi",
        ),
    ),
    "an undecodable registration kept stale cards": (
        node("n1", annotations={REGISTER: "[]"}),
        [],
        ("NVIDIA: the card list is empty",),
    ),
    "scores alone": (
        node("n1", annotations={PAIR_SCORES: SCORES}),
        [],
        (f"NVIDIA: annotation {REGISTER} is missing",),
    ),
    "an unreadable score made the cards undecodable": (
        node("n1", card(), annotations={PAIR_SCORES: "{"}),
        ["GPU-a"],
        (f"annotation {PAIR_SCORES} is ignored: the pair scores are not JSON: ",),
    ),
    "one null element": (
        node("n1", annotations={REGISTER: registration(card())[:-1] + ",null]"}),
        ["GPU-a"],
        ("card 1: expected an object, got null",),
    ),
    "unhealthy cards are offered, and refused later": (node("n1", card(healthy=False)), ["GPU-a"], ()),
}


@pytest.mark.parametrize(("of", "uuids", "problems"), OFFERS.values(), ids=OFFERS)
def test_offers(of: Node, uuids: list[str], problems: tuple[str, ...]) -> None:
    ledger = books(of)
    assert offered(ledger) == uuids
    assert len(ledger.problems_of("n1")) == len(problems)
    for found, expected in zip(ledger.problems_of("n1"), problems, strict=True):
        assert found.startswith(expected)
    assert ledger.node_problems() == ({"n1": ledger.problems_of("n1")} if problems else {})
    assert list(ledger.node_names()) == ["n1"]


def test_a_node_offers_its_cards_not_a_moment_longer_than_they_are_allocatable() -> None:
    ledger = books(node("n1", card(), allocatable={"nvidia.com/gpu": "10"}))
    assert offered(ledger) == ["GPU-a"]
    ledger.put_node(node("n1", card(), allocatable={"nvidia.com/gpu": "0"}))
    assert offered(ledger) == []
    assert ledger.usage("n1") == {}


SELECTED = {
    "matches": ({"gpu": "on", "x": "y"}, True),
    "another value": ({"gpu": "off"}, False),
    "no label": ({}, False),
}


@pytest.mark.parametrize(("labels", "matches"), SELECTED.values(), ids=SELECTED)
def test_node_selector(labels: dict[str, str], matches: bool) -> None:
    ledger = books(node("n1", card(), labels=labels), gpu="on")
    assert (offered(ledger) == ["GPU-a"]) is matches
    assert (ledger.simulated(node("new", card(), labels=labels)) is not None) is matches


def test_a_node_that_stops_matching_stayed() -> None:
    ledger = books(node("n1", card(), labels={"gpu": "on"}), gpu="on")
    ledger.put_node(node("n1", card()))
    assert offered(ledger) == []


def test_unknown_nodes() -> None:
    ledger = books()
    assert ledger.state("n1") is None
    assert ledger.node_object("n1") is None
    assert ledger.problems_of("n1") == ()
    assert ledger.usage("n1") == {}


# Versions


def version(ledger: Ledger) -> int:
    state = ledger.state("n1")
    assert state is not None
    return state.version


BASE = node("n1", card("GPU-a"), card("GPU-b", index=1))
CHANGES: dict[str, Callable[[Ledger], object]] = {
    "health": lambda ledger: ledger.put_node(node("n1", card("GPU-a", healthy=False), card("GPU-b", index=1))),
    "memory": lambda ledger: ledger.put_node(node("n1", card("GPU-a", memory_mib=1), card("GPU-b", index=1))),
    "a card less": lambda ledger: ledger.put_node(node("n1", card("GPU-a"))),
    "cordon": lambda ledger: ledger.put_node(node("n1", card("GPU-a"), card("GPU-b", index=1), cordon="GPU-a")),
    "pair scores": lambda ledger: ledger.put_node(
        node("n1", card("GPU-a"), card("GPU-b", index=1), annotations={PAIR_SCORES: SCORES})
    ),
    "a tenant": lambda ledger: ledger.put_pod(pod(node="n1", annotations=allocated(((entry(),),))), 0),
    "a reservation": lambda ledger: ledger.reserve(pod(), "n1", ((entry(),),), 0),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_every_change_of_a_node_raises_its_version(change: Callable[[Ledger], object]) -> None:
    ledger = books(BASE)
    before, state = version(ledger), ledger.state("n1")
    change(ledger)
    assert version(ledger) > before
    assert ledger.version >= version(ledger)
    assert ledger.state("n1") != state


SAME: dict[str, Callable[[Ledger], object]] = {
    "the same again": lambda ledger: ledger.put_node(BASE),
    "cards listed in another order": lambda ledger: ledger.put_node(node("n1", card("GPU-b", index=1), card("GPU-a"))),
    "other annotations, labels, allocatable": lambda ledger: ledger.put_node(
        node(
            "n1",
            card("GPU-a"),
            card("GPU-b", index=1),
            annotations={"x": "y"},
            labels={"l": "m"},
            allocatable={"nvidia.com/gpu": "5"},
        )
    ),
    "a pod elsewhere": lambda ledger: ledger.put_pod(pod(node="n2", annotations=allocated(((entry(),),), "n2")), 0),
    "a pod that holds nothing": lambda ledger: ledger.put_pod(pod(), 0),
    "a quota": lambda ledger: ledger.put_quota(quota(gpu=1)),
}


@pytest.mark.parametrize("event", SAME.values(), ids=SAME)
def test_what_changes_nothing_keeps_version_and_state(event: Callable[[Ledger], object]) -> None:
    ledger = books(BASE)
    before = ledger.state("n1")
    event(ledger)
    assert ledger.state("n1") is before


def test_the_object_and_its_problems_are_new_even_where_the_cards_are_not() -> None:
    ledger = books(node("n1", card()))
    again = node("n1", annotations={REGISTER: registration(card())[:-1] + ",null]"})
    ledger.put_node(again)
    assert ledger.node_object("n1") is again
    assert ledger.problems_of("n1") == ("card 1: expected an object, got null",)


def test_giving_a_tenant_back_is_a_new_version_of_the_old_state() -> None:
    ledger = books(BASE)
    first = ledger.state("n1")
    ledger.reserve(pod(), "n1", ((entry(),),), 0)
    middle = version(ledger)
    ledger.release("uid-a")
    last = ledger.state("n1")
    assert first is not None
    assert last is not None
    assert last.version > middle
    assert last.cards == first.cards
    assert last.score == first.score == 0


def test_a_deleted_node_comes_back_with_a_new_version_and_its_tenants() -> None:
    ledger = books(BASE)
    ledger.put_pod(pod(node="n1", annotations=allocated(((entry("GPU-a", 5),),))), 0)
    before, total = version(ledger), ledger.version
    ledger.delete_node("n1")
    assert ledger.version > total
    assert ledger.state("n1") is None
    assert ledger.used("default")["NVIDIA"].memory_mib == 5
    ledger.put_node(BASE)
    assert version(ledger) > before
    assert [s.used_memory_mib for s in ledger.state("n1").cards] == [5, 0]  # type: ignore[union-attr]  # None fails the test as well


def test_deleting_an_unknown_node_changes_nothing() -> None:
    ledger = books(BASE)
    before = ledger.version
    ledger.delete_node("n2")
    assert ledger.version == before


def test_the_score_is_the_nodes_with_its_tenants() -> None:
    ledger = books(node("n1", card()))
    ledger.put_pod(pod(node="n1", annotations=allocated(((entry("GPU-a", 1000),),))), 0)
    state = ledger.state("n1")
    assert state is not None
    assert f"{state.score:.6f}" == "1.651042"
    assert state.score == node_score(state.cards)


# Nodes that may not exist


def test_a_simulated_node_is_empty_and_leaves_no_trace() -> None:
    ledger = books(node("n1", card()))
    ledger.put_pod(pod(node="n1", annotations=allocated(((entry(),),))), 0)
    before = ledger.version
    state = ledger.simulated(node("n1", card("GPU-b", index=1), card("GPU-a"), cordon="GPU-b"))
    assert state is not None
    assert [(s.card.uuid, s.used_slots, s.cordoned) for s in state.cards] == [
        ("GPU-a", 0, False),
        ("GPU-b", 0, True),
    ]
    assert (state.name, state.version, state.score, state.facts) == ("n1", 0, 0, {})
    assert ledger.version == before
    assert offered(ledger) == ["GPU-a"]
    assert ledger.simulated(node("n9")) is None


# Cards of the cluster


def test_kinds_of_cards_that_a_pod_may_have() -> None:
    small, large = card("GPU-b", memory_mib=8000), card("GPU-c", memory_mib=24576, model="NVIDIA A10", healthy=False)
    ledger = books(node("n1", card("GPU-a"), small, cordon="GPU-b"), node("n2", card("GPU-d", numa=1, index=7), large))
    vendor = nvidia()

    def sizes(**annotations: str) -> list[int]:
        values = {key.replace("_", "-"): value for key, value in annotations.items()}
        selection = vendor.selection({f"nvidia.com/{key}": value for key, value in values.items()})
        return sorted(one.memory_mib for one in ledger.cards_for(vendor, selection))

    assert sizes() == [8000, 15360, 24576]
    assert sizes(use_gputype="a10") == [24576]
    assert sizes(nouse_gpuuuid="GPU-b") == [15360, 15360, 24576]
    assert sizes(use_gpuuuid="GPU-d") == [15360]
    assert sizes(vgpu_mode="mig") == []
    assert ledger.largest_memory_mib("NVIDIA") == 24576
    assert ledger.largest_memory_mib("DCU") == 0
    ledger.delete_node("n2")
    assert sizes() == [8000, 15360]
    assert ledger.largest_memory_mib("NVIDIA") == 15360


def test_cards_that_differ_in_what_a_charge_depends_on_are_kinds_of_their_own() -> None:
    other = mig_card("GPU-n", mig_profiles=mig_card().mig_profiles[:1])
    ledger = books(node("n1", mig_card("GPU-m"), mig_card("GPU-o"), other))
    found = ledger.cards_for(nvidia(), nvidia().selection({}))
    assert len(found) == 2


def test_the_most_cards_that_one_container_can_get() -> None:
    ledger = books(node("n1", card("GPU-a"), card("GPU-b")), node("n2", card("GPU-c")))
    assert ledger.most_cards("NVIDIA") == 2
    ledger.put_node(node("n3", mig_card("GPU-m"), card("GPU-d")))
    assert ledger.most_cards("NVIDIA") == 8
    ledger.delete_node("n3")
    assert ledger.most_cards("NVIDIA") == 2
    assert ledger.most_cards("DCU") == 0
    assert books().most_cards("NVIDIA") == 0


# Limits


MEMORY = "nvidia.com/gpumem"


def test_the_smallest_limit_of_all_objects_holds() -> None:
    ledger = books()
    assert ledger.limits("team") == {}
    ledger.put_quota(quota("a", "team", gpumem=4000))
    ledger.put_quota(quota("b", "team", gpumem=3000))
    ledger.put_quota(quota("c", "other", gpumem=1))
    assert ledger.limits("team") == {MEMORY: Limit(3000, "b")}
    ledger.put_quota(quota("b", "team", gpumem=5000))
    assert ledger.limits("team") == {MEMORY: Limit(4000, "a")}
    ledger.delete_quota("team", "a")
    assert ledger.limits("team") == {MEMORY: Limit(5000, "b")}
    ledger.put_quota(quota("b", "team"))
    assert ledger.limits("team") == {}
    ledger.delete_quota("team", "b")
    ledger.delete_quota("team", "b")
    assert ledger.limits("team") == {}
    assert [one.name for one in ledger.quotas()] == ["c"]
    assert ledger.namespaces() == ("other",)


def test_limits_that_cannot_be_read_are_said() -> None:
    ledger = books()
    ledger.put_quota(quota("q", "team", gpumem="1.5"))
    assert ledger.limits("team") == {}
    assert ledger.quota_problems() == (
        "ResourceQuota team/q: limits.nvidia.com/gpumem: '1.5' is not a whole number and limits nothing",
    )


def test_cards_that_vanished_came_back_for_a_minute_with_every_handshake() -> None:
    """The reference offers such a node again after each of its own requests; here it stays away until the kubelet has cards."""
    ledger = Ledger(nvidia_config())
    for stamp, count, offered in (
        ("Reported 2026-05-28 20:26:40", "10", True),
        ("Requesting_2026-05-28 20:26:41", "0", False),
        ("Reported 2026-05-28 20:27:41", "0", False),
        ("Requesting_2026-05-28 20:28:41", "0", False),
        ("Requesting_2026-05-28 20:28:41", "10", True),
    ):
        found = node(
            "n1", card("a"), annotations={"hami.io/node-handshake": stamp}, allocatable={"nvidia.com/gpu": count}
        )
        ledger.put_node(found)
        assert (ledger.state("n1") is not None) is offered, stamp
