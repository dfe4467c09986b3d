"""Ascend: templates and what is refused, soft split, network groups, and the pairs of the 910C super pod."""

import json
from itertools import combinations
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from devices.config import read
from devices.errors import ConfigError
from devices.model import Card, CardState
from devices.vendors.ascend import FAMILY, Settings
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
    vendor,
    walk_over,
)

SOFT = {"huawei.com/vnpu-mode": "hami-core"}
SIZES = {"Ascend310P": (21527, 8), "Ascend910B4": (32768, 20)}


def names(chip: str) -> tuple[str, str, str]:
    return f"huawei.com/{chip}", f"huawei.com/{chip}-memory", f"huawei.com/{chip}-core"


NPU, MEMORY, CORES = names("Ascend310P")
B3, B3_MEMORY, B3_CORES = names("Ascend910B3")
C = "huawei.com/Ascend910C"


def npu(number: int, chip: str = "Ascend310P", network: object = None, **fields: Any) -> Document:
    memory, cores = SIZES.get(chip, (65536, 20))
    card = {"id": f"npu-{number}", "index": number, "count": 7, "devmem": memory, "devcore": cores, "type": chip}
    custom = {} if network is None else {"custominfo": {"NetworkID": network}}
    return {**card, "health": True, **custom, **fields}


def npu_node(*cards: Document, chip: str = "Ascend310P", soft: str | None = None) -> Document:
    texts: dict[str, object] = {f"hami.io/node-register-{chip}": list(cards)}
    return node("n1", texts if soft is None else {**texts, "hami-vnpu-core": soft})


def chips(**changes: object) -> Document:
    """The section with the 310P alone, changed."""
    (chip,) = [chip for chip in Settings().configs if chip.common_word == "Ascend310P"]
    document = msgspec.to_builtins(chip)
    return {"vnpus": {"configs": [{**document, **changes}]}}


def limits_after(answer: Document) -> tuple[str, str]:
    resources = answer["pod"]["spec"]["containers"][0]["resources"]
    return str(resources["limits"][MEMORY]), str(resources["requests"][MEMORY])


TEMPLATES = {
    "8: the next template": (5000, "6144", "vir02"),
    "the smallest": (1, "3072", "vir01"),
    "0 is the smallest too": (0, "3072", "vir01"),
    "exactly one": (12288, "12288", "vir04"),
    "one more is the whole card": (12289, "21527", None),
    "up to its capacity": (24576, "21527", None),
}


@pytest.mark.parametrize(("asked", "written", "template"), TEMPLATES.values(), ids=TEMPLATES)
def test_templates(asked: int, written: str, template: str | None) -> None:
    admission, answer = told([npu_node(npu(0))], admitted(pod("a", {NPU: 1, MEMORY: asked})), filtered("a"))
    assert limits_after(admission) == (written, written)
    (device,) = json.loads(answer["annotations"]["huawei.com/Ascend310P"])
    assert device == {"UUID": "npu-0", "memory": int(written)} | ({"temp": template} if template else {})


def test_a_pod_that_admission_did_not_see_gets_a_template_as_well() -> None:
    (answer,) = told([npu_node(npu(0))], filtered(pod("a", {NPU: 1, MEMORY: 5000})))
    assert answer["annotations"]["hami.io/Ascend310P-devices-allocated"] == "npu-0,Ascend310P,6144,0:;"


def test_asc_4_memory_in_requests_alone_gives_way_to_the_whole_card() -> None:
    (admission,) = told([], admitted(pod("a", {NPU: 1}, requests={MEMORY: 3072})))
    assert limits_after(admission) == ("21527", "21527")


