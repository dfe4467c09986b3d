"""Quota arithmetic: limits over objects, what an unplaced pod costs, and the text of a denial."""

from collections.abc import Sequence
from typing import Any

import pytest

from devices.fit import Headroom
from devices.model import Card, Charge
from devices.objects import Quota, quota_of
from devices.quota import Excess, Limit, excesses, limits_of, managed_keys, unplaced_charge, unreadable
from devices.requests import PodRequest, pod_request
from tests.builders import card, container_document, mig_card, nvidia, nvidia_config, pod, quota

NAMES = managed_keys(nvidia_config().vendors)
MEMORY, CORES, COUNT = "nvidia.com/gpumem", "nvidia.com/gpucores", "nvidia.com/gpu"


def test_managed_are_count_memory_and_cores() -> None:
    assert NAMES == (COUNT, CORES, MEMORY)
    assert managed_keys(nvidia_config(resourceCoreName="").vendors) == (COUNT, MEMORY)


LIMITS: dict[str, tuple[list[Quota], dict[str, Limit]]] = {
    "none": ([], {}),
    "one": ([quota(gpumem=4000)], {MEMORY: Limit(4000, "q")}),
    "0 is a limit": ([quota(gpu=0)], {COUNT: Limit(0, "q")}),
    "the last of several objects won": (
        [quota("a", gpumem=2000, gpu=5), quota("b", gpumem=3000, gpu=4)],
        {MEMORY: Limit(2000, "a"), COUNT: Limit(4, "b")},
    ),
    "equal limits: the first by name": ([quota("b", gpumem=1), quota("a", gpumem=1)], {MEMORY: Limit(1, "a")}),
    "suffixes": ([quota(gpumem="24k")], {MEMORY: Limit(24000, "q")}),
    "unreadable limits nothing, the other object does": (
        [quota("a", gpumem="1.5"), quota("b", gpumem=3000)],
        {MEMORY: Limit(3000, "b")},
    ),
    "foreign keys": ([quota(cpu=1, **{"nvidia.com/gpumem-percentage": 50})], {}),
}


@pytest.mark.parametrize(("quotas", "limits"), LIMITS.values(), ids=LIMITS)
def test_limits(quotas: list[Quota], limits: dict[str, Limit]) -> None:
    assert limits_of(quotas, NAMES) == limits
    assert limits_of(reversed(quotas), NAMES) == limits


def test_requests_and_bare_names_are_not_limits() -> None:
    other = {"metadata": {"name": "q"}, "spec": {"hard": {"requests.nvidia.com/gpu": 1, MEMORY: 2}}}
    assert limits_of([quota_of(other)], NAMES) == {}


def test_unreadable_limits_are_named() -> None:
    assert unreadable(quota(gpumem="1.5", gpu=1, cpu="x"), NAMES) == (
        "ResourceQuota default/q: limits.nvidia.com/gpumem: '1.5' is not a whole number and limits nothing",
    )


# What a pod without cards costs


def asks(*containers: dict[str, Any], init: Sequence[dict[str, Any]] = (), **settings: object) -> PodRequest:
    return pod_request(pod(*containers, init=init), [nvidia(**settings)])


def gpu(**limits: Any) -> dict[str, Any]:
    return container_document("c", **limits)


T4, A10 = card("T"), card("U", memory_mib=24576)

UNPLACED: dict[str, tuple[PodRequest, list[Card], Charge, Charge]] = {
    "memory times cards": (asks(gpu(gpu=2, gpumem=400)), [T4], Charge(800, 0, 2), Charge(800, 0, 2)),
    "init containers one after another": (
        asks(gpu(gpu=1, gpumem=500), init=[gpu(gpu=1, gpumem=800), gpu(gpu=1, gpumem=800)]),
        [T4],
        Charge(800, 0, 1),
        Charge(800, 0, 1),
    ),
    "a sidecar beside the app": (
        asks(gpu(gpu=1, gpumem=500), init=[container_document("s", sidecar=True, gpu=1, gpumem=300)]),
        [T4],
        Charge(800, 0, 2),
        Charge(800, 0, 2),
    ),
    "percentages bypassed the quota": (
        asks(gpu(gpu=1, percentage=50, gpucores=30)),
        [T4, A10],
        Charge(7680, 30, 1),
        Charge(12288, 30, 1),
    ),
    "whole cards bypassed the quota": (asks(gpu(gpu=2)), [A10, T4], Charge(30720, 0, 2), Charge(49152, 0, 2)),
    "no card: explicit memory as given, percentages 0": (
        asks(gpu(gpu=2, percentage=50), gpu(gpu=1, gpumem=7, gpucores=150)),
        [],
        Charge(7, 100, 3),
        Charge(7, 100, 3),
    ),
    "cores are charged as cards are checked with them": (
        asks(gpu(gpu=1, gpumem=1, gpucores=150)),
        [T4],
        Charge(1, 100, 1),
        Charge(1, 100, 1),
    ),
    "a whole MIG card is its largest profile": (
        asks(gpu(gpu=1)),
        [mig_card()],
        Charge(40448, 0, 1),
        Charge(40448, 0, 1),
    ),
    "explicit sizes on MIG cards stay as asked": (
        asks(gpu(gpu=1, gpumem=8000)),
        [mig_card()],
        Charge(8000, 0, 1),
        Charge(8000, 0, 1),
    ),
    "no devices": (asks(gpu(cpu=1)), [T4], Charge(), Charge()),
}


