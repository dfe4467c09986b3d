"""AWS Neuron: devices in windows, and single cores of a device. What an entry says of cores is a bit mask of the device's own."""

from collections.abc import Mapping, Sequence

from devices import core_masks
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
    only_when,
    right_uuid,
    within_quota,
)
from devices.model import Card, Entry
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

_MOST_CORES = 2 * INT32
_MOST_CORES_PER_DEVICE = 31
"""A mask is a 32-bit number with a sign."""
_TOGETHER = 2
"""More cores than this are asked for in devices' worth of two."""
_ALIGNED_WINDOWS = (1, 4, 8, 16)
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
        return DeviceRequest(vendor.key, count, cores=per_device, note=core_masks.WHOLE_DEVICES)
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


def _choose(
    vendor: Vendor, groups: Sequence[Candidates], walk: Walk, counts: Mapping[Reason, int]
) -> Candidates | Refusal | None:
    """The first window of idle devices, by index."""
    first = min(walk.cards, key=lambda state: state.card.index)
    anywhere = any(word in str(first.card.custom.get(INSTANCE_TYPE, "")) for word in ("inf", "Inf"))
    aligned = walk.request.count if walk.request.count in _ALIGNED_WINDOWS else 0
    return core_masks.choose_window(vendor, walk, 1 if anywhere else aligned)


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
            ids += (card.slots * card.index + core for card, mask in cards for core in core_masks.cores_of(mask))
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
        core_masks.enough_cores,
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
            checks=tuple(only_when(core_masks.wants_one, check) for check in one_device),
            hooks=Hooks(
                request=_request,
                admit=_admit,
                read_node=_read_node,
                entry=core_masks.entry,
                price=core_masks.price,
                unplaced=core_masks.unplaced,
                collects_all=core_masks.wants_several,
                choose=_choose,
                annotate=_annotations,
            ),
        ),
    )


FAMILY = Family("awsneuron", Settings, _build)
