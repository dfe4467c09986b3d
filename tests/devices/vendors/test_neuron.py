"""AWS Neuron: windows of devices, masks of cores, and cores per device as each node has them."""

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devices.errors import RegistrationError
from devices.model import Card, CardState
from devices.objects import node_of
from tests.devices.vendors.stories import (
    Document,
    admitted,
    cards_of,
    filtered,
    node,
    pod,
    quota_used,
    state,
    told,
    usage,
    vendor,
    walk_over,
)

DEVICES, CORES = "aws.amazon.com/neuron", "aws.amazon.com/neuroncore"
TYPE = "node.kubernetes.io/instance-type"
ALLOCATED = "hami.io/aws-neuron-devices-allocated"


def neuron_node(name: str = "n1", devices: int = 4, per_device: int = 2, kind: str = "inf2.48xlarge") -> Document:
    return node(name, capacity={DEVICES: devices, CORES: devices * per_device}, labels={TYPE: kind})


def taking(*numbers: int, prefix: str = "n1") -> list[Document]:
    """Pods that take whole devices."""
    use = "aws.amazon.com/use-neuron-uuid"
    return [filtered(pod(f"t{n}", {DEVICES: 1}, {use: f"{prefix}-AWSNeuron-{n}"})) for n in numbers]


def numbers(answer: Document) -> list[list[int]]:
    return [[int(uuid.rpartition("-")[2]) for uuid in container] for container in cards_of(answer, "AWSNeuron")]


WINDOWS: dict[str, tuple[str, int, tuple[int, ...], int, Any]] = {
    "11: any window on Inf": ("inf2.48xlarge", 12, (0, 2, 3), 6, [[4, 5, 6, 7, 8, 9]]),
    "12: windows of four begin at multiples of four": ("trn1.32xlarge", 16, (1, 2), 4, [[4, 5, 6, 7]]),
    "12: no window of four": ("trn1.32xlarge", 16, (2, 5, 9, 13), 4, "1/16 NumaNotFit"),
    "AWS-5: two devices have no window on Trn": ("trn1.32xlarge", 16, (), 2, "1/16 NumaNotFit"),
    "eight on Trn": ("trn1.32xlarge", 16, (3,), 8, [[8, 9, 10, 11, 12, 13, 14, 15]]),
    "sixteen on Trn": ("trn1.32xlarge", 16, (), 16, [list(range(16))]),
    "a type spelt with a capital": ("Inf9", 4, (0,), 3, [[1, 2, 3]]),
    "no type at all": ("", 8, (0,), 4, [[4, 5, 6, 7]]),
}


@pytest.mark.parametrize(("kind", "devices", "busy", "count", "expected"), WINDOWS.values(), ids=WINDOWS)
def test_windows(kind: str, devices: int, busy: tuple[int, ...], count: int, expected: Any) -> None:
    answer = told([neuron_node(devices=devices, kind=kind)], *taking(*busy), filtered(pod("a", {DEVICES: count})))[-1]
    assert (answer["failed"]["n1"] if isinstance(expected, str) else numbers(answer)) == expected


def test_aws_3_mutex_does_not_shift_windows() -> None:
    mutex = {"hami.io/gpu-scheduler-policy": "mutex"}
    answer = told([neuron_node()], *taking(0), filtered(pod("a", {DEVICES: 2}, mutex)))[-1]
    assert numbers(answer) == [[1, 2]]


def test_aws_4_windows_ignore_uuid_lists() -> None:
    use = {"aws.amazon.com/use-neuron-uuid": "n1-AWSNeuron-3"}
    (answer,) = told([neuron_node()], filtered(pod("a", {DEVICES: 2}, use)))
    assert numbers(answer) == [[0, 1]]


CORE_REQUESTS: dict[str, tuple[int, object, list[list[tuple[int, int]]]]] = {
    "one core": (2, {CORES: 1}, [[(3, 1)]]),
    "two cores are a device": (2, {CORES: 2}, [[(3, 3)]]),
    "six cores are three devices": (2, {CORES: 6}, [[(0, 3), (1, 3), (2, 3)]]),
    "AWS-2: a device of four cores": (4, {DEVICES: 1}, [[(3, 15)]]),
    "AWS-2: devices of four cores": (4, {DEVICES: 2}, [[(0, 15), (1, 15)]]),
    "AWS-2: two of four cores": (4, {CORES: 2}, [[(3, 3)]]),
    "one core a device": (1, {CORES: 2}, [[(0, 1), (1, 1)]]),
}


