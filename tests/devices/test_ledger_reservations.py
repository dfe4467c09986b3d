"""The life of a reservation: made by a decision, released by what is said of the pod, never while its Binding is under way."""

from collections.abc import Callable

import pytest

from devices.annotations import mig_reservations
from devices.ledger import Ledger, Phase, Reservation
from devices.model import Placement
from tests.builders import VGPU_NODE, allocated, card, container_document, entry, mig_card, node, nvidia_config, pod
from tests.devices.test_ledger_pods import FULL, NOTHING, ONE, TIMEOUT_S, charged, used


@pytest.fixture
def ledger() -> Ledger:
    """One node, and pod `a` decided at second 100 from its version 5."""
    books = Ledger(nvidia_config())
    books.put_node(node("n1", card("GPU-a"), card("GPU-b", index=1), mig_card("GPU-m", index=2)))
    books.reserve(pod(version=5), "n1", ONE, 100)
    return books


def test_a_reservation_counts_before_the_watch_has_shown_anything(ledger: Ledger) -> None:
    assert (used(ledger), charged(ledger)) == FULL
    assert ledger.reservation("uid-a") == Reservation("uid-a", "n1", ONE, 100, 5, Phase.HELD)
    assert list(ledger.reservations()) == [ledger.reservation("uid-a")]
    assert ledger.pod("uid-a") == pod(version=5)


def test_the_next_decision_replaces_it(ledger: Ledger) -> None:
    ledger.reserve(pod(version=6), "n1", ((entry("GPU-b", 7, 1),),), 101)
    assert (used(ledger), charged(ledger)) == ({"GPU-b": (1, 7, 1)}, (7, 1, 1))


def test_the_next_answer_drops_it(ledger: Ledger) -> None:
    ledger.answer(pod(version=6), 101)
    assert (used(ledger), charged(ledger)) == NOTHING
    assert ledger.reservation("uid-a") is None


def test_an_answer_to_a_pod_nobody_has_seen(ledger: Ledger) -> None:
    left = pod(name="b", annotations=allocated(ONE))
    ledger.answer(left, 0)
    ledger.put_pod(left, 1)
    assert (used(ledger), charged(ledger)) == FULL
    assert ledger.holding("uid-b") is None


def test_release_gives_the_cards_back_once(ledger: Ledger) -> None:
    ledger.release("uid-a")
    assert (used(ledger), charged(ledger)) == NOTHING
    before = ledger.version
    ledger.release("uid-a")
    ledger.release("uid-unknown")
    assert ledger.version == before


def test_a_pod_that_turns_out_to_be_bound_goes_on_holding_what_it_carries(ledger: Ledger) -> None:
    other = ((entry("GPU-b", 7, 1),),)
    ledger.put_pod(pod(version=6, node="n1", annotations=allocated(other)), 101)
    assert ledger.reservation("uid-a") is None
    ledger.release("uid-a")
    assert (used(ledger), charged(ledger)) == ({"GPU-b": (1, 7, 1)}, (7, 1, 1))


def test_a_pod_bound_elsewhere_holds_what_it_carries_there(ledger: Ledger) -> None:
    """Its reservation would hide cards that are really in use, and they would be given away again."""
    ledger.put_node(node("n2", card("GPU-x")))
    other = ((entry("GPU-x", 7, 1),),)
    ledger.put_pod(pod(version=6, node="n2", annotations={**allocated(other), VGPU_NODE: "n2"}), 101)
    assert ledger.reservation("uid-a") is None
    assert (used(ledger), used(ledger, "n2"), charged(ledger)) == ({}, {"GPU-x": (1, 7, 1)}, (7, 1, 1))


