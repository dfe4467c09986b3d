"""Scores of cards and nodes, in single precision as they are printed: 6.225 shows as 6.22 (HAMi v2.10 scheduling, scores)."""

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from devices.errors import WeightsError
from devices.keys import WEIGHTS
from devices.model import Card, CardState
from devices.requests import DeviceRequest

__all__ = ["EQUAL_WEIGHTS", "Weights", "card_score", "claims", "node_score", "single", "weights_of"]

_FLOAT = struct.Struct("f")


def single(number: float) -> float:
    """The nearest single-precision value. Rounding after every step gives what single-precision arithmetic gives."""
    rounded: float = _FLOAT.unpack(_FLOAT.pack(number))[0]
    return rounded


@dataclass(frozen=True, slots=True)
class Weights:
    """How much slots, compute and memory count in a card's score."""

    slot: int = 1
    core: int = 1
    memory: int = 1


EQUAL_WEIGHTS = Weights()
_INT = 2**63 - 1
_DIGITS = 19


def weights_of(annotations: Mapping[str, str]) -> Weights:
    """The weights of a pod: `slot=W,core=W,memory=W` in any order. Raises `WeightsError` with the recorded text."""
    text = annotations.get(WEIGHTS)
    if text is None:
        return EQUAL_WEIGHTS
    prefix = f'invalid {WEIGHTS} annotation "{text}": '
    entries = text.split(",")
    if len(entries) != len(Weights.__slots__):
        raise WeightsError(prefix + "expected slot, core, and memory weights")
    found: dict[str, int] = {}
    for entry in entries:
        name, equals, value = (part.strip() for part in entry.partition("="))
        if not equals:
            raise WeightsError(prefix + "expected key=value entries")
        if name in found:
            raise WeightsError(prefix + f'duplicate "{name}" weight')
        digits = value[1:] if value[:1] in ("+", "-") else value
        if not (digits.isascii() and digits.isdigit()) or len(digits) > _DIGITS or abs(int(value)) > _INT:
            raise WeightsError(prefix + f'"{name}" weight must be an integer')
        if int(value) < 0:
            raise WeightsError(prefix + f'"{name}" weight must not be negative')
        if name not in Weights.__slots__:
            raise WeightsError(prefix + f'unknown weight "{name}"')
        found[name] = int(value)
    if not any(found.values()):
        raise WeightsError(prefix + "at least one weight must be positive")
    return Weights(**found)


def _part(used: int, total: int) -> float:
    return single(single(used) / single(total))


@lru_cache(maxsize=16_384)
def _weighted(*quantities: tuple[int, int, int]) -> float:
    """10 × the sum of used / all × weight. Most cards are alike, and this is asked of every card of every node evaluated."""
    first, second, third = (single(_part(used, total) * single(weight)) for used, total, weight in quantities)
    return single(10 * single(single(first + second) + third))


def _share(total: int, percent: int) -> int:
    """Rounded towards zero: a family marks a request with -1 %."""
    return total * percent // 100 if percent > 0 else -(total * -percent // 100)


def claims(card: Card, requests: Iterable[DeviceRequest]) -> tuple[int, int, int]:
    """Slots, compute and memory that requests count in a card's score, beside what is in use.

    They count only towards a card registered with exactly their vendor key as its type, which NVIDIA's never are.
    """
    slots = cores = memory = 0
    for request in requests:
        if request.vendor == card.model:
            slots += 1
            cores += request.cores
            memory += _share(card.memory_mib, request.percentage) if request.percentage else request.memory_mib
    return slots, cores, memory


def card_score(state: CardState, weights: Weights, requests: Iterable[DeviceRequest]) -> float:
    """10 × (slots + compute + memory in use, each as a share, each with its weight); 0 for a card without any of them.

    Worked: a 15360 MiB card of 10 slots with one tenant of 1000 MiB: 10 × (0.1 + 0 + 0.0651042) = 1.651042.
    """
    card = state.card
    if not (card.slots and card.cores and card.memory_mib):
        return 0.0
    slots, cores, memory = claims(card, requests)
    return _weighted(
        (slots + state.used_slots, card.slots, weights.slot),
        (cores + state.used_cores, card.cores, weights.core),
        (memory + state.used_memory_mib, card.memory_mib, weights.memory),
    )


def node_score(states: Sequence[CardState]) -> float:
    """10 × the shares of all slots, compute and memory in use over the whole node; 0 if there is none of one of them."""
    slots = cores = memory = used_slots = used_cores = used_memory = 0
    for state in states:  # one pass: every placement changes a node
        card = state.card
        slots += card.slots
        cores += card.cores
        memory += card.memory_mib
        used_slots += state.used_slots
        used_cores += state.used_cores
        used_memory += state.used_memory_mib
    if not (slots and cores and memory):
        return 0.0
    shares = (_part(used_slots, slots), _part(used_cores, cores), _part(used_memory, memory))
    return single(10 * single(single(shares[0] + shares[1]) + shares[2]))
