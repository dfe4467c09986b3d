"""HAMi's gauges as lines of text: what one node, or one namespace, adds to the page (HAMi v2.10 wire contract, metrics).

Memory in bytes, "ratio" in percent, as there. Labels stand in the order of their names, as the Prometheus libraries write them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from prometheus_client.utils import floatToGoString

from devices.ledger import Ledger
from devices.model import NO_CHARGE, CardState, Charge
from devices.quota import Limit
from devices.requests import Role, roles
from devices.vendor import Vendor

__all__ = [
    "NODE_FAMILIES",
    "OLD",
    "QUOTA_FAMILIES",
    "GaugeFamily",
    "Lines",
    "OldGauge",
    "namespace_lines",
    "node_lines",
]

_MIB: Final = 1024 * 1024
_ZONE: Final = "vGPU"


@dataclass(frozen=True, slots=True)
class OldGauge:
    """The name a gauge had before HAMi 2.10, and the labels it had, each with the present label it takes its value from."""

    name: str
    labels: Mapping[str, str]


_OLD_CARD: Final = {
    "nodeid": "node",
    "deviceuuid": "device_uuid",
    "deviceidx": "device_index",
    "devicetype": "device_type",
}
_OLD_POD: Final = {
    "podnamespace": "namespace",
    "nodename": "node",
    "podname": "pod",
    "containeridx": "container_index",
    "deviceuuid": "device_uuid",
}
OLD: Final[Mapping[str, OldGauge]] = {
    "hami_gpu_memory_limit_bytes": OldGauge("GPUDeviceMemoryLimit", _OLD_CARD),
    "hami_gpu_core_limit_ratio": OldGauge("GPUDeviceCoreLimit", _OLD_CARD),
    "hami_gpu_shared_count": OldGauge("GPUDeviceSharedNum", _OLD_CARD),
    "hami_gpu_core_allocated_ratio": OldGauge("GPUDeviceCoreAllocated", _OLD_CARD),
    "hami_gpu_memory_allocated_bytes": OldGauge(
        "GPUDeviceMemoryAllocated", {**_OLD_CARD, "devicecores": "device_cores"}
    ),
    "hami_node_gpu_overview": OldGauge(
        "nodeGPUOverview", {**_OLD_CARD, "devicecores": "device_cores", "devicememorylimit": "device_memory_limit"}
    ),
    "hami_node_gpu_memory_allocated_ratio": OldGauge(
        "nodeGPUMemoryPercentage", {label: name for label, name in _OLD_CARD.items() if label != "devicetype"}
    ),
    "hami_node_gpu_mig_instance_info": OldGauge(
        "nodeGPUMigInstance",
        {"nodeid": "node", "deviceuuid": "device_uuid", "deviceidx": "device_index", "migname": "mig_name"},
    ),
    "hami_vgpu_memory_allocated_bytes": OldGauge("vGPUMemoryAllocated", _OLD_POD),
    "hami_vgpu_core_allocated_ratio": OldGauge("vGPUCoreAllocated", _OLD_POD),
    "hami_resource_quota_used": OldGauge(
        "QuotaUsed", {"quotanamespace": "namespace", "quotaName": "quota_name", "limit": "limit"}
    ),
}
"""Gauges with an older twin, for `--legacy-metrics` (HAMi v2.10 wire contract, metrics)."""


class GaugeFamily:
    """One gauge of HAMi's with its labels, the constant zone label among them, and its older twin where it has one."""

    def __init__(self, name: str, text: str, labels: Iterable[str]) -> None:
        old = OLD.get(name)
        self.name = name
        self.text = text
        self.old_name = old.name if old is not None else ""
        self.form = _form({label: label for label in labels})
        self.old_form = _form(old.labels) if old is not None else ""


def _form(labels: Mapping[str, str]) -> str:
    """`{label="%(value)s",…} `."""
    shown = {**{label: f"%({source})s" for label, source in labels.items()}, "zone": _ZONE}
    return "{" + ",".join(f'{label}="{value}"' for label, value in sorted(shown.items())) + "} "


@lru_cache(maxsize=65536)
def _number(value: float) -> str:
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]  # the library's own, so that both write numbers alike


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


