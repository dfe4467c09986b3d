"""The metrics page made anew for every scrape, by way of the Prometheus library: what `scheduler.metrics_page` is measured against.

It is here to be measured against; the pages are the same.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from devices.ledger import Ledger
from devices.model import NO_CHARGE, Charge
from devices.quota import Limit
from devices.requests import Role, roles
from devices.vendor import Vendor
from scheduler.metric_lines import OLD

__all__ = ["AnewPage"]

_MIB: Final = 1024 * 1024
_ZONE: Final = "vGPU"


class _Family:
    """One gauge of HAMi's: samples with the constant zone label, and its older twin where it has one."""

    def __init__(self, name: str, text: str, labels: Iterable[str]) -> None:
        self._names = tuple(labels)
        self._old = OLD.get(name)
        self.gauges = [GaugeMetricFamily(name, text, labels=["zone", *self._names])]
        if self._old is not None:
            self.gauges.append(GaugeMetricFamily(self._old.name, text, labels=["zone", *self._old.labels]))

    def add(self, labels: Mapping[str, str], value: float) -> None:
        self.gauges[0].add_metric([_ZONE, *(labels[name] for name in self._names)], value)
        if self._old is not None:
            self.gauges[1].add_metric([_ZONE, *(labels[name] for name in self._old.labels.values())], value)


_CARD = ("node", "device_uuid", "device_index", "device_type")
_POD = ("namespace", "node", "pod", "container_index", "device_uuid")


class AnewPage(Collector):
    """The gauges by way of the Prometheus library; `refresh` reads the ledger, `collect` gives what it read."""

    def __init__(self, ledger: Ledger, registry: CollectorRegistry, legacy: bool = False) -> None:
        self._ledger = ledger
        self._shown = 2 if legacy else 1
        self._page: list[GaugeMetricFamily] = []
        registry.register(self)

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Nothing: registering must not read the ledger."""
        return ()

    def refresh(self) -> None:
        """Read the ledger."""
        self._page = [*self._cards(), *self._pods(), *self._quotas()]

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """What `refresh` read last."""
        return self._page

    def _cards(self) -> Iterator[GaugeMetricFamily]:
        memory_limit = _Family("hami_gpu_memory_limit_bytes", "Registered memory.", _CARD)
        core_limit = _Family("hami_gpu_core_limit_ratio", "Registered compute, percent.", _CARD)
        memory = _Family("hami_gpu_memory_allocated_bytes", "Reserved memory.", (*_CARD, "device_cores"))
        cores = _Family("hami_gpu_core_allocated_ratio", "Reserved compute, percent.", _CARD)
        shared = _Family("hami_gpu_shared_count", "Slots in use.", _CARD)
        overview = _Family(
            "hami_node_gpu_overview", "Reserved memory.", (*_CARD, "device_cores", "device_memory_limit")
        )
        ratio = _Family("hami_node_gpu_memory_allocated_ratio", "Reserved share of memory, 0 to 1.", _CARD)
        for name in sorted(self._ledger.node_names()):
            state = self._ledger.state(name)
            for s in state.cards if state is not None else ():
                card = s.card
                labels = {
                    "node": name,
                    "device_uuid": card.uuid,
                    "device_index": str(card.index),
                    "device_type": card.model,
                    "device_cores": str(s.used_cores),
                    "device_memory_limit": str(card.memory_mib),
                }
                memory_limit.add(labels, card.memory_mib * _MIB)
                core_limit.add(labels, card.cores)
                memory.add(labels, s.used_memory_mib * _MIB)
                cores.add(labels, s.used_cores)
                shared.add(labels, s.used_slots)
                overview.add(labels, s.used_memory_mib * _MIB)
                if card.memory_mib > 0:
                    ratio.add(labels, s.used_memory_mib / card.memory_mib)
        for family in (memory_limit, core_limit, memory, cores, shared, overview, ratio):
            yield from family.gauges[: self._shown]

    def _pods(self) -> Iterator[GaugeMetricFamily]:
        memory = _Family("hami_vgpu_memory_allocated_bytes", "Reserved by the pod on the card.", _POD)
        cores = _Family("hami_vgpu_core_allocated_ratio", "Reserved by the pod on the card, percent.", _POD)
        mig = _Family(
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
        seen: set[tuple[str, ...]] = set()
        for pod in sorted(self._ledger.pods(), key=lambda p: (p.namespace, p.name, p.uid)):
            holding = self._ledger.holding(pod.uid)
            if holding is None:
                continue
            for position, (entries, role) in enumerate(zip(holding.allocation, roles(pod), strict=True)):
                if holding.released and role is Role.INIT:
                    continue  # it has ended and holds nothing any more
                for uuid in sorted({entry.uuid for entry in entries}):
                    mine = [entry for entry in entries if entry.uuid == uuid]
                    values = (pod.namespace, holding.node, pod.name, str(position), uuid)
                    # Two pods of one name (the old one terminating) must not spoil the page for everyone.
                    if values not in seen:
                        seen.add(values)
                        labels = dict(zip(_POD, values, strict=True))
                        memory.add(labels, sum(entry.memory_mib for entry in mine) * _MIB)
                        cores.add(labels, sum(entry.cores for entry in mine))
            for r in holding.reservations:
                if r.runtime is not None:
                    mig.add(
                        {
                            "node": holding.node,
                            "device_uuid": r.uuid,
                            "device_index": self._index(holding.node, r.uuid),
                            "mig_uuid": r.runtime[0],
                            "mig_name": f"{r.profile}-{r.runtime[1]}",
                            "profile": r.profile,
                            "gpu_instance_id": str(r.runtime[1]),
                            "compute_instance_id": str(r.runtime[2]),
                            "placement_start": str(r.placement.start),
                            "placement_size": str(r.placement.size),
                        },
                        1,
                    )
        for family in (memory, cores, mig):
            yield from family.gauges[: self._shown]

    def _index(self, node: str, uuid: str) -> str:
        state = self._ledger.state(node)
        return next((str(s.card.index) for s in (state.cards if state is not None else ()) if s.card.uuid == uuid), "")

    def _quotas(self) -> Iterator[GaugeMetricFamily]:
        used = _Family(
            "hami_resource_quota_used",
            "In use: MiB after the factor, percent, cards.",
            ("namespace", "quota_name", "limit"),
        )
        limits = _Family(
            "hami_resource_quota_limit", "The limit in force, in the same unit.", ("namespace", "quota_name")
        )
        for namespace in self._ledger.namespaces():
            rows, in_force = self._ledger.used(namespace), self._ledger.limits(namespace)
            for vendor in self._ledger.config.vendors:
                for name, amount, limit in _quota_rows(vendor, rows.get(vendor.key, NO_CHARGE), in_force):
                    if amount or limit is not None:
                        used.add({"namespace": namespace, "quota_name": name, "limit": str(limit or 0)}, amount)
                    if limit is not None:
                        limits.add({"namespace": namespace, "quota_name": name}, limit)
        yield from used.gauges[: self._shown]
        yield from limits.gauges


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
