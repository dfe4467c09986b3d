"""The small inputs with fixed outcomes (HAMi v2.10 vendor backends, conformance vectors), by their numbers."""

import json
from collections.abc import Iterable, Mapping

import pytest

from devices.requests import pod_request
from scheduler.engine import Filtered
from scheduler.evaluate import Fit
from tests.builders import Document
from tests.devices.vendors.driver import admitted, filtered, pod, refusal, registered, resources_of, text_of, world
from tests.devices.vendors.samples import CONFIG, VENDORS, sample_node, share
from tests.scheduler.builders import World, uuids

GPU, MEMORY, CORES = "nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores"
KUNLUN = "kunlunxin.com/xpu"


def gpu(name: str, **fields: object) -> Document:
    return {
        "id": name,
        "count": 10,
        "devmem": 24576,
        "devcore": 100,
        "type": "NVIDIA A10",
        "mode": "hami-core",
        "health": True,
        **fields,
    }


def gpus(*cards: Document, **annotations: str) -> World:
    found = {"hami.io/node-nvidia-register": list(cards), **{f"hami.io/{k}": v for k, v in annotations.items()}}
    return world(registered(found))


def indexes(here: World, found: Filtered) -> list[int]:
    """Indexes of the chosen cards, as chosen."""
    state = here.ledger.state("n1")
    assert state is not None
    by_uuid = {card.card.uuid: card.card.index for card in state.cards}
    return [by_uuid[uuid] for uuid in uuids(found)]


def occupied(here: World, key: str, limits: Mapping[str, object], busy: Iterable[str]) -> World:
    """The world with a tenant on each of these cards."""
    use = VENDORS[key].uuid_keys[0][0]
    for number, uuid in enumerate(busy):
        assert filtered(here, limits, f"tenant{number}", annotations={use: uuid}).nodes is not None, uuid
    return here


def test_01_a_card_with_all_slots_taken() -> None:
    here = gpus(gpu("a"))
    for number in range(10):
        assert filtered(here, {GPU: 1, MEMORY: 1}, f"t{number}").nodes is not None
    assert refusal(filtered(here, {GPU: 1, MEMORY: 1})) == "1/1 CardTimeSlicingExhausted"


def test_02_one_unhealthy_and_one_cordoned() -> None:
    here = gpus(gpu("a", health=False), gpu("b"), **{"device-cordon": "b"})
    assert refusal(filtered(here, {GPU: 1})) == "1/2 CardCordoned, 1/2 CardNotHealth"


def test_03_the_second_card_lacks_memory() -> None:
    here = gpus(gpu("a"), gpu("b", index=1, devmem=5000))
    expected = "1/2 AllocatedCardsInsufficientRequest, 1/2 CardInsufficientMemory"
    assert refusal(filtered(here, {GPU: 2, MEMORY: 6000})) == expected


def test_04_all_compute_of_a_card_with_a_tenant() -> None:
    here = gpus(gpu("a"))
    assert filtered(here, {GPU: 1, MEMORY: 1}, "t").nodes is not None
    found = filtered(here, {GPU: 1, MEMORY: 1, CORES: 100})
    assert refusal(found) == "1/1 ExclusiveDeviceAllocateConflict"


def test_05_no_compute_is_left() -> None:
    here = gpus(gpu("a"))
    assert filtered(here, {GPU: 1, MEMORY: 1, CORES: 100}, "t").nodes is not None
    assert refusal(filtered(here, {GPU: 1, MEMORY: 1})) == "1/1 CardComputeUnitsExhausted"


def test_06_mig_placements() -> None:
    profiles = [
        {"name": name, "memoryMB": memory, "core": 25, "sliceCount": size, "placements": places}
        for name, memory, size, places in (
            ("1g.6gb", 5952, 1, [{"start": start, "size": 1} for start in range(4)]),
            ("2g.12gb", 12032, 2, [{"start": 0, "size": 2}, {"start": 2, "size": 2}]),
            ("4g.24gb", 24192, 4, [{"start": 0, "size": 4}]),
        )
    ]
    here = gpus(gpu("a", mode="mig", devmem=32768, migProfiles=profiles))
    starts = []
    for number, memory in enumerate((5000, 10000, 5000)):
        found = filtered(here, {GPU: 1, MEMORY: memory}, f"t{number}")
        instances = json.loads(text_of(here, found, "hami.io/vgpu-mig-allocations"))
        starts += [instance["placement"]["start"] for instance in instances]
    assert starts == [3, 0, 2]
    assert refusal(filtered(here, {GPU: 1, MEMORY: 5000})) == "1/1 CardMigTopologyInfeasible"


