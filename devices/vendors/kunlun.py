"""Kunlun: whole XPUs, and VXPU slices of a quarter, half or whole card; both chosen along the links of a board."""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from devices.boards import choose_on_boards, tidiness
from devices.capacity import numbered_cards
from devices.fit import Walk, enough_memory, healthy, idle_for_exclusive_policy, right_uuid
from devices.model import Card, CardState, Entry
from devices.objects import Node
from devices.reasons import Reason
from devices.registration import CardList
from devices.requests import Cluster, DeviceRequest, Resources, optional_whole
from devices.vendor import (
    INT32,
    WHOLE,
    Admission,
    Bound,
    Family,
    FamilySettings,
    Hooks,
    Placed,
    ScoreContext,
    Vendor,
    every_card,
    json_registration,
)

__all__ = ["FAMILY"]

WHOLE_CARDS = "kunlun"
INDEXES = "BAIDU_COM_DEVICE_IDX"
UUID_KEYS = (
    ("hami.io/use-xpu-uuid", "hami.io/no-use-xpu-uuid"),
    ("baidu.com/use-gpuuuid", "baidu.com/nouse-gpuuuid"),
)
CARD_MIB = 98304
_SLICES = (CARD_MIB // 4, CARD_MIB // 2, CARD_MIB)


class Settings(FamilySettings, frozen=True, kw_only=True):
    """The section `kunlun`."""

    resource_count_name: str = "kunlunxin.com/xpu"
    resource_v_count_name: str = "kunlunxin.com/vxpu"
    resource_v_memory_name: str = "kunlunxin.com/vxpu-memory"


def _read_whole_cards(vendor: Vendor, node: Node) -> CardList:
    like = Card("", vendor.key, slots=WHOLE, memory_mib=CARD_MIB, cores=WHOLE, model=WHOLE_CARDS, healthy=True)
    cards = numbered_cards(node, vendor.count_resource, WHOLE_CARDS, like).cards
    return CardList(tuple(replace(card, numa=0 if card.index < len(cards) // 2 else 1) for card in cards))


def _idle(state: CardState, walk: Walk) -> Reason | None:
    return Reason.CARD_SLOTS_EXHAUSTED if state.used_slots else None


def _whole_entry(vendor: Vendor, state: CardState, walk: Walk) -> Entry:
    return Entry(state.card.uuid, vendor.key, state.card.memory_mib, state.card.cores)


def _indexes(vendor: Vendor, entries: Sequence[tuple[Entry, ...]], placed: Placed) -> Mapping[str, str]:
    """Of the last container with cards alone, as its plugin reads it."""
    last = next((given for given in reversed(entries) if given), ())
    return {INDEXES: ",".join(str(placed.cards[entry.uuid].index) for entry in last if entry.uuid in placed.cards)}


def _score(vendor: Vendor, entries: Sequence[tuple[Entry, ...]], context: ScoreContext) -> float:
    """As the boards say; 0 on a node that has other cards as well."""
    states = context.node.cards
    if any(WHOLE_CARDS not in state.card.model for state in states):
        return 0.0
    return tidiness(states, {entry.uuid for container in entries for entry in container})


def _slice(memory_mib: int) -> int:
    """The slice that is large enough: 24577 MiB come as 49152."""
    return next((size for size in _SLICES if memory_mib <= size), CARD_MIB)


def _slice_request(vendor: Vendor, container: Resources, cluster: Cluster) -> DeviceRequest | None:
    """Without memory a whole card of the standard size."""
    count = optional_whole(container, vendor.count_resource, 0, INT32)
    memory = optional_whole(container, vendor.memory_resource, 0, INT32)
    if not count:
        return None
    if memory is None:
        return DeviceRequest(vendor.key, count, CARD_MIB, WHOLE, WHOLE)
    size = _slice(memory)
    return DeviceRequest(vendor.key, count, size, None, size * WHOLE // CARD_MIB)


def _admit_slice(vendor: Vendor, container: Admission) -> bool:
    """Write the slice that will be given, in limits and requests."""
    resources = container.resources
    request = vendor.request(resources)
    if not vendor.count_resource or vendor.count_resource not in resources.limits:
        return False
    if request is not None and vendor.memory_resource and vendor.memory_resource in resources.limits:
        asked = optional_whole(resources, vendor.memory_resource, 0, INT32) or 0
        if asked > CARD_MIB:
            container.warn(
                f"container {resources.name}: {vendor.memory_resource} {asked} counts as {CARD_MIB}, one whole card"
            )
        container.set_limit(vendor.memory_resource, request.memory_mib)
        container.set_request(vendor.memory_resource, request.memory_mib)
    return True


def _equal_slices(state: CardState, walk: Walk) -> Reason | None:
    """Only slices of one size share a card."""
    used = state.used_slots
    return Reason.NUMA_NOT_FIT if used and state.used_memory_mib // used != walk.request.memory_mib else None


def _build(settings: Settings) -> tuple[Vendor, ...]:
    return (
        Vendor(
            key=WHOLE_CARDS,
            count_resource=settings.resource_count_name,
            allocated="hami.io/kunlun-allocated",
            outputs=(INDEXES,),
            uuid_keys=UUID_KEYS,
            constant=(0, WHOLE, 0),
            checks=(healthy, _idle, right_uuid),
            hooks=Hooks(
                read_node=_read_whole_cards,
                entry=_whole_entry,
                collects_all=every_card,
                choose=choose_on_boards,
                annotate=_indexes,
                score=_score,
            ),
        ),
        Vendor(
            key="XPU",
            count_resource=settings.resource_v_count_name,
            memory_resource=settings.resource_v_memory_name,
            allocated="hami.io/xpu-devices-allocated",
            to_allocate="hami.io/xpu-devices-to-allocate",
            registration=("hami.io/node-register-xpu",),
            handshake="hami.io/node-handshake-xpu",
            uuid_keys=UUID_KEYS,
            node_lock="hami.io/mutex.lock",
            bounds=frozenset({Bound.MEMORY}),
            checks=(healthy, enough_memory, _equal_slices, idle_for_exclusive_policy, right_uuid),
            hooks=Hooks(
                request=_slice_request,
                admit=_admit_slice,
                read_node=json_registration,
                collects_all=every_card,
                choose=choose_on_boards,
            ),
        ),
    )


FAMILY = Family("kunlun", Settings, _build)