@pytest.mark.parametrize(("request_", "cards", "charged", "at_most"), UNPLACED.values(), ids=UNPLACED)
def test_unplaced(request_: PodRequest, cards: list[Card], charged: Charge, at_most: Charge) -> None:
    for order in (cards, cards[::-1]):
        found = unplaced_charge(nvidia(), request_, order)
        assert (found.charged, found.at_most, found.has_card) == (charged, at_most, bool(cards))


ADMISSIONS: dict[str, tuple[PodRequest, dict[str, object], int, int, bool]] = {
    "two cards of 400": (asks(gpu(gpu=2, gpumem=400)), {}, 2000, 1000, True),
    "two cards of 1024": (asks(gpu(gpu=2, gpumem=1024)), {}, 2000, 1000, False),
    "exactly what is left": (asks(gpu(gpu=2, gpumem=500)), {}, 2000, 1000, True),
    "with a factor the limit grows too": (
        asks(gpu(gpu=2, gpumem=1500), memoryFactor=2),
        {"memoryFactor": 2},
        4000,
        2000,
        True,
    ),
    "with a factor, one too many": (
        asks(gpu(gpu=2, gpumem=1500), memoryFactor=2),
        {"memoryFactor": 2},
        4000,
        2001,
        False,
    ),
}


@pytest.mark.parametrize(("request_", "settings", "limit", "used", "fits"), ADMISSIONS.values(), ids=ADMISSIONS)
def test_admission(request_: PodRequest, settings: dict[str, object], limit: int, used: int, fits: bool) -> None:
    vendor = nvidia(**settings)
    charge = unplaced_charge(vendor, request_, [T4]).charged
    found = excesses("team", vendor, charge, Charge(used), {MEMORY: Limit(limit, "q")})
    assert (found == ()) is fits


def test_the_text_of_a_denial_has_the_numbers() -> None:
    limits = {MEMORY: Limit(12000, "gpu"), CORES: Limit(100, "gpu"), COUNT: Limit(2, "cards")}
    found = excesses("team", nvidia(), Charge(6000, 30, 2), Charge(8000, 70, 1), limits)
    assert [str(one) for one in found] == [
        "team/gpu limits.nvidia.com/gpumem: asked 6000, used 8000, limit 12000 (2000 too many)",
        "team/cards limits.nvidia.com/gpu: asked 2, used 1, limit 2 (1 too many)",
    ]


def test_memory_is_told_after_the_factor_on_both_sides() -> None:
    (found,) = excesses("team", nvidia(memoryFactor=2), Charge(6000), Charge(2001), {MEMORY: Limit(4000, "q")})
    assert found == Excess("team", "q", MEMORY, 6000, 2001, 8000)


def test_what_asks_for_nothing_of_a_key_exceeds_nothing() -> None:
    limits = {MEMORY: Limit(0, "q"), CORES: Limit(0, "q")}
    assert excesses("team", nvidia(), Charge(0, 0, 1), Charge(5, 5, 5), limits) == ()
    assert [e.resource for e in excesses("team", nvidia(), Charge(1, 1, 1), Charge(), limits)] == [MEMORY, CORES]


def test_a_vendor_without_a_memory_name_has_no_memory_limit() -> None:
    vendor = nvidia(resourceMemoryName="")
    assert excesses("team", vendor, Charge(9, 0, 1), Charge(), {MEMORY: Limit(1, "q"), "": Limit(0, "q")}) == ()
    assert vendor.headroom_of({MEMORY: 1, "": 0}, Charge()) is None


HEADROOMS: dict[str, tuple[dict[str, int], Headroom | None]] = {
    "nothing limited": ({"cpu": 1}, None),
    "memory, after the factor": ({MEMORY: 4000}, Headroom(8000 - 1000, None, None)),
    "cores": ({CORES: 50}, Headroom(None, 40, None)),
    "cards": ({COUNT: 1}, Headroom(None, None, -1)),
}


@pytest.mark.parametrize(("limits", "headroom"), HEADROOMS.values(), ids=HEADROOMS)
def test_headroom(limits: dict[str, int], headroom: Headroom | None) -> None:
    assert nvidia(memoryFactor=2).headroom_of(limits, Charge(1000, 10, 2)) == headroom