REFUSED: dict[str, tuple[dict[str, object], dict[str, str], str]] = {
    "more memory than the card has": ({NPU: 1, MEMORY: 24577}, {}, f"{MEMORY} 24577 is invalid"),
    "memory in bytes": ({NPU: 1, MEMORY: "16Gi"}, {}, f"{MEMORY} 17179869184 is invalid"),
    "memory in bytes, soft split": ({NPU: 1, MEMORY: "16Gi"}, SOFT, f"invalid {MEMORY} value 16Gi"),
    "negative memory": ({NPU: 1, MEMORY: -1}, {}, f"invalid {MEMORY} value -1"),
    "a fraction of memory": ({NPU: 1, MEMORY: "1500m"}, {}, f"invalid {MEMORY} value 1500m"),
    "cores without soft split": ({NPU: 1, CORES: 1}, {}, f"{CORES} is only supported in hami-core (soft split) mode"),
    "a fraction of a core is one": (
        {NPU: 1, CORES: "500m"},
        {},
        f"{CORES} is only supported in hami-core (soft split) mode",
    ),
    "negative cores": ({NPU: 1, CORES: -1}, SOFT, f"invalid {CORES} value -1"),
    "cores that are no number": ({NPU: 1, CORES: "many"}, SOFT, f"invalid {CORES} value many"),
    "a template of several cards": ({NPU: 2, MEMORY: 3072}, {}, "vNPU not supported for multiple devices"),
    "a fraction of a card": ({NPU: "500m"}, {}, f"invalid {NPU} value 500m"),
    "9: three super pod chips": ({C: 3}, {}, "Ascend910C device request must be 1 or 2*n, got 3"),
}


@pytest.mark.parametrize(("limits", "annotations", "text"), REFUSED.values(), ids=REFUSED)
def test_what_admission_refuses(limits: dict[str, object], annotations: dict[str, str], text: str) -> None:
    (answer,) = told([], admitted(pod("a", limits, annotations)))
    assert not answer["allowed"]
    assert answer["message"].startswith(text)


ALLOWED: dict[str, tuple[dict[str, object], dict[str, str]]] = {
    "whole memory of several cards": ({NPU: 2, MEMORY: 24576}, {}),
    "soft split of several cards": ({NPU: 2, MEMORY: 3000, CORES: 30}, SOFT),
    "no cores without soft split": ({NPU: 1, CORES: 0}, {}),
    "four super pod chips": ({C: 4}, {}),
}


@pytest.mark.parametrize(("limits", "annotations"), ALLOWED.values(), ids=ALLOWED)
def test_what_admission_allows(limits: dict[str, object], annotations: dict[str, str]) -> None:
    (answer,) = told([], admitted(pod("a", limits, annotations)))
    assert answer["allowed"], answer


def test_a_single_super_pod_chip_becomes_two_in_limits_and_requests() -> None:
    (answer,) = told([], admitted(pod("a", {C: 1}, requests={C: 1})))
    resources = answer["pod"]["spec"]["containers"][0]["resources"]
    assert str(resources["limits"][C]) == str(resources["requests"][C]) == "2"


def test_asc_2_a_template_of_a_super_pod_chip_is_given_twice() -> None:
    (answer,) = told([], admitted(pod("a", {C: 1, f"{C}-memory": 16384})))
    limits = answer["pod"]["spec"]["containers"][0]["resources"]["limits"]
    assert (str(limits[C]), str(limits[f"{C}-memory"])) == ("2", "16384")


FACTORS: dict[str, tuple[dict[str, object], dict[str, str], str, int]] = {
    "ASC-3: hard split, whole card": ({NPU: 1}, {}, "2152", 21527),
    "ASC-3: hard split, a template": ({NPU: 1, MEMORY: 500}, {}, "614", 6144),
    "soft split": ({NPU: 1, MEMORY: 500}, SOFT, "500", 5000),
}


@pytest.mark.parametrize(("limits", "annotations", "written", "memory"), FACTORS.values(), ids=FACTORS)
def test_memory_factor(limits: dict[str, object], annotations: dict[str, str], written: str, memory: int) -> None:
    """Ten MiB a unit: what admission writes comes to the same template when it is read."""
    admission, answer = told(
        [npu_node(npu(0), soft="true")],
        admitted(pod("a", limits, annotations)),
        filtered("a"),
        config=chips(memoryFactor=10),
    )
    assert limits_after(admission) == (written, written)
    assert answer["allocation"]["Ascend310P"][0][0]["memory"] == memory


