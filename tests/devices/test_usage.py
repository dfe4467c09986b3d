"""What a pod holds over its life, and the state of a node's cards (HAMi v2.10 scheduling, collapse and its corrections)."""

from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from devices.model import NO_CHARGE, Allocation, Card, CardState, Charge, Entry, MigReservation, Placement
from devices.requests import Role
from devices.usage import Hold, Tenancy, card_states, charge_of, holds_of, init_done, peak
from tests.builders import card, container_document, entry, mig_card, nvidia, pod

T = TypeVar("T", Hold, Charge)
INI, SID, APP = Role.INIT, Role.SIDECAR, Role.APP


def on(uuid: str, memory_mib: int, cores: int = 0) -> tuple[Entry, ...]:
    return (entry(uuid, memory_mib, cores),)


Lives = tuple[tuple[Role, ...], Allocation, dict[str, tuple[int, int, int]], dict[str, tuple[int, int, int]]]

LIVES: dict[str, Lives] = {
    "init and app on one card: the larger, then the app": (
        (INI, APP),
        (on("G", 20000, 10), on("G", 10000, 5)),
        {"G": (1, 20000, 10)},
        {"G": (1, 10000, 5)},
    ),
    "memory, cores and slots are maximised each for itself": (
        (INI, APP, APP),
        (on("A", 8000, 30), on("A", 3000, 10), on("A", 4000, 10)),
        {"A": (2, 8000, 30)},
        {"A": (2, 7000, 20)},
    ),
    "init on two cards, apps on one of them and a third": (
        (INI, INI, APP, APP),
        (on("A", 8000), on("B", 8000), on("A", 3000), on("C", 4000)),
        {"A": (1, 8000, 0), "B": (1, 8000, 0), "C": (1, 4000, 0)},
        {"A": (1, 3000, 0), "C": (1, 4000, 0)},
    ),
    "the lost position made a running app vanish": (
        (INI, APP),
        ((), on("GPU-a", 4000, 10)),
        {"GPU-a": (1, 4000, 10)},
        {"GPU-a": (1, 4000, 10)},
    ),
    "a sidecar was peak-counted": (
        (SID, APP),
        (on("G", 4000), on("G", 4000)),
        {"G": (2, 8000, 0)},
        {"G": (2, 8000, 0)},
    ),
    "init, sidecar and app": (
        (INI, SID, APP),
        (on("G", 20000), on("G", 2000), on("G", 10000)),
        {"G": (2, 22000, 0)},
        {"G": (2, 12000, 0)},
    ),
    "two instances of one card in one init container were counted as one": (
        (INI, APP),
        ((*on("M", 9984, 29), *on("M", 9984, 29)), on("M", 4864, 15)),
        {"M": (2, 19968, 58)},
        {"M": (1, 4864, 15)},
    ),
    "an app with two cards": (
        (APP,),
        ((*on("A", 5), *on("B", 5)),),
        {"A": (1, 5, 0), "B": (1, 5, 0)},
        {"A": (1, 5, 0), "B": (1, 5, 0)},
    ),
    "init containers alone": ((INI,), (on("A", 5, 1),), {"A": (1, 5, 1)}, {}),
    "no cards": ((INI, APP), ((), ()), {}, {}),
}


@pytest.mark.parametrize(("when", "allocation", "before", "after"), LIVES.values(), ids=LIVES)
def test_holds(
    when: tuple[Role, ...],
    allocation: Allocation,
    before: dict[str, tuple[int, int, int]],
    after: dict[str, tuple[int, int, int]],
) -> None:
    for released, expected in ((False, before), (True, after)):
        found = holds_of(allocation, when, released)
        assert found == {("NVIDIA", uuid): Hold(*hold) for uuid, hold in expected.items()}


Charges = tuple[tuple[Role, ...], Allocation, Charge, Charge]

