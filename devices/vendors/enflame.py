"""Enflame GCUs: whole cards (`GCU`), counted from the node's capacity, and DRS slices (`Enflame`), of one card a container.

The two know nothing of each other, even where they stand for the same physical card.
"""

import json
from collections.abc import Mapping, Sequence

import msgspec

from devices import sliced, slices
from devices.capacity import numbered_cards
from devices.errors import MalformedValue
from devices.fit import (
    enough_memory,
    healthy,
    idle,
    idle_for_exclusive_policy,
    right_uuid,
    within_quota,
)
from devices.model import Card, Entry
from devices.objects import Node
from devices.registration import CardList
from devices.requests import Cluster, DeviceRequest, Resources, optional_rounded, optional_whole
from devices.slices import Size, read_sliced, sizes
from devices.vendor import INT32, WHOLE, Admission, Bound, Family, FamilySettings, Hooks, Placed, Vendor

__all__ = ["FAMILY"]

CAPACITY = "enflame.com/gcu-drs-capacity"
CONTAINERS = "assigned-containers"
ASSIGNED = "enflame.com/gcu-assigned"
TIME, INDEX, ID, MINOR = (f"{ASSIGNED}-{what}" for what in ("time", "index", "id", "minor"))
SIZE = "enflame.com/gcu-request-size"


class Settings(FamilySettings, frozen=True, kw_only=True):
    """The section `enflame` (HAMi v2.10 device config). `VGCU` are names from before DRS; its percentage has no effect."""

    gcu: str = msgspec.field(name="resourceNameGCU", default="enflame.com/gcu")
    drs: str = msgspec.field(name="resourceNameDRSGCU", default="")
    vgcu: str = msgspec.field(name="resourceNameVGCU", default="")
    memory: str = msgspec.field(name="resourceNameGCUMemory", default="enflame.com/gcu-memory")
    core: str = msgspec.field(name="resourceNameGCUCore", default="enflame.com/gcu-core")
    vgcu_percentage: str = msgspec.field(name="resourceNameVGCUPercentage", default="")


def _read_drs(vendor: Vendor, node: Node) -> CardList:
    return read_sliced(vendor.key, node.annotations[CAPACITY], f"annotation {CAPACITY}", f"{node.name}-enflame-drs")


def _request(vendor: Vendor, container: Resources, cluster: Cluster) -> DeviceRequest | None:
    """Slices, or else memory and compute that a profile must reach; always one card."""
    slices = optional_whole(container, vendor.count_resource, 0, INT32)
    memory = optional_rounded(container, vendor.memory_resource, 0, INT32)
    cores = optional_rounded(container, vendor.core_resource, 0, INT32)
    if slices:
        return DeviceRequest(vendor.key, 1, slices)
    if memory is None and cores is None:
        return None
    return sliced.by_spec_request(vendor.key, memory or 0, cores or 0)


def _admit(vendor: Vendor, container: Admission) -> bool:
    """Limits and requests say the same; values that no profile can reach are refused."""
    resources = container.resources
    number = optional_rounded(resources, vendor.count_resource, -INT32, INT32)
    names = [vendor.count_resource] if number is not None else [vendor.memory_resource, vendor.core_resource]
    given = {name: optional_rounded(resources, name, -INT32, INT32) for name in names}
    for name, value in given.items():
        if value is not None and name == vendor.core_resource and not 0 < value <= WHOLE:
            raise MalformedValue(f"{name} must be in range (0,100]")
        if value is not None and value <= 0:
            raise MalformedValue(f"{name} must be greater than 0")
    vendor.request(resources, container.cluster)
    for name in (name for name, value in given.items() if value is not None):
        if name not in resources.limits:
            container.set_limit(name, resources.requests[name])
        elif name not in resources.requests:
            container.set_request(name, resources.limits[name])
    return any(value is not None for value in given.values())


def _annotate(vendor: Vendor, entries: Sequence[tuple[Entry, ...]], placed: Placed) -> Mapping[str, str]:
    """What each container got, and the card of the first that has one."""
    names = [container.name for container in (*placed.pod.init_containers, *placed.pod.containers)]
    found: dict[str, tuple[Card, Size]] = {}
    for name, entry in ((name, cards[0]) for name, cards in zip(names, entries, strict=True) if cards):
        card, given = placed.cards[entry.uuid], (entry.memory_mib, entry.cores)
        found[name] = (card, next(size for size in sizes(card) if (size.memory_mib, size.percent) == given))
    containers = {
        name: {"allocated": False, "request": size.slices, "profileID": size.id, "profileName": size.name}
        for name, (_, size) in sorted(found.items())
    }
    card, size = next(iter(found.values()))
    return {
        ASSIGNED: "false",
        TIME: str(int(placed.now_s * 1e9)),
        CONTAINERS: json.dumps(containers, separators=(",", ":")),
        INDEX: str(card.index),
        ID: str(card.index),
        MINOR: str(card.custom[slices.MINOR]),
        SIZE: str(size.slices),
    }


def _read_whole_cards(vendor: Vendor, node: Node) -> CardList:
    like = Card("", vendor.key, 0, 1, WHOLE, WHOLE, vendor.key, healthy=True)
    return numbered_cards(node, vendor.count_resource, "GCU", like)


def _build(settings: Settings) -> tuple[Vendor, ...]:
    return (
        Vendor(
            key="GCU",
            count_resource=settings.gcu,
            allocated="hami.io/enflame-gcu-devices-allocated",
            to_allocate="hami.io/enflame-gcu-devices-to-allocate",
            constant=(WHOLE, WHOLE, WHOLE),
            checks=(healthy, idle, within_quota),
            hooks=Hooks(read_node=_read_whole_cards),
        ),
        Vendor(
            key="Enflame",
            count_resource=settings.drs or settings.vgcu or "enflame.com/drs-gcu",
            memory_resource=settings.memory or "enflame.com/gcu-memory",
            core_resource=settings.core or "enflame.com/gcu-core",
            memory_unit="GB; MiB where that would be more than two cards have",
            allocated="hami.io/enflame-vgpu-devices-allocated",
            outputs=(CONTAINERS, ASSIGNED, TIME, INDEX, ID, MINOR, SIZE),
            registration=(CAPACITY,),
            uuid_keys=(("enflame.com/use-gpuuuid", "enflame.com/nouse-gpuuuid"),),
            max_cores=None,
            bounds=frozenset({Bound.SLOTS, Bound.MEMORY}),
            checks=(healthy, right_uuid, sliced.enough_slices, idle_for_exclusive_policy, within_quota, enough_memory),
            hooks=Hooks(
                request=_request,
                admit=_admit,
                read_node=_read_drs,
                gate=sliced.gate,
                wanted_memory=sliced.wanted_memory,
                entry=sliced.entry,
                restore=sliced.restore,
                unplaced=sliced.unplaced,
                annotate=_annotate,
            ),
        ),
    )


FAMILY = Family("enflame", Settings, _build)
