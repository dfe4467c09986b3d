"""Choosing N of the cards that pass by how well they are linked (`topology-aware`)."""

from collections.abc import Callable, Sequence

from devices.fit import Candidates, Walk
from devices.model import Charge, Entry

__all__ = ["best_linked"]


def best_linked(groups: Sequence[Candidates], walk: Walk, price: Callable[[Entry], Charge]) -> Candidates | None:
    """N cards of one group: the best linked ones, or for N = 1 the one whose links are missed least.

    Among groups the best sum wins (N = 1: the smallest); every tie goes to what was met first in the walk. Subsets beyond the
    namespace's quota do not compete; None when no subset is within it. Scores are the earlier card's towards the later one.
    """
    count = walk.request.count
    best: tuple[int, Candidates] | None = None
    for group in groups:
        found = _least_linked(group, walk, price) if count == 1 else _most_linked(group, count, walk, price)
        if found is not None and (best is None or found[0] > best[0]):
            best = found
    return best[1] if best else None


def _pick(group: Candidates, places: Sequence[int]) -> Candidates:
    """The chosen places; the k-th entry taken from a card is the k-th the card gives."""
    given: dict[str, int] = {}
    entries = []
    for place in places:
        uuid = group.entries[place].uuid
        nth = given.get(uuid, 0)
        given[uuid] = nth + 1
        entries.append([entry for entry in group.entries if entry.uuid == uuid][nth])
    return Candidates(tuple(group.states[place] for place in places), tuple(entries))


def _affordable(chosen: Candidates, walk: Walk, price: Callable[[Entry], Charge]) -> bool:
    if walk.headroom is None:
        return True
    charge = walk.spent
    for entry in chosen.entries:
        charge += price(entry)
    return walk.headroom.admits(charge)


def _least_linked(group: Candidates, walk: Walk, price: Callable[[Entry], Charge]) -> tuple[int, Candidates] | None:
    best: tuple[int, Candidates] | None = None
    for place, state in enumerate(group.states):
        total = sum(
            state.card.pair_scores.get(other.card.uuid, 0) for n, other in enumerate(group.states) if n != place
        )
        chosen = _pick(group, [place])
        if _affordable(chosen, walk, price) and (best is None or -total > best[0]):
            best = (-total, chosen)
    return best


def _most_linked(
    group: Candidates, count: int, walk: Walk, price: Callable[[Entry], Charge]
) -> tuple[int, Candidates] | None:
    """Depth first over subsets in lexicographic walk order; a branch that cannot beat the best sum or pay is left out."""
    size = len(group.states)
    uuids = [state.card.uuid for state in group.states]
    links = [state.card.pair_scores for state in group.states]
    score = [[links[a].get(uuids[b], 0) for b in range(size)] for a in range(size)]
    highest = max((value for row in score for value in row), default=0)
    best: tuple[int, list[int]] | None = None

    def extend(places: list[int], total: int, gains: list[int]) -> None:
        """`gains`: what each place adds to the sum through its pairs with those chosen."""
        nonlocal best
        missing = count - len(places)
        if walk.headroom is not None and not _affordable(_pick(group, places), walk, price):
            return
        if missing == 0:
            # Only a strictly better sum: the first subset met keeps a tie.
            if best is None or total > best[0]:
                best = (total, places)
            return
        start = places[-1] + 1 if places else 0
        # What may still come: the largest gains among the places left, and pairs among the new ones at the highest score.
        most = sum(sorted(gains[start:], reverse=True)[:missing]) + missing * (missing - 1) // 2 * highest
        for place in range(start, size - missing + 1):
            if best is not None and total + most <= best[0]:
                return
            row = score[place]
            extend([*places, place], total + gains[place], [gain + more for gain, more in zip(gains, row, strict=True)])

    extend([], 0, [0] * size)
    return (best[0], _pick(group, best[1])) if best is not None else None