def test_07_one_percent_of_64_compute_units() -> None:
    card = {"id": "mi-0", "count": 10, "devmem": 65536, "devcore": 64, "type": "AMD Instinct", "health": True}
    here = world(registered({"hami.io/node-amd-register": [card]}))
    found = filtered(here, {"amd.com/gpu": 1, "amd.com/gpumem": 100, "amd.com/gpucores": 1})
    assert text_of(here, found, "hami.io/amd-devices-allocated") == "mi-0,AMD Instinct,100,1:;"


def ascend(key: str, *indexes: int, memory: int = 65536) -> World:
    cards = [
        {"id": f"npu-{n}", "index": n, "count": 1, "devmem": memory, "devcore": 20, "type": key, "health": True}
        for n in indexes
    ]
    return world(registered({f"hami.io/node-register-{key}": cards}))


def test_08_memory_is_rounded_to_a_template() -> None:
    names = {"huawei.com/Ascend310P": 1, "huawei.com/Ascend310P-memory": 5000}
    limits, requests = resources_of(admitted(names))
    assert limits["huawei.com/Ascend310P-memory"] == requests["huawei.com/Ascend310P-memory"] == "6144"
    here = ascend("Ascend310P", 0, memory=21527)
    found = filtered(here, limits)
    assert json.loads(text_of(here, found, "huawei.com/Ascend310P")) == [
        {"UUID": "npu-0", "temp": "vir02", "memory": 6144}
    ]


def test_09_super_pods_give_two_at_a_time() -> None:
    verdict = admitted({"huawei.com/Ascend910C": 3})
    assert not verdict.allowed
    assert verdict.message == "Ascend910C device request must be 1 or 2*n, got 3"
    assert resources_of(admitted({"huawei.com/Ascend910C": 1}))[0]["huawei.com/Ascend910C"] == "2"


def test_10_pairs_of_a_module() -> None:
    four = {"huawei.com/Ascend910C": 4}
    assert refusal(filtered(ascend("Ascend910C", 0, 2, 3, 5), four)) == "2/4 AllocatedCardsInsufficientRequest"
    here = ascend("Ascend910C", *range(8))
    occupied(here, "Ascend910C", {"huawei.com/Ascend910C": 1}, ["npu-1", "npu-4", "npu-6", "npu-7"])
    expected = "2/4 AllocatedCardsInsufficientRequest, 4/4 CardTimeSlicingExhausted"
    assert refusal(filtered(here, four)) == expected
    here = ascend("Ascend910C", 0, 2, 3, 5, 6, 7)
    assert sorted(indexes(here, filtered(here, four))) == [2, 3, 6, 7]


def neuron(kind: str, devices: int, *busy: int) -> World:
    capacity = {"aws.amazon.com/neuron": str(devices), "aws.amazon.com/neuroncore": str(2 * devices)}
    here = world(registered(capacity=capacity, labels={"node.kubernetes.io/instance-type": kind}))
    cards = [f"n1-AWSNeuron-{index}" for index in busy]
    return occupied(here, "AWSNeuron", {"aws.amazon.com/neuroncore": 1}, cards)


def test_11_a_window_on_inf() -> None:
    here = neuron("inf2.48xlarge", 12, 3)
    assert indexes(here, filtered(here, {"aws.amazon.com/neuron": 6})) == [4, 5, 6, 7, 8, 9]


def test_12_windows_on_trn() -> None:
    four = {"aws.amazon.com/neuron": 4}
    here = neuron("trn1.32xlarge", 16, 2)
    assert indexes(here, filtered(here, four)) == [4, 5, 6, 7]
    assert refusal(filtered(neuron("trn1.32xlarge", 16, 2, 5, 9, 13), four)) == "1/16 NumaNotFit"


def test_13_the_profile_of_an_mlu() -> None:
    names = VENDORS["MLU"]
    capacity = {names.count_resource: "400", names.core_resource: "400", names.memory_resource: "384"}
    here = world(registered(capacity=capacity))
    found = filtered(here, {names.count_resource: 1, names.memory_resource: 24, names.core_resource: 15})
    assert text_of(here, found, names.allocated) == "n1-cambricon-mlu-3,MLU,6144,15:;"
    assert text_of(here, found, "CAMBRICON_DSMLU_PROFILE") == "3_15_24"


