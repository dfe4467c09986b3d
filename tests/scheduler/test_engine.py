"""Filter and its reservation, the other node choice, simulations, scores, and whether cards may still be bound."""

from typing import Any

import pytest
from msgspec import structs

from devices.ledger import Phase, Reservation
from devices.model import Card
from devices.objects import Metadata, Pod
from scheduler.engine import Filtered
from tests.builders import (
    allocated,
    card,
    container_document,
    entry,
    mig_card,
    node,
    pod,
    quota,
)
from tests.scheduler.builders import NOW_S, World, texts, uuids

TWO = (card("a"), card("b", index=1))


def test_a_repeated_filter_replaces_the_reservation() -> None:
    world = World(node("n1", *TWO), node("n2", card("c")))
    asked = world.put_pod(pod())
    assert uuids(world.filter(asked, "n1")) == ["b"]
    assert uuids(world.filter(asked, "n1")) == ["b"]  # its own earlier reservation does not stand in its way
    assert world.held() == {"b": (1, 1000, 0)}
    assert world.filter(asked, "n2").nodes == ("n2",)
    assert (world.held("n1"), world.held("n2")) == ({}, {"c": (1, 1000, 0)})
    assert world.filter(asked, "nowhere").failed == {"nowhere": "node unregistered"}
    assert (world.held("n2"), world.ledger.reservation(asked.uid)) == ({}, None)


def test_annotations_left_by_an_earlier_attempt_count_until_the_first_filter() -> None:
    world = World(node("n1", *TWO))
    left = pod(annotations={**allocated(((entry("a", 15000),),)), "hami.io/vgpu-time": str(int(NOW_S))})
    world.put_pod(left)
    assert world.held() == {"a": (1, 15000, 0)}
    assert uuids(world.filter(world.stored())) == ["b"]
    assert world.held() == {"b": (1, 1000, 0)}
    world.ledger.release(left.uid)
    world.put_pod(left)
    assert world.held() == {}


def test_a_bound_pod_is_answered_with_its_node() -> None:
    world = World(node("n1", *TWO), node("n2", card("c")))
    bound = world.put_pod(pod(node="n1", annotations=allocated(((entry("a"),),))))
    assert world.filter(bound, "n2", "n1") == Filtered(("n1",), outcome="bound")
    elsewhere = world.filter(bound, "n2")
    assert elsewhere.failed == {"n2": "the pod is already bound to node n1"}
    # The watch may know it before the caller's own pod object says so.
    assert world.filter(pod(), "n2", "n1").nodes == ("n1",)
    assert world.held() == {"a": (1, 1000, 0)}
    assert world.engine.feasible(bound, ["n1", "n2"], NOW_S).nodes == ("n1",)


@pytest.mark.parametrize("phase", [Phase.BINDING, Phase.UNSETTLED])
def test_a_pod_whose_binding_is_open_keeps_its_cards(phase: Phase) -> None:
    world = World(node("n1", *TWO), node("n2", card("c")))
    asked = world.filtered(pod())
    world.ledger.set_phase(asked.uid, phase)
    assert world.filter(asked, "n1", "n2").nodes == ("n1",)
    refused = world.filter(asked, "n2")
    assert refused.failed == {"n2": "the pod's earlier binding to node n1 is not settled yet"}
    malformed = pod(container_document(gpu=1, gpumem="16Gi"))
    assert world.filter(malformed, "n1").outcome == "malformed"
    assert world.held() == {"b": (1, 1000, 0)}


def test_a_pod_that_is_gone_gets_nothing() -> None:
    world = World(node("n1", *TWO))
    asked = world.filtered(pod())
    world.delete_pod()
    assert world.filter(asked) == Filtered(error='pod "a" not found', outcome="gone")


def test_a_pod_that_has_finished_kept_a_reservation_until_its_time_out() -> None:
    world = World(node("n1", *TWO))
    asked = world.put_pod(pod())
    world.put_pod(pod(version=9, phase="Failed"))
    text = 'pod "a" has finished: it gets no cards any more'
    assert world.filter(asked) == Filtered(error=text, outcome="gone")
    assert world.held() == {}
    assert world.held() == {}


