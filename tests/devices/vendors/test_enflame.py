"""What is odd about Enflame: slices that must tile, sizes in GB or MiB, limits and requests that mirror each other."""

import json
from collections.abc import Mapping, Sequence

import pytest

from devices.errors import RegistrationError
from devices.objects import Pod, quota_of
from tests.builders import pod as pod_with
from tests.devices.vendors.driver import (
    admitted,
    filtered,
    pod,
    refusal,
    registered,
    resources_of,
    restarted,
    text_of,
    world,
)
from tests.devices.vendors.samples import VENDORS, asking
from tests.scheduler.builders import World

DRS = VENDORS["Enflame"]
SLICES, MEMORY, CORES = DRS.count_resource, DRS.memory_resource, DRS.core_resource
CAPACITY = "enflame.com/gcu-drs-capacity"
PROFILES = {"1g.8gb": "10", "2g.16gb": "11", "3g.24gb": "12", "6g.48gb": "13"}


def drs(cards: int = 1, profiles: Mapping[str, object] | None = None) -> World:
    devices = [{"index": str(n), "minor": str(n + 40), "capacity": 6} for n in range(cards)]
    return world(registered({CAPACITY: {"devices": devices, "profiles": profiles or PROFILES}}))


SIZES = {
    "three slices": ({SLICES: 3}, "24576,50"),
    "no profile of four slices": ({SLICES: 4}, "1/1 ModeNotFit"),
    "MiB and compute": ({MEMORY: 20000, CORES: 40}, "24576,50"),
    "20 are GB": ({MEMORY: 20}, "24576,50"),
    "48 GB, the largest": ({MEMORY: 48}, "49152,100"),
    "60 GB are more than any profile": ({MEMORY: 60}, "1/1 ModeNotFit"),
    "96 are still GB": ({MEMORY: 96}, "1/1 ModeNotFit"),
    "97 are MiB": ({MEMORY: 97}, "8192,17"),
    "8192 MiB are 8 GB": ({MEMORY: 8192}, "8192,17"),
    "8193 MiB are 9 GB": ({MEMORY: 8193}, "16384,34"),
    "49153 MiB are 49 GB": ({MEMORY: 49153}, "1/1 ModeNotFit"),
    "compute alone": ({CORES: 60}, "49152,100"),
    "17 % are one slice": ({CORES: 17}, "8192,17"),
    "18 % are two": ({CORES: 18}, "16384,34"),
    "slices hide memory": ({SLICES: 1, MEMORY: 48}, "8192,17"),
}


@pytest.mark.parametrize(("limits", "expected"), SIZES.values(), ids=SIZES)
def test_the_profile_of_a_request(limits: Mapping[str, object], expected: str) -> None:
    here = drs()
    found = filtered(here, limits)
    if found.nodes is None:
        assert refusal(found) == expected
    else:
        assert text_of(here, found, DRS.allocated) == f"n1-enflame-drs-0,Enflame,{expected}:;"


FILLS = {
    "the sixth single slice was refused": [1] * 6,
    "the third pair of slices was refused": [2] * 3,
    "mixed": [3, 2, 1],
    "all at once": [6],
}


@pytest.mark.parametrize("slices", FILLS.values(), ids=FILLS)
def test_six_slices_fill_a_card_also_after_a_restart(slices: Sequence[int]) -> None:
    """ENF-1: percent is rounded up and did not tile. ENF-2: a rebuilt entry counted one slot."""
    here, pods = drs(), [pod({SLICES: number}, f"p{n}") for n, number in enumerate(slices)]
    for count, one in enumerate(pods, start=1):
        assert here.filter(one).nodes == ("n1",)
        anew = restarted(here, pods[:count])
        assert anew.held() == here.held()
        assert here.held()["n1-enflame-drs-0"][0] == sum(slices[:count])
    for now in (here, restarted(here, pods)):
        assert refusal(filtered(now, {SLICES: 1}, "more")) == "1/1 CardTimeSlicingExhausted"
        holding = now.ledger.reservation(pods[-1].uid)
        assert holding is None or now.engine.still_good(holding)


def test_slices_left_must_cover_the_request() -> None:
    """ENF-2: one free slot was enough for any size."""
    here = drs()
    assert filtered(here, {SLICES: 3}, "a").nodes == ("n1",)
    assert filtered(here, {SLICES: 2}, "b").nodes == ("n1",)
    assert refusal(filtered(here, {SLICES: 2}, "c")) == "1/1 CardTimeSlicingExhausted"
    assert filtered(here, {SLICES: 1}, "d").nodes == ("n1",)


def several(*limits: Mapping[str, object]) -> Pod:
    return pod_with(*(asking(name, each) for name, each in zip(("z", "main", "b"), limits, strict=False)))


def test_what_its_plugin_reads() -> None:
    here = drs(2)
    one = several({}, {SLICES: 3}, {MEMORY: 16})
    found = here.filter(one)
    written = {key: text_of(here, found, key, one) for key in DRS.outputs}
    assert json.loads(written.pop("assigned-containers")) == {
        "b": {"allocated": False, "request": 2, "profileID": "11", "profileName": "2g.16gb"},
        "main": {"allocated": False, "request": 3, "profileID": "12", "profileName": "3g.24gb"},
    }
    assert written == {
        "enflame.com/gcu-assigned": "false",
        "enflame.com/gcu-assigned-time": "7000000000",
        "enflame.com/gcu-assigned-index": "1",
        "enflame.com/gcu-assigned-id": "1",
        "enflame.com/gcu-assigned-minor": "41",
        "enflame.com/gcu-request-size": "3",
    }


