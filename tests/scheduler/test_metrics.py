"""The metrics page: HAMi's names, labels and units."""

import asyncio

from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from devices.ledger import Ledger
from scheduler.metrics import show_build
from scheduler.metrics_page import LedgerPage
from serving.page import page
from tests.builders import (
    allocated,
    card,
    container_document,
    entry,
    mig_card,
    node,
    nvidia_config,
    pod,
    quota,
)

MIB = 1024 * 1024
CARD = {"zone": "vGPU", "node": "n1", "device_uuid": "a", "device_index": "0", "device_type": "NVIDIA-Tesla T4"}
POD = {"zone": "vGPU", "namespace": "default", "node": "n1", "pod": "p", "device_uuid": "a"}


async def text_of(source: LedgerPage) -> str:
    registry = CollectorRegistry()
    show_build(registry)
    return b"".join([piece async for piece in page(registry, "", (), source.blocks)]).decode()


class Page:
    """The page as a reader of it sees it."""

    def __init__(self, ledger: Ledger, *, legacy: bool = False) -> None:
        self.source = LedgerPage(ledger, legacy=legacy)
        self.refresh()

    def refresh(self) -> None:
        self.text = asyncio.run(text_of(self.source))
        self._samples = [s for family in text_string_to_metric_families(self.text) for s in family.samples]

    def value(self, name: str, labels: dict[str, str]) -> float | None:
        return next((s.value for s in self._samples if (s.name, s.labels) == (name, labels)), None)

    def labels(self, name: str) -> list[dict[str, str]]:
        return [s.labels for s in self._samples if s.name == name]


def books() -> Ledger:
    ledger = Ledger(nvidia_config(memoryFactor=2))
    ledger.put_node(node("n1", card("a"), mig_card("m", index=1), card("empty", index=2, memory_mib=0)))
    ledger.put_node(node("bare"))
    apps = [container_document("x"), container_document("y", gpu=1)]
    init = [container_document("i", gpu=1)]
    carried = allocated(((entry("a", 500, 5),), (), (entry("a", 1000, 30), entry("a", 200, 1))))
    ledger.put_pod(pod(*apps, init=init, name="p", node="n1", annotations=carried), 0.0)
    return ledger


CARDS = {
    "hami_gpu_memory_limit_bytes": (CARD, 15360 * MIB),
    "hami_gpu_core_limit_ratio": (CARD, 100),
    "hami_gpu_memory_allocated_bytes": ({**CARD, "device_cores": "31"}, 1200 * MIB),
    "hami_gpu_core_allocated_ratio": (CARD, 31),
    "hami_gpu_shared_count": (CARD, 2),
    "hami_node_gpu_overview": ({**CARD, "device_cores": "31", "device_memory_limit": "15360"}, 1200 * MIB),
    "hami_node_gpu_memory_allocated_ratio": (CARD, 1200 / 15360),
}


def test_cards() -> None:
    shown = Page(books())
    for name, (labels, value) in CARDS.items():
        assert shown.value(name, labels) == value, name
        assert {frozenset(found) for found in shown.labels(name)} == {frozenset(labels)}
    assert {labels["device_uuid"] for labels in shown.labels("hami_gpu_shared_count")} == {"a", "m", "empty"}
    # A share of nothing is no number.
    assert {found["device_uuid"] for found in shown.labels("hami_node_gpu_memory_allocated_ratio")} == {"a", "m"}


def test_pods_by_their_real_container_positions() -> None:
    shown = Page(books())
    memory, cores = "hami_vgpu_memory_allocated_bytes", "hami_vgpu_core_allocated_ratio"
    assert shown.value(memory, {**POD, "container_index": "0"}) == 500 * MIB
    assert shown.value(memory, {**POD, "container_index": "2"}) == 1200 * MIB
    assert shown.value(cores, {**POD, "container_index": "2"}) == 31
    assert [labels["container_index"] for labels in shown.labels(memory)] == ["0", "2"]


def test_an_init_container_that_has_ended_is_shown_no_more() -> None:
    """It went on showing memory that the books had given back."""
    ledger = books()
    before = ledger.pod("uid-p")
    assert before is not None
    ended = pod(
        container_document("x"),
        container_document("y", gpu=1),
        init=[container_document("i", gpu=1)],
        name="p",
        node="n1",
        annotations=before.annotations,
        exit_codes={"i": 0},
    )
    ledger.put_pod(ended, 0.0)
    labels = Page(ledger).labels("hami_vgpu_memory_allocated_bytes")
    assert [found["container_index"] for found in labels] == ["2"]


def test_two_pods_of_one_name_do_not_spoil_the_page() -> None:
    ledger = books()
    for uid in ("one", "two"):
        ledger.put_pod(pod(name="q", uid=uid, node="n1", annotations=allocated(((entry("a"),),))), 0.0)
    shown = Page(ledger)
    assert shown.value("hami_vgpu_memory_allocated_bytes", {**POD, "pod": "q", "container_index": "0"}) == 1000 * MIB
    assert shown.text.count('pod="q"') == 2
    assert shown.value("hami_gpu_shared_count", CARD) == 4