@pytest.mark.parametrize(("per_device", "limits", "expected"), CORE_REQUESTS.values(), ids=CORE_REQUESTS)
def test_masks(per_device: int, limits: dict[str, int], expected: list[list[tuple[int, int]]]) -> None:
    (answer,) = told([neuron_node(per_device=per_device)], filtered(pod("a", limits)))
    cores = [[card["cores"] for card in container] for container in answer["allocation"]["AWSNeuron"]]
    assert [[*zip(*both, strict=True)] for both in zip(numbers(answer), cores, strict=True)] == expected


def test_aws_2_cores_of_one_device_go_to_different_pods() -> None:
    """Of four cores: one, two, one; a fifth core comes from the next device."""
    steps = [filtered(pod(f"p{n}", {CORES: cores})) for n, cores in enumerate((1, 2, 1, 1))]
    answers = told([neuron_node(per_device=4)], *steps, usage())
    given = [answer["allocation"]["AWSNeuron"][0][0] for answer in answers[:-1]]
    assert [card["cores"] for card in given] == [1, 6, 8, 1]
    assert [answer["annotations"]["AWS_NEURON_IDS"] for answer in answers[:-1]] == ["12", "13,14", "15", "8"]
    assert answers[-1]["n1-AWSNeuron-3"] == {"used": 3, "memory": 0, "cores": 15}


def test_aws_2_a_device_with_one_core_in_use_is_not_given_whole() -> None:
    answers = told(
        [neuron_node(devices=1, per_device=4)], filtered(pod("a", {CORES: 1})), filtered(pod("b", {DEVICES: 1}))
    )
    assert answers[-1]["failed"] == {"n1": "1/1 CardInsufficientCore"}


def test_aws_1_every_node_has_its_own_cores_per_device() -> None:
    nodes = [neuron_node("n1", 1, 2), neuron_node("n2", 1, 4)]
    steps = [filtered(pod("a", {DEVICES: 1}), "n1"), filtered(pod("b", {DEVICES: 1}), "n2"), quota_used()]
    first, second, used = told(nodes, *steps)
    assert first["annotations"][ALLOCATED] == "n1-AWSNeuron-0,AWSNeuron,0,3:;"
    assert second["annotations"][ALLOCATED] == "n2-AWSNeuron-0,AWSNeuron,0,15:;"
    assert used[CORES]["used"] == 2 + 4


QUOTA = {
    "AWS-6: a device's second core costs one": (({CORES: 1}, {CORES: 1}), 2),
    "AWS-6: a device costs its cores": (({DEVICES: 1},), 2),
    "a window costs the cores of all its devices": (({DEVICES: 3},), 6),
}


@pytest.mark.parametrize(("requests", "cores"), QUOTA.values(), ids=QUOTA)
def test_quota_counts_bits(requests: tuple[dict[str, int], ...], cores: int) -> None:
    steps = [filtered(pod(f"p{n}", limits)) for n, limits in enumerate(requests)]
    assert told([neuron_node()], *steps, quota_used())[-1][CORES]["used"] == cores


FIT_QUOTA = {
    "a second core is within": ({CORES: 1}, 2, None),
    "a device is not": ({DEVICES: 1}, 2, "4/4 ResourceQuotaNotFit"),
    "nor is a window": ({DEVICES: 2}, 4, "2/4 ResourceQuotaNotFit"),
}


@pytest.mark.parametrize(("limits", "limit", "refusal"), FIT_QUOTA.values(), ids=FIT_QUOTA)
def test_quota_in_the_fit(limits: dict[str, int], limit: int, refusal: str | None) -> None:
    steps = [filtered(pod("t", {CORES: 1})), filtered(pod("a", limits))]
    assert told([neuron_node()], *steps, quota={CORES: limit})[-1]["failed"].get("n1") == refusal


def test_admission_charges_the_smallest_cores_per_device() -> None:
    nodes = [neuron_node("n1", 1, 2), neuron_node("n2", 1, 4)]
    allowed, refused = told(nodes, admitted(pod("a", {DEVICES: 1})), admitted(pod("b", {DEVICES: 2})), quota={CORES: 3})
    assert allowed["allowed"]
    assert refused["message"].startswith("exceeding resource quota")


REFUSED = {
    "a fraction of a device": ({DEVICES: "1500m"}, "must be an integer between"),
    "too many devices": ({DEVICES: 2**31}, "must be an integer between"),
    "too many cores": ({CORES: 2**32}, "must be an integer between"),
    "cores in no unit": ({CORES: "many"}, "must be an integer between"),
    "an odd number of cores": ({CORES: 5}, "must be 1 or a multiple of 2, got 5"),
    "no device": ({DEVICES: 0}, "must be greater than 0"),
    "fewer than none": ({CORES: -2}, "must be greater than 0"),
}


@pytest.mark.parametrize(("limits", "text"), REFUSED.values(), ids=REFUSED)
def test_values_that_cannot_be_used(limits: dict[str, object], text: str) -> None:
    admission, choice = told([neuron_node()], admitted(pod("a", limits)), filtered(pod("b", limits)))
    assert not admission["allowed"]
    assert text in admission["message"]
    assert choice["error"] == admission["message"]


