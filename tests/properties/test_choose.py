"""The choice by links equals the choice among all subsets; and a walk hands out no more than its cards have."""

from collections import Counter
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from devices.choose import best_linked
from devices.fit import Candidates, Headroom, Refusal, Walk, collect
from devices.model import CardState, Charge, Entry, Placement
from devices.reasons import Reason
from tests.builders import nvidia, request, walk
from tests.strategies import card_states

VENDOR = nvidia()


@st.composite
def groups(draw: st.DrawFn) -> list[Candidates]:
    """Up to three groups of cards that pass; a MIG card may stand several times."""
    states = draw(card_states(6))
    found: list[tuple[list[CardState], list[Entry]]] = [([], [])]
    for state in states:
        if found[-1][0] and draw(st.sampled_from([False, False, True])) and len(found) < 3:
            found.append(([], []))
        for start in range(draw(st.integers(1, 3)) if state.card.mode == "mig" else 1):
            memory, cores = draw(st.sampled_from([1000, 2000, 4000])), draw(st.sampled_from([0, 10, 50]))
            place = Placement(start, 1) if state.card.mode == "mig" else None
            found[-1][0].append(state)
            found[-1][1].append(Entry(state.card.uuid, "NVIDIA", memory, cores, placement=place))
    return [Candidates(tuple(states), tuple(entries)) for states, entries in found]


limits = st.none() | st.integers(0, 12000)
headrooms = st.none() | st.builds(Headroom, limits, st.none() | st.integers(0, 150), st.none() | st.integers(0, 4))


def by_brute_force(among: list[Candidates], asks: Walk) -> tuple[Entry, ...] | None:
    """Every subset of every group in walk order; the first best one within the quota."""
    count = asks.request.count
    best: tuple[int, tuple[Entry, ...]] | None = None
    for group in among:
        states = group.states
        for places in combinations(range(len(states)), count):
            given_: Counter[str] = Counter()
            entries = []
            for place in places:
                uuid = states[place].card.uuid
                entries.append([e for e in group.entries if e.uuid == uuid][given_[uuid]])
                given_[uuid] += 1
            cost = (
                asks.spent.memory_mib + sum(e.memory_mib for e in entries),
                asks.spent.cores + sum(e.cores for e in entries),
                asks.spent.cards + count,
            )
            room = asks.headroom or Headroom()
            if any(
                limit is not None and taken > limit
                for taken, limit in zip(cost, (room.memory_mib, room.cores, room.cards), strict=True)
            ):
                continue
            if count == 1:
                others = [s for n, s in enumerate(states) if n != places[0]]
                total = -sum(states[places[0]].card.pair_scores.get(s.card.uuid, 0) for s in others)
            else:
                total = sum(states[a].card.pair_scores.get(states[b].card.uuid, 0) for a, b in combinations(places, 2))
            if best is None or total > best[0]:
                best = (total, tuple(entries))
    return best[1] if best else None


@settings(max_examples=150)
@given(groups(), st.integers(1, 4), headrooms, st.integers(0, 3000))
def test_the_best_linked_are_those_that_brute_force_finds(
    among: list[Candidates], count: int, headroom: Headroom | None, spent: int
) -> None:
    asks = walk(request(count, memory_mib=1000), headroom=headroom, spent=Charge(spent))
    found = best_linked(among, asks, VENDOR.price)
    assert (found.entries if found else None) == by_brute_force(among, asks)
    if found is not None:
        assert [state.card.uuid for state in found.states] == [entry.uuid for entry in found.entries]


def within(state: CardState, entries: list[Entry], cores: int) -> None:
    """A card takes what it was given on top of what it had."""
    places = [e.placement for e in entries if e.placement]
    assert state.healthy
    assert not state.cordoned
    assert state.used_slots + len(entries) <= state.card.slots
    if state.card.mode == "mig":
        taken = [*state.placements, *places]
        assert len(places) == len(entries)
        assert not any(a.conflicts(b) for n, a in enumerate(taken) for b in taken[:n] if a in places or b in places)
    else:
        assert len(entries) == 1
        assert state.used_memory_mib + entries[0].memory_mib <= state.card.memory_mib
        assert state.used_cores + entries[0].cores <= state.card.cores
        assert entries[0].cores == cores


requests = st.builds(
    request,
    st.integers(1, 4),
    st.sampled_from([0, 1000, 4000, 8000, 20000]),
    st.none() | st.sampled_from([10, 50, 100]),
    st.sampled_from([0, 30, 100, 150]),
)
annotations = st.dictionaries(
    st.sampled_from(["nvidia.com/numa-bind", "nvidia.com/vgpu-mode", "nvidia.com/use-gputype"]),
    st.sampled_from(["true", "mig", "hami-core,mig", "T4", "A100,A10"]),
    max_size=2,
)
policies = st.sets(st.sampled_from(["mutex", "topology-aware", "spread"]))


@settings(max_examples=200)
@given(card_states(), requests, annotations, policies, headrooms)
def test_what_a_walk_gives_its_cards_have_and_the_quota_pays(
    states: list[CardState], asked: object, rules: dict[str, str], words: set[str], headroom: Headroom | None
) -> None:
    asks = walk(asked, rules, policies=words, headroom=headroom, vendor=VENDOR)  # type: ignore[arg-type]  # drawn from `requests`
    found = collect(states, asks)
    if isinstance(found, Refusal):
        assert set(found.counts) <= set(Reason)
        assert all(count > 0 for count in found.counts.values())
        assert found.cards == len(states)
        assert found.text
        return
    assert len(found.entries) == asks.request.count
    by_card: dict[str, list[Entry]] = {}
    for entry in found.entries:
        by_card.setdefault(entry.uuid, []).append(entry)
    for state in states:
        if state.card.uuid in by_card:
            within(state, by_card[state.card.uuid], asks.cores)
            assert VENDOR.selects(asks.selection, state.card)
            assert "mutex" not in words or state.used_slots == 0
    if rules.get("nvidia.com/numa-bind") == "true":
        assert len({s.card.numa for s in states if s.card.uuid in by_card}) == 1
    if headroom is not None:
        cost = Charge()
        for entry in found.entries:
            cost += VENDOR.price(entry)
        assert headroom.admits(cost)


@settings(max_examples=80)
@given(card_states(), requests, annotations, policies)
def test_a_limit_that_is_not_reached_changes_nothing(
    states: list[CardState], asked: object, rules: dict[str, str], words: set[str]
) -> None:
    free = collect(states, walk(asked, rules, policies=words, vendor=VENDOR))  # type: ignore[arg-type]  # drawn from `requests`
    wide = Headroom(10**9, 10**9, 10**9)
    assert collect(states, walk(asked, rules, policies=words, headroom=wide, vendor=VENDOR)) == free  # type: ignore[arg-type]  # drawn from `requests`
