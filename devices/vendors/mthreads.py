"""Moore Threads GPUs: a request names totals over its cards, in units of 1/16 of a card's compute and 512 MiB."""

from collections.abc import Mapping, Sequence

from devices.capacity import split_by_compute
from devices.errors import MalformedValue
from devices.fit import STANDARD_CHECKS, Walk
from devices.model import CardState, Entry
from devices.reasons import Reason
from devices.requests import Cluster, DeviceRequest, Resources, optional_whole
from devices.vendor import INT32, WHOLE, Admission, Family, FamilySettings, Hooks, Placed, Vendor

__all__ = ["FAMILY"]

INDEX = "mthreads.com/gpu-index"
TIME = "mthreads.com/predicate-time"
NODE = "mthreads.com/predicate-node"
NEVER_WRITTEN = "hami.io/mthreads-vgpu-devices-to-allocate"
"""Known to the plugin, which does not read it."""
NUMBER = "mthreads.com/request-gpu-num"

UNIT_MIB = 512
CORES = 16
MEMORY_UNITS = 96
SLOTS = 100
SIZES = (2, 4, 8, 16, 32, 64, 96)
"""Memory that one shared card can give, in units."""


class Settings(FamilySettings, frozen=True, kw_only=True):
    """The section `mthreads` (HAMi v2.10 device config)."""

    resource_count_name: str = "mthreads.com/vgpu"
    resource_memory_name: str = "mthreads.com/sgpu-memory"
    resource_core_name: str = "mthreads.com/sgpu-core"


def _request(vendor: Vendor, container: Resources, cluster: Cluster) -> DeviceRequest | None:
    """Totals divided by the cards, rounded down."""
    count = optional_whole(container, vendor.count_resource, 0, INT32)
    memory = (optional_whole(container, vendor.memory_resource, 0, INT32 // UNIT_MIB) or 0) * UNIT_MIB
    cores = optional_whole(container, vendor.core_resource, 0, INT32) or 0
    if not count:
        return None
    return DeviceRequest(vendor.key, count, memory // count, None if memory else WHOLE, cores // count)


def _admit(vendor: Vendor, container: Admission) -> bool:
    """Fill in whole cards where nothing smaller is asked for, keeping what is given."""
    resources = container.resources
    count = optional_whole(resources, vendor.count_resource, -INT32, INT32)
    given = {**resources.requests, **resources.limits}
    if count is None:
        return False
    if count <= 0:
        raise MalformedValue(f"{vendor.count_resource} must be greater than 0")
    vendor.request(resources, container.cluster)
    memory = optional_whole(resources, vendor.memory_resource, 0, INT32)
    if count == 1 and memory is not None and memory not in SIZES:
        raise MalformedValue(f"sGPU memory request value is invalid, valid values are [{', '.join(map(str, SIZES))}]")
    if count > 1:
        container.set_annotation(NUMBER, str(count))
    if count > 1 or memory is None:
        for name, units in ((vendor.core_resource, CORES), (vendor.memory_resource, MEMORY_UNITS)):
            if name and name not in given:
                container.set_limit(name, units * count)
    return True


def _same_card_as_before(state: CardState, walk: Walk) -> Reason | None:
    """Containers of one pod share one card, as the plugin wants it."""
    return Reason.CARD_FILTERED if any(entry.uuid != state.card.uuid for entry in walk.earlier) else None


def _annotate(vendor: Vendor, entries: Sequence[tuple[Entry, ...]], placed: Placed) -> Mapping[str, str]:
    """The plugin reads the cards of the last container that has any."""
    last = next(cards for cards in reversed(entries) if cards)
    indexes = [placed.cards[entry.uuid].index for entry in last if entry.uuid in placed.cards]
    return {
        INDEX: ",".join(str(index) for index in indexes),
        TIME: str(int(placed.now_s * 1e9)),
        NODE: placed.node,
    }


def _build(settings: Settings) -> tuple[Vendor, ...]:
    return (
        Vendor(
            key="Mthreads",
            count_resource=settings.resource_count_name,
            memory_resource=settings.resource_memory_name,
            core_resource=settings.resource_core_name,
            core_unit="1/16 of a card, over all cards",
            memory_unit="512 MiB, over all cards",
            allocated="hami.io/mthreads-vgpu-devices-allocated",
            outputs=(INDEX, TIME, NODE, NEVER_WRITTEN),
            admission_outputs=(NUMBER,),
            uuid_keys=(("mthreads.ai/use-gpuuuid", "mthreads.ai/nouse-gpuuuid"),),
            memory_factor=UNIT_MIB,
            checks=(*STANDARD_CHECKS, _same_card_as_before),
            hooks=Hooks(
                request=_request,
                admit=_admit,
                read_node=split_by_compute("mthreads", SLOTS, CORES),
                annotate=_annotate,
            ),
        ),
    )


FAMILY = Family("mthreads", Settings, _build)
