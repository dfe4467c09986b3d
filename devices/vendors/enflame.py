"""Enflame GCUs: whole cards (`GCU`), counted from the node's capacity, and DRS slices (`Enflame`), of one card a container.

The two know nothing of each other, even where they stand for the same physical card.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec
import orjson

from devices.capacity import numbered_cards
from devices.errors import MalformedValue, RegistrationError
from devices.fit import (
    Refusal,
    Walk,
    enough_memory,
    healthy,
    idle,
    idle_for_exclusive_policy,
    right_uuid,
    within_quota,
)
from devices.model import Card, CardState, Charge, Entry
from devices.objects import Node
from devices.reasons import Reason
from devices.registration import CardList, Fields, distinct
from devices.requests import Cluster, DeviceRequest, Resources, optional_rounded, optional_whole
from devices.slices import GIB_MIB, Size, by_slices, by_spec, sizes_of
from devices.vendor import INT32, WHOLE, Admission, Bound, Family, FamilySettings, Hooks, Placed, Vendor

__all__ = ["FAMILY"]

CAPACITY = "enflame.com/gcu-drs-capacity"
CONTAINERS = "assigned-containers"
ASSIGNED = "enflame.com/gcu-assigned"
TIME, INDEX, ID, MINOR = (f"{ASSIGNED}-{what}" for what in ("time", "index", "id", "minor"))
SIZE = "enflame.com/gcu-request-size"

BY_SPEC = -1
"""The percentage that marks a request for memory and compute instead of slices."""


class Settings(FamilySettings, frozen=True, kw_only=True):
    """The section `enflame` (HAMi v2.10 device config). `VGCU` are names from before DRS; its percentage has no effect."""

    gcu: str = msgspec.field(name="resourceNameGCU", default="enflame.com/gcu")
    drs: str = msgspec.field(name="resourceNameDRSGCU", default="")
    vgcu: str = msgspec.field(name="resourceNameVGCU", default="")
    memory: str = msgspec.field(name="resourceNameGCUMemory", default="enflame.com/gcu-memory")
    core: str = msgspec.field(name="resourceNameGCUCore", default="enflame.com/gcu-core")
    vgcu_percentage: str = msgspec.field(name="resourceNameVGCUPercentage", default="")


def _card(node: Node, position: int, document: object, sizes: tuple[Size, ...]) -> Card:
    fields = Fields(f"device {position}", document)
    written = fields.text("index")
    is_number = written.isascii() and written.isdigit() and len(written) <= len(str(INT32))
    index = int(written) if is_number and int(written) <= INT32 else position
    try:
        slots = int(fields.text("capacity"))
    except (RegistrationError, ValueError):
        slots = fields.number("capacity")
    if not 0 < slots <= INT32:
        raise RegistrationError(f"device {position}: field 'capacity' is {slots}, accepted are 1 to {INT32}")
    slices = max(size.slices for size in sizes)
    return Card(
        f"{node.name}-enflame-drs-{index}",
        "Enflame",
        index,
        slots,
        max(size.memory_mib for size in sizes) or slices * GIB_MIB,
        WHOLE,
        "Enflame",
        healthy=True,
        custom={"minor": fields.text("minor") or str(index), "profiles": sizes, "slices": slices},
    )


def _read_drs(vendor: Vendor, node: Node) -> CardList:
    """The plugin's own JSON: devices, and profiles that count for all of them."""
    try:
        document = orjson.loads(node.annotations[CAPACITY])
    except orjson.JSONDecodeError as error:
        raise RegistrationError(f"annotation {CAPACITY} is not JSON: {error}") from error
    fields = Fields(f"annotation {CAPACITY}", document)
    sizes = sizes_of(fields.mapping("profiles"))
    cards: list[Card] = []
    problems: list[str] = []
    for position, device in enumerate(fields.items("devices")):
        try:
            cards.append(_card(node, position, device, sizes))
        except RegistrationError as error:
            problems.append(str(error))
    if not cards and not problems:
        raise RegistrationError(f"annotation {CAPACITY} names no device")
    return CardList(distinct(cards, problems), tuple(problems))


