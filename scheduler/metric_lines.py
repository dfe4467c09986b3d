"""HAMi's gauges as lines of text: what one node, or one namespace, adds to the page (HAMi v2.10 wire contract, metrics).

Memory in bytes, "ratio" in percent, as there. Labels stand in the order of their names, as the Prometheus libraries write them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from prometheus_client.utils import floatToGoString

from devices.ledger import Ledger
from devices.model import NO_CHARGE, CardState, Charge, Entry
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
    if "\\" in text or '"' in text or "\n" in text:
        return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return text  # nearly always


# `_card` and `_pods` write the labels of these two out, for speed; a test holds every line against the library's.
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


Series = tuple[GaugeFamily, str, float]
"""Gauge, labels as text, value."""


class Lines:
    """Series by the name of their gauge, old names among them where they are wanted."""

    def __init__(self, families: Sequence[GaugeFamily], legacy: bool) -> None:
        self.legacy = legacy
        self.found: dict[str, list[str]] = {family.name: [] for family in families}
        if legacy:
            self.found.update((family.old_name, []) for family in families if family.old_name)

    def add(self, series: Iterable[Series]) -> None:
        """These series, under their present names."""
        found = self.found
        for family, labels, value in series:
            found[family.name].append(f"{family.name}{labels}{_number(value)}\n")

    def add_old(self, values: Mapping[str, str], series: Iterable[Series]) -> None:
        """The same once more under the names and with the labels that they had; `values` are escaped already."""
        if self.legacy:
            for family, _, value in series:
                if family.old_name:
                    line = f"{family.old_name}{family.old_form % values}{_number(value)}\n"
                    self.found[family.old_name].append(line)


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


# A large cluster has 320,000 series of cards and pods: their labels are put together here, the others' by their forms.


def _card(lines: Lines, node: str, state: CardState) -> None:
    card = state.card
    model, uuid = _escaped(card.model), _escaped(card.uuid)
    place = f'device_type="{model}",device_uuid="{uuid}",node="{node}",zone="{_ZONE}"}} '
    plain = f'{{device_index="{card.index}",{place}'
    with_cores = f'{{device_cores="{state.used_cores}",device_index="{card.index}",{place}'
    used_bytes = state.used_memory_mib * _MIB
    series: list[Series] = [
        (_MEMORY_LIMIT, plain, card.memory_mib * _MIB),
        (_CORE_LIMIT, plain, card.cores),
        (_MEMORY, with_cores, used_bytes),
        (_CORES, plain, state.used_cores),
        (_SHARED, plain, state.used_slots),
        (
            _OVERVIEW,
            f'{{device_cores="{state.used_cores}",device_index="{card.index}",device_memory_limit="{card.memory_mib}",{place}',
            used_bytes,
        ),
    ]
    if card.memory_mib > 0:
        series.append((_RATIO, plain, state.used_memory_mib / card.memory_mib))
    lines.add(series)
    if lines.legacy:
        values = {
            "node": node,
            "device_uuid": uuid,
            "device_index": str(card.index),
            "device_type": model,
            "device_cores": str(state.used_cores),
            "device_memory_limit": str(card.memory_mib),
        }
        lines.add_old(values, series)


def _pods(lines: Lines, ledger: Ledger, node: str, indexes: Mapping[str, str]) -> None:
    shown = _escaped(node)
    before = ("", "")
    seen: set[tuple[int, str]] = set()
    pods = (pod for uid in ledger.tenants(node) if (pod := ledger.pod(uid)) is not None)
    for namespace, name, uid in sorted([(pod.namespace, pod.name, pod.uid) for pod in pods]):
        pod, holding = ledger.pod(uid), ledger.holding(uid)
        if pod is None or holding is None:
            continue
        if before != (namespace, name):
            before, seen = (namespace, name), set()
        # What has ended holds nothing any more.
        ended = [role is Role.INIT for role in roles(pod)] if holding.released else None
        place = f'namespace="{_escaped(namespace)}",node="{shown}",pod="{_escaped(name)}",zone="{_ZONE}"}} '
        for position, entries in enumerate(holding.allocation):
            for uuid, memory_mib, cores in _by_card(entries) if not (ended and ended[position]) else ():
                # Two pods of one name (the old one terminating) must not spoil the page for everyone.
                if (position, uuid) not in seen:
                    seen.add((position, uuid))
                    labels = f'{{container_index="{position}",device_uuid="{_escaped(uuid)}",{place}'
                    series = ((_POD_MEMORY, labels, memory_mib * _MIB), (_POD_CORES, labels, cores))
                    lines.add(series)
                    if lines.legacy:
                        of_pod = (namespace, node, name, str(position), uuid)
                        lines.add_old(dict(zip(_POD, map(_escaped, of_pod), strict=True)), series)
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
                _formed(lines, {name: _escaped(value) for name, value in values.items()}, _MIG, 1)


def _by_card(entries: Sequence[Entry]) -> Iterable[tuple[str, int, int]]:
    """UUID, memory and compute a card, by UUID."""
    if len(entries) == 1:
        (entry,) = entries
        return ((entry.uuid, entry.memory_mib, entry.cores),)
    total: dict[str, tuple[int, int]] = {}
    for entry in entries:
        memory_mib, cores = total.get(entry.uuid, (0, 0))
        total[entry.uuid] = memory_mib + entry.memory_mib, cores + entry.cores
    return sorted((uuid, memory_mib, cores) for uuid, (memory_mib, cores) in total.items())


def _formed(lines: Lines, values: Mapping[str, str], family: GaugeFamily, value: float) -> None:
    series = ((family, family.form % values, value),)
    lines.add(series)
    lines.add_old(values, series)


def namespace_lines(ledger: Ledger, namespace: str, legacy: bool) -> Mapping[str, list[str]]:
    """What a namespace adds: what it uses and may use, by gauge."""
    lines = Lines(QUOTA_FAMILIES, legacy)
    rows, in_force = ledger.used(namespace), ledger.limits(namespace)
    for vendor in ledger.config.vendors:
        for name, amount, limit in _quota_rows(vendor, rows.get(vendor.key, NO_CHARGE), in_force):
            values = {"namespace": _escaped(namespace), "quota_name": _escaped(name), "limit": str(limit or 0)}
            if amount or limit is not None:
                _formed(lines, values, _QUOTA_USED, amount)
            if limit is not None:
                _formed(lines, values, _QUOTA_LIMIT, limit)
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
