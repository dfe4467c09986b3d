"""NVIDIA's thirteen card checks in their order, and the walk that collects cards."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from devices.fit import Candidates, Headroom, Refusal, collect
from devices.model import CardState, Charge, Placement
from devices.reasons import Reason
from tests.builders import card, card_state, entry, mig_card, nvidia, request, walk


def chosen(found: Candidates | Refusal) -> str:
    """UUIDs in walk order, or the refusal's text."""
    return found.text if isinstance(found, Refusal) else " ".join(one.uuid for one in found.entries)


NOUSE_TYPE, NOUSE_UUID = "nvidia.com/nouse-gputype", "nvidia.com/nouse-gpuuuid"
MODE = "nvidia.com/vgpu-mode"

# Every card below would also be refused by all checks further down, so the first reason shows the order.
EVERYTHING_ELSE: dict[str, Any] = {
    "annotations": {NOUSE_TYPE: "tesla", MODE: "mig", NOUSE_UUID: "GPU-a"},
    "policies": ["mutex"],
    "headroom": Headroom(memory_mib=0),
    "asked": request(memory_mib=20000, cores=100),
}
FULL = (10, 15360, 100)


def allowing(**changes: Any) -> dict[str, Any]:
    return {**EVERYTHING_ELSE, **changes}


ORDER: dict[str, tuple[CardState, dict[str, Any], Reason]] = {
    "1 health": (card_state("GPU-a", FULL, healthy=False, cordoned=True), allowing(), Reason.CARD_NOT_HEALTHY),
    "2 cordon": (card_state("GPU-a", FULL, cordoned=True), allowing(), Reason.CARD_CORDONED),
    "3 type list": (card_state("GPU-a", FULL), allowing(), Reason.CARD_TYPE_MISMATCH),
    "3 mode": (
        card_state("GPU-a", FULL),
        allowing(annotations={MODE: "mig", NOUSE_UUID: "GPU-a"}),
        Reason.CARD_TYPE_MISMATCH,
    ),
    "5 uuid": (card_state("GPU-a", FULL), allowing(annotations={NOUSE_UUID: "GPU-a"}), Reason.CARD_UUID_MISMATCH),
    "6 slots": (card_state("GPU-a", FULL), allowing(annotations={}), Reason.CARD_SLOTS_EXHAUSTED),
    "7 mutex": (card_state("GPU-a", (1, 15360, 100)), allowing(annotations={}), Reason.EXCLUSIVE_CONFLICT),
    "8 quota": (
        card_state("GPU-a", (1, 15360, 100)),
        allowing(annotations={}, policies=()),
        Reason.QUOTA_NOT_FIT,
    ),
    "9 memory": (
        card_state("GPU-a", (1, 15360, 100)),
        allowing(annotations={}, policies=(), headroom=None),
        Reason.CARD_INSUFFICIENT_MEMORY,
    ),
    "10 compute": (
        card_state("GPU-a", (1, 0, 1)),
        {"asked": request(memory_mib=1, cores=100)},
        Reason.CARD_INSUFFICIENT_CORES,
    ),
    "11 whole compute": (
        card_state("GPU-a", (1, 0, 0)),
        {"asked": request(memory_mib=1, cores=100)},
        Reason.EXCLUSIVE_CONFLICT,
    ),
    "12 compute used up": (card_state("GPU-a", (1, 0, 100)), {}, Reason.CARD_COMPUTE_EXHAUSTED),
    "13 no instance": (
        card_state(mig_card(), placements=(Placement(0, 8),)),
        {"asked": request(memory_mib=8000)},
        Reason.CARD_MIG_INFEASIBLE,
    ),
    "12 before 13": (
        card_state(mig_card(), (1, 40448, 100), placements=(Placement(0, 8),)),
        {"asked": request(memory_mib=512)},
        Reason.CARD_COMPUTE_EXHAUSTED,
    ),
}


