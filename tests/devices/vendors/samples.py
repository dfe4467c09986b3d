"""One small node and one ordinary container for every vendor there is, as its device plugin and its users would write them."""

import json
from collections.abc import Mapping
from typing import Any

from devices.config import optional_families, read
from devices.objects import Node, node_of
from devices.vendor import Vendor
from tests.builders import Document

CONFIG = read("", optional_families())
VENDORS: Mapping[str, Vendor] = {vendor.key: vendor for vendor in CONFIG.vendors}

CARDS = 4
SLOTS = 4

_COUNTED = frozenset({"GCU", "kunlun", "Metax-GPU"})
_SPLIT = {"MLU": (100, 96), "Mthreads": (16, 96)}
"""Compute and memory units of one card."""
_TEXT = frozenset({"DCU", "BI-V100", "BI-V150", "MR-V100", "MR-V50"})


def json_card(vendor: Vendor, index: int) -> Document:
    """A card as in the common JSON list."""
    return {
        "id": f"{vendor.key}-{index:02}",
        "index": index,
        "count": SLOTS,
        "devmem": 98304,
        "devcore": 100,
        "type": f"{vendor.key} X",
        "health": True,
    }


def _registered(vendor: Vendor, cards: int) -> str:
    if vendor.key in _TEXT:
        return "".join(f"{vendor.key}-{i:02},{SLOTS},98304,100,{vendor.key} X,0,true,{i},:" for i in range(cards))
    if vendor.key == "Enflame":
        devices = [{"index": str(i), "minor": str(i), "capacity": 6} for i in range(cards)]
        return json.dumps({"devices": devices, "profiles": {"1g.8gb": "10", "2g.16gb": "11", "6g.48gb": "13"}})
    if vendor.key == "Metax-SGPU":
        return json.dumps(
            [
                {
                    "uuid": f"m-{i:02}",
                    "totalDevCount": SLOTS,
                    "totalCompute": 100,
                    "totalVRam": 65536,
                    "healthy": True,
                }
                for i in range(cards)
            ]
        )
    return json.dumps([json_card(vendor, index) for index in range(cards)])


def _capacity(vendor: Vendor, cards: int) -> dict[str, str]:
    if vendor.key in _SPLIT:
        cores, memory = _SPLIT[vendor.key]
        return {
            vendor.count_resource: str(cards * 100),
            vendor.core_resource: str(cards * cores),
            vendor.memory_resource: str(cards * memory),
        }
    if vendor.key == "AWSNeuron":
        return {vendor.count_resource: str(cards), vendor.core_resource: str(2 * cards)}
    return {vendor.count_resource: str(cards)}


def node_document(
    *vendors: Vendor, name: str = "n1", cards: int = CARDS, annotations: Mapping[str, str] | None = None
) -> Document:
    """A node with cards of each of these vendors."""
    found: dict[str, str] = {}
    capacity: dict[str, str] = {}
    for vendor in vendors:
        if vendor.registration:
            found[vendor.registration[0]] = _registered(vendor, cards)
        capacity |= _capacity(vendor, cards)
    labels = {"node.kubernetes.io/instance-type": "inf2.48xlarge"}
    return {
        "metadata": {"name": name, "labels": labels, "annotations": {**found, **(annotations or {})}},
        "status": {"capacity": capacity, "allocatable": capacity},
    }


def sample_node(*vendors: Vendor, **fields: Any) -> Node:
    """The same, decoded."""
    return node_of(node_document(*vendors, **fields))


def share(vendor: Vendor, count: int = 1) -> dict[str, object]:
    """Limits of a container that asks for a part of `count` cards, or for `count` whole ones where there are no parts."""
    names = vendor.count_resource, vendor.memory_resource, vendor.core_resource
    sizes: dict[str, tuple[object, object]] = {
        "MLU": (4, 10),
        "Mthreads": (16 * count, 4 * count),
        "Metax-SGPU": ("1Gi", 10),
        "XPU": (24576, None),
        "Enflame": (None, None),
    }
    if vendor.key.startswith("Ascend"):
        memory, cores = None, None
    elif vendor.key == "AWSNeuron":
        return {vendor.core_resource: count} if count == 1 else {vendor.count_resource: count}
    else:
        memory, cores = sizes.get(vendor.key, (-(-1000 // vendor.memory_factor), 10))
    values = (1 if vendor.key == "Enflame" else count, memory, cores)
    return {name: value for name, value in zip(names, values, strict=True) if name and value is not None}


def most(vendor: Vendor) -> int:
    """The most cards that one container may get on the sample node."""
    return {"Enflame": 1}.get(vendor.key, 2)


def asking(name: str, limits: Mapping[str, object], **fields: object) -> Document:
    """A container with these limits."""
    return {"name": name, "resources": {"limits": dict(limits)}, **fields}