def test_asc_1_only_containers_without_any_chip_are_blinded() -> None:
    configs = [{**msgspec.to_builtins(chip), "overwriteEnv": True} for chip in Settings().configs]
    asked = pod("a", {NPU: 1}, more=[{}, {B3: 1}])
    asked["spec"]["containers"].append({"name": "r", "resources": {"requests": {NPU: 1}}})
    (answer,) = told([], admitted(asked), config={"vnpus": {"configs": configs}})
    blinded = [container.get("env") for container in answer["pod"]["spec"]["containers"]]
    assert blinded == [None, [{"name": "ASCEND_VISIBLE_DEVICES", "value": ""}], None, None]


GATES = {
    "the node can": ("true", False, None),
    "the node cannot": ("false", True, "1/1 ModeNotFit"),
    "any other word is no": ("yes", True, "1/1 ModeNotFit"),
    "nothing said, all can": (None, True, None),
    "nothing said, none can": (None, False, "1/1 ModeNotFit"),
}


@pytest.mark.parametrize(("said", "everywhere", "refusal"), GATES.values(), ids=GATES)
def test_soft_split_needs_a_node_that_can(said: str | None, everywhere: bool, refusal: str | None) -> None:
    config = {"vnpus": {"hamiVnpuCore": everywhere}}
    nodes, asked = [npu_node(npu(0), soft=said)], pod("a", {NPU: 1, MEMORY: 1000, CORES: 30}, SOFT)
    (answer,) = told(nodes, filtered(asked), config=config)
    assert answer["failed"].get("n1") == refusal


def test_soft_split_is_in_percent_and_100_is_exclusive() -> None:
    """The card registers 8 AI cores; more than 100 counts as 100."""
    asked = [{NPU: 1, MEMORY: 1000, CORES: cores} for cores in (30, 70, 1, 150)]
    first, second, full, more = told(
        [npu_node(npu(0), soft="true")], *(filtered(pod(f"p{n}", limits, SOFT)) for n, limits in enumerate(asked))
    )
    assert first["annotations"]["huawei.com/Ascend310P"] == '[{"UUID":"npu-0","memory":1000,"core":30}]'
    assert cards_of(second, "Ascend310P") == [["npu-0"]]
    assert full["failed"] == more["failed"] == {"n1": "1/1 CardInsufficientCore"}


def test_asc_10_cards_of_all_containers_are_in_one_list() -> None:
    (answer,) = told([npu_node(npu(0))], filtered(pod("a", {NPU: 1, MEMORY: 3072}, more=[{}, {NPU: 1, MEMORY: 6144}])))
    devices = json.loads(answer["annotations"]["huawei.com/Ascend310P"])
    assert [device["temp"] for device in devices] == ["vir01", "vir02"]
    assert list(devices[0]) == ["UUID", "temp", "memory"]


def test_asc_8_a_chip_whose_name_goes_on_is_another() -> None:
    limits = {"huawei.com/Ascend910B4": 1}
    cards = npu_node(npu(0, "Ascend910B4-1"), chip="Ascend910B4-1")
    (answer,) = told([cards], filtered(pod("a", limits)))
    assert answer["failed"] == {"n1": "NodeInsufficientDevice"}


