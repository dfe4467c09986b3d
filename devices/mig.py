"""Dynamic MIG: which instance a request gets on a card, and which placements pods hold (HAMi v2.10 scheduling, dynamic MIG)."""

from collections.abc import Iterable, Sequence

from devices.model import Card, CardState, Entry, MigProfile, Placement
from devices.requests import DeviceRequest

__all__ = ["MODE", "instance", "is_mig", "wanted_memory"]

MODE = "mig"


def is_mig(card: Card) -> bool:
    """Cards in this mode hand out instances; all others are shared as a whole."""
    return card.mode == MODE


def _largest(card: Card) -> MigProfile | None:
    return max(card.mig_profiles, key=lambda profile: (profile.memory_mib, profile.slice_count), default=None)


def wanted_memory(card: Card, request: DeviceRequest) -> int:
    """MiB that an instance must have. All memory of a card means its largest profile, which reports a little less than the card."""
    if request.wants_whole_memory and (largest := _largest(card)) is not None:
        return largest.memory_mib
    return request.memory_on(card.memory_mib)


def _placements(profile: MigProfile) -> Iterable[Placement]:
    # Small and middle instances come from the high end so that 2g and whole ones keep the low end free: others rely on this packing.
    from_the_top = profile.name.startswith(("1g.", "3g."))
    return sorted(profile.placements, key=lambda placement: placement.start, reverse=from_the_top)


def instance(state: CardState, request: DeviceRequest, vendor: str, collected: Sequence[Entry]) -> Entry | None:
    """The instance this request gets on the card beside those collected for the same container; None when none is left.

    The smallest profile with enough memory and a free placement wins: requests of 20000, 8000, 4000, 4000, 4000 MiB on an A100 40GB
    give 3g at 4, 2g at 0, 1g at 3, 1g at 2, none.
    """
    wanted = wanted_memory(state.card, request)
    taken = [
        *state.placements,
        *(e.placement for e in collected if e.uuid == state.card.uuid and e.placement is not None),
    ]
    for profile in sorted(state.card.mig_profiles, key=lambda p: (p.memory_mib, p.slice_count)):
        if profile.memory_mib < wanted:
            continue
        for placement in _placements(profile):
            if not any(placement.conflicts(other) for other in taken):
                return Entry(state.card.uuid, vendor, profile.memory_mib, profile.cores, profile.name, placement)
    return None