_CARD = ("node", "device_uuid", "device_index", "device_type")
_POD = ("namespace", "node", "pod", "container_index", "device_uuid")
_MEMORY_LIMIT = GaugeFamily("hami_gpu_memory_limit_bytes", "Registered memory.", _CARD)
_CORE_LIMIT = GaugeFamily("hami_gpu_core_limit_ratio", "Registered compute, percent.", _CARD)
_MEMORY = GaugeFamily("hami_gpu_memory_allocated_bytes", "Reserved memory.", (*_CARD, "device_cores"))
_CORES = GaugeFamily("hami_gpu_core_allocated_ratio", "Reserved compute, percent.", _CARD)
_SHARED = GaugeFamily("hami_gpu_shared_count", "Slots in use.", _CARD)
_OVERVIEW = GaugeFamily("hami_node_gpu_overview", "Reserved memory.", (*_CARD, "device_cores", "device_memory_limit"))
_RATIO = GaugeFamily("hami_node_gpu_memory_allocated_ratio", "Reserved share of memory, 0 to 1.", _CARD)
_POD_MEMORY = GaugeFamily("hami_vgpu_memory_allocated_bytes", "Reserved by the pod on the card.", _POD)
_POD_CORES = GaugeFamily("hami_vgpu_core_allocated_ratio", "Reserved by the pod on the card, percent.", _POD)
_MIG = GaugeFamily(
    "hami_node_gpu_mig_instance_info",
    "1 per MIG instance that exists.",
    (
        "node",
        "device_uuid",
        "device_index",
        "mig_uuid",
        "profile",
        "gpu_instance_id",
        "compute_instance_id",
        "placement_start",
        "placement_size",
    ),
)
NODE_FAMILIES: Final = (
    _MEMORY_LIMIT,
    _CORE_LIMIT,
    _MEMORY,
    _CORES,
    _SHARED,
    _RATIO,
    _POD_MEMORY,
    _POD_CORES,
    _MIG,
    _OVERVIEW,
)
"""What a node and its pods are in; the least needed last, for whoever cannot have all."""
_QUOTA_USED = GaugeFamily(
    "hami_resource_quota_used", "In use: MiB after the factor, percent, cards.", ("namespace", "quota_name", "limit")
)
_QUOTA_LIMIT = GaugeFamily(
    "hami_resource_quota_limit", "The limit in force, in the same unit.", ("namespace", "quota_name")
)
QUOTA_FAMILIES: Final = (_QUOTA_USED, _QUOTA_LIMIT)
"""What a namespace is in."""


class Lines:
    """Series by the name of their gauge, old names among them where they are wanted."""

    def __init__(self, families: Sequence[GaugeFamily], legacy: bool) -> None:
        self._legacy = legacy
        self._values: Mapping[str, str] = {}
        self._labels: dict[str, str] = {}
        self.found: dict[str, list[str]] = {family.name: [] for family in families}
        if legacy:
            self.found.update((family.old_name, []) for family in families if family.old_name)

    def of(self, values: Mapping[str, str]) -> None:
        """What follows is about these: escaped values by label."""
        self._values = values
        self._labels.clear()

    def add(self, family: GaugeFamily, value: float) -> None:
        """One series."""
        number = f"{_number(value)}\n"
        self.found[family.name].append(family.name + self._labelled(family.form) + number)
        if self._legacy and family.old_name:
            self.found[family.old_name].append(family.old_name + self._labelled(family.old_form) + number)

    def _labelled(self, form: str) -> str:
        """The labels as text; most gauges of a card have the same."""
        text = self._labels.get(form)
        if text is None:
            text = self._labels[form] = form % self._values
        return text


def node_lines(ledger: Ledger, node: str, legacy: bool) -> Mapping[str, list[str]]:
    """What a node, its cards and the pods that hold them add, by gauge."""
    lines = Lines(NODE_FAMILIES, legacy)
    state = ledger.state(node)
    cards = state.cards if state is not None else ()
    shown = _escaped(node)
    for card in cards:
        _card(lines, shown, card)
    _pods(lines, ledger, node, {s.card.uuid: str(s.card.index) for s in reversed(cards)})
    return lines.found