@pytest.mark.parametrize(("state", "asks", "reason"), ORDER.values(), ids=ORDER)
def test_the_first_check_that_fails_is_the_reason(state: CardState, asks: dict[str, Any], reason: Reason) -> None:
    assert collect([state], walk(**asks)) == Refusal({reason: 1}, 1)


BOUNDARIES: dict[str, tuple[CardState, dict[str, Any], str]] = {
    "the last slot": (card_state("GPU-a", (9, 0, 0)), {}, "GPU-a"),
    "no slots at all": (card_state("GPU-a", slots=0), {}, "1/1 CardTimeSlicingExhausted"),
    "memory to the last MiB": (card_state("GPU-a", (1, 14360, 0)), {}, "GPU-a"),
    "one MiB short": (card_state("GPU-a", (1, 14361, 0)), {}, "1/1 CardInsufficientMemory"),
    "compute to the last percent": (
        card_state("GPU-a", (1, 0, 70)),
        {"asked": request(memory_mib=1, cores=30)},
        "GPU-a",
    ),
    "tenant 40, new 70": (
        card_state("GPU-a", (1, 1000, 40)),
        {"asked": request(memory_mib=1, cores=70)},
        "1/1 CardInsufficientCore",
    ),
    "tenant without compute, new wants all": (
        card_state("GPU-a", (1, 1000, 0)),
        {"asked": request(memory_mib=1, cores=100)},
        "1/1 ExclusiveDeviceAllocateConflict",
    ),
    "150 % of compute is 100 %": (
        card_state("GPU-a", (1, 1000, 0)),
        {"asked": request(memory_mib=1, cores=150)},
        "1/1 ExclusiveDeviceAllocateConflict",
    ),
    "150 % on an idle card": (card_state("GPU-a"), {"asked": request(memory_mib=1, cores=150)}, "GPU-a"),
    "scaled compute is not exclusive": (
        card_state("GPU-a", (1, 1000, 0), cores=200),
        {"asked": request(memory_mib=1, cores=100)},
        "GPU-a",
    ),
    "tenant has all compute, new wants none": (
        card_state("GPU-a", (1, 1000, 100)),
        {},
        "1/1 CardComputeUnitsExhausted",
    ),
    "a card without compute is not used up": (card_state("GPU-a", cores=0), {}, "GPU-a"),
    "a third of a card": (card_state("GPU-a", (1, 15360 - 5068, 0)), {"asked": request(percentage=33)}, "GPU-a"),
    "mutex on an idle card": (card_state("GPU-a"), {"policies": ["mutex"]}, "GPU-a"),
    "mutex looks at tenants, not at what they use": (
        card_state("GPU-a", (1, 0, 0)),
        {"policies": ["mutex"]},
        "1/1 ExclusiveDeviceAllocateConflict",
    ),
    "a whole card with a tenant": (card_state("GPU-a", (1, 1, 0)), {"asked": request()}, "1/1 CardInsufficientMemory"),
    "no cards": (card_state("GPU-a"), {"asked": request(2, memory_mib=1)}, "NodeInsufficientDevice"),
}


@pytest.mark.parametrize(("state", "asks", "expected"), BOUNDARIES.values(), ids=BOUNDARIES)
def test_boundaries(state: CardState, asks: dict[str, Any], expected: str) -> None:
    assert chosen(collect([state], walk(**asks))) == expected


def test_what_a_card_gives_has_its_own_memory_and_clamped_cores() -> None:
    cards = [card_state("GPU-a"), card_state("GPU-b", memory_mib=11441)]
    found = collect(cards, walk(request(2, percentage=50, cores=150)))
    assert isinstance(found, Candidates)
    assert found.entries == (entry("GPU-a", 7680, 100), entry("GPU-b", 5720, 100))
    assert found.states == tuple(cards)


