"""AMD GPUs: shared by memory and a percentage of their compute units (CUs)."""

from msgspec.structs import replace

from devices.errors import MalformedValue
from devices.fit import (
    Walk,
    enough_memory,
    free_slot,
    healthy,
    idle_for_exclusive_policy,
    right_type,
    right_uuid,
    within_quota,
)
from devices.model import Card, CardState, Entry
from devices.objects import Node
from devices.reasons import Reason
from devices.registration import SEPARATORS, CardList
from devices.requests import Cluster, DeviceRequest, Resources, limits_alone, optional_whole
from devices.vendor import (
    INT32,
    WHOLE,
    Admission,
    Family,
    FamilySettings,
    Hooks,
    Vendor,
    json_registration,
    plain_admission,
)

__all__ = ["FAMILY"]


class Settings(FamilySettings, frozen=True, kw_only=True):
    """The section `amd` (HAMi v2.10 device config)."""

    resource_count_name: str = "amd.com/gpu"
    resource_memory_name: str = "amd.com/gpumem"
    resource_core_name: str = "amd.com/gpucores"


def _read_node(vendor: Vendor, node: Node) -> CardList:
    """The JSON list. The allocation text names a card's type, so it must be able to hold it."""
    listed = json_registration(vendor, node)
    cards = tuple(card for card in listed.cards if SEPARATORS.isdisjoint(card.model))
    problems = (
        f"card {card.uuid}: type {card.model!r} must not contain ',', ':' or ';'"
        for card in listed.cards
        if card not in cards
    )
    return CardList(cards, (*listed.problems, *problems))


def _request(vendor: Vendor, container: Resources, cluster: Cluster) -> DeviceRequest | None:
    """From limits alone; compute is a percentage of the card, 100 when not given."""
    limits = limits_alone(container)
    count = optional_whole(limits, vendor.count_resource, 0, INT32)
    memory = optional_whole(limits, vendor.memory_resource, 0, INT32) or 0
    try:
        cores = optional_whole(limits, vendor.core_resource, 1, WHOLE)
    except MalformedValue as error:
        raise MalformedValue(f"{vendor.core_resource} must be an integer percentage between 1 and {WHOLE}") from error
    if not count:
        return None
    return DeviceRequest(vendor.key, count, memory, None if memory else WHOLE, WHOLE if cores is None else cores)


def _admit(vendor: Vendor, container: Admission) -> bool:
    """Any of the names makes the pod ours; without a count it then runs without a card."""
    plain_admission(vendor, container)
    limits = container.resources.limits
    return any(name in limits for name in vendor.resources)


def _units(card: Card, percent: int) -> int:
    """CUs of a percentage, at least one: 30 % of 104 is 31."""
    return min(max(card.cores * percent // WHOLE, 1), card.cores)


def _enough_units(state: CardState, walk: Walk) -> Reason | None:
    fits = state.card.cores > 0 and _units(state.card, walk.cores) <= state.free_cores
    return None if fits else Reason.CARD_INSUFFICIENT_CORES


def _entry(vendor: Vendor, state: CardState, walk: Walk) -> Entry:
    memory, units = vendor.wanted_memory(walk.request, state.card), _units(state.card, walk.cores)
    return _restore(vendor, Entry(state.card.uuid, vendor.key, memory, units), state.card)


def _restore(vendor: Vendor, entry: Entry, card: Card | None) -> Entry:
    """Quota counts the percentage of the card that the CUs are, rounded up; of an unknown card at most all of it."""
    if card is None or card.cores <= 0:
        return replace(entry, quota_cores=min(entry.cores, WHOLE))
    return replace(entry, kind=card.model, quota_cores=-(-WHOLE * entry.cores // card.cores))


def _build(settings: Settings) -> tuple[Vendor, ...]:
    return (
        Vendor(
            key="AMD",
            count_resource=settings.resource_count_name,
            memory_resource=settings.resource_memory_name,
            core_resource=settings.resource_core_name,
            core_unit="percent of a card's compute units",
            allocated="hami.io/amd-devices-allocated",
            to_allocate="hami.io/amd-devices-to-allocate",
            registration=("hami.io/node-amd-register",),
            uuid_keys=(("amd.com/use-gpu-uuid", "amd.com/nouse-gpu-uuid"),),
            type_keys=("amd.com/use-gputype", "amd.com/nouse-gputype"),
            node_lock="hami.io/mutex.lock",
            checks=(
                healthy,
                right_type,
                right_uuid,
                free_slot,
                idle_for_exclusive_policy,
                within_quota,
                enough_memory,
                _enough_units,
            ),
            hooks=Hooks(request=_request, admit=_admit, read_node=_read_node, entry=_entry, restore=_restore),
        ),
    )


FAMILY = Family("amd", Settings, _build)
