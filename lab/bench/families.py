"""What the other families cost NVIDIA's pods: the same placements with all families at once and with NVIDIA alone.

Both clusters offer the same nodes: those with NVIDIA cards and their tenants, and a quarter as many without. In the cluster with all
families the latter have cards of the other families, in turn, and all families are configured. The calls alternate, so that whatever
else the machine does falls on both alike.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Final

import orjson

from devices.config import DeviceConfig, default_config, optional_families
from devices.ledger import Ledger
from devices.objects import node_of, pod_of
from devices.vendor import Vendor
from lab.bench.synthetic import (
    JsonObject,
    Size,
    documents,
    node_document,
    node_name,
    pod_document,
)
from scheduler.ask import Defaults
from scheduler.engine import Engine

__all__ = ["FamiliesBench", "Placer", "bench_families", "clusters"]

WARM_UP_CALLS: Final = 50
_PODS: Final = 32
_OTHERS: Final = 4
"""NVIDIA's nodes for each node of another family."""
_MEMORY_MIB: Final = (500, 1000, 2000, 3000, 4000, 6000, 8000, 12000)
_POLICIES: Final = ("", "binpack", "mutex,binpack,numa")
_SPLIT: Final = {"MLU": (100, 96), "Mthreads": (16, 96)}
"""Compute and memory units of one card of the families that announce those."""


@dataclass(frozen=True, slots=True)
class FamiliesBench:
    """What is measured: clusters of this size, so many calls on each."""

    size: Size
    calls: int


class Placer:
    """A cluster whose scheduler is asked for NVIDIA pods; like a retry, each call replaces its pod's reservation before."""

    def __init__(self, config: DeviceConfig, size: Size) -> None:
        self.ledger = Ledger(config)
        self._engine = Engine(self.ledger, Defaults())
        self._names = [node_name(number) for number in range(size.nodes + size.nodes // _OTHERS)]
        self._pods = [
            pod_of(pod_document(f"probe-{n}", _MEMORY_MIB[n % len(_MEMORY_MIB)], policy=_POLICIES[n % len(_POLICIES)]))
            for n in range(_PODS)
        ]

    def place(self, number: int) -> str:
        """The node that one of the pods goes to; empty for none."""
        found = self._engine.filter(self._pods[number % _PODS], self._names, float(number))
        return found.nodes[0] if found.nodes else ""


def _registration(key: str, number: int, cards: int) -> str:
    if key in ("DCU", "BI-V100", "BI-V150", "MR-V100", "MR-V50"):
        return "".join(f"{key}-{number}-{n},4,98304,100,{key} X,0,true,{n},hami-core:" for n in range(cards))
    listed: object = [
        {
            "id": f"{key}-{number}-{n}",
            "index": n,
            "count": 4,
            "devmem": 98304,
            "devcore": 100,
            "type": key,
            "health": True,
        }
        for n in range(cards)
    ]
    if key == "Enflame":
        devices = [{"index": str(n), "minor": str(n), "capacity": 6} for n in range(cards)]
        listed = {"devices": devices, "profiles": {"1g.8gb": "10", "6g.48gb": "13"}}
    elif key == "Metax-SGPU":
        listed = [
            {"uuid": f"m-{number}-{n}", "totalDevCount": 4, "totalCompute": 100, "totalVRam": 65536, "healthy": True}
            for n in range(cards)
        ]
    return orjson.dumps(listed).decode()


def _node_of(vendor: Vendor, number: int, cards: int) -> JsonObject:
    """A node with cards of one family, as its plugin announces them."""
    resources = {vendor.count_resource: str(cards)}
    if vendor.key in _SPLIT:
        compute, memory = _SPLIT[vendor.key]
        resources |= {vendor.core_resource: str(cards * compute), vendor.memory_resource: str(cards * memory)}
    elif not vendor.registration and vendor.core_resource:
        resources[vendor.core_resource] = str(2 * cards)
    annotations = {key: _registration(vendor.key, number, cards) for key in vendor.registration[:1]}
    name = node_name(number)
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": "1", "annotations": annotations},
        "status": {"allocatable": resources, "capacity": resources},
    }


def clusters(size: Size) -> Mapping[str, Placer]:
    """The cluster of NVIDIA cards by itself (`nvidia`), and the same one with all families (`all`)."""
    every = default_config(optional_families())
    alone = DeviceConfig(tuple(vendor for vendor in every.vendors if vendor.key == "NVIDIA"))
    others = [vendor for vendor in every.vendors if vendor.key != "NVIDIA"]
    found = {"nvidia": Placer(alone, size), "all": Placer(every, size)}
    ours = [node_document(number, size.cards) for number in range(size.nodes)]
    theirs = [
        _node_of(others[number % len(others)], size.nodes + number, size.cards)
        for number in range(size.nodes // _OTHERS)
    ]
    for placer in found.values():
        for document in (*ours, *theirs):
            placer.ledger.put_node(node_of(document))
        for pod in documents(size):
            placer.ledger.put_pod(pod_of(pod), 0.0)
    return found


def bench_families(bench: FamiliesBench) -> dict[str, object]:
    """Times of one run, `families_ratio` among them. Raises ValueError when the clusters answer differently, or nothing fits."""
    placers = clusters(bench.size)
    times: dict[str, list[float]] = {name: [] for name in placers}
    for number in range(WARM_UP_CALLS + bench.calls):
        answers = set()
        for name, placer in placers.items():
            began = perf_counter()
            answers.add(placer.place(number))
            if number >= WARM_UP_CALLS:
                times[name].append(perf_counter() - began)
        if len(answers) != 1 or not all(answers):
            raise ValueError(f"call {number} was answered {sorted(answers)}: both clusters are to choose the same node")
    all_ms, nvidia_ms = (1000 * median(times[name]) for name in ("all", "nvidia"))
    return {
        "bench": "families",
        "nodes": bench.size.nodes,
        "cards": bench.size.cards,
        "pods": bench.size.pods,
        "calls": bench.calls,
        "nvidia_p50_ms": round(nvidia_ms, 4),
        "all_p50_ms": round(all_ms, 4),
        "families_ratio": round(all_ms / nvidia_ms, 3),
    }
