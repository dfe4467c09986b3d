"""Choosing by links: the worked example, ties, quota, MIG, groups; brute force is in the properties."""

from collections.abc import Mapping, Sequence

import pytest

from devices.choose import best_linked
from devices.fit import Candidates, Headroom
from devices.model import CardState, Charge, Entry, Placement
from tests.builders import card_state, entry, mig_card, nvidia, request, walk

PAIRS = {(0, 1): 100, (0, 2): 100, (0, 3): 200, (1, 2): 200, (1, 3): 100, (2, 3): 200}
"""Pair scores of the worked example, gpu0 to gpu3."""


def linked(uuids: Sequence[str], pairs: Mapping[tuple[str, str], int], sizes: Mapping[str, int]) -> Candidates:
    """A group in this walk order; scores count in both directions unless the other one is given too."""
    states: list[CardState] = []
    for uuid in uuids:
        scores = {b: score for (a, b), score in pairs.items() if a == uuid}
        scores |= {a: score for (a, b), score in pairs.items() if b == uuid and (b, a) not in pairs}
        states.append(card_state(uuid, pair_scores=scores))
    return Candidates(tuple(states), tuple(entry(uuid, sizes.get(uuid, 1000)) for uuid in uuids))


def worked(*order: int) -> Candidates:
    return linked([f"gpu{n}" for n in order], {(f"gpu{a}", f"gpu{b}"): s for (a, b), s in PAIRS.items()}, {})


def pick(groups: Sequence[Candidates], count: int, headroom: Headroom | None = None, spent: int = 0) -> str | None:
    asks = walk(request(count, memory_mib=1000), headroom=headroom, spent=Charge(spent))
    found = best_linked(groups, asks, nvidia().price)
    return None if found is None else " ".join(one.uuid for one in found.entries)


WORKED = {
    "one: the least linked, the earlier of two": ((3, 2, 1, 0), 1, "gpu1"),
    "one, walked the other way round": ((0, 1, 2, 3), 1, "gpu0"),
    "two: the first of three best pairs": ((3, 2, 1, 0), 2, "gpu3 gpu2"),
    "two, walked the other way round": ((0, 1, 2, 3), 2, "gpu0 gpu3"),
    "three: the first of two best": ((3, 2, 1, 0), 3, "gpu3 gpu2 gpu1"),
    "all": ((3, 2, 1, 0), 4, "gpu3 gpu2 gpu1 gpu0"),
}


@pytest.mark.parametrize(("order", "count", "expected"), WORKED.values(), ids=WORKED)
def test_worked_example(order: tuple[int, ...], count: int, expected: str) -> None:
    assert pick([worked(*order)], count) == expected


@pytest.mark.parametrize("count", [1, 2, 3])
def test_without_scores_the_first_walked_win(count: int) -> None:
    assert pick([linked("abcd", {}, {})], count) == " ".join("abcd"[:count])


def test_the_score_is_the_earlier_cards_towards_the_later_one() -> None:
    one_way = {("a", "b"): 0, ("b", "a"): 500, ("a", "c"): 10, ("c", "a"): 0}
    assert pick([linked("abc", one_way, {})], 2) == "a c"
    assert pick([linked("bac", one_way, {})], 2) == "b a"


def test_negative_scores() -> None:
    bad = {("a", "b"): -5, ("a", "c"): -1, ("b", "c"): -3}
    assert pick([linked("abc", bad, {})], 2) == "a c"
    assert pick([linked("abc", bad, {})], 1) == "b"


GROUPS = {
    "the better sum wins though walked later": (2, {("c", "d"): 10, ("a", "b"): 5}, "c d"),
    "a tie goes to the group walked first": (2, {("c", "d"): 5, ("a", "b"): 5}, "a b"),
    "one card: the smaller sum wins": (1, {("a", "b"): 10}, "c"),
}


@pytest.mark.parametrize(("count", "pairs", "expected"), GROUPS.values(), ids=GROUPS)
def test_groups(count: int, pairs: dict[tuple[str, str], int], expected: str) -> None:
    assert pick([linked("ab", pairs, {}), linked("cd", pairs, {})], count) == expected


QUOTAS = {
    "the best subset is beyond the quota": (2, {("a", "b"): 9, ("b", "c"): 5}, 5999, 0, "b c"),
    "the best subset is just within it": (2, {("a", "b"): 9, ("b", "c"): 5}, 6000, 0, "a b"),
    "beside what is spent": (2, {("a", "b"): 9, ("b", "c"): 5}, 6000, 1, "b c"),
    "one card within the quota": (1, {("b", "c"): 5}, 3999, 0, "b"),
    "none at all": (2, {}, 2999, 0, None),
    "not one": (1, {}, 999, 0, None),
}


@pytest.mark.parametrize(("count", "pairs", "memory", "spent", "expected"), QUOTAS.values(), ids=QUOTAS)
def test_quota(count: int, pairs: dict[tuple[str, str], int], memory: int, spent: int, expected: str | None) -> None:
    sizes = {"a": 4000, "b": 2000, "c": 1000}
    assert pick([linked("abc", pairs, sizes)], count, Headroom(memory), spent) == expected


def instances(*starts: int) -> tuple[Entry, ...]:
    return tuple(entry("m", 9984, 29, profile="2g.10gb", placement=Placement(start, 2)) for start in starts)


def test_the_kth_entry_taken_from_a_card_is_the_kth_it_gives() -> None:
    mig = card_state(mig_card("m", pair_scores={"a": 7}))
    shared = card_state("a", pair_scores={"m": 7})
    group = Candidates((shared, mig, mig), (entry("a"), *instances(0, 2)))
    found = best_linked([group], walk(request(2, memory_mib=8000)), nvidia().price)
    assert found is not None
    assert found.entries == (entry("a"), *instances(0))
    lonely = best_linked([group], walk(request(1, memory_mib=8000)), nvidia().price)
    assert lonely is not None
    assert lonely.entries == instances(0)


def test_no_groups() -> None:
    assert pick([], 1) is None