def test_a_pod_without_devices_gets_the_names_back() -> None:
    world = World(node("n1", *TWO))
    plain = pod(container_document())
    assert world.filter(plain, "x", "n1", "x") == Filtered(("x", "n1", "x"), outcome="plain")
    assert world.engine.feasible(plain, ["x"], NOW_S) == Filtered(("x",), outcome="plain")
    assert world.engine.simulate(plain, [], ["x"]) == Filtered(("x",), outcome="plain")


BAD = {
    "memory": (
        pod(container_document(gpu=1, gpumem="1.5")),
        "invalid nvidia.com/gpumem value 1.5 in container main: must be an integer between 0 and 2147483647",
    ),
    "weights": (
        pod(annotations={"hami.io/device-scoring-weights": "slot=1,core=1,slot=1"}),
        'calcScore failed invalid hami.io/device-scoring-weights annotation "slot=1,core=1,slot=1":'
        ' duplicate "slot" weight for pod a',
    ),
}


@pytest.mark.parametrize(("bad", "text"), BAD.values(), ids=BAD)
def test_a_value_that_cannot_be_used_drops_the_reservation(bad: Pod, text: str) -> None:
    world = World(node("n1", *TWO))
    world.filtered(pod())
    found = world.filter(bad)
    assert (found.error, found.outcome, world.held()) == (text, "malformed", {})
    assert [(e.type, e.reason, e.message) for e in world.engine.events(found, 100)] == [
        ("Warning", "FilteringFailed", text)
    ]
    assert world.engine.feasible(bad, ["n1"], NOW_S).error == text


def test_a_pod_without_uid_reserves_nothing() -> None:
    """All such pods shared one reservation under the empty UID."""
    world = World(node("n1", *TWO))
    nameless = structs.replace(pod(), metadata=Metadata(name="a"))
    found = world.filter(nameless)
    assert found.error == "the pod has no metadata.uid: cards are reserved under it"
    assert (world.held(), list(world.ledger.pods())) == ({}, [])
    assert world.engine.simulate(nameless, [], ["n1"]).nodes == ("n1",)


def test_another_spec_under_a_known_uid_is_refused() -> None:
    """The books were left half changed by it."""
    world = World(node("n1", *TWO))
    world.filtered(pod())
    other = pod(container_document(gpu=1, gpumem=1), container_document("b", gpu=1, gpumem=1))
    assert world.filter(other).error == "the pod's containers are not those of the pod known under its UID"
    assert world.held() == {"b": (1, 1000, 0)}


class TestYielding:
    """A pod that is refused takes the place of reservations older than 30 s whose pods cannot be scheduled."""

    def world(self, *, unschedulable: bool = True, version: int = 1) -> World:
        world = World(node("n1", card("a")), node("n2", card("b")))
        for name, on in (("old", "n1"), ("old2", "n2")):
            stored = world.put_pod(pod(container_document(gpu=1), name=name, namespace="other"))
            world.engine.filter(stored, [on], world.clock.now())
            # kube-scheduler does not repeat the condition: the pod said so before its last filter already.
            version = int(stored.metadata.resource_version)
            whole = container_document(gpu=1)
            changed = pod(whole, name=name, namespace="other", unschedulable=unschedulable, version=version)
            world.ledger.put_pod(changed, world.clock.now())
        return world

    def test_after_30_s(self) -> None:
        world = self.world()
        asked = world.put_pod(pod())
        assert world.filter(asked).nodes is None
        world.clock.now_s += 30
        assert world.filter(asked).nodes is None
        world.clock.now_s += 1
        assert world.filter(asked).nodes == ("n1",)

    def test_only_on_the_node_that_is_taken(self) -> None:
        """All old reservations in reach were given up for one pod."""
        world = self.world()
        world.clock.now_s += 31
        assert world.filter(world.put_pod(pod())).nodes == ("n1",)
        assert world.held("n2") == {"b": (1, 15360, 0)}
        kept = world.ledger.reservation("uid-old2")
        assert kept is not None
        assert kept.made_at_s == NOW_S

    def test_not_for_a_pod_that_would_not_fit_anyway(self) -> None:
        """A pod that fits nowhere made every old reservation go, at each of its filters."""
        world = self.world()
        world.clock.now_s += 31
        found = world.filter(world.put_pod(pod(container_document(gpu=1, gpumem=99_999))))
        assert found.nodes is None
        assert (world.held("n1"), world.held("n2")) == ({"a": (1, 15360, 0)}, {"b": (1, 15360, 0)})

    def test_not_while_kube_scheduler_may_still_bind_it(self) -> None:
        world = self.world(unschedulable=False)
        world.clock.now_s += 31
        assert world.filter(world.put_pod(pod())).nodes is None

    def test_not_while_its_binding_is_under_way(self) -> None:
        world = self.world()
        for uid in ("uid-old", "uid-old2"):
            world.ledger.set_phase(uid, Phase.BINDING)
        world.clock.now_s += 3000
        assert world.filter(world.put_pod(pod())).nodes is None

    def test_quota_that_is_spent_on_another_node(self) -> None:
        world = World(node("n1", card("a")), node("n2", card("b")))
        world.ledger.put_quota(quota(gpumem=1500))
        old = world.put_pod(pod(name="old"))
        world.engine.filter(old, ["n2"], world.clock.now())
        unplaced = pod(name="old", unschedulable=True, version=int(old.metadata.resource_version))
        world.ledger.put_pod(unplaced, NOW_S)
        asked = world.put_pod(pod())
        assert world.filter(asked, "n1").failed == {"n1": "1/1 ResourceQuotaNotFit"}
        world.clock.now_s += 31
        assert world.filter(asked, "n1").nodes == ("n1",)
        assert world.held("n2") == {}


