"""The texts in which an allocation travels on the pod: cards by container, and MIG reservations.

Grammar: a card is `uuid,vendor,memory,cores:`, a container its cards and `;`, one container after the other; both signs close what
they follow. Vendors have an annotation pair each, and every text names all container positions.
"""

from collections.abc import Iterable, Sequence

import msgspec

from devices.errors import AllocationError
from devices.model import Allocation, Entry, MigReservation, Placement

__all__ = ["at_positions", "decode", "decode_mig", "encode", "encode_mig", "mig_reservations"]

_INT32 = 2**31 - 1
_DIGITS = 10
_FIELDS = 4


def encode(allocation: Allocation, vendor: str) -> str:
    """The text of one vendor, e.g. `;GPU-a,NVIDIA,1000,0:;` for a plain container and then one with a card."""
    return "".join(
        "".join(f"{e.uuid},{e.kind or e.vendor},{e.memory_mib},{e.cores}:" for e in entries if e.vendor == vendor) + ";"
        for entries in allocation
    )


def _number(name: str, text: str) -> int:
    if len(text) < _DIGITS and text.isascii() and text.isdigit():
        return int(text)
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdigit()) or len(digits) > _DIGITS or not -_INT32 - 1 <= int(text) <= _INT32:
        raise AllocationError(f"invalid {name} field: {text!r} is no 32-bit whole number")
    return int(text)


def _entry(piece: str, vendor: str) -> Entry | None:
    if "," not in piece:
        return None
    fields = piece.split(",")
    if len(fields) < _FIELDS:
        raise AllocationError("pod annotation format error, missing fields, do not use nodeName in task spec")
    memory, cores = _number("memory", fields[2]), _number("core", fields[3])
    # Old writers put `,,0,0:` where a container has no card. A negative share would hand out what others hold.
    return Entry(fields[0], vendor, max(memory, 0), max(cores, 0)) if fields[0] else None


def decode(text: str, vendor: str) -> Allocation:
    """The positions of one vendor's text; the empty one after the last `;` is not a position. Raises `AllocationError`.

    A text without any `;` is one container. Entries carry the vendor whose annotation this is, whatever the text says.
    """
    parts = text.split(";")
    if len(parts) > 1 and not parts[-1]:
        parts.pop()
    return tuple(
        [
            tuple([e for piece in part.split(":") if piece and (e := _entry(piece, vendor)) is not None])
            for part in parts
        ]
    )


def at_positions(decoded: Allocation, asking: Sequence[bool]) -> Allocation:
    """The decoded lists brought to the pod's container positions; `asking` says which of them ask for this vendor.

    HAMi up to 2.10 leaves out positions of containers without cards. A text with fewer positions than containers is therefore
    mapped by the request: its non-empty lists go to the containers that ask, in order. Nothing is dropped: what has no asking
    container left is counted on the last one, and a longer text keeps its first positions likewise.
    """
    wanted = len(asking)
    if len(decoded) == wanted:
        return decoded
    lists: list[tuple[Entry, ...]] = [()] * wanted
    if not wanted:
        return ()
    if len(decoded) > wanted:
        lists[:] = decoded[:wanted]
        lists[-1] = lists[-1] + tuple(e for entries in decoded[wanted:] for e in entries)
        return tuple(lists)
    places = [position for position, asks in enumerate(asking) if asks]
    for number, entries in enumerate(e for e in decoded if e):
        place = places[number] if number < len(places) else wanted - 1
        lists[place] += entries
    return tuple(lists)


class _Placement(msgspec.Struct):
    start: int
    size: int


class _Reservation(msgspec.Struct, rename="camel", omit_defaults=True):
    container_index: int
    device_index: int
    gpu_uuid: str = msgspec.field(name="gpuUUID")
    profile: str
    placement: _Placement
    mig_uuid: str | None = msgspec.field(name="migUUID", default=None)
    gpu_instance_id: int | None = msgspec.field(name="gpuInstanceID", default=None)
    compute_instance_id: int | None = msgspec.field(name="computeInstanceID", default=None)


_DECODER = msgspec.json.Decoder(list[_Reservation])
_ENCODER = msgspec.json.Encoder()


def decode_mig(text: str) -> tuple[MigReservation, ...]:
    """MIG reservations of a pod; empty text means none. Raises `AllocationError` for the whole value if any entry is wrong."""
    if not text:
        return ()
    try:
        entries = _DECODER.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise AllocationError(f"the MIG reservations cannot be read: {error}") from error
    reservations = []
    places = set()
    for position, entry in enumerate(entries):
        where = f"MIG reservation {position}"
        if entry.container_index < 0 or entry.device_index < 0:
            raise AllocationError(f"{where}: containerIndex and deviceIndex must not be negative")
        if not entry.gpu_uuid or not entry.profile:
            raise AllocationError(f"{where}: gpuUUID and profile must not be empty")
        if entry.placement.size < 1 or entry.placement.start < 0:
            raise AllocationError(f"{where}: placement must have a size of at least 1 and a start of at least 0")
        runtime = (entry.mig_uuid, entry.gpu_instance_id, entry.compute_instance_id)
        present = sum(value is not None for value in runtime)
        if present not in (0, len(runtime)):
            raise AllocationError(f"{where}: migUUID, gpuInstanceID and computeInstanceID go together")
        place = (entry.container_index, entry.device_index)
        if place in places:
            raise AllocationError(f"{where}: containerIndex {place[0]}, deviceIndex {place[1]} stands twice")
        places.add(place)
        reservations.append(
            MigReservation(
                *place,
                entry.gpu_uuid,
                entry.profile,
                Placement(entry.placement.start, entry.placement.size),
                (entry.mig_uuid or "", entry.gpu_instance_id or 0, entry.compute_instance_id or 0) if present else None,
            )
        )
    return tuple(reservations)


def encode_mig(reservations: Iterable[MigReservation]) -> str:
    """The JSON list; empty text when there is none."""
    entries = []
    for r in reservations:
        mig_uuid, gpu_instance, compute_instance = r.runtime or (None, None, None)
        placement = _Placement(r.placement.start, r.placement.size)
        entries.append(
            _Reservation(r.container, r.device, r.uuid, r.profile, placement, mig_uuid, gpu_instance, compute_instance)
        )
    return _ENCODER.encode(entries).decode() if entries else ""


def mig_reservations(allocation: Allocation) -> tuple[MigReservation, ...]:
    """The reservations that an allocation implies; `device` counts the cards of the same vendor in the container."""
    found = []
    for container, entries in enumerate(allocation):
        devices: dict[str, int] = {}
        for entry in entries:
            device = devices.get(entry.vendor, 0)
            devices[entry.vendor] = device + 1
            if entry.placement is not None:
                found.append(MigReservation(container, device, entry.uuid, entry.profile, entry.placement))
    return tuple(found)