NETWORKS: dict[str, tuple[list[object], int, Any]] = {
    "the largest group": ([0, 0, 0, 1, 1], 3, [["npu-2", "npu-1", "npu-0"]]),
    "of equal ones the lowest": ([1, 1, 0, 0], 2, [["npu-3", "npu-2"]]),
    "then the next one": ([0, 0, 0, 1], 4, [["npu-3", "npu-2", "npu-1", "npu-0"]]),
    "one card": ([0, 0, 1], 1, [["npu-2"]]),
    "fractions are cut": ([0.2, 0.9, 1], 2, [["npu-1", "npu-0"]]),
    "some card says nothing: no groups": ([0, 0, 1, None], 2, [["npu-3", "npu-2"]]),
    "ASC-7: names are no networks": (["a", "b", "c"], 2, "0/3 AllocatedCardsInsufficientRequest"),
    "ASC-7: too few with a number": (["a", 1, "c"], 2, "1/3 AllocatedCardsInsufficientRequest"),
    "ASC-7: nor is a boolean": ([True, True, 1], 2, "1/3 AllocatedCardsInsufficientRequest"),
}


@pytest.mark.parametrize(("networks", "count", "expected"), NETWORKS.values(), ids=NETWORKS)
def test_network_groups(networks: list[object], count: int, expected: Any) -> None:
    cards = npu_node(*(npu(n, "Ascend910B3", network) for n, network in enumerate(networks)), chip="Ascend910B3")
    (answer,) = told([cards], filtered(pod("a", {B3: count})))
    assert (answer["failed"]["n1"] if isinstance(expected, str) else cards_of(answer, "Ascend910B3")) == expected


SCORES: dict[str, tuple[str, list[object], str]] = {
    "all in one": ("Ascend910B3", [0, 0], "10.00"),
    "two of three": ("Ascend910B3", [0, 0, 1], "6.67"),
    "a card without network": ("Ascend910B3", [0, None], "0.00"),
    "another family of chips": ("Ascend310P", [0, 0], "0.00"),
}


@pytest.mark.parametrize(("chip", "networks", "score"), SCORES.values(), ids=SCORES)
def test_the_score_is_the_part_in_one_network(chip: str, networks: list[object], score: str) -> None:
    cards = npu_node(*(npu(n, chip, network) for n, network in enumerate(networks)), chip=chip)
    (answer,) = told([cards], filtered(pod("a", {f"huawei.com/{chip}": len(networks)})))
    assert answer["events"][0][2].endswith(f"(n1:{score})")


PAIRS: dict[str, tuple[int, tuple[int, ...], int, Any]] = {
    "10: no two modules": (
        8,
        (1, 4, 6, 7),
        4,
        "2/4 AllocatedCardsInsufficientRequest, 4/4 CardTimeSlicingExhausted",
    ),
    "10: two modules, the higher index of each first": (8, (1, 4), 4, [["npu-3", "npu-2", "npu-7", "npu-6"]]),
    "the lowest module": (6, (), 2, [["npu-1", "npu-0"]]),
    "a broken module is left": (4, (0,), 2, [["npu-3", "npu-2"]]),
    "none at all is told": (
        4,
        (0, 2),
        2,
        "0/2 AllocatedCardsInsufficientRequest, 2/2 CardTimeSlicingExhausted",
    ),
    "ASC-9: an odd number has no modules": (6, (), 3, "4/3 AllocatedCardsInsufficientRequest"),
    "a single card needs none": (4, (3,), 1, [["npu-2"]]),
}


@pytest.mark.parametrize(("cards", "busy", "count", "expected"), PAIRS.values(), ids=PAIRS)
def test_pairs(cards: int, busy: tuple[int, ...], count: int, expected: Any) -> None:
    use = "hami.io/use-Ascend910C-uuid"
    taking = [filtered(pod(f"t{n}", {C: 1}, {use: f"npu-{n}"})) for n in busy]
    listed = npu_node(*(npu(n, "Ascend910C", count=1) for n in range(cards)), chip="Ascend910C")
    answer = told([listed], *taking, filtered(pod("a", {C: count})))[-1]
    assert (answer["failed"]["n1"] if isinstance(expected, str) else cards_of(answer, "Ascend910C")) == expected