def test_unschedulable_newer_than_the_filter_releases_and_age_does_too() -> None:
    world = World(node("n1", *TWO))
    asked = world.filtered(pod())
    world.put_pod(pod(unschedulable=True))
    assert world.held() == {}
    world.filtered(pod(name="b"))
    assert world.ledger.expire(NOW_S + 661) == ("uid-b",)
    assert (world.held(), world.ledger.reservation(asked.uid)) == ({}, None)


def test_every_node_that_fits_where_kube_scheduler_chooses() -> None:
    world = World(node("n1", *TWO), node("n2", card("c", memory_mib=10)), node("n3", card("d")))
    asked = world.put_pod(pod())
    found = world.engine.feasible(asked, ["n3", "nowhere", "n2", "n1", "n3"], NOW_S)
    assert found.nodes == ("n3", "n1")
    assert found.failed == {"n2": "1/1 CardInsufficientMemory", "nowhere": "node unregistered"}
    assert found.unresolvable == {"nowhere": "node unregistered"}
    assert (world.held("n1"), world.held("n3"), found.allocation) == ({}, {}, None)
    none = world.engine.feasible(asked, ["n2"], NOW_S)
    assert (none.nodes, none.failed, none.outcome) == (None, {"n2": "1/1 CardInsufficientMemory"}, "nofit")


def test_a_simulation_leaves_no_trace() -> None:
    world = World(node("n1", card("a")), node("n2", card("b", memory_mib=10)))
    holder = world.filtered(pod())
    made_up = [node("new", card("x")), node("bare"), node("n1", card("never", memory_mib=1))]
    version, kept = world.ledger.version, world.engine.ring.of("default", "a")
    found = world.engine.simulate(pod(container_document(gpu=1, gpumem=14_800), name="q"), made_up, ["n2", "gone"])
    assert found.nodes == ("new",)  # the real n1 counts with its tenant, not as the object says
    assert found.failed == {
        "n1": "1/1 CardInsufficientMemory",
        "n2": "1/1 CardInsufficientMemory",
        "bare": "node unregistered",
        "gone": "node unregistered",
    }
    assert world.engine.simulate(holder, [], ["n2"]).nodes is None
    assert world.engine.simulate(BAD["memory"][0], [], ["n1"]).error == BAD["memory"][1]
    assert (world.ledger.version, world.engine.ring.of("default", "a")) == (version, kept)
    assert (world.held(), world.ledger.pod("uid-q")) == ({"a": (1, 1000, 0)}, None)
    assert list(world.ledger.node_names()) == ["n1", "n2"]


