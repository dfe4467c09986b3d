"""Dynamic MIG: which instance a request gets (HAMi v2.10 scheduling, worked example of an A100 of 40 GB)."""

import pytest

from devices.mig import instance, is_mig, wanted_memory
from devices.model import CardState, Entry, MigProfile, Placement
from devices.requests import DeviceRequest
from tests.builders import card, card_state, mig_card, request


def instances_in_turn(*requests: DeviceRequest) -> list[str]:
    """What each request gets as `profile@start`, every one a pod of its own."""
    state, found = card_state(mig_card()), []
    for one in requests:
        got = instance(state, one, "NVIDIA", ())
        found.append(_text(got))
        state = state if got is None else state.with_entry(got)
    return found


def _text(got: Entry | None) -> str:
    return "none" if got is None or got.placement is None else f"{got.profile.partition('.')[0]}@{got.placement.start}"


SEQUENCES = {
    "3g from the top, 2g from below, 1g from the top": (
        (20000, 8000, 4000, 4000, 4000),
        ["3g@4", "2g@0", "1g@3", "1g@2", "none"],
    ),
    "three of 2g, then the last slice": ((8000,) * 4 + (4000,), ["2g@0", "2g@2", "2g@4", "none", "1g@6"]),
    "1g keeps the low end free": ((4000,) * 4 + (9000,), ["1g@6", "1g@5", "1g@4", "1g@3", "2g@0"]),
    "2g reports less than 10240": ((10240, 5120), ["3g@4", "2g@0"]),
    "40000 is the whole card by size": ((40000,), ["7g@0"]),
    "nothing beside the whole card": ((40000, 1), ["7g@0", "none"]),
    "more than any profile": ((40449,), ["none"]),
    "exactly a profile": ((9984,), ["2g@0"]),
}


@pytest.mark.parametrize(("sizes", "expected"), SEQUENCES.values(), ids=SEQUENCES)
def test_in_turn(sizes: tuple[int, ...], expected: list[str]) -> None:
    assert instances_in_turn(*(request(memory_mib=size) for size in sizes)) == expected


def test_a_whole_card_never_fitted_its_largest_profile() -> None:
    assert wanted_memory(mig_card(), request()) == 40448
    assert instances_in_turn(request()) == ["7g@0"]


def test_an_explicit_size_is_no_whole_card() -> None:
    assert wanted_memory(mig_card(), request(memory_mib=40960)) == 40960
    assert instances_in_turn(request(memory_mib=40960)) == ["none"]


def test_a_percentage_is_of_the_cards_memory() -> None:
    assert wanted_memory(mig_card(), request(percentage=50)) == 20480
    assert instances_in_turn(request(percentage=50), request(percentage=25)) == ["7g@0", "none"]


def test_a_card_without_profiles_wants_its_memory_and_gives_nothing() -> None:
    bare = mig_card(mig_profiles=())
    assert wanted_memory(bare, request()) == 40960
    assert instance(card_state(bare), request(memory_mib=1), "NVIDIA", ()) is None


def test_memory_and_cores_become_the_profiles_own() -> None:
    got = instance(card_state(mig_card()), request(memory_mib=8000, cores=70), "NVIDIA", ())
    assert got == Entry("GPU-m", "NVIDIA", 9984, 29, "2g.10gb", Placement(0, 2))


def test_what_the_same_container_collected_of_this_card_is_taken() -> None:
    first = Entry("GPU-m", "NVIDIA", 9984, 29, "2g.10gb", Placement(0, 2))
    elsewhere = Entry("GPU-x", "NVIDIA", 9984, 29, "2g.10gb", Placement(2, 2))
    shared = Entry("GPU-m", "NVIDIA", 1, 1)
    got = instance(card_state(mig_card()), request(memory_mib=8000), "NVIDIA", [first, elsewhere, shared])
    assert _text(got) == "2g@2"


def test_profiles_of_equal_memory_go_by_slices_whatever_their_order() -> None:
    wide = MigProfile("2g.wide", 5000, 20, 2, (Placement(0, 2),))
    narrow = MigProfile("1g.narrow", 5000, 10, 1, (Placement(0, 1),))
    for profiles in ((wide, narrow), (narrow, wide)):
        state: CardState = card_state(mig_card(mig_profiles=profiles))
        got = instance(state, request(memory_mib=5000), "NVIDIA", ())
        assert got is not None
        assert got.profile == "1g.narrow"


def test_only_the_mode_makes_a_mig_card() -> None:
    assert is_mig(mig_card())
    assert not is_mig(card(mig_profiles=mig_card().mig_profiles))
    assert not is_mig(card(mode=""))
