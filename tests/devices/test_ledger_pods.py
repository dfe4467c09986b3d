"""What the books make of pods: who counts, how much, and for how long (HAMi v2.10 scheduling, pod cache transitions)."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from devices.ledger import Ledger
from devices.model import Allocation, Charge, MigReservation, Placement
from devices.objects import Metadata, Pod
from devices.usage import Hold
from tests.builders import (
    ALLOCATED,
    MIG_ALLOCATIONS,
    VGPU_NODE,
    VGPU_TIME,
    allocated,
    card,
    container_document,
    entry,
    mig_card,
    node,
    nvidia_config,
    pod,
)

ONE: Allocation = ((entry("GPU-a", 1000, 10),),)
TIMEOUT_S = 660.0


@pytest.fixture
def ledger() -> Ledger:
    """One node with two T4 cards and an A100 that hands out instances."""
    books = Ledger(nvidia_config())
    books.put_node(node("n1", card("GPU-a"), card("GPU-b", index=1), mig_card("GPU-m", index=2)))
    return books


def holding(**fields: Any) -> Pod:
    """A bound pod that carries `ONE`."""
    return pod(**{"node": "n1", "annotations": allocated(ONE), **fields})


def used(ledger: Ledger, name: str = "n1") -> dict[str, tuple[int, int, int]]:
    """(slots, MiB, percent) of every card that somebody holds."""
    return {
        uuid: (hold.slots, hold.memory_mib, hold.cores)
        for (_, uuid), hold in ledger.usage(name).items()
        if hold != Hold()
    }


def charged(ledger: Ledger, namespace: str = "default") -> tuple[int, int, int]:
    """(MiB, percent, cards) that the namespace's pods cost."""
    charge = ledger.used(namespace).get("NVIDIA", Charge())
    return charge.memory_mib, charge.cores, charge.cards


FULL = ({"GPU-a": (1, 1000, 10)}, (1000, 10, 1))
NOTHING: tuple[dict[str, tuple[int, int, int]], tuple[int, int, int]] = ({}, (0, 0, 0))

FIRST_SEEN: dict[str, tuple[Pod, Any]] = {
    "bound": (holding(), FULL),
    "annotated, not bound": (holding(node=""), FULL),
    "running": (holding(phase="Running"), FULL),
    "terminating at start-up was forgotten": (holding(terminating=True), FULL),
    "succeeded": (holding(phase="Succeeded"), NOTHING),
    "failed": (holding(phase="Failed"), NOTHING),
    "bound without annotations": (holding(annotations={}), NOTHING),
    "allocation without node": (holding(annotations={ALLOCATED: allocated(ONE)[ALLOCATED]}), NOTHING),
    "node without allocation": (holding(annotations={VGPU_NODE: "n1"}), NOTHING),
    "a stale key overwritten with nothing": (holding(annotations={VGPU_NODE: "n1", ALLOCATED: ""}), NOTHING),
    "consumed text": (holding(annotations={VGPU_NODE: "n1", ALLOCATED: ";"}), NOTHING),
    "a node of which nothing is known": (holding(annotations=allocated(ONE, "n9")), ({}, (1000, 10, 1))),
    "a card of which nothing is known": (
        holding(annotations=allocated(((entry("GPU-x", 500),),))),
        ({}, (500, 0, 1)),
    ),
    "usage goes to the annotated node, not to spec.nodeName": (holding(node="n2"), FULL),
    "no devices in its spec": (
        pod(container_document(cpu=1), node="n1", annotations=allocated(ONE)),
        FULL,
    ),
}


@pytest.mark.parametrize(("first", "expected"), FIRST_SEEN.values(), ids=FIRST_SEEN)
def test_first_seen(ledger: Ledger, first: Pod, expected: Any) -> None:
    ledger.put_pod(first, 0)
    assert (used(ledger), charged(ledger)) == expected


def test_pods_without_devices_leave_no_trace(ledger: Ledger) -> None:
    ledger.put_pod(pod(container_document(cpu=1)), 0)
    assert list(ledger.pods()) == []
    ledger.put_pod(pod(container_document(requests={"nvidia.com/priority": 1})), 0)
    assert [one.name for one in ledger.pods()] == ["a"]