CHARGES: dict[str, Charges] = {
    "init containers on two cards were summed": (
        (INI, INI, APP, APP),
        (on("A", 8000), on("B", 8000), on("A", 3000), on("C", 4000)),
        Charge(8000, 0, 2),
        Charge(7000, 0, 2),
    ),
    "two small ones one after the other": (
        (INI, INI, APP),
        (on("A", 1000), on("B", 1000), on("A", 500)),
        Charge(1000, 0, 1),
        Charge(500, 0, 1),
    ),
    "one init container over two cards": (
        (INI, APP, APP),
        ((*on("A", 8000), *on("B", 8000)), on("A", 3000), on("C", 4000)),
        Charge(16000, 0, 2),
        Charge(7000, 0, 2),
    ),
    "sidecar beside everything": (
        (INI, SID, APP),
        (on("A", 20000, 5), on("B", 2000, 7), on("C", 10000, 9)),
        Charge(22000, 16, 2),
        Charge(12000, 16, 2),
    ),
}


@pytest.mark.parametrize(("when", "allocation", "before", "after"), CHARGES.values(), ids=CHARGES)
def test_what_a_pod_costs_is_its_peak(
    when: tuple[Role, ...], allocation: Allocation, before: Charge, after: Charge
) -> None:
    assert charge_of(allocation, when, False, nvidia().price) == {"NVIDIA": before}
    assert charge_of(allocation, when, True, nvidia().price) == {"NVIDIA": after}


_ENTRIES = st.builds(
    lambda uuid, memory, cores, slots: replace(entry(uuid, memory, cores), slots=slots),
    st.sampled_from("AB"),
    st.integers(-5, 9000),
    st.integers(-1, 100),
    st.integers(0, 2),
)


@given(st.lists(st.tuples(st.sampled_from((INI, SID, APP)), st.lists(_ENTRIES, max_size=2)), max_size=3), st.booleans())
def test_every_pod_holds_and_costs_the_peak_of_its_containers(
    containers: list[tuple[Role, list[Entry]]], released: bool
) -> None:
    """Most pods have one card, and are counted without looking for a peak."""
    when = tuple(role for role, _ in containers)
    allocation = tuple(tuple(entries) for _, entries in containers)
    expected = {}
    for uuid in sorted({e.uuid for entries in allocation for e in entries}):
        shares = [[Hold(e.slots, e.memory_mib, e.cores) for e in entries if e.uuid == uuid] for entries in allocation]
        hold = peak([_total(Hold(), part) for part in shares], when, Hold(), released)
        if hold.slots:
            expected["NVIDIA", uuid] = hold
    assert holds_of(allocation, when, released) == expected
    costs = [_total(NO_CHARGE, [price(e) for e in entries]) for entries in allocation]
    charged = {"NVIDIA": peak(costs, when, NO_CHARGE, released)} if any(allocation) else {}
    assert charge_of(allocation, when, released, price) == charged


def _total(nothing: T, parts: list[T]) -> T:
    for part in parts:
        nothing += part
    return nothing


def price(of: Entry) -> Charge:
    return Charge(of.memory_mib, of.cores, 1)


def test_charges_are_apart_by_vendor_and_holds_too() -> None:
    both = ((entry("X", 5), entry("X", 7, vendor="DCU")),)
    assert charge_of(both, (APP,), False, nvidia().price) == {"DCU": Charge(7, 0, 1), "NVIDIA": Charge(5, 0, 1)}
    assert holds_of(both, (APP,), False) == {("DCU", "X"): Hold(1, 7), ("NVIDIA", "X"): Hold(1, 5)}
    assert charge_of(((),), (APP,), False, nvidia().price) == {}


def test_peak_of_nothing() -> None:
    assert peak([], [], NO_CHARGE, False) == NO_CHARGE


