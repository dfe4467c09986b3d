"""Decisions in words: Events on the pod."""

import pytest

from devices.objects import Pod
from scheduler.diagnosis import failure_events, success_event
from tests.builders import card, container_document, entry, mig_card, node, pod, quota
from tests.scheduler.builders import NOW_S, World, texts

QUOTA_POD = pod(container_document(gpu=1, gpumem=3000))


def refusal(world: World, asked: Pod, *names: str) -> list[str]:
    """Messages of the Events of a filter that finds nothing."""
    found = world.filter(asked, *names)
    assert found.nodes is None
    events = world.engine.events(found, 100)
    assert {(event.type, event.reason) for event in events} == {("Warning", "FilteringFailed")}
    return texts(events)


def test_one_event_a_reason_then_the_total() -> None:
    n2 = node("n2", card("b1", memory_mib=10), card("b2", index=1))
    world = World(node("n1", card("a1", memory_mib=10), card("a2", memory_mib=10, index=1)), n2)
    world.ledger.reserve(pod(name="t"), "n2", ((entry("b2"),),), NOW_S)
    asked = pod(container_document(gpu=1, gpumem=1000), annotations={"hami.io/gpu-scheduler-policy": "mutex"})
    assert refusal(world, asked, "n2", "n3", "n1") == [
        "2 nodes CardInsufficientMemory(n1,n2)",
        "1 nodes ExclusiveDeviceAllocateConflict(n2)",
        "1 nodes node unregistered(n3)",
        "no available node, 3 nodes do not meet",
    ]


def test_too_few_cards_is_said_too() -> None:
    world = World(node("n1", card("a")), node("n2", card("b")))
    assert refusal(world, pod(container_document(gpu=2)), "n2", "n1") == [
        "2 nodes NodeInsufficientDevice(n1,n2)",
        "no available node, 2 nodes do not meet",
    ]


def test_of_several_containers_the_one_that_fails_is_named() -> None:
    world = World(node("n1", card("a")), node("n2", card("b")), node("n3", card("c", memory_mib=2000)))
    asked = pod(container_document("x", gpu=1, gpumem=1000), container_document("y", gpu=1, gpumem=15_000))
    assert refusal(world, asked) == [
        "3 nodes CardInsufficientMemory(n1,n2,n3)",
        "no available node, 3 nodes do not meet",
        "container y: 1/1 CardInsufficientMemory(n1,n2,n3)",
    ]


def test_a_whole_card_of_a_used_mig_card_needs_a_size() -> None:
    world = World(node("n1", mig_card("m")))
    world.filtered(pod(container_document(gpu=1, gpumem=4000), name="t"))
    hint = "the pod asks for whole cards; to get a MIG instance, ask for its memory size"
    assert refusal(world, pod(container_document(gpu=1)))[-1] == hint
    assert hint not in refusal(world, pod(container_document(gpu=1, gpumem=40_000), name="b"))
    assert hint not in refusal(World(node("n1", card("a", healthy=False))), pod(container_document(gpu=1)))


QUOTAS: dict[str, tuple[dict[str, object], Pod, str]] = {
    "memory": (
        {"gpumem": 2500},
        QUOTA_POD,
        "exceeding resource quota: default/q limits.nvidia.com/gpumem: asked 3000, used 1000, limit 2500 (1500 too many)",
    ),
    "cards": (
        {"gpu": 1},
        QUOTA_POD,
        "exceeding resource quota: default/q limits.nvidia.com/gpu: asked 1, used 1, limit 1 (1 too many)",
    ),
    "both": (
        {"gpumem": 2500, "gpu": 1},
        QUOTA_POD,
        "exceeding resource quota: default/q limits.nvidia.com/gpumem: asked 3000, used 1000, limit 2500 (1500 too many);"
        " default/q limits.nvidia.com/gpu: asked 1, used 1, limit 1 (1 too many)",
    ),
    "a whole card at the largest allowed one": (
        {"gpumem": 9000},
        pod(container_document(gpu=1)),
        "exceeding resource quota: default/q limits.nvidia.com/gpumem:"
        " asked 15360, used 1000, limit 9000 (7360 too many)",
    ),
}


@pytest.mark.parametrize(("hard", "asked", "text"), QUOTAS.values(), ids=QUOTAS)
def test_quota_with_its_arithmetic(hard: dict[str, object], asked: Pod, text: str) -> None:
    world = World(node("n1", card("a")), node("n2", card("b")))
    world.filtered(pod(name="t"))
    world.ledger.put_quota(quota(**hard))
    assert refusal(world, asked)[-1] == text
    assert "2 nodes ResourceQuotaNotFit(n1,n2)" in refusal(world, asked)


def test_quota_that_only_a_smaller_card_would_have_met() -> None:
    """The cheapest arithmetic is within the limits, and still no card of the node is."""
    world = World(node("n1", mig_card("m")))
    world.ledger.put_quota(quota(gpumem=4500))
    found = refusal(world, pod(container_document(gpu=1, gpumem=4000)))
    assert found[-1] == (
        "exceeding resource quota of namespace default: used 0 MiB, 0 % compute, 0 cards;"
        " limits limits.nvidia.com/gpumem 4500 in q"
    )


def test_warnings_travel_with_the_refusal() -> None:
    world = World(node("n1", card("a", memory_mib=1)))
    asked = pod(annotations={"hami.io/gpu-scheduler-policy": "best", "hami.io/node-scheduler-policy": "worst"})
    assert refusal(world, asked)[-2:] == [
        'unknown card policy word "best" acts as spread',
        'unknown node policy "worst" acts as binpack',
    ]


def two_nodes() -> World:
    """Scores 3.00 and 8.00."""
    cards = [card(f"{name}-{n}", memory_mib=8000, index=n) for name in ("node1", "node2") for n in (0, 1)]
    world = World(node("node1", *cards[:2]), node("node2", *cards[2:]))
    world.ledger.reserve(pod(name="t1"), "node1", ((entry("node1-0", 2000, 25),),), NOW_S)
    world.ledger.reserve(pod(name="t2"), "node2", ((entry("node2-0", 6000, 75),),), NOW_S)
    return world


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        ("binpack", "find fit node(node2), 1 nodes not fit, 2 nodes fit(node1:3.00,node2:8.00)"),
        ("spread", "find fit node(node1), 1 nodes not fit, 2 nodes fit(node2:8.00,node1:3.00)"),
    ],
)
def test_a_placement_lists_all_that_fit_the_winner_last(policy: str, text: str) -> None:
    asked = pod(container_document(gpu=1, gpumem=100), annotations={"hami.io/node-scheduler-policy": policy})
    found = two_nodes().filter(asked, "node2", "node1", "bare")
    assert found.decision is not None
    assert success_event(found.decision.complete()).message == text


def test_a_long_list_is_cut() -> None:
    world = World(*(node(f"node-{number:03}", card(f"g{number}")) for number in range(200)))
    found = world.filter(pod())
    assert found.decision is not None
    text = success_event(found.decision.complete()).message
    assert text.startswith("find fit node(node-000), 0 nodes not fit, 200 nodes fit(node-199:0.00,node-198:0.00,")
    assert text.endswith(" more)")
    assert len(text.encode()) <= 1024


def test_words_only_for_what_happened() -> None:
    found = World(node("n1", card("a", memory_mib=1))).filter(pod())
    assert found.decision is not None
    with pytest.raises(AssertionError, match="a success event for a decision without node"):
        success_event(found.decision)
    assert len(failure_events(found.decision, ["x" * 2000])[-1].message.encode()) == 1024