def test_the_walk_stops_at_the_number_asked() -> None:
    cards = [card_state(uuid) for uuid in ("GPU-c", "GPU-b", "GPU-a")]
    assert chosen(collect(cards, walk(request(2, memory_mib=1)))) == "GPU-c GPU-b"


def test_counts_of_a_large_node() -> None:
    cards = [card_state(f"GPU-{n}", (10, 0, 0) if n < 10 else (1, 15000, 0)) for n in range(12)]
    assert chosen(collect(cards, walk())) == "10/12 CardTimeSlicingExhausted, 2/12 CardInsufficientMemory"


def test_too_few_cards_tell_how_many_were_collected() -> None:
    cards = [card_state("GPU-a"), card_state("GPU-b", (1, 15000, 0)), card_state("GPU-c")]
    found = collect(cards, walk(request(3, memory_mib=1000)))
    assert chosen(found) == "1/3 CardInsufficientMemory, 2/3 AllocatedCardsInsufficientRequest"


def sized(*sizes: int) -> list[CardState]:
    return [card_state(f"GPU-{number}", memory_mib=size) for number, size in enumerate(sizes, start=1)][::-1]


QUOTAS: dict[str, tuple[Sequence[CardState], dict[str, Any], str]] = {
    "two of 3000 exceed 4000": (
        sized(2000, 8000, 4000, 6000),
        {"asked": request(2, memory_mib=3000, cores=60), "headroom": Headroom(4000, 200)},
        "1/4 AllocatedCardsInsufficientRequest, 3/4 ResourceQuotaNotFit",
    ),
    "a whole card goes to the one the limit allows": (
        sized(2000, 8000, 4000, 6000),
        {"asked": request(), "headroom": Headroom(2000)},
        "GPU-1",
    ),
    "no whole card within 1500": (
        sized(2000, 8000, 4000, 6000),
        {"asked": request(), "headroom": Headroom(1500)},
        "4/4 ResourceQuotaNotFit",
    ),
    "compute": (
        [card_state("GPU-a")],
        {"asked": request(memory_mib=1, cores=30), "headroom": Headroom(cores=29)},
        "1/1 ResourceQuotaNotFit",
    ),
    "cards": ([card_state("GPU-a")], {"headroom": Headroom(cards=0)}, "1/1 ResourceQuotaNotFit"),
    "exactly": ([card_state("GPU-a")], {"headroom": Headroom(1000, 0, 1)}, "GPU-a"),
    "beside what the pod's containers spend": (
        [card_state("GPU-a")],
        {"headroom": Headroom(1999), "spent": Charge(1000, 0, 1)},
        "1/1 ResourceQuotaNotFit",
    ),
    "apps beside an init container were under-counted": (
        [card_state("GPU-a", memory_mib=40000)],
        {"asked": request(percentage=40), "headroom": Headroom(24000), "spent": Charge(16000, 0, 1)},
        "1/1 ResourceQuotaNotFit",
    ),
    "MIG was tested with what was wanted, charged with the profile": (
        [card_state(mig_card())],
        {"asked": request(memory_mib=8000), "headroom": Headroom(9983)},
        "1/1 ResourceQuotaNotFit",
    ),
    "MIG within the profile's size": (
        [card_state(mig_card())],
        {"asked": request(memory_mib=8000), "headroom": Headroom(9984)},
        "GPU-m",
    ),
    "MIG without a profile left: the wanted size": (
        [card_state(mig_card(), (1, 0, 0), placements=(Placement(0, 8),))],
        {"asked": request(memory_mib=8000), "headroom": Headroom(7999)},
        "1/1 ResourceQuotaNotFit",
    ),
}


@pytest.mark.parametrize(("cards", "asks", "expected"), QUOTAS.values(), ids=QUOTAS)
def test_quota(cards: list[CardState], asks: dict[str, Any], expected: str) -> None:
    assert chosen(collect(cards, walk(**asks))) == expected


# NUMA: g0 and g1 on node 0, g2 (and g3) on node 1, in walk order

