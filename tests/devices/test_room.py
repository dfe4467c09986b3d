"""Where cards or quota came free, as the books note it."""

from collections.abc import Callable

import pytest

from devices.ledger import Ledger
from devices.ledger.room import Room
from tests.builders import allocated, card, entry, node, nvidia_config, pod, quota
from tests.devices.test_ledger_pods import ONE


def test_what_came_after_a_number() -> None:
    room = Room()
    room.on_node("n2")
    before = room.number
    for name in ("n3", "n1", "n3"):
        room.on_node(name)
    assert room.since(before, "default") == ("n1", "n3")
    assert room.since(room.number, "default") == ()


def test_a_namespace_that_may_take_more_may_do_so_anywhere() -> None:
    room = Room()
    room.in_namespace("team-a")
    room.on_node("n1")
    assert room.since(0, "team-a") is None
    assert room.since(0, "team-b") == ("n1",)
    assert room.since(1, "team-a") == ("n1",)


def test_what_is_too_long_ago_to_tell_may_be_anywhere() -> None:
    room = Room(kept=2)
    for name in ("n1", "n2", "n3"):
        room.on_node(name)
    assert room.since(0, "default") is None
    assert room.since(1, "default") == ("n2", "n3")


BOUND = pod(node="n1", version=2, annotations=allocated(ONE))
LESS = ((entry("GPU-a", 1, 1),),)


CHANGES: dict[str, tuple[Callable[[Ledger], object], tuple[str, ...] | None]] = {
    "a tenant is gone": (lambda ledger: ledger.delete_pod("uid-a"), ("n1",)),
    "a tenant has finished": (lambda ledger: ledger.put_pod(pod(version=3, phase="Succeeded"), 1), ("n1",)),
    "a reservation is given up": (lambda ledger: ledger.release("uid-r"), ("n2",)),
    "a reservation becomes less": (lambda ledger: ledger.reserve(pod(name="r", version=1), "n2", LESS, 2), ("n2",)),
    "a reservation goes elsewhere": (lambda ledger: ledger.reserve(pod(name="r", version=1), "n1", ONE, 2), ("n2",)),
    "a node is registered": (lambda ledger: ledger.put_node(node("n3", card("GPU-c"))), ("n3",)),
    "a card is there again": (lambda ledger: ledger.put_node(node("n1", card("GPU-a"), card("GPU-n"))), ("n1",)),
    "a quota is put": (lambda ledger: ledger.put_quota(quota(gpumem=9)), None),
    "a quota is gone": (lambda ledger: ledger.delete_quota("default", "q"), None),
    "nothing: the same node again": (lambda ledger: ledger.put_node(node("n1", card("GPU-a"))), ()),
    "nothing: a reservation is made": (lambda ledger: ledger.reserve(pod(name="s"), "n2", ONE, 2), ()),
    "nothing: a tenant is seen again": (lambda ledger: ledger.put_pod(BOUND, 1), ()),
    "nothing: a reservation is bound as reserved": (
        lambda ledger: ledger.put_pod(pod(name="r", version=4, node="n2", annotations=allocated(ONE, "n2")), 2),
        (),
    ),
}


@pytest.mark.parametrize(("change", "expected"), CHANGES.values(), ids=CHANGES)
def test_what_makes_room(change: Callable[[Ledger], object], expected: tuple[str, ...] | None) -> None:
    ledger = Ledger(nvidia_config())
    for name in ("n1", "n2"):
        ledger.put_node(node(name, card("GPU-a")))
    ledger.put_pod(BOUND, 0)
    ledger.reserve(pod(name="r", version=1), "n2", ONE, 0)
    before = ledger.room.number
    change(ledger)
    assert ledger.room.since(before, "default") == expected


def test_a_tenant_that_goes_gives_its_namespace_quota_back_where_there_is_one() -> None:
    ledger = Ledger(nvidia_config())
    ledger.put_node(node("n1", card("GPU-a")))
    ledger.put_quota(quota(gpumem=9999))
    ledger.put_pod(BOUND, 0)
    before = ledger.room.number
    ledger.delete_pod("uid-a")
    assert ledger.room.since(before, "default") is None
    assert ledger.room.since(before, "other") == ("n1",)
