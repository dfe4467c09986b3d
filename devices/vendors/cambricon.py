"""Cambricon MLU: cards made up from the node's capacity, shared by memory (units of 256 MiB) and compute."""

from collections.abc import Mapping, Sequence

from devices.capacity import split_by_compute
from devices.model import Entry
from devices.node_lock import LockFormat
from devices.vendor import WHOLE, Family, FamilySettings, Hooks, Placed, Vendor

__all__ = ["FAMILY"]

ASSIGNED = "CAMBRICON_DSMLU_ASSIGNED"
PROFILE = "CAMBRICON_DSMLU_PROFILE"
UNIT_MIB = 256
SLOTS = 100

LOCK = LockFormat(
    names_owner=False,
    expiry_s=120.0,
    takes_malformed=False,
    contention="node {node} has been locked within 2 minutes",
)


class Settings(FamilySettings, frozen=True, kw_only=True):
    """The section `cambricon` (HAMi v2.10 device config)."""

    resource_count_name: str = "cambricon.com/vmlu"
    resource_memory_name: str = "cambricon.com/mlu.smlu.vmemory"
    resource_core_name: str = "cambricon.com/mlu.smlu.vcore"


def _annotate(vendor: Vendor, entries: Sequence[tuple[Entry, ...]], placed: Placed) -> Mapping[str, str]:
    """The plugin reads one card of one container: `<index>_<compute>_<memory units>`."""
    first = next(entry for cards in entries for entry in cards)
    card = placed.cards.get(first.uuid)
    index = card.index if card is not None else 0
    return {ASSIGNED: "false", PROFILE: f"{index}_{first.cores}_{first.memory_mib // UNIT_MIB}"}


def _build(settings: Settings) -> tuple[Vendor, ...]:
    return (
        Vendor(
            key="MLU",
            count_resource=settings.resource_count_name,
            memory_resource=settings.resource_memory_name,
            core_resource=settings.resource_core_name,
            allocated="hami.io/cambricon-mlu-devices-allocated",
            to_allocate="hami.io/cambricon-mlu-devices-to-allocate",
            outputs=(ASSIGNED, PROFILE),
            uuid_keys=(("cambricon.com/use-gpuuuid", "cambricon.com/nouse-gpuuuid"),),
            node_lock="cambricon.com/dsmlu.lock",
            lock_format=LOCK,
            memory_factor=UNIT_MIB,
            default_cores=WHOLE,
            hooks=Hooks(read_node=split_by_compute("cambricon-mlu", SLOTS, WHOLE), annotate=_annotate),
        ),
    )


FAMILY = Family("cambricon", Settings, _build)