BIND = {"nvidia.com/numa-bind": "true"}


def cards_of(text: str, **used: tuple[int, int, int]) -> list[CardState]:
    """`g2:1 g0:0`: UUID and NUMA node."""
    pairs = [word.split(":") for word in text.split()]
    return [card_state(uuid, used.get(uuid, (0, 0, 0)), numa=int(numa)) for uuid, numa in pairs]


NUMA: dict[str, tuple[list[CardState], int, dict[str, Any], str]] = {
    "the first run is too short": (cards_of("g2:1 g1:0 g0:0"), 2, {}, "g1 g0"),
    "no run is long enough": (
        cards_of("g3:1 g2:1 g0:0 g1:0"),
        3,
        {},
        "2/4 AllocatedCardsInsufficientRequest, 2/4 NumaNotFit",
    ),
    "each run counts what it lost": (
        cards_of("a:0 b:1 c:0"),
        2,
        {},
        "1/3 AllocatedCardsInsufficientRequest, 2/3 NumaNotFit",
    ),
    "one card needs no partner": (cards_of("g2:1 g1:0"), 1, {}, "g2"),
    "a refused card of another node started a new run": (
        cards_of("a:0 full:1 b:0", full=(10, 0, 0)),
        2,
        {},
        "a b",
    ),
    "mutex with numa-bind blamed NUMA": (
        cards_of("g0:0 g3:1 g2:1 g1:0", g3=(1, 1000, 0), g2=(1, 1000, 0), g1=(2, 4000, 0)),
        2,
        {"policies": ["mutex"]},
        "1/4 AllocatedCardsInsufficientRequest, 3/4 ExclusiveDeviceAllocateConflict",
    ),
    "the quota of a new run does not include the run before": (
        cards_of("a:0 b:1 c:1"),
        2,
        {"headroom": Headroom(2000)},
        "b c",
    ),
    "without numa-bind runs do not matter": (cards_of("g2:1 g1:0 g0:0"), 2, {"annotations": {}}, "g2 g1"),
}


@pytest.mark.parametrize(("cards", "count", "asks", "expected"), NUMA.values(), ids=NUMA)
def test_numa(cards: list[CardState], count: int, asks: dict[str, Any], expected: str) -> None:
    asks = {"annotations": BIND, **asks}
    assert chosen(collect(cards, walk(request(count, memory_mib=1000), **asks))) == expected


# MIG: a card is looked at again until it refuses

MIGS: dict[str, tuple[list[CardState], int, int, dict[str, Any], str]] = {
    "two instances of one card": ([card_state(mig_card())], 2, 8000, {}, "GPU-m GPU-m"),
    "four do not fit": (
        [card_state(mig_card())],
        4,
        8000,
        {},
        "1/1 CardMigTopologyInfeasible, 3/1 AllocatedCardsInsufficientRequest",
    ),
    "over two cards": ([card_state(mig_card("m")), card_state(mig_card("n"))], 4, 8000, {}, "m m m n"),
    "a shared card beside it gives one": ([card_state("a"), card_state(mig_card("m"))], 3, 8000, {}, "a m m"),
    "slots count what was collected": (
        [card_state(mig_card(slots=2))],
        3,
        4000,
        {},
        "1/1 CardTimeSlicingExhausted, 2/1 AllocatedCardsInsufficientRequest",
    ),
    "mode lists decide whether cards may repeat": (
        [card_state(mig_card())],
        2,
        8000,
        {"annotations": {MODE: "hami-core"}},
        "NodeInsufficientDevice",
    ),
    "more instances than cards on a node of shared cards": ([card_state("a")], 2, 8000, {}, "NodeInsufficientDevice"),
    "the quota counts instances collected": (
        [card_state(mig_card())],
        2,
        8000,
        {"headroom": Headroom(2 * 9984 - 1)},
        "1/1 AllocatedCardsInsufficientRequest, 1/1 ResourceQuotaNotFit",
    ),
}