def test_a_count_hides_cores() -> None:
    (answer,) = told([neuron_node()], filtered(pod("a", {DEVICES: 1, CORES: 3})))
    assert answer["annotations"]["AWS_NEURON_IDS"] == "3"


def test_numbers_of_all_containers_share_one_list() -> None:
    """Devices and cores mix; a container without either adds nothing (AWS-8)."""
    (answer,) = told([neuron_node()], filtered(pod("a", {DEVICES: 1}, more=[{}, {CORES: 1}])))
    said = answer["annotations"]
    assert said["AWS_NEURON_IDS"] == "3,4"
    assert said["NEURON_RESOURCE_TYPE"] == CORES
    assert said["NEURON_ALLOCATED"] == "false"
    assert said["aws.amazon.com/predicate-node"] == "n1"
    assert said[ALLOCATED] == "n1-AWSNeuron-3,AWSNeuron,0,3:;;n1-AWSNeuron-2,AWSNeuron,0,1:;"


def test_aws_7_a_count_in_requests_alone_is_written_as_cores() -> None:
    (answer,) = told([neuron_node()], filtered(pod("a", requests={DEVICES: 1})))
    assert answer["annotations"]["AWS_NEURON_IDS"] == "6,7"


def test_a_node_that_loses_its_capacity_offers_nothing() -> None:
    answers = told([neuron_node()], {"put_node": node("n1")}, filtered(pod("a", {DEVICES: 1})))
    assert answers[-1]["failed"] == {"n1": "node unregistered"}


CAPACITIES: dict[str, tuple[dict[str, str], str]] = {
    "no cores": ({DEVICES: "4"}, "makes 0 cores a device"),
    "more cores than a mask holds": ({DEVICES: "1", CORES: "32"}, "makes 32 cores a device"),
    "no whole number": ({DEVICES: "1500m"}, "not a whole number"),
    "more devices than any node has": ({DEVICES: "2000", CORES: "4000"}, "accepted are 0 to 1024"),
}


@pytest.mark.parametrize(("capacity", "text"), CAPACITIES.values(), ids=CAPACITIES)
def test_capacities_that_make_no_devices(capacity: dict[str, str], text: str) -> None:
    with pytest.raises(RegistrationError, match=text):
        vendor("AWSNeuron").read_node(node_of(node(capacity=capacity)))


@st.composite
def device_nodes(draw: st.DrawFn) -> list[CardState]:
    kind = draw(st.sampled_from(["inf2.xlarge", "trn1.2xlarge"]))
    used = draw(st.lists(st.booleans(), min_size=1, max_size=9))
    walked = draw(st.permutations(range(len(used))))
    return [
        state(
            Card(f"d-{n}", "AWSNeuron", n, 2, 0, 3, "AWSNeuron", healthy=True, custom={"AWSNodeType": kind}),
            slots=int(used[n]),
        )
        for n in walked
    ]


@given(device_nodes(), st.integers(2, 8))
def test_the_window_is_the_first_of_all_subsets(states: list[CardState], count: int) -> None:
    by_index = sorted(states, key=lambda s: s.card.index)
    anywhere = "inf" in str(states[0].card.custom["AWSNodeType"])

    def is_window(places: tuple[int, ...]) -> bool:
        together = places == tuple(range(places[0], places[0] + count))
        linked = anywhere or (count in (4, 8, 16) and places[0] % count == 0)
        return together and linked and not any(by_index[place].used_slots for place in places)

    windows = [places for places in combinations(range(len(states)), count) if is_window(places)]
    came = walk_over(states, "AWSNeuron", {DEVICES: count})
    if windows:
        assert came == [f"d-{place}" for place in min(windows)]
    elif count > len(states):
        assert came == "NodeInsufficientDevice"
    else:
        assert came == f"1/{len(states)} NumaNotFit"


@given(st.lists(st.integers(1, 2), min_size=1, max_size=6), st.sampled_from([2, 3, 4, 8]))
def test_no_core_is_given_twice(asked: list[int], per_device: int) -> None:
    steps = [filtered(pod(f"p{n}", {CORES: cores})) for n, cores in enumerate(asked)]
    held: dict[str, int] = {}
    for answer, cores in zip(told([neuron_node(devices=2, per_device=per_device)], *steps), asked, strict=True):
        for container in answer["allocation"].get("AWSNeuron", []):
            for card in container:
                assert held.get(card["uuid"], 0) & card["cores"] == 0
                assert card["cores"].bit_count() == cores
                assert card["cores"] < 2**per_device
                held[card["uuid"]] = held.get(card["uuid"], 0) | card["cores"]