def test_instances_once_they_exist() -> None:
    ledger = books()
    instances = (
        '[{"containerIndex":0,"deviceIndex":0,"gpuUUID":"m","profile":"1g.5gb","placement":{"start":6,"size":1}},'
        '{"containerIndex":0,"deviceIndex":1,"gpuUUID":"m","profile":"2g.10gb","placement":{"start":0,"size":2},'
        '"migUUID":"MIG-1","gpuInstanceID":5,"computeInstanceID":0},'
        '{"containerIndex":0,"deviceIndex":2,"gpuUUID":"unknown","profile":"2g.10gb","placement":{"start":0,"size":2},'
        '"migUUID":"MIG-2","gpuInstanceID":6,"computeInstanceID":0}]'
    )
    carried = {
        **allocated(((entry("m", 4864, 15), entry("m", 9984, 29)),)),
        "hami.io/vgpu-mig-allocations": instances,
    }
    ledger.put_pod(pod(name="q", node="n1", annotations=carried), 0.0)
    assert Page(ledger).labels("hami_node_gpu_mig_instance_info") == [
        {
            "zone": "vGPU",
            "node": "n1",
            "device_uuid": "m",
            "device_index": "1",
            "mig_uuid": "MIG-1",
            "profile": "2g.10gb",
            "gpu_instance_id": "5",
            "compute_instance_id": "0",
            "placement_start": "0",
            "placement_size": "2",
        },
        {
            "zone": "vGPU",
            "node": "n1",
            "device_uuid": "unknown",
            "device_index": "",
            "mig_uuid": "MIG-2",
            "profile": "2g.10gb",
            "gpu_instance_id": "6",
            "compute_instance_id": "0",
            "placement_start": "0",
            "placement_size": "2",
        },
    ]
    old = Page(ledger, legacy=True).labels("nodeGPUMigInstance")
    assert old[0] == {
        "zone": "vGPU",
        "nodeid": "n1",
        "deviceuuid": "m",
        "deviceidx": "1",
        "migname": "2g.10gb-5",
    }


def test_quotas_used_and_limit_in_the_same_unit() -> None:
    ledger = books()
    ledger.put_quota(quota(gpumem=4000))
    ledger.put_quota(quota("q", "idle", gpucores=50))
    shown = Page(ledger)
    used, limit = "hami_resource_quota_used", "hami_resource_quota_limit"
    memory = {"zone": "vGPU", "namespace": "default", "quota_name": "nvidia.com/gpumem"}
    assert shown.value(used, {**memory, "limit": "8000"}) == 1200
    assert shown.value(limit, memory) == 8000
    cores = {"zone": "vGPU", "namespace": "default", "quota_name": "nvidia.com/gpucores"}
    assert shown.value(used, {**cores, "limit": "0"}) == 31
    assert shown.value(limit, cores) is None
    assert shown.value(limit, {**cores, "namespace": "idle"}) == 50
    assert shown.value(used, {**cores, "namespace": "idle", "limit": "50"}) == 0


def test_build_data_without_zone() -> None:
    (labels,) = Page(books()).labels("hami_build_info")
    assert set(labels) == {"version", "revision", "build_date", "go_version", "compiler", "platform"}


LEGACY = {
    "GPUDeviceMemoryLimit": {"nodeid", "deviceuuid", "deviceidx", "devicetype"},
    "GPUDeviceCoreLimit": {"nodeid", "deviceuuid", "deviceidx", "devicetype"},
    "GPUDeviceSharedNum": {"nodeid", "deviceuuid", "deviceidx", "devicetype"},
    "GPUDeviceCoreAllocated": {"nodeid", "deviceuuid", "deviceidx", "devicetype"},
    "GPUDeviceMemoryAllocated": {"nodeid", "deviceuuid", "deviceidx", "devicetype", "devicecores"},
    "nodeGPUOverview": {"nodeid", "deviceuuid", "deviceidx", "devicecores", "devicememorylimit", "devicetype"},
    "nodeGPUMemoryPercentage": {"nodeid", "deviceuuid", "deviceidx"},
    "vGPUMemoryAllocated": {"podnamespace", "nodename", "podname", "containeridx", "deviceuuid"},
    "vGPUCoreAllocated": {"podnamespace", "nodename", "podname", "containeridx", "deviceuuid"},
    "QuotaUsed": {"quotanamespace", "quotaName", "limit"},
}


def test_names_from_before() -> None:
    plain, legacy = Page(books()), Page(books(), legacy=True)
    for name, labels in LEGACY.items():
        assert plain.labels(name) == []
        assert {frozenset(found) for found in legacy.labels(name)} == {frozenset({*labels, "zone"})}, name


def test_the_page_shows_what_was_read_last() -> None:
    ledger = books()
    shown = Page(ledger)
    ledger.delete_node("n1")
    assert shown.value("hami_gpu_shared_count", CARD) == 2
    shown.refresh()
    assert shown.value("hami_gpu_shared_count", CARD) is None