def test_14_a_slice_by_memory_and_compute() -> None:
    profiles = {"1g.8gb": "10", "2g.16gb": "11", "3g.24gb": "12", "6g.48gb": "13"}
    capacity = {"devices": [{"index": "0", "minor": "0", "capacity": 6}], "profiles": profiles}
    here = world(registered({"enflame.com/gcu-drs-capacity": capacity}))
    found = filtered(here, {"enflame.com/gcu-memory": 20000, "enflame.com/gcu-core": 40})
    assert text_of(here, found, VENDORS["Enflame"].allocated) == "n1-enflame-drs-0,Enflame,24576,50:;"
    names = json.loads(text_of(here, found, "assigned-containers"))
    assert names["c0"]["profileName"] == "3g.24gb"


BOARDS = {
    "15 one card": ([0], 1, [1]),
    "15 two cards": ([0], 2, [1, 2]),
    "15 four cards": ([0], 4, [4, 5, 6, 7]),
    "16 across the wings": ([0, 7], 4, [1, 2, 5, 6]),
    "17 a linked pair": ([0, 1, 2, 4, 5, 6], 2, [3, 7]),
}


@pytest.mark.parametrize(("busy", "count", "expected"), BOARDS.values(), ids=BOARDS)
def test_15_to_17_cards_of_a_board(busy: list[int], count: int, expected: list[int]) -> None:
    here = world(registered(capacity={KUNLUN: "8"}))
    occupied(here, "kunlun", {KUNLUN: 1}, [f"n1-kunlun-{index}" for index in busy])
    assert indexes(here, filtered(here, {KUNLUN: count})) == expected


def test_18_half_a_vxpu() -> None:
    asked = pod_request(pod({"kunlunxin.com/vxpu": 1, "kunlunxin.com/vxpu-memory": 24577}), CONFIG.vendors)
    (device,) = asked.containers[0].devices
    assert (device.memory_mib, device.cores) == (49152, 50)


def test_19_the_loss_table_of_a_node() -> None:
    tables = {"metax-tech.com/gpu.topology.losses": {"1": 40, "2": 250}}
    here = world(registered(tables, {"metax-tech.com/gpu": "8"}))
    found = filtered(here, {"metax-tech.com/gpu": 2})
    assert found.decision is not None
    fit = found.decision.verdicts["n1"]
    assert isinstance(fit, Fit)
    assert fit.score == 1750


def test_20_an_online_app_of_two_devices() -> None:
    online = {"metax-tech.com/sgpu-app-class": "online"}
    verdict = admitted({"metax-tech.com/sgpu": 2}, annotations=online)
    assert not verdict.allowed
    assert verdict.message == "app-class pod must request single device"


def test_21_three_moore_threads_cards() -> None:
    verdict = admitted({"mthreads.com/vgpu": 3})
    limits, _ = resources_of(verdict)
    assert limits == {"mthreads.com/vgpu": "3", "mthreads.com/sgpu-core": "48", "mthreads.com/sgpu-memory": "288"}
    assert verdict.pod["metadata"]["annotations"] == {"mthreads.com/request-gpu-num": "3"}  # type: ignore[index] # a JSON object, whose values have no type of their own


def test_22_two_iluvatar_cards() -> None:
    verdict = admitted({"iluvatar.ai/BI-V150-vgpu": 2})
    assert resources_of(verdict)[0] == {"iluvatar.ai/BI-V150-vgpu": "2", "iluvatar.ai/BI-V150.vCore": "200"}
    assert verdict.pod["spec"]["containers"][0]["env"] == [{"name": "SOL_CONTINER_NAME", "value": "main"}]  # type: ignore[index] # a JSON object, whose values have no type of their own


@pytest.mark.parametrize("key", sorted(key for key, vendor in VENDORS.items() if vendor.uuid_keys))
def test_23_a_list_of_spaces_is_no_constraint(key: str) -> None:
    vendor = VENDORS[key]
    blank = {name: "   " for pair in vendor.uuid_keys for name in pair}
    here = World(sample_node(vendor), config=CONFIG)
    free, listed = filtered(here, share(vendor)), filtered(here, share(vendor), annotations=blank)
    assert listed.allocation is not None
    assert listed.allocation == free.allocation


def test_24_a_text_registration_without_separator() -> None:
    here = world(registered({"hami.io/node-dcu-register": "DCU-71,4,32768,100,DCU-K100_AI,0,true"}))
    assert here.ledger.state("n1") is None
    assert here.ledger.problems_of("n1") == ("DCU: node annotation missing device separator",)
    assert refusal(filtered(here, {"hygon.com/dcunum": 1})) == "node unregistered"
