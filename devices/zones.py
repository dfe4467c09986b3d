"""Cards that share something physical (a board, a network, a link): choosing cards of one zone, and scoring how few zones were used."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from devices.fit import Candidates, Refusal, Walk
from devices.model import Card, Entry
from devices.reasons import Reason

__all__ = ["from_largest_zones", "picked", "share_of_largest_zones", "zones_of"]

Z = TypeVar("Z", int, str)

ZoneOf = Callable[[Card], Z | None]
"""The zone of a card; None where it has none."""


def zones_of(candidates: Candidates, zone_of: ZoneOf[Z]) -> dict[Z, list[int]]:
    """Places of the candidates by zone, lowest zone first, each in walk order; cards without zone are in none."""
    found: dict[Z, list[int]] = {}
    for place, state in enumerate(candidates.states):
        zone = zone_of(state.card)
        if zone is not None:
            found.setdefault(zone, []).append(place)
    return {zone: found[zone] for zone in sorted(found)}


def picked(candidates: Candidates, places: Sequence[int]) -> Candidates:
    """The candidates at these places, in this order."""
    return Candidates(
        tuple(candidates.states[place] for place in places), tuple(candidates.entries[place] for place in places)
    )


def from_largest_zones(
    candidates: Candidates, walk: Walk, counts: Mapping[Reason, int], zone_of: ZoneOf[Z]
) -> Candidates | Refusal | None:
    """As many as asked, from as few zones as the largest ones allow; ties go to the lowest zone.

    A single card, or all there are, is taken without looking at zones; too few are the ordinary refusal (None). Otherwise cards
    without zone are never taken, and where those with one are too few, that is a refusal. Worked: zones 1 and 2 with candidates
    b, a and d, c, e: two come as d, c.
    """
    count = walk.request.count
    if len(candidates.entries) < count:
        return None
    if count == 1 or len(candidates.entries) == count:
        return picked(candidates, range(count))
    zones = sorted(zones_of(candidates, zone_of).values(), key=len, reverse=True)
    places = [place for zone in zones for place in zone]
    if len(places) < count:
        return Refusal({**counts, Reason.CARDS_INSUFFICIENT: len(places)}, len(walk.cards))
    return picked(candidates, places[:count])


def share_of_largest_zones(
    entries: Sequence[tuple[Entry, ...]], cards: Mapping[str, Card], zone_of: ZoneOf[Z]
) -> float:
    """Per container the part of its cards that lies in its largest zone, added up; 0 once any card is in no zone.

    Worked: zones 0, 0, 1 are 2/3; a second container with both cards in one zone makes it 5/3.
    """
    total = 0.0
    for container in entries:
        zones = [zone_of(cards[entry.uuid]) if entry.uuid in cards else None for entry in container]
        if any(zone is None for zone in zones):
            return 0.0
        if zones:
            total += max(zones.count(zone) for zone in zones) / len(zones)
    return total