ENDS = {
    "deleted": lambda ledger: ledger.delete_pod("uid-a"),
    "finished": lambda ledger: ledger.put_pod(pod(version=6, phase="Failed"), 101),
    "unschedulable, said after the decision": lambda ledger: ledger.put_pod(pod(version=6, unschedulable=True), 101),
    "bound without cards": lambda ledger: ledger.put_pod(pod(version=6, node="n1"), 101),
    "too old": lambda ledger: ledger.expire(100 + TIMEOUT_S + 1),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_what_releases_it(ledger: Ledger, end: Callable[[Ledger], object]) -> None:
    end(ledger)
    assert (used(ledger), charged(ledger)) == NOTHING
    assert ledger.reservation("uid-a") is None


STAYS = {
    "seen as decided": lambda ledger: ledger.put_pod(pod(version=5), 101),
    "an unrelated update": lambda ledger: ledger.put_pod(pod(version=6), 101),
    "unschedulable, said before the decision": lambda ledger: ledger.put_pod(pod(version=5, unschedulable=True), 101),
    "an older version that says unschedulable": lambda ledger: ledger.put_pod(pod(version=4, unschedulable=True), 101),
    "old, but not too old": lambda ledger: ledger.expire(100 + TIMEOUT_S),
    "another pod's end": lambda ledger: ledger.delete_pod("uid-b"),
    "terminating": lambda ledger: ledger.put_pod(pod(version=6, terminating=True), 101),
}


@pytest.mark.parametrize("event", STAYS.values(), ids=STAYS)
def test_what_does_not(ledger: Ledger, event: Callable[[Ledger], object]) -> None:
    event(ledger)
    assert (used(ledger), charged(ledger)) == FULL
    assert ledger.reservation("uid-a") is not None


@pytest.mark.parametrize("phase", [Phase.BINDING, Phase.UNSETTLED])
def test_a_binding_under_way_holds_the_cards(ledger: Ledger, phase: Phase) -> None:
    ledger.set_phase("uid-a", phase)
    ledger.put_pod(pod(version=6, unschedulable=True), 101)
    assert ledger.expire(1e9) == ()
    assert (used(ledger), charged(ledger)) == FULL
    reservation = ledger.reservation("uid-a")
    assert reservation is not None
    assert reservation.phase is phase


@pytest.mark.parametrize("phase", Phase)
def test_a_pod_that_is_gone_holds_nothing_in_any_phase(ledger: Ledger, phase: Phase) -> None:
    ledger.set_phase("uid-a", phase)
    ledger.delete_pod("uid-a")
    ledger.set_phase("uid-a", Phase.BINDING)
    assert ledger.reservation("uid-a") is None
    assert (used(ledger), charged(ledger)) == NOTHING


def test_the_echo_of_the_binding_changes_nothing(ledger: Ledger) -> None:
    ledger.set_phase("uid-a", Phase.BINDING)
    ledger.put_pod(pod(version=6, node="n1", annotations=allocated(ONE)), 101)
    assert (used(ledger), charged(ledger)) == FULL
    assert list(ledger.reservations()) == []


def test_an_expired_reservation_leaves_the_pods_old_annotations_uncounted(ledger: Ledger) -> None:
    ledger.put_pod(pod(version=6, annotations=allocated(((entry("GPU-b", 7, 1),),))), 101)
    assert ledger.expire(1e6) == ("uid-a",)
    assert (used(ledger), charged(ledger)) == NOTHING


def test_expiry_answers_all_that_is_overdue_sorted(ledger: Ledger) -> None:
    for name in "cb":
        ledger.reserve(pod(name=name), "n1", ONE, 200)
    ledger.put_pod(pod(name="d", annotations=allocated(ONE)), 100)
    assert ledger.expire(100 + TIMEOUT_S + 1) == ("uid-a", "uid-d")
    assert ledger.expire(1e6) == ("uid-b", "uid-c")
    assert (used(ledger), charged(ledger)) == NOTHING


def test_a_mig_card_was_closed_between_filter_and_watch(ledger: Ledger) -> None:
    instance = entry("GPU-m", 9984, 29, profile="2g.10gb", placement=Placement(0, 2))
    ledger.reserve(pod(name="m"), "n1", ((instance,),), 100)
    state = ledger.state("n1")
    assert state is not None
    (mig,) = [s for s in state.cards if s.card.uuid == "GPU-m"]
    assert (mig.healthy, mig.placements, mig.used_memory_mib) == (True, (Placement(0, 2),), 9984)
    held = ledger.holding("uid-m")
    assert held is not None
    assert held.reservations == mig_reservations(((instance,),))


def test_a_reservation_knows_init_containers_and_sidecars() -> None:
    ledger = Ledger(nvidia_config())
    ledger.put_node(node("n1", card("GPU-a")))
    init = [container_document("i", gpu=1), container_document("s", sidecar=True, gpu=1)]
    lists = ((entry("GPU-a", 9000),), (entry("GPU-a", 2000),), (entry("GPU-a", 1000),))
    ledger.reserve(pod(init=init), "n1", lists, 0)
    assert (used(ledger), charged(ledger)) == ({"GPU-a": (2, 11000, 0)}, (11000, 0, 2))


def test_a_new_term_drops_what_this_process_decided(ledger: Ledger) -> None:
    assert ledger.new_term() == ("uid-a",)
    assert (used(ledger), charged(ledger)) == NOTHING
    assert ledger.pod("uid-a") is None  # only a filter call had named it


def test_a_new_term_trusts_annotations_again_until_it_answers_itself(ledger: Ledger) -> None:
    left = pod(name="b", annotations=allocated(ONE))
    ledger.put_pod(left, 100)
    ledger.answer(left, 101)
    ledger.new_term()
    holding = ledger.holding("uid-b")
    assert holding is not None
    assert holding.allocation == ONE


@pytest.mark.parametrize("phase", [Phase.BINDING, Phase.UNSETTLED])
def test_a_new_term_keeps_what_may_still_be_bound(ledger: Ledger, phase: Phase) -> None:
    ledger.set_phase("uid-a", phase)
    assert ledger.new_term() == ()
    assert (used(ledger), charged(ledger)) == FULL


def test_a_newer_version_that_says_what_the_filter_saw_releases_nothing() -> None:
    """Somebody has changed another part of the pod; kube-scheduler has said nothing new."""
    ledger = Ledger(nvidia_config())
    ledger.put_node(node("n1", card("GPU-a")))
    ledger.reserve(pod(version=5, unschedulable=True), "n1", ONE, 100)
    touched = pod(version=6, unschedulable=True, annotations={"slotwise.io/retry": "now"})
    ledger.put_pod(touched, 101)
    assert (used(ledger), charged(ledger)) == FULL


def test_another_reason_for_waiting_releases_the_cards() -> None:
    ledger = Ledger(nvidia_config())
    ledger.put_node(node("n1", card("GPU-a")))
    ledger.reserve(pod(version=5, unschedulable=True), "n1", ONE, 100)
    ledger.put_pod(pod(version=6, unschedulable="another reason"), 101)
    assert (used(ledger), charged(ledger)) == NOTHING
