"""AWS Neuron: devices in windows, and single cores of a device. What an entry says of cores is a bit mask of the device's own."""

from collections.abc import Mapping, Sequence
from functools import wraps

from devices.capacity import capacity_of, numbered_cards
from devices.errors import MalformedValue, RegistrationError
from devices.fit import (
    Candidates,
    Check,
    Refusal,
    Walk,
    free_slot,
    healthy,
    idle_for_exclusive_policy,
    right_uuid,
    within_quota,
)
from devices.model import Card, CardState, Charge, Entry
from devices.objects import Node
from devices.reasons import Reason
from devices.registration import CardList
from devices.requests import Cluster, DeviceRequest, Resources, optional_whole
from devices.vendor import INT32, Admission, Bound, Family, FamilySettings, Hooks, Placed, Vendor

__all__ = ["FAMILY"]

KEY = "AWSNeuron"
TYPE_LABEL = "node.kubernetes.io/instance-type"
INSTANCE_TYPE = "AWSNodeType"
IDS = "AWS_NEURON_IDS"
ALLOC_TIME = "NEURON_ALLOC_TIME"
ALLOCATED = "NEURON_ALLOCATED"
RESOURCE_TYPE = "NEURON_RESOURCE_TYPE"
PREDICATE_NODE = "aws.amazon.com/predicate-node"

WHOLE_DEVICES = "devices"
"""The note of a request for devices: all cores of each, however many a node's devices have."""
_MOST_CORES = 2 * INT32
_MOST_CORES_PER_DEVICE = 31
"""A mask is a 32-bit number with a sign."""
_TOGETHER = 2
"""More cores than this are asked for in devices' worth of two."""
_FIXED_WINDOWS = (1, 4, 8, 16)
"""Sizes that other instance types than Inf link, each beginning at a multiple of itself."""


class Settings(FamilySettings, frozen=True, kw_only=True):
    """The section `awsneuron`."""

    resource_count_name: str = "aws.amazon.com/neuron"
    resource_core_name: str = "aws.amazon.com/neuroncore"


def _positive(container: Resources, resource: str, high: int) -> int | None:
    number = optional_whole(container, resource, -INT32, high)
    if number is not None and number < 1:
        raise MalformedValue(f"{resource} must be greater than 0")
    return number