INIT, SIDECAR = container_document("init"), container_document("side", sidecar=True)
DONE = {
    "no init container": (pod(), False),
    "not started": (pod(init=[INIT]), False),
    "ended well": (pod(init=[INIT], exit_codes={"init": 0}), True),
    "failed": (pod(init=[INIT], exit_codes={"init": 1}), False),
    "one of two": (pod(init=[INIT, container_document("two")], exit_codes={"init": 0}), False),
    "a sidecar kept the release from ever firing": (pod(init=[INIT, SIDECAR], exit_codes={"init": 0}), True),
    "a sidecar in an exit gap": (pod(init=[INIT, SIDECAR], exit_codes={"side": 0}), False),
    "sidecars alone": (pod(init=[SIDECAR], exit_codes={"side": 0}), False),
}


@pytest.mark.parametrize(("of", "done"), DONE.values(), ids=DONE)
def test_init_done(of: object, done: bool) -> None:
    assert init_done(of) is done  # type: ignore[arg-type]  # the table's pods, of a mixed tuple


# The cards of a node


def tenancy(holds: dict[str, Hold], *reservations: MigReservation) -> Tenancy:
    return Tenancy({("NVIDIA", uuid): hold for uuid, hold in holds.items()}, reservations)


def reserved(uuid: str, start: int = 0, size: int = 2) -> MigReservation:
    return MigReservation(0, 0, uuid, "2g.10gb", Placement(start, size))


def states(cards: list[Card], *tenants: Tenancy, cordoned: frozenset[str] = frozenset()) -> dict[str, CardState]:
    return {state.card.uuid: state for state in card_states(cards, cordoned, tenants)}


def test_tenants_add_up() -> None:
    found = states(
        [card("A"), card("B", healthy=False)],
        tenancy({"A": Hold(1, 1000, 10), "B": Hold(1, 5, 5)}),
        tenancy({"A": Hold(2, 2000, 20)}),
        cordoned=frozenset({"B", "gone"}),
    )
    assert found == {
        "A": CardState(card("A"), 3, 3000, 30),
        "B": CardState(card("B", healthy=False), 1, 5, 5, (), False, True),
    }


def test_a_share_of_an_unknown_card_counts_nowhere() -> None:
    assert states([card("A")], tenancy({"gone": Hold(1, 5, 5)})) == {"A": CardState(card("A"))}


def test_the_card_of_another_vendor_with_the_same_uuid_is_another_card() -> None:
    other = card("A", vendor="DCU")
    found = card_states([card("A"), other], frozenset(), [Tenancy({("DCU", "A"): Hold(1, 5, 5)})])
    assert [state.used_slots for state in found] == [0, 1]


MIG = [mig_card("M"), mig_card("N"), card("A")]
HOLD = Hold(1, 9984, 29)
DOUBTS: dict[str, tuple[Tenancy, set[str]]] = {
    "held with its reservation": (tenancy({"M": HOLD}, reserved("M")), set()),
    "held without one": (tenancy({"M": HOLD}), {"M"}),
    "held with one of another card": (tenancy({"M": HOLD}, reserved("N")), {"M"}),
    "one entry for two reservations": (tenancy({"M": HOLD}, reserved("M"), reserved("M", 2)), set()),
    "a reservation on a shared card": (tenancy({"A": HOLD}, reserved("A")), {"A"}),
    "a left-over reservation on a shared card": (tenancy({}, reserved("A")), {"A"}),
    "a reservation of an unknown card": (tenancy({}, reserved("gone")), {"M", "N"}),
    "released, the placement stays": (tenancy({}, reserved("M")), set()),
}


@pytest.mark.parametrize(("tenant", "closed"), DOUBTS.values(), ids=DOUBTS)
def test_mig_fails_closed(tenant: Tenancy, closed: set[str]) -> None:
    found = states(MIG, tenant)
    assert {uuid for uuid, state in found.items() if not state.healthy} == closed


def test_placements_are_sorted_and_stay_without_a_hold() -> None:
    found = states(
        MIG, tenancy({"M": HOLD}, reserved("M", 4)), tenancy({}, reserved("M", 2)), tenancy({}, reserved("N"))
    )
    assert found["M"].placements == (Placement(2, 2), Placement(4, 2))
    assert found["N"].placements == (Placement(0, 2),)
    assert found["N"].used_slots == 0
    assert found["A"].placements == ()