def _card(lines: Lines, node: str, state: CardState) -> None:
    card = state.card
    values = {
        "node": node,
        "device_uuid": _escaped(card.uuid),
        "device_index": str(card.index),
        "device_type": _escaped(card.model),
        "device_cores": str(state.used_cores),
        "device_memory_limit": str(card.memory_mib),
    }
    lines.of(values)
    lines.add(_MEMORY_LIMIT, card.memory_mib * _MIB)
    lines.add(_CORE_LIMIT, card.cores)
    lines.add(_MEMORY, state.used_memory_mib * _MIB)
    lines.add(_CORES, state.used_cores)
    lines.add(_SHARED, state.used_slots)
    lines.add(_OVERVIEW, state.used_memory_mib * _MIB)
    if card.memory_mib > 0:
        lines.add(_RATIO, state.used_memory_mib / card.memory_mib)


def _pods(lines: Lines, ledger: Ledger, node: str, indexes: Mapping[str, str]) -> None:
    seen: set[tuple[str, ...]] = set()
    pods = (pod for uid in ledger.tenants(node) if (pod := ledger.pod(uid)) is not None)
    for pod in sorted(pods, key=lambda p: (p.namespace, p.name, p.uid)):
        holding = ledger.holding(pod.uid)
        if holding is None:
            continue
        for position, (entries, role) in enumerate(zip(holding.allocation, roles(pod), strict=True)):
            if holding.released and role is Role.INIT:
                continue  # it has ended and holds nothing any more
            for uuid in sorted({entry.uuid for entry in entries}):
                mine = [entry for entry in entries if entry.uuid == uuid]
                series = (pod.namespace, node, pod.name, str(position), uuid)
                # Two pods of one name (the old one terminating) must not spoil the page for everyone.
                if series not in seen:
                    seen.add(series)
                    values = dict(zip(_POD, map(_escaped, series), strict=True))
                    lines.of(values)
                    lines.add(_POD_MEMORY, sum(entry.memory_mib for entry in mine) * _MIB)
                    lines.add(_POD_CORES, sum(entry.cores for entry in mine))
        for r in holding.reservations:
            if r.runtime is not None:
                values = {
                    "node": node,
                    "device_uuid": r.uuid,
                    "device_index": indexes.get(r.uuid, ""),
                    "mig_uuid": r.runtime[0],
                    "mig_name": f"{r.profile}-{r.runtime[1]}",
                    "profile": r.profile,
                    "gpu_instance_id": str(r.runtime[1]),
                    "compute_instance_id": str(r.runtime[2]),
                    "placement_start": str(r.placement.start),
                    "placement_size": str(r.placement.size),
                }
                lines.of({name: _escaped(value) for name, value in values.items()})
                lines.add(_MIG, 1)


def namespace_lines(ledger: Ledger, namespace: str, legacy: bool) -> Mapping[str, list[str]]:
    """What a namespace adds: what it uses and may use, by gauge."""
    lines = Lines(QUOTA_FAMILIES, legacy)
    rows, in_force = ledger.used(namespace), ledger.limits(namespace)
    for vendor in ledger.config.vendors:
        for name, amount, limit in _quota_rows(vendor, rows.get(vendor.key, NO_CHARGE), in_force):
            values = {"namespace": _escaped(namespace), "quota_name": _escaped(name), "limit": str(limit or 0)}
            lines.of(values)
            if amount or limit is not None:
                lines.add(_QUOTA_USED, amount)
            if limit is not None:
                lines.add(_QUOTA_LIMIT, limit)
    return lines.found


def _quota_rows(vendor: Vendor, charge: Charge, limits: Mapping[str, Limit]) -> Iterator[tuple[str, int, int | None]]:
    rows = (
        (vendor.memory_resource, charge.memory_mib, max(vendor.memory_factor, 1)),
        (vendor.core_resource, charge.cores, 1),
        (vendor.count_resource, charge.cards, 1),
    )
    for name, amount, factor in rows:
        if name:
            limit = limits.get(name)
            yield name, amount, limit.value * factor if limit is not None else None