@pytest.mark.parametrize(("cards", "count", "memory_mib", "asks", "expected"), MIGS.values(), ids=MIGS)
def test_mig(cards: list[CardState], count: int, memory_mib: int, asks: dict[str, Any], expected: str) -> None:
    assert chosen(collect(cards, walk(request(count, memory_mib=memory_mib), **asks))) == expected


def test_instances_of_one_container_have_placements_of_their_own() -> None:
    found = collect([card_state(mig_card())], walk(request(2, memory_mib=7000)))
    assert isinstance(found, Candidates)
    assert [(one.profile, one.placement) for one in found.entries] == [
        ("2g.10gb", Placement(0, 2)),
        ("2g.10gb", Placement(2, 2)),
    ]


def test_a_whole_card_never_fitted_a_mig_card() -> None:
    found = collect([card_state(mig_card())], walk(request(cores=100)))
    assert isinstance(found, Candidates)
    assert found.entries == (entry("GPU-m", 40448, 100, profile="7g.40gb", placement=Placement(0, 8)),)


# topology-aware: all that pass are collected, then chosen (see test_choose)


def test_topology_takes_all_when_there_are_exactly_enough() -> None:
    cards = [card_state("a"), card_state("b", (10, 0, 0)), card_state("c")]
    assert chosen(collect(cards, walk(request(2, memory_mib=1), policies=["topology-aware"]))) == "a c"


def test_topology_with_too_few() -> None:
    cards = [card_state("a"), card_state("b", (10, 0, 0)), card_state("c", (10, 0, 0))]
    found = collect(cards, walk(request(2, memory_mib=1), policies=["topology-aware"]))
    assert chosen(found) == "1/3 AllocatedCardsInsufficientRequest, 2/3 CardTimeSlicingExhausted"


def test_topology_with_numa_kept_only_the_last_group() -> None:
    asks = walk(request(2, memory_mib=1), BIND, policies=["topology-aware"])
    assert chosen(collect(cards_of("g3:1 g2:1 g0:0"), asks)) == "g3 g2"


def test_topology_counts_nothing_as_numa_not_fit() -> None:
    asks = walk(request(3, memory_mib=1), BIND, policies=["topology-aware"])
    assert chosen(collect(cards_of("g3:1 g2:1 g1:0 g0:0"), asks)) == "2/4 AllocatedCardsInsufficientRequest"


def test_topology_every_candidate_counted_against_the_quota() -> None:
    linked = {"a": 0, "b": 0, "c": 100}
    cards = [
        card_state("a"),
        card_state("b", pair_scores=linked),
        card_state("c"),
    ]
    asks = walk(request(2, memory_mib=1000), policies=["topology-aware"], headroom=Headroom(2000))
    assert chosen(collect(cards, asks)) == "b c"


def test_topology_quota_of_uneven_cards() -> None:
    uneven = [card_state("a", memory_mib=2000), card_state("b", memory_mib=4000), card_state("c", memory_mib=6000)]
    asks = walk(request(2), policies=["topology-aware"], headroom=Headroom(7999))
    assert chosen(collect(uneven, asks)) == "a b"


def test_a_family_whose_choice_refuses_them_all() -> None:
    vendor = nvidia()
    refusal = Refusal({Reason.CARDS_INSUFFICIENT: 0}, 7)
    strict = replace(vendor, hooks=replace(vendor.hooks, choose=lambda vendor, groups, walk, counts: refusal))
    asks = walk(request(memory_mib=1), policies=["topology-aware"], vendor=strict)
    assert chosen(collect([card_state("a"), card_state("b")], asks)) == "0/7 AllocatedCardsInsufficientRequest"


def test_a_shared_card_of_another_size_is_no_mig_card() -> None:
    assert chosen(collect([card_state(card("a", mig_profiles=mig_card().mig_profiles))], walk())) == "a"
