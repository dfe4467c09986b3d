"""Devices that consist of cores: what an entry says of compute is a bit mask of the device's own cores.

A request is for cores of one device, or for whole devices (its note is `WHOLE_DEVICES`), several of which are neighbours. The hooks
of such a family, and what they rest on.
"""

from collections.abc import Sequence

from devices.fit import Candidates, Refusal, Walk
from devices.model import Card, CardState, Charge, Entry
from devices.reasons import Reason
from devices.requests import DeviceRequest
from devices.vendor import Vendor

__all__ = [
    "WHOLE_DEVICES",
    "choose_window",
    "cores_of",
    "enough_cores",
    "entry",
    "first_window",
    "lowest_free",
    "price",
    "unplaced",
    "wants_one",
    "wants_several",
]

WHOLE_DEVICES = "devices"
"""The note of a request for devices: all cores of each, however many a node's devices have."""


def first_window(states: Sequence[CardState], count: int, step: int) -> tuple[CardState, ...]:
    """The first `count` healthy, idle neighbours by index, beginning at a multiple of `step`; empty where there are none.

    Worked: of 4 devices with the first in use, two at any place (step 1) are 1 and 2, two at even places 2 and 3. Step 0: never.
    """
    row = sorted(states, key=lambda state: state.card.index)
    for start in range(0, len(row) - count + 1, step) if step else ():
        window = tuple(row[start : start + count])
        if all(state.used_slots == 0 and state.healthy for state in window):
            return window
    return ()


def lowest_free(used: int, cores: int, count: int) -> int:
    """The mask of the lowest `count` cores of so many that are not in the mask `used`; of as many as there are.

    Worked: of mask 1 in use, one more core is mask 2.
    """
    free = [1 << core for core in range(cores) if not used >> core & 1]
    return sum(free[:count])


def cores_of(mask: int) -> tuple[int, ...]:
    """The numbers of the cores in a mask, lowest first."""
    return tuple(core for core in range(mask.bit_length()) if mask >> core & 1)


def wants_one(walk: Walk) -> bool:
    """One device is asked for: other tenants may have cores of it."""
    return walk.request.count == 1


def wants_several(walk: Walk) -> bool:
    """Several are asked for: nothing counts but a window of idle ones."""
    return walk.request.count > 1


def enough_cores(state: CardState, walk: Walk) -> Reason | None:
    """So many cores of the device are in nobody's mask."""
    wanted = state.card.slots if walk.request.note == WHOLE_DEVICES else walk.cores
    free = (state.card.cores & ~state.used_cores).bit_count()
    return None if wanted <= free else Reason.CARD_INSUFFICIENT_CORES


def entry(vendor: Vendor, state: CardState, walk: Walk) -> Entry:
    """The device's lowest free cores, or all of them."""
    whole = walk.request.note == WHOLE_DEVICES
    mask = state.card.cores if whole else lowest_free(state.used_cores, state.card.slots, walk.request.cores)
    return Entry(state.card.uuid, vendor.key, 0, mask)


def price(vendor: Vendor, entry: Entry) -> Charge:
    """As many cores as the mask has."""
    return Charge(0, entry.cores.bit_count(), 1)


def unplaced(vendor: Vendor, request: DeviceRequest, card: Card) -> Charge:
    """All cores of a whole device."""
    return Charge(0, card.slots if request.note == WHOLE_DEVICES else request.cores, 1)


def choose_window(vendor: Vendor, walk: Walk, step: int) -> Candidates | Refusal:
    """The first window of idle devices that begins at a multiple of `step` (0: there is none)."""
    window = first_window(walk.cards, walk.request.count, step)
    if window:
        return Candidates(window, tuple(entry(vendor, state, walk) for state in window))
    return Refusal({Reason.NUMA_NOT_FIT: 1}, len(walk.cards))
