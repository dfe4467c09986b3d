"""Biren GPUs: shared by count alone."""

from dataclasses import replace

import msgspec

from devices.fit import free_slot, healthy, idle_for_exclusive_policy, right_uuid, within_quota
from devices.objects import Node
from devices.registration import CardList
from devices.vendor import WHOLE, Family, FamilySettings, Hooks, Vendor, json_registration, no_memory

__all__ = ["FAMILY"]


class Settings(FamilySettings, frozen=True, kw_only=True):
    """The section `biren` (HAMi v2.10 device config)."""

    resource_count_name: str = "birentech.com/gpu"


def _read_node(vendor: Vendor, node: Node) -> CardList:
    """The JSON list; whatever compute its plugin writes, the card has 100."""
    listed = json_registration(vendor, node)
    return replace(listed, cards=tuple(msgspec.structs.replace(card, cores=WHOLE) for card in listed.cards))


def _build(settings: Settings) -> tuple[Vendor, ...]:
    return (
        Vendor(
            key="Biren",
            count_resource=settings.resource_count_name,
            allocated="hami.io/Biren-devices-allocated",
            to_allocate="hami.io/Biren-devices-to-allocate",
            registration=("hami.io/node-biren-register",),
            handshake="hami.io/node-handshake-biren",
            uuid_keys=(("birentech.com/use-gpuuuid", "birentech.com/nouse-gpuuuid"),),
            node_lock="hami.io/mutex.lock",
            constant=(0, WHOLE, 0),
            checks=(healthy, right_uuid, free_slot, idle_for_exclusive_policy, within_quota),
            hooks=Hooks(read_node=_read_node, wanted_memory=no_memory),
        ),
    )


FAMILY = Family("biren", Settings, _build)