def _request(vendor: Vendor, container: Resources, cluster: Cluster) -> DeviceRequest | None:
    """Slices, or else memory and compute that a profile must reach; always one card."""
    slices = optional_whole(container, vendor.count_resource, 0, INT32)
    memory = optional_rounded(container, vendor.memory_resource, 0, INT32)
    cores = optional_rounded(container, vendor.core_resource, 0, INT32)
    if slices:
        return DeviceRequest(vendor.key, 1, slices)
    if memory is None and cores is None:
        return None
    return DeviceRequest(vendor.key, 1, memory or 0, BY_SPEC, cores or 0)


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


def _sizes(card: Card) -> tuple[Size, ...]:
    found = card.custom["profiles"]
    return found if isinstance(found, tuple) else ()


def _size(card: Card, request: DeviceRequest) -> Size | None:
    """The smallest size of the card that serves the request."""
    if request.percentage == BY_SPEC:
        return by_spec(_sizes(card), request.memory_mib, request.cores)
    return by_slices(_sizes(card), request.memory_mib)


def _gate(vendor: Vendor, walk: Walk) -> Refusal | None:
    """All cards of a node have the same sizes; the walk is in vain without one that serves."""
    walk.note = _size(walk.cards[0].card, walk.request)
    return Refusal({Reason.MODE_NOT_FIT: 1}, len(walk.cards)) if walk.note is None else None


def _enough_slices(state: CardState, walk: Walk) -> Reason | None:
    size = walk.note
    fits = isinstance(size, Size) and size.slices <= state.card.slots - state.used_slots
    return None if fits else Reason.CARD_SLOTS_EXHAUSTED


def _wanted_memory(request: DeviceRequest, card: Card) -> int:
    size = _size(card, request)
    return size.memory_mib if size is not None else request.memory_mib


def _unplaced(vendor: Vendor, request: DeviceRequest, card: Card) -> Charge:
    size = _size(card, request)
    return Charge(_wanted_memory(request, card), size.percent if size is not None else request.cores, 1)


def _entry(vendor: Vendor, state: CardState, walk: Walk) -> Entry:
    percent = walk.note.percent if isinstance(walk.note, Size) else 0
    entry = Entry(state.card.uuid, vendor.key, vendor.wanted_memory(walk.request, state.card), percent)
    return _restore(vendor, entry, state.card)


def _restore(vendor: Vendor, entry: Entry, card: Card | None) -> Entry:
    """The slices that a share stands for: 17 % of six are one."""
    most = card.custom["slices"] if card is not None else 0
    return replace(entry, slots=max(1, entry.cores * most // WHOLE if isinstance(most, int) else 1))


def _annotate(vendor: Vendor, entries: Sequence[tuple[Entry, ...]], placed: Placed) -> Mapping[str, str]:
    """What each container got, and the card of the first that has one."""
    names = [container.name for container in (*placed.pod.init_containers, *placed.pod.containers)]
    found: dict[str, tuple[Card, Size]] = {}
    for name, entry in ((name, cards[0]) for name, cards in zip(names, entries, strict=True) if cards):
        card, given = placed.cards[entry.uuid], (entry.memory_mib, entry.cores)
        found[name] = (card, next(size for size in _sizes(card) if (size.memory_mib, size.percent) == given))
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
        MINOR: str(card.custom["minor"]),
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
            checks=(healthy, right_uuid, _enough_slices, idle_for_exclusive_policy, within_quota, enough_memory),
            hooks=Hooks(
                request=_request,
                admit=_admit,
                read_node=_read_drs,
                gate=_gate,
                wanted_memory=_wanted_memory,
                entry=_entry,
                restore=_restore,
                unplaced=_unplaced,
                annotate=_annotate,
            ),
        ),
    )


FAMILY = Family("enflame", Settings, _build)
