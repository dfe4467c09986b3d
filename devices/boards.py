"""Boards of eight cards in two wings of four, each card linked within its wing and with its counterpart in the other.

Cards in index order form boards; places are counted within a board. A choice wastes as little as it can: a wing that comes out
exactly, then a wing with cards to spare, then linked cards of both wings.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import permutations
from types import MappingProxyType

from devices.fit import Candidates, Family, Refusal, Walk
from devices.model import CardState
from devices.reasons import Reason

__all__ = ["BOARD", "choose_on_boards", "from_boards", "loose_ends", "loose_ends_added", "on_board", "tidiness"]

BOARD = 8
_WING = 4
_COUNTERPARTS = frozenset(frozenset({place, place + _WING}) for place in range(_WING))
_SQUARES = ((0, 1, 4, 5), (2, 3, 6, 7), (0, 2, 4, 6), (1, 3, 5, 7), (0, 3, 4, 7), (1, 2, 5, 6))
"""Four cards of both wings with all their links, in the order they are tried."""
_BEST_SIZES = MappingProxyType({1: (1, 3, 2, 4), 2: (2, 3, 4), 4: (4,)})
"""By number of cards asked: how many free cards a wing should have to give them, best first."""
_GAINS = MappingProxyType({-1: 3000.0, 0: 2000.0, 1: 1000.0, 2: 0.0})
"""Score by how many loose ends a placement adds; anything else counts as one."""


def on_board(free: Set[int], count: int) -> tuple[int, ...]:
    """The places of one board that `count` cards come from, in order; empty when there is no choice (HAMi v2.10 Kunlun, selection).

    Worked: place 0 taken, two cards are 1 and 2, four are 4 to 7; 0 and 7 taken, four are 1, 2, 5, 6.
    """
    if count == BOARD:
        return tuple(range(BOARD)) if len(free) == BOARD else ()
    left = sorted(place for place in free if place < _WING)
    right = sorted(place for place in free if place >= _WING)
    for size in _BEST_SIZES.get(count, ()):
        for wing in (left, right):
            if len(wing) == size:
                return tuple(wing[:count])
    if count == 2:
        pairs = permutations(sorted(free), 2)
        return next((pair for pair in pairs if frozenset(pair) in _COUNTERPARTS), ())
    return _square(free) if count == len(_SQUARES[0]) else ()


def _square(free: Set[int]) -> tuple[int, ...]:
    """Of six free cards the two that remain should be linked."""
    inside = [square for square in _SQUARES if set(square) <= free]
    if not inside:
        return ()
    if len(free) < 6:
        return inside[0]
    linked = (square for square in inside if _linked(free - set(square)))
    return next(linked, inside[-1])


def _linked(pair: Set[int]) -> bool:
    return pair in _COUNTERPARTS or len({place < _WING for place in pair}) == 1


def loose_ends(taken: Iterable[int]) -> int:
    """How broken up the taken places leave a board: 0 for both wings full, 2 for each wing with a lone card; 1 when idle."""
    places = set(taken)
    if not places:
        return 1
    left = sum(place < _WING for place in places)
    return sum({_WING: 0, 1: 2}.get(wing, 1) for wing in (left, len(places) - left))


def _boards(states: Sequence[CardState]) -> list[list[CardState]]:
    by_index = sorted(states, key=lambda state: (state.card.index, state.card.uuid))
    return [by_index[start : start + BOARD] for start in range(0, len(by_index), BOARD)]


def from_boards(candidates: Candidates, walk: Walk) -> Candidates | None:
    """As many as asked from the first board that has a choice among the candidates; None when none has."""
    entries = {entry.uuid: entry for entry in candidates.entries}
    for board in _boards(walk.cards):
        free = {place for place, state in enumerate(board) if state.card.uuid in entries}
        states = tuple(board[place] for place in on_board(free, walk.request.count))
        if states:
            return Candidates(states, tuple(entries[state.card.uuid] for state in states))
    return None


def choose_on_boards(
    family: Family, groups: Sequence[Candidates], walk: Walk, counts: Mapping[Reason, int]
) -> Candidates | Refusal:
    """The hook `choose` of a family with such boards. Of the reasons against single cards only one is told, as recorded."""
    found = from_boards(groups[0], walk)
    if found is not None:
        return found
    conflicts = counts.get(Reason.EXCLUSIVE_CONFLICT, 0)
    if conflicts:
        return Refusal({Reason.EXCLUSIVE_CONFLICT: conflicts}, len(walk.cards))
    foreign = sum(not walk.selection.allows_uuid(state.card) for state in walk.cards)
    return Refusal({Reason.CARD_UUID_MISMATCH: foreign} if foreign else {Reason.NUMA_NOT_FIT: 1}, len(walk.cards))


def tidiness(states: Sequence[CardState], given: Set[str]) -> float:
    """A node's score: more for leaving fewer loose ends on its boards."""
    added = loose_ends_added(states, given)
    return _GAINS.get(added, _GAINS[1])


def loose_ends_added(states: Sequence[CardState], given: Set[str]) -> int:
    """What cards with these UUIDs add to the loose ends of a node's boards; negative when they leave fewer."""
    added = 0
    for board in _boards(states):
        before = {place for place, state in enumerate(board) if state.used_slots > 0}
        now = {place for place, state in enumerate(board) if state.card.uuid in given}
        added += loose_ends(before | now) - loose_ends(before)
    return added