def _request(vendor: Vendor, container: Resources, cluster: Cluster) -> DeviceRequest | None:
    """Devices, else cores. Cores per device is the smallest that is registered: it may differ between nodes."""
    per_device = min((card.slots for card in cluster.kinds(vendor.key)), default=0)
    count = _positive(container, vendor.count_resource, INT32)
    if count is not None:
        return DeviceRequest(vendor.key, count, cores=per_device, note=WHOLE_DEVICES)
    cores = _positive(container, vendor.core_resource, _MOST_CORES)
    if cores is None:
        return None
    together = min(per_device, _TOGETHER) or _TOGETHER
    if cores <= together:
        return DeviceRequest(vendor.key, 1, cores=cores)
    if cores % together:
        raise MalformedValue(f"{vendor.core_resource} must be 1 or a multiple of {together}, got {cores}")
    if cores // together > INT32:
        raise MalformedValue(f"{vendor.core_resource} must be at most {together * INT32}, got {cores}")
    return DeviceRequest(vendor.key, cores // together, cores=together)


def _admit(vendor: Vendor, container: Admission) -> bool:
    """Check only; a container asks where its limits have either name."""
    vendor.request(container.resources, container.cluster)
    limits = container.resources.limits
    return any(name and name in limits for name in (vendor.count_resource, vendor.core_resource))


def _read_node(vendor: Vendor, node: Node) -> CardList:
    devices = capacity_of(node, vendor.count_resource)
    if not devices:
        return CardList()
    per_device = capacity_of(node, vendor.core_resource) // devices
    if not 1 <= per_device <= _MOST_CORES_PER_DEVICE:
        raise RegistrationError(
            f"capacity {vendor.core_resource} makes {per_device} cores a device, accepted are 1 to {_MOST_CORES_PER_DEVICE}"
        )
    like = Card(
        "",
        vendor.key,
        slots=per_device,
        cores=2**per_device - 1,
        model=KEY,
        healthy=True,
        custom={INSTANCE_TYPE: node.labels.get(TYPE_LABEL, "")},
    )
    return numbered_cards(node, vendor.count_resource, KEY, like)


def _mask(state: CardState, request: DeviceRequest) -> int:
    """The device's lowest free cores, or all of them. Worked: of mask 1 in use, one more core is mask 2."""
    if request.note == WHOLE_DEVICES:
        return state.card.cores
    free = [1 << core for core in range(state.card.slots) if not state.used_cores >> core & 1]
    return sum(free[: request.cores])


def _entry(vendor: Vendor, state: CardState, walk: Walk) -> Entry:
    return Entry(state.card.uuid, vendor.key, 0, _mask(state, walk.request))


def _price(vendor: Vendor, entry: Entry) -> Charge:
    return Charge(0, entry.cores.bit_count(), 1)


def _unplaced(vendor: Vendor, request: DeviceRequest, card: Card) -> Charge:
    return Charge(0, card.slots if request.note == WHOLE_DEVICES else request.cores, 1)


def _cores_free(state: CardState, walk: Walk) -> Reason | None:
    wanted = state.card.slots if walk.request.note == WHOLE_DEVICES else walk.cores
    free = (state.card.cores & ~state.used_cores).bit_count()
    return None if wanted <= free else Reason.CARD_INSUFFICIENT_CORES


def _for_one(check: Check) -> Check:
    """The question as it is asked of a single device; several are asked for nothing but a free window."""

    @wraps(check)
    def checked(state: CardState, walk: Walk) -> Reason | None:
        return check(state, walk) if walk.request.count == 1 else None

    return checked


def _wants_window(walk: Walk) -> bool:
    return walk.request.count > 1


def _windows(cards: int, count: int, instance_type: str) -> range:
    """Where a window may begin."""
    if "inf" in instance_type or "Inf" in instance_type:
        return range(cards - count + 1)
    return range(0, cards - count + 1, count) if count in _FIXED_WINDOWS else range(0)


def _choose(
    vendor: Vendor, groups: Sequence[Candidates], walk: Walk, counts: Mapping[Reason, int]
) -> Candidates | Refusal | None:
    """The first window of idle devices, by index."""
    count = walk.request.count
    states = sorted(walk.cards, key=lambda state: state.card.index)
    instance_type = str(states[0].card.custom.get(INSTANCE_TYPE, ""))
    for start in _windows(len(states), count, instance_type):
        window = tuple(states[start : start + count])
        if all(state.used_slots == 0 and state.healthy for state in window):
            return Candidates(window, tuple(_entry(vendor, state, walk) for state in window))
    return Refusal({Reason.NUMA_NOT_FIT: 1}, len(walk.cards))


def _annotations(vendor: Vendor, entries: Sequence[tuple[Entry, ...]], placed: Placed) -> Mapping[str, str]:
    """Device or core numbers of the whole pod in one list, as its plugin reads them."""
    ids: list[int] = []
    kind = ""
    for container, given in zip((*placed.pod.init_containers, *placed.pod.containers), entries, strict=True):
        cards = [(placed.cards[entry.uuid], entry.cores) for entry in given if entry.uuid in placed.cards]
        if cards and vendor.count_resource in container.limits:
            ids += (card.index for card, _ in cards)
        elif cards:
            kind = vendor.core_resource
            ids += (card.slots * card.index + n for card, mask in cards for n in range(card.slots) if mask >> n & 1)
    return {
        IDS: ",".join(str(number) for number in ids),
        ALLOC_TIME: str(int(placed.now_s * 1e9)),
        ALLOCATED: "false",
        RESOURCE_TYPE: kind,
        PREDICATE_NODE: placed.node,
    }


def _build(settings: Settings) -> tuple[Vendor, ...]:
    one_device: tuple[Check, ...] = (
        healthy,
        right_uuid,
        free_slot,
        idle_for_exclusive_policy,
        within_quota,
        _cores_free,
    )
    return (
        Vendor(
            key=KEY,
            count_resource=settings.resource_count_name,
            core_resource=settings.resource_core_name,
            core_unit="cores of a device",
            allocated="hami.io/aws-neuron-devices-allocated",
            outputs=(IDS, ALLOC_TIME, ALLOCATED, RESOURCE_TYPE, PREDICATE_NODE),
            uuid_keys=(("aws.amazon.com/use-neuron-uuid", "aws.amazon.com/nouse-neuron-uuid"),),
            max_cores=None,
            bounds=frozenset({Bound.SLOTS, Bound.CORES}),
            checks=tuple(_for_one(check) for check in one_device),
            hooks=Hooks(
                request=_request,
                admit=_admit,
                read_node=_read_node,
                entry=_entry,
                price=_price,
                unplaced=_unplaced,
                collects_all=_wants_window,
                choose=_choose,
                annotate=_annotations,
            ),
        ),
    )


FAMILY = Family("awsneuron", Settings, _build)