ENDS: dict[str, Pod] = {
    "succeeded": holding(phase="Succeeded", version=2),
    "failed": holding(phase="Failed", version=2),
    "its annotations gone": holding(annotations={}, version=2),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_the_end_gives_everything_back(ledger: Ledger, end: Pod) -> None:
    ledger.put_pod(holding(), 0)
    ledger.put_pod(end, 1)
    assert (used(ledger), charged(ledger)) == NOTHING
    assert ledger.holding("uid-a") is None


def test_a_terminating_pod_keeps_its_cards_until_it_is_gone(ledger: Ledger) -> None:
    ledger.put_pod(holding(), 0)
    ledger.put_pod(holding(terminating=True, version=2), 1)
    assert (used(ledger), charged(ledger)) == FULL
    ledger.delete_pod("uid-a")
    assert (used(ledger), charged(ledger)) == NOTHING
    assert ledger.pod("uid-a") is None


def test_an_older_version_is_ignored(ledger: Ledger) -> None:
    ledger.put_pod(holding(version=10), 0)
    ledger.put_pod(pod(version=9), 1)
    assert used(ledger) == FULL[0]
    ledger.put_pod(holding(version=10, annotations={}), 1)
    assert (used(ledger), charged(ledger)) == NOTHING


def test_revisions_are_numbers_not_texts(ledger: Ledger) -> None:
    ledger.put_pod(holding(version=10), 0)
    ledger.put_pod(pod(version=9), 1)
    assert ledger.holding("uid-a") is not None


def test_a_read_that_comes_back_after_the_deletion_revived_the_pod(ledger: Ledger) -> None:
    ledger.put_pod(holding(), 0)
    ledger.delete_pod("uid-a")
    assert ledger.is_gone("uid-a")
    ledger.put_pod(holding(version=99), 1)
    assert (used(ledger), charged(ledger)) == NOTHING
    assert ledger.is_gone("uid-a")
    assert list(ledger.pods()) == []


def test_a_read_that_comes_back_after_the_end_revived_the_pod(ledger: Ledger) -> None:
    """No event follows the last one, so the cards stayed taken until somebody deleted the pod."""
    ledger.put_pod(holding(version=5), 0)
    ledger.put_pod(holding(version=7, phase="Succeeded"), 1)
    assert ledger.has_ended("uid-a")
    for version in (6, 7):
        ledger.put_pod(holding(version=version), 2, by_watch=False)
        assert (used(ledger), charged(ledger)) == NOTHING
        assert list(ledger.pods()) == []
    assert not ledger.has_ended("uid-other")


def test_a_revision_of_thousands_of_digits_is_none(ledger: Ledger) -> None:
    endless = pod(version=int("9" * 20))
    ledger.put_pod(msgspec.structs.replace(endless, metadata=_with_revision(endless, "9" * 5000)), 0)
    assert ledger.shown("uid-a") == 0
    ledger.put_pod(endless, 0)
    assert ledger.shown("uid-a") == int("9" * 20)


def _with_revision(of: Pod, text: str) -> Metadata:
    return msgspec.structs.replace(of.metadata, resource_version=text)


def test_deleting_an_unknown_pod_changes_nothing(ledger: Ledger) -> None:
    before = ledger.version
    ledger.delete_pod("uid-never")
    assert ledger.is_gone("uid-never")
    assert not ledger.is_gone("uid-a")
    assert ledger.version == before


def test_the_memory_of_gone_pods_is_bounded(ledger: Ledger) -> None:
    for number in range(20_001):
        ledger.delete_pod(str(number))
    assert not ledger.is_gone("0")
    assert ledger.is_gone("1")
    assert ledger.is_gone("20000")


def test_an_update_changed_cards_but_not_quota(ledger: Ledger) -> None:
    ledger.put_pod(holding(), 0)
    moved = allocated(((entry("GPU-b", 3000, 30), entry("GPU-a", 1, 1)),))
    ledger.put_pod(holding(annotations=moved, version=2), 1)
    assert used(ledger) == {"GPU-a": (1, 1, 1), "GPU-b": (1, 3000, 30)}
    assert charged(ledger) == (3001, 31, 2)


def test_a_pod_may_move_to_another_node(ledger: Ledger) -> None:
    ledger.put_node(node("n2", card("GPU-a")))
    ledger.put_pod(holding(), 0)
    ledger.put_pod(holding(annotations=allocated(ONE, "n2"), version=2), 1)
    assert (used(ledger, "n1"), used(ledger, "n2"), charged(ledger)) == ({}, *FULL)


def test_namespaces_are_apart(ledger: Ledger) -> None:
    ledger.put_pod(holding(), 0)
    ledger.put_pod(holding(name="b", namespace="team"), 0)
    ledger.put_pod(holding(name="c", namespace=None), 0)
    assert charged(ledger) == (2000, 20, 2)
    assert charged(ledger, "team") == (1000, 10, 1)
    assert ledger.namespaces() == ("default", "team")
    assert used(ledger) == {"GPU-a": (3, 3000, 30)}


# Init containers


INIT = container_document("init", gpu=1)


def with_init(
    *lists: tuple[Any, ...], exit_codes: Mapping[str, int] | None = None, version: int = 1, **fields: Any
) -> Pod:
    return holding(init=[INIT], annotations=allocated(lists), exit_codes=exit_codes or {}, version=version, **fields)


def test_finished_init_containers_give_their_part_back_once(ledger: Ledger) -> None:
    lists = ((entry("GPU-a", 20000, 10),), (entry("GPU-a", 10000, 5),))
    ledger.put_pod(with_init(*lists), 0)
    assert (used(ledger), charged(ledger)) == ({"GPU-a": (1, 20000, 10)}, (20000, 10, 1))
    ledger.put_pod(with_init(*lists, exit_codes={"init": 1}, version=2), 1)
    assert charged(ledger) == (20000, 10, 1)
    ledger.put_pod(with_init(*lists, exit_codes={"init": 0}, version=3), 2)
    assert (used(ledger), charged(ledger)) == ({"GPU-a": (1, 10000, 5)}, (10000, 5, 1))
    # Nothing inflates it again.
    ledger.put_pod(with_init(*lists, version=4), 3)
    assert (used(ledger), charged(ledger)) == ({"GPU-a": (1, 10000, 5)}, (10000, 5, 1))
    ledger.delete_pod("uid-a")
    assert (used(ledger), charged(ledger)) == NOTHING


def test_a_restart_counts_a_released_pod_the_same(ledger: Ledger) -> None:
    ledger.put_pod(with_init((entry("GPU-a", 20000),), (entry("GPU-b", 5),), exit_codes={"init": 0}), 0)
    assert (used(ledger), charged(ledger)) == ({"GPU-b": (1, 5, 0)}, (5, 0, 1))


def test_a_running_app_vanished_with_its_lost_position(ledger: Ledger) -> None:
    plain = [container_document("init")]
    annotations = {VGPU_NODE: "n1", ALLOCATED: "GPU-a,NVIDIA,4000,10:;"}
    for version, codes in enumerate(({}, {"init": 0}), start=1):
        ledger.put_pod(holding(init=plain, annotations=annotations, exit_codes=codes, version=version), 0)
        assert (used(ledger), charged(ledger)) == ({"GPU-a": (1, 4000, 10)}, (4000, 10, 1))


def test_init_containers_on_two_cards_were_summed_in_the_quota(ledger: Ledger) -> None:
    init = [container_document("one", gpu=1), container_document("two", gpu=1)]
    lists = ((entry("GPU-a", 1000),), (entry("GPU-b", 1000),), (entry("GPU-a", 500),))
    ledger.put_pod(holding(init=init, annotations=allocated(lists)), 0)
    assert used(ledger) == {"GPU-a": (1, 1000, 0), "GPU-b": (1, 1000, 0)}
    assert charged(ledger) == (1000, 0, 1)


def test_instances_of_init_containers_stay_reserved_until_the_pod_ends(ledger: Ledger) -> None:
    instance = entry("GPU-m", 9984, 29, profile="2g.10gb", placement=Placement(0, 2))
    ledger.put_pod(with_init((instance,), (entry("GPU-a", 5),), exit_codes={"init": 0}), 0)
    state = ledger.state("n1")
    assert state is not None
    assert [(s.used_slots, s.placements, s.healthy) for s in state.cards if s.card.mode == "mig"] == [
        (0, (Placement(0, 2),), True)
    ]


# What cannot be read


def test_an_unreadable_allocation_counts_nothing_and_is_said(ledger: Ledger) -> None:
    ledger.put_pod(holding(annotations={VGPU_NODE: "n1", ALLOCATED: "GPU-a,NVIDIA,x,0:;"}), 0)
    assert (used(ledger), charged(ledger)) == NOTHING
    assert ledger.pod_problems() == {
        "uid-a": "pod default/a: its allocation counts nothing: invalid memory field: 'x' is no 32-bit whole number"
    }
    ledger.put_pod(holding(version=2), 1)
    assert (used(ledger), charged(ledger)) == FULL
    assert ledger.pod_problems() == {}


def test_a_problem_outlived_the_annotations_it_was_about(ledger: Ledger) -> None:
    ledger.put_pod(holding(annotations={VGPU_NODE: "n1", ALLOCATED: "a,b,c:;"}), 0)
    assert ledger.pod_problems()
    ledger.put_pod(holding(annotations={}, version=2), 1)
    assert ledger.pod_problems() == {}


def test_a_problem_ends_with_its_pod(ledger: Ledger) -> None:
    ledger.put_pod(holding(annotations={VGPU_NODE: "n1", ALLOCATED: "a,b,c:;"}), 0)
    ledger.delete_pod("uid-a")
    assert ledger.pod_problems() == {}


def test_unreadable_reservations_close_the_mig_card(ledger: Ledger) -> None:
    instance = entry("GPU-m", 9984, 29, profile="2g.10gb", placement=Placement(0, 2))
    annotations = {**allocated(((instance,),)), MIG_ALLOCATIONS: "["}
    ledger.put_pod(holding(annotations=annotations), 0)
    state = ledger.state("n1")
    assert state is not None
    assert [s.healthy for s in state.cards] == [True, True, False]
    assert ledger.pod_problems()["uid-a"].startswith("pod default/a: its MIG cards take nobody else: the MIG")
    ledger.put_pod(holding(annotations=allocated(((instance,),)), version=2), 1)
    state = ledger.state("n1")
    assert state is not None
    assert [s.healthy for s in state.cards] == [True, True, True]
    assert ledger.pod_problems() == {}


def test_a_holding_says_what_the_pod_carries(ledger: Ledger) -> None:
    instance = entry("GPU-m", 9984, 29, profile="2g.10gb", placement=Placement(0, 2))
    ledger.put_pod(holding(annotations=allocated(((instance,),))), 0)
    found = ledger.holding("uid-a")
    assert found is not None
    assert found.allocation == ((entry("GPU-m", 9984, 29),),)
    assert found.reservations == (MigReservation(0, 0, "GPU-m", "2g.10gb", Placement(0, 2)),)
    assert (found.node, found.released, found.charges) == ("n1", False, {"NVIDIA": Charge(9984, 29, 1)})


# Annotated pods that are not bound: left by HAMi, or by a crash


def left(stamp: str | None, **fields: Any) -> Pod:
    annotations = allocated(ONE) | ({} if stamp is None else {VGPU_TIME: stamp})
    return pod(annotations=annotations, **fields)


TIMES: dict[str, tuple[str | None, float, float]] = {
    "written before we saw it": ("900", 1000, 1000 + TIMEOUT_S),
    "written after we saw it": ("1100", 1000, 1100 + TIMEOUT_S),
    "no time": (None, 1000, 1000 + TIMEOUT_S),
    "unreadable": ("yesterday", 1000, 1000 + TIMEOUT_S),
    "negative": ("-5", 1000, 1000 + TIMEOUT_S),
    "far ahead of us held cards for ever": ("99999999999", 1000, 1000 + TIMEOUT_S),
}


@pytest.mark.parametrize(("stamp", "seen_s", "until_s"), TIMES.values(), ids=TIMES)
def test_annotations_of_an_unbound_pod_count_for_a_time(
    ledger: Ledger, stamp: str | None, seen_s: float, until_s: float
) -> None:
    ledger.put_pod(left(stamp), seen_s)
    assert ledger.expire(until_s) == ()
    assert (used(ledger), charged(ledger)) == FULL
    assert ledger.expire(until_s + 0.1) == ("uid-a",)
    assert (used(ledger), charged(ledger)) == NOTHING
    # An update does not bring them back; being bound does.
    ledger.put_pod(left(stamp, version=2), until_s + 1)
    assert (used(ledger), charged(ledger)) == NOTHING
    ledger.put_pod(left(stamp, version=3, node="n1"), until_s + 2)
    assert (used(ledger), charged(ledger)) == FULL


def test_bound_pods_never_expire(ledger: Ledger) -> None:
    ledger.put_pod(holding(), 0)
    assert ledger.expire(1e12) == ()
    assert (used(ledger), charged(ledger)) == FULL


def test_the_time_out_is_a_setting() -> None:
    ledger = Ledger(nvidia_config(), reservation_timeout_s=5)
    ledger.put_pod(left(None), 0)
    assert ledger.expire(5) == ()
    assert ledger.expire(6) == ("uid-a",)


def test_after_an_answer_the_old_annotations_are_a_phantom(ledger: Ledger) -> None:
    ledger.put_pod(left("0"), 0)
    ledger.answer(left("0"), 1)
    assert (used(ledger), charged(ledger)) == NOTHING
    ledger.put_pod(left("0", version=2), 2)
    assert (used(ledger), charged(ledger)) == NOTHING
    ledger.put_pod(left("0", version=3, node="n1"), 3)
    assert (used(ledger), charged(ledger)) == FULL
