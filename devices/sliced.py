"""Containers on cards that are cut into slices: the hooks of a family whose cards come from `devices.slices.read_sliced`.

A request asks for so many slices (its memory is that number), or for memory and compute that a size must reach. What is given is a
size of the card: its memory, and its share of the card in percent.
"""

from msgspec.structs import replace

from devices.fit import Refusal, Walk
from devices.model import Card, CardState, Charge, Entry
from devices.reasons import Reason
from devices.requests import DeviceRequest
from devices.slices import SLICES, Size, by_slices, by_spec, sizes
from devices.vendor import WHOLE, Vendor

__all__ = ["by_spec_request", "enough_slices", "entry", "gate", "restore", "unplaced", "wanted_memory"]

_BY_SPEC = -1
"""The percentage that marks a request for memory and compute instead of slices."""


def by_spec_request(vendor: str, memory: int, cores: int) -> DeviceRequest:
    """A request for memory (as `by_spec` counts it) and percent, of one card."""
    return DeviceRequest(vendor, 1, memory, _BY_SPEC, cores)


def _size(card: Card, request: DeviceRequest) -> Size | None:
    """The smallest size of the card that serves the request."""
    if request.percentage == _BY_SPEC:
        return by_spec(sizes(card), request.memory_mib, request.cores)
    return by_slices(sizes(card), request.memory_mib)


def gate(vendor: Vendor, walk: Walk) -> Refusal | None:
    """All cards of a node have the same sizes; the walk is in vain without one that serves."""
    walk.note = _size(walk.cards[0].card, walk.request)
    return Refusal({Reason.MODE_NOT_FIT: 1}, len(walk.cards)) if walk.note is None else None


def enough_slices(state: CardState, walk: Walk) -> Reason | None:
    """Slices are what the card has to give; asked after `gate`."""
    size = walk.note
    fits = isinstance(size, Size) and size.slices <= state.card.slots - state.used_slots
    return None if fits else Reason.CARD_SLOTS_EXHAUSTED


def wanted_memory(request: DeviceRequest, card: Card) -> int:
    """All memory of the size that would be given."""
    size = _size(card, request)
    return size.memory_mib if size is not None else request.memory_mib


def unplaced(vendor: Vendor, request: DeviceRequest, card: Card) -> Charge:
    """The size that a card like this would give."""
    size = _size(card, request)
    return Charge(wanted_memory(request, card), size.percent if size is not None else request.cores, 1)


def entry(vendor: Vendor, state: CardState, walk: Walk) -> Entry:
    """Memory and share of the size that `gate` found."""
    percent = walk.note.percent if isinstance(walk.note, Size) else 0
    given = Entry(state.card.uuid, vendor.key, vendor.wanted_memory(walk.request, state.card), percent)
    return restore(vendor, given, state.card)


def restore(vendor: Vendor, entry: Entry, card: Card | None) -> Entry:
    """The slices that a share stands for: 17 % of six are one."""
    most = card.custom[SLICES] if card is not None else 0
    return replace(entry, slots=max(1, entry.cores * most // WHOLE if isinstance(most, int) else 1))
