"""The values: placements, what a card has left, charges, reasons, and objects as Kubernetes sends them."""

import json

import msgspec
import pytest

from devices.fit import Headroom, Refusal
from devices.model import Charge, Placement
from devices.objects import decode_node, decode_pod, decode_quota, pod_of
from devices.reasons import Reason, summary
from tests.builders import card_state, container, entry, pod

CONFLICTS = {
    "the same": ((0, 2), (0, 2), True),
    "overlapping": ((0, 4), (3, 1), True),
    "inside": ((0, 8), (4, 4), True),
    "side by side": ((0, 4), (4, 4), False),
    "apart": ((0, 1), (6, 1), False),
}


@pytest.mark.parametrize(("a", "b", "conflict"), CONFLICTS.values(), ids=CONFLICTS)
def test_placements_conflict_both_ways(a: tuple[int, int], b: tuple[int, int], conflict: bool) -> None:
    assert Placement(*a).conflicts(Placement(*b)) is conflict
    assert Placement(*b).conflicts(Placement(*a)) is conflict


def test_an_entry_takes_a_slot_its_memory_and_its_cores() -> None:
    before = card_state("GPU-a", (1, 1000, 10), cordoned=True)
    after = before.with_entry(entry("GPU-a", 2000, 30))
    assert (after.used_slots, after.used_memory_mib, after.used_cores) == (2, 3000, 40)
    assert (after.placements, after.healthy, after.cordoned) == ((), True, True)
    assert (after.free_memory_mib, after.free_cores) == (12360, 60)
    placed = after.with_entry(entry("GPU-a", 1, profile="1g.5gb", placement=Placement(6, 1)))
    assert placed.placements == (Placement(6, 1),)
    assert not card_state("GPU-a", healthy=False).with_entry(entry()).healthy


def test_a_card_that_shrank_below_its_tenants_has_less_than_nothing_free() -> None:
    assert card_state("GPU-a", (1, 20000, 120)).free_memory_mib == -4640
    assert card_state("GPU-a", (1, 20000, 120)).free_cores == -20


def test_charges() -> None:
    a, b = Charge(5, 1, 2), Charge(3, 4, 1)
    assert a + b == Charge(8, 5, 3)
    assert a - b == Charge(2, -3, 1)
    assert a.peak(b) == Charge(5, 4, 2)


HEADROOMS = {
    "nothing limited": (Headroom(), Charge(10**9, 10**9, 10**9), True),
    "memory exactly": (Headroom(memory_mib=10), Charge(10, 0, 0), True),
    "memory one too many": (Headroom(memory_mib=10), Charge(11, 0, 0), False),
    "cores one too many": (Headroom(cores=10), Charge(0, 11, 0), False),
    "cards one too many": (Headroom(cards=1), Charge(0, 0, 2), False),
    "limit 0 and nothing asked of it": (Headroom(cores=0), Charge(5, 0, 1), True),
}


@pytest.mark.parametrize(("headroom", "charge", "admitted"), HEADROOMS.values(), ids=HEADROOMS)
def test_headroom(headroom: Headroom, charge: Charge, admitted: bool) -> None:
    assert headroom.admits(charge) is admitted


def test_reasons_are_sorted_as_text() -> None:
    counts = {Reason.CARD_INSUFFICIENT_MEMORY: 2, Reason.CARD_SLOTS_EXHAUSTED: 10, Reason.CARD_CORDONED: 0}
    assert summary(counts, 12) == "10/12 CardTimeSlicingExhausted, 2/12 CardInsufficientMemory"
    assert Refusal(counts, 12).text == summary(counts, 12)
    assert Refusal({}, 1).text == "NodeInsufficientDevice"


# Objects


def test_a_pod_as_the_api_server_sends_it() -> None:
    found = decode_pod(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "a", "namespace": "team", "uid": "u", "labels": {"x": "y"}, "ownerReferences": []},
                "spec": {
                    "schedulerName": "s",
                    "schedulingGroup": {"podGroupName": "gang"},
                    "containers": [{"name": "c", "securityContext": {"privileged": True}}],
                },
                "status": {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]},
            }
        )
    )
    assert (found.name, found.namespace, found.uid, found.labels) == ("a", "team", "u", {"x": "y"})
    assert found.containers[0].is_privileged
    assert not container().is_privileged
    assert found.is_unschedulable
    assert found.spec.scheduling_group is not None
    assert found.spec.scheduling_group.pod_group_name == "gang"
    assert (found.bound_node, found.is_finished, found.is_terminating) == ("", False, False)


EMPTY = ["{}", '{"metadata":{},"spec":{},"status":{}}']


@pytest.mark.parametrize("text", EMPTY)
def test_absent_parts_are_empty(text: str) -> None:
    empty = decode_pod(text)
    assert (empty.namespace, empty.annotations, empty.labels) == ("default", {}, {})
    assert (empty.containers, empty.init_containers, empty.is_unschedulable) == ([], [], False)
    node = decode_node(text)
    assert (node.name, node.annotations, node.labels, node.allocatable, node.capacity) == ("", {}, {}, {}, {})
    quota = decode_quota(text)
    assert (quota.name, quota.namespace, quota.hard) == ("", "default", {})
    assert (container().limits, container().requests) == ({}, {})


def test_null_is_the_same_as_absent() -> None:
    nulls = {
        "metadata": {"namespace": None, "annotations": None, "labels": None, "deletionTimestamp": None},
        "spec": {
            "containers": [{"name": "c", "resources": {"limits": None, "requests": None}}],
            "initContainers": None,
        },
        "status": {"phase": None, "conditions": None, "initContainerStatuses": None},
    }
    found = pod_of(nulls)
    assert (found.namespace, found.annotations, found.is_terminating) == ("default", {}, False)
    assert (found.containers[0].limits, found.init_containers) == ({}, [])


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_finished(phase: str) -> None:
    assert pod(phase=phase).is_finished


@pytest.mark.parametrize("phase", ["", "Pending", "Running", "Unknown"])
def test_not_finished(phase: str) -> None:
    assert not pod(phase=phase).is_finished


@pytest.mark.parametrize("text", ["[]", '{"metadata":1}', '{"spec":{"containers":{}}}', "", '{"metadata":{"name":1}}'])
def test_an_object_of_a_wrong_shape_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r".") as error:
        decode_pod(text)
    assert isinstance(error.value, msgspec.DecodeError)