def test_a_simulation_sees_the_namespace_quota() -> None:
    world = World(node("n1", card("a")))
    world.ledger.put_quota(quota(gpumem=500))
    assert world.engine.simulate(pod(), [node("big", card("x"))], ["n1"]).failed == {
        "n1": "1/1 ResourceQuotaNotFit",
        "big": "1/1 ResourceQuotaNotFit",
    }


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("binpack", {"full": 10, "half": 5, "idle": 0, "nowhere": 0}),
        ("spread", {"full": 0, "half": 5, "idle": 10, "nowhere": 0}),
    ],
)
def test_scores(policy: str, expected: dict[str, int]) -> None:
    world = World(*(node(name, card(name, slots=2, memory_mib=1000)) for name in ("full", "half", "idle")))
    for number, name in enumerate(("full", "full", "half")):
        one = world.put_pod(pod(container_document(gpu=1, gpumem=500), name=f"p{number}"))
        world.engine.filter(one, [name], NOW_S)
    asked = pod(annotations={"hami.io/node-scheduler-policy": policy})
    assert world.engine.scores(asked, ["nowhere", "idle", "half", "full"]) == expected
    assert world.engine.scores(asked, []) == {}


def test_nodes_of_one_score_are_all_alike() -> None:
    world = World(node("n1", card("a")), node("n2", card("b")))
    assert set(world.engine.scores(pod(), ["n1", "n2"]).values()) == {0}


class TestStillGood:
    def reserved(self, *cards: Card, asked: Pod | None = None) -> tuple[World, Reservation]:
        world = World(node("n1", *(cards or (card("a"),))))
        stored = world.filtered(asked or pod(container_document(gpu=1, gpumem=1000, gpucores=30)))
        reservation = world.ledger.reservation(stored.uid)
        assert reservation is not None
        return world, reservation

    CHANGES: dict[str, tuple[dict[str, Any], bool]] = {
        "nothing": ({}, True),
        "more memory": ({"memory_mib": 20_000}, True),
        "less memory than it holds": ({"memory_mib": 999}, False),
        "no slot": ({"slots": 0}, False),
        "compute shrunk below what is held": ({"cores": 20}, False),
        "sick": ({"healthy": False}, False),
        "another card": ({"uuid": "z"}, False),
        "a MIG card now": ({"mode": "mig"}, False),
    }

    @pytest.mark.parametrize(("change", "good"), CHANGES.values(), ids=CHANGES)
    def test_after_a_change_of_the_card(self, change: dict[str, Any], good: bool) -> None:
        world, reservation = self.reserved()
        world.put_node(node("n1", card(**{"uuid": "a", **change})))
        assert world.engine.still_good(reservation) is good

    def test_after_the_node_has_changed_or_gone(self) -> None:
        world, reservation = self.reserved()
        world.put_node(node("n1", card("a"), cordon="a"))
        assert not world.engine.still_good(reservation)
        world.put_node(node("n1", card("a"), allocatable={"nvidia.com/gpu": "0"}))
        assert not world.engine.still_good(reservation)
        world.put_node(node("n1", card("a"), allocatable={"nvidia.com/gpu": "10"}))
        assert world.engine.still_good(reservation)
        world.ledger.delete_node("n1")
        assert not world.engine.still_good(reservation)

    def test_after_its_release(self) -> None:
        world, reservation = self.reserved()
        world.ledger.release(reservation.uid)
        assert not world.engine.still_good(reservation)

    def test_rounded_compute_of_a_full_mig_card_does_not_matter(self) -> None:
        """Seven instances of 15 % come to 105 %."""
        world = World(node("n1", mig_card("m")))
        reservations = []
        for number in range(7):
            stored = world.filtered(pod(container_document(gpu=1, gpumem=4000), name=f"p{number}"))
            reservations.append(world.ledger.reservation(stored.uid))
        assert world.held() == {"m": (7, 7 * 4864, 105)}
        assert all(r is not None and world.engine.still_good(r) for r in reservations)


def test_events_of_a_filter() -> None:
    world = World(node("n1", card("a")), node("n2", card("b", memory_mib=10)))
    fits = world.filter(pod(annotations={"hami.io/gpu-scheduler-policy": "best"}), "n1", "n2", "n3")
    assert texts(world.engine.events(fits, 2)) == [
        'unknown card policy word "best" acts as spread',
        "find fit node(n1), evaluated 2 of 3 offered",
    ]
    assert texts(world.engine.events(fits, 3))[1] == "find fit node(n1), 2 nodes not fit, 1 nodes fit(n1:0.00)"
    assert world.engine.events(world.filter(pod(container_document())), 9) == ()
    world.ledger.delete_pod("uid-a")
    assert world.engine.events(world.filter(pod()), 9) == ()
