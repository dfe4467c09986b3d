"""Iluvatar GPUs, one vendor a chip: shared by memory (units of 256 MiB) and compute, registered in the text form."""

import msgspec
from msgspec.structs import replace

from devices.chips import named_after_chip
from devices.errors import ConfigError
from devices.requests import Cluster, DeviceRequest, Resources, optional_whole
from devices.vendor import (
    INT32,
    WHOLE,
    Admission,
    Family,
    FamilySettings,
    Hooks,
    Vendor,
    plain_admission,
    text_registration,
)

__all__ = ["FAMILY"]

CONTAINER_VARIABLE = "SOL_CONTINER_NAME"
"""The spelling is the plugin's."""
UNIT_MIB = 256


class Chip(FamilySettings, frozen=True, kw_only=True):
    """One entry of the section `iluvatars` (HAMi v2.10 device config); `chipName` has no effect."""

    chip_name: str = ""
    common_word: str
    resource_count_name: str
    resource_memory_name: str = ""
    resource_core_name: str = ""


def _shipped() -> list[Chip]:
    return [
        Chip(
            chip_name=word,
            common_word=word,
            resource_count_name=f"iluvatar.ai/{word}-vgpu",
            resource_memory_name=f"iluvatar.ai/{word}.vMem",
            resource_core_name=f"iluvatar.ai/{word}.vCore",
        )
        for word in ("MR-V100", "MR-V50", "BI-V150", "BI-V100")
    ]


class Settings(FamilySettings, frozen=True, kw_only=True):
    """The section `iluvatars`, a list."""

    chips: list[Chip] = msgspec.field(default_factory=_shipped)


PLAIN = Hooks()


def _request(vendor: Vendor, container: Resources, cluster: Cluster) -> DeviceRequest | None:
    """Several cards give their compute as a total; a card has no more than all of it."""
    request = PLAIN.request(vendor, container, cluster)
    if request is None or request.count == 1:
        return request
    return replace(request, cores=min(request.cores, WHOLE))


def _admit(vendor: Vendor, container: Admission) -> bool:
    """Several cards are whole ones in compute; the plugin needs to know the container's name."""
    if not plain_admission(vendor, container):
        return False
    request = vendor.request(container.resources, container.cluster)
    if request is not None and request.count > 1 and vendor.core_resource:
        total = request.count * WHOLE
        if optional_whole(container.resources, vendor.core_resource, 0, INT32) not in (None, total):
            container.warn(f"container {container.resources.name}: {vendor.core_resource} of several cards is {total}")
        container.set_limit(vendor.core_resource, total)
    if container.resources.name and CONTAINER_VARIABLE not in container.environment:
        container.append_env(CONTAINER_VARIABLE, container.resources.name)
    return True


def _vendor(chip: Chip) -> Vendor:
    word = chip.common_word
    return Vendor(
        key=word,
        count_resource=chip.resource_count_name,
        memory_resource=chip.resource_memory_name,
        core_resource=chip.resource_core_name,
        registration=(f"hami.io/node-{word}-register",),
        memory_factor=UNIT_MIB,
        hooks=Hooks(request=_request, admit=_admit, read_node=text_registration),
    )


def _build(settings: Settings) -> tuple[Vendor, ...]:
    words = [chip.common_word for chip in settings.chips]
    for position, word in enumerate(words):
        if not word or word in words[:position]:
            raise ConfigError(f"[{position}].commonWord: {word!r} must be a name that no other chip has")
    return tuple(named_after_chip(_vendor(chip)) for chip in settings.chips)


FAMILY = Family("iluvatars", Settings, _build, list_field="chips", flag="iluvatar")