MIRRORED = {
    "slices in limits": ({SLICES: 2}, {}, {SLICES: "2"}),
    "slices in requests": ({}, {SLICES: 2}, {SLICES: "2"}),
    "memory and compute": ({MEMORY: 20000}, {CORES: 40}, {MEMORY: "20000", CORES: "40"}),
    "both there": ({SLICES: 2}, {SLICES: 2}, {SLICES: "2"}),
}


@pytest.mark.parametrize(("limits", "requests", "expected"), MIRRORED.values(), ids=MIRRORED)
def test_limits_and_requests_mirror_each_other(
    limits: Mapping[str, object], requests: Mapping[str, object], expected: Mapping[str, str]
) -> None:
    assert resources_of(admitted(limits, requests)) == (expected, expected)


DENIED = {
    "no slice": ({SLICES: 0}, "enflame.com/drs-gcu must be greater than 0"),
    "no memory": ({MEMORY: 0}, "enflame.com/gcu-memory must be greater than 0"),
    "no compute": ({CORES: 0}, "enflame.com/gcu-core must be in range (0,100]"),
    "more than all compute": ({MEMORY: 1, CORES: 101}, "enflame.com/gcu-core must be in range (0,100]"),
}


@pytest.mark.parametrize(("limits", "text"), DENIED.values(), ids=DENIED)
def test_denied(limits: Mapping[str, object], text: str) -> None:
    verdict = admitted(limits)
    assert not verdict.allowed
    assert verdict.message == text


def test_a_share_is_rounded_up() -> None:
    here = drs()
    found = filtered(here, {CORES: "16500m"})
    assert text_of(here, found, DRS.allocated) == "n1-enflame-drs-0,Enflame,8192,17:;"


def test_quota_counts_profiles_before_and_after_placing() -> None:
    here = drs()
    hard = {"limits.enflame.com/gcu-memory": "20000"}
    here.ledger.put_quota(quota_of({"metadata": {"name": "q", "namespace": "default"}, "spec": {"hard": hard}}))
    assert not admitted({SLICES: 3}, here=here).allowed
    assert admitted({SLICES: 2}, here=here).allowed
    assert refusal(filtered(here, {SLICES: 3})) == "1/1 ResourceQuotaNotFit"
    assert filtered(here, {SLICES: 2}).nodes == ("n1",)


REGISTRATIONS = {
    "capacity as text": ({"devices": [{"index": "0", "capacity": "6"}], "profiles": PROFILES}, {0: 6}),
    "an index that is no number is the position": (
        {"devices": [{"index": "3", "capacity": 6}, {"index": "x", "capacity": 2}], "profiles": PROFILES},
        {3: 6, 1: 2},
    ),
    "numbers that nobody means": (
        {
            "devices": [{"index": "9" * 5000, "capacity": 6}, {"index": "1", "capacity": "9" * 5000}],
            "profiles": PROFILES,
        },
        {0: 6},
    ),
    "one device without capacity": (
        {"devices": [{"index": "0", "capacity": 0}, {"index": "1", "capacity": 6}], "profiles": PROFILES},
        {1: 6},
    ),
    "numbers for names": ({"devices": [{"index": 0, "capacity": 6}], "profiles": PROFILES}, {}),
}


@pytest.mark.parametrize(("document", "slots"), REGISTRATIONS.values(), ids=REGISTRATIONS)
def test_registration(document: Mapping[str, object], slots: Mapping[int, int]) -> None:
    listed = DRS.read_node(registered({CAPACITY: document}))
    assert {card.index: card.slots for card in listed.cards} == slots
    assert all(card.uuid == f"n1-enflame-drs-{card.index}" for card in listed.cards)
    assert bool(listed.problems) == (len(slots) < len(document["devices"]))  # type: ignore[arg-type]  # the table's documents have lists there


NAMES = {
    "suffixes may be missing, case does not count": ({"3.24": "1", "6G.48GB": "2"}, 49152),
    "what follows is ignored": ({"6g.48gb.media": "2"}, 49152),
    "without memory the slices count": ({"6g": "2"}, 6144),
}


@pytest.mark.parametrize(("profiles", "memory"), NAMES.values(), ids=NAMES)
def test_names_of_profiles(profiles: Mapping[str, object], memory: int) -> None:
    state = drs(profiles=profiles).ledger.state("n1")
    assert state is not None
    assert [found.card.memory_mib for found in state.cards] == [memory]


@pytest.mark.parametrize("profiles", [{"g.gb": "1"}, {"x": "1"}, {"0g.8gb": "1"}])
def test_no_profile_says_how_many_slices_there_are(profiles: Mapping[str, object]) -> None:
    node = registered({CAPACITY: {"devices": [{"index": "0", "capacity": 6}], "profiles": profiles}})
    with pytest.raises(RegistrationError, match=r"no profile such as 3g\.24gb"):
        DRS.read_node(node)


def test_whole_cards_and_slices_know_nothing_of_each_other() -> None:
    """GCU-1."""
    devices = {"devices": [{"index": "0", "capacity": 6}], "profiles": PROFILES}
    here = world(registered({CAPACITY: devices}, {"enflame.com/gcu": "1", SLICES: "6"}))
    assert filtered(here, {SLICES: 6}, "a").nodes == ("n1",)
    assert filtered(here, {"enflame.com/gcu": 1}, "b").nodes == ("n1",)
    assert refusal(filtered(here, {"enflame.com/gcu": 1}, "c")) == "1/1 ExclusiveDeviceAllocateConflict"