def test_quota_in_the_fit_counts_the_template() -> None:
    asked = [pod("t", {NPU: 1, MEMORY: 3072}), pod("a", {NPU: 1, MEMORY: 5000}), pod("b", {NPU: 1, MEMORY: 3072})]
    _, refused, fits, used = told(
        [npu_node(npu(0))], *(filtered(one) for one in asked), quota_used(), quota={MEMORY: 9000}
    )
    assert refused["failed"] == {"n1": "1/1 ResourceQuotaNotFit"}
    assert cards_of(fits, "Ascend310P") == [["npu-0"]]
    assert used[MEMORY] == {"used": 6144, "limit": 9000}


def test_every_shipped_chip_has_names_of_its_own() -> None:
    for chip in FAMILY.build(Settings()):
        assert chip.resources == names(chip.key)
        assert chip.registration == (f"hami.io/node-register-{chip.key}",)
        assert vendor(chip.key).uuid_keys == ((f"hami.io/use-{chip.key}-uuid", f"hami.io/no-use-{chip.key}-uuid"),)


FAULTS = {
    "no key": ({"commonWord": ""}, "must be a name of its own"),
    "no resource": ({"resourceName": ""}, "resourceName: must not be empty"),
    "no memory": ({"memoryAllocatable": 0}, "memoryAllocatable: 0 is out of range"),
    "a negative factor": ({"memoryFactor": -1}, "memoryFactor: -1 is out of range"),
    "a template of nothing": ({"templates": [{"name": "t", "memory": 0}]}, "templates: t: memory: 0 is out of range"),
    "memory in words": ({"memoryCapacity": "all"}, "Expected `int`"),
}


@pytest.mark.parametrize(("changes", "text"), FAULTS.values(), ids=FAULTS)
def test_configurations_that_cannot_be_used(changes: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        read(json.dumps(chips(**changes)), ["ascend"])


@st.composite
def npu_cards(draw: st.DrawFn, chip: str) -> list[CardState]:
    drawn = draw(st.lists(st.tuples(st.sampled_from([0, 1, 2]), st.booleans()), min_size=1, max_size=8))
    walked = draw(st.permutations(range(len(drawn))))

    def card(number: int, network: int) -> Card:
        custom = {"NetworkID": network}
        return Card(f"npu-{number}", chip, number, 1, 65536, 20, chip, healthy=True, custom=custom)

    return [state(card(n, drawn[n][0]), slots=int(drawn[n][1])) for n in walked]


@given(npu_cards("Ascend910B3"), st.integers(2, 4))
def test_the_network_groups_are_the_first_of_all_subsets(states: list[CardState], count: int) -> None:
    passing = [place for place, s in enumerate(states) if not s.used_slots]
    networks = {place: s.card.custom["NetworkID"] for place, s in enumerate(states)}
    sizes = {network: sum(networks[p] == network for p in passing) for network in networks.values()}
    came = walk_over(states, "Ascend910B3", {B3: count})
    if len(passing) < count:
        assert isinstance(came, str)
    elif len(passing) == count:
        assert came == [states[place].card.uuid for place in passing]
    else:
        ranks = [(-sizes[networks[p]], networks[p], p) for p in passing]
        first = min(sorted(subset) for subset in combinations(ranks, count))
        assert came == [states[place].card.uuid for _, _, place in first]


@given(npu_cards("Ascend910C"), st.sampled_from([2, 4, 6]))
def test_the_pairs_are_the_first_of_all_subsets(states: list[CardState], count: int) -> None:
    free = {s.card.index: s.card.uuid for s in states if not s.used_slots}
    order = {s.card.index: place for place, s in enumerate(states)}
    whole = [subset for subset in combinations(sorted(free), count) if all((index ^ 1) in subset for index in subset)]
    came = walk_over(states, "Ascend910C", {C: count})
    if whole:
        chosen = sorted(min(whole), key=lambda index: (index // 2, order[index]))
        assert came == [free[index] for index in chosen]
    else:
        assert isinstance(came, str)
