"""Every history, within bounds, of two replicas and one card: never two pods on it. And which rule keeps which history out.

The search runs over the real rules (`scheduler.leadership`). Time goes in whole steps; whatever happens within one step may happen in
any order. kube-scheduler is taken at its worst: it asks any replica to bind any pod at any time, and its Lease changes hands as soon
as it was released or has run out. A Binding lands less than `TIMEOUT` after it was sent, or never; the pod watch is late by any time.
The card is booked twice as soon as a Binding goes out while that of another pod is under way or has landed: both may land then.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import pytest

from scheduler.leadership import CaughtUp, Event, Gone, Lease, Listed, Phase, Rules, Seen, Standing, Tick, after

DURATION, TIMEOUT, MARGIN = 4, 2, 1
RULES = Rules.of(TIMEOUT, MARGIN)
OLDEST = DURATION
"""What is older counts as much as that."""


class Found(NamedTuple):
    """A Lease in a form that is quickly compared. `holder` None: released."""

    holder: int | None
    term: int


class Replica(NamedTuple):
    """`standing` is a number in STANDINGS. `booked`: it knows the card to be taken, from its pod watch or because it sent the Binding.

    `stamped`: its own pod is patched; `owes`: the Binding that had landed by then has not been shown to it. `news`: Leases that its
    watch has not delivered, each with its age.
    """

    standing: int = 0
    booked: bool = False
    stamped: bool = False
    owes: bool = False
    news: tuple[tuple[Found, int], ...] = ()


class World(NamedTuple):
    """`age`: time since the Lease was renewed. `flight`: age of the Binding under way. `landed`: a pod has the card."""

    lease: Found | None
    age: int
    one: Replica
    two: Replica
    flight: int | None = None
    sender: int | None = None
    """Who waits for the outcome of the flight."""
    landed: bool = False
    restarts: int = 0
    twice: bool = False


@dataclass(frozen=True)
class Bounds:
    """What may happen, and with which rules. `lags`: how late the watch of the Lease may be, of the replica that leads first and of the other; None for any time."""

    lags: tuple[int | None, int | None] = (MARGIN, MARGIN)
    queue: int = 2
    """How many changes of the Lease a watch may be behind."""
    releases: bool = True
    terms: int = 2
    restarts: int = 0
    gaps: bool = False
    rules: Rules = RULES
    stamps: bool = True
    ages: bool = True
    tells_of_lists: bool = True


STANDINGS = [Standing()]
NUMBERS = {STANDINGS[0]: 0}


def number_of(standing: Standing) -> int:
    """What cannot matter any more is alike; the number of a term never does."""
    held = standing.lease is not None and standing.lease.holder
    plain = replace(
        standing,
        lease=None if standing.lease is None else replace(standing.lease, renewed=""),
        term=0,
        seen_at_s=standing.seen_at_s if held else None,
        renewed_at_s=None if standing.phase is Phase.FOLLOWING else standing.renewed_at_s,
        may_bind_from_s=max(0.0, standing.may_bind_from_s) if standing.phase is Phase.WAITING else 0.0,
    )
    if plain not in NUMBERS:
        NUMBERS[plain] = len(STANDINGS)
        STANDINGS.append(plain)
    return NUMBERS[plain]


def told(before: Standing, event: Event, rules: Rules) -> tuple[int, bool]:
    """The standing, and whether a stamp made before is still good."""
    following = after(before, event, 0.0, rules)
    good = following.phase is Phase.STAMPING and (before.phase, before.term) == (following.phase, following.term)
    return number_of(following), good


@cache
def after_seeing(standing: int, found: Found, place: int, age: int, rules: Rules) -> tuple[int, bool]:
    # What a watch or a list brings has changed: a renewal, where it is nothing else.
    name, duration = ("", 1.0) if found.holder is None else (f"host-{found.holder}", float(DURATION))
    lease = Lease("u", name, "", found.term, "renewed", duration)
    return told(STANDINGS[standing], Seen(lease, found.holder == place, float(age)), rules)


@cache
def after_list(standing: int, rules: Rules) -> tuple[int, bool]:
    return told(STANDINGS[standing], Listed(), rules)


@cache
def after_catching_up(standing: int, rules: Rules) -> tuple[int, bool]:
    return told(STANDINGS[standing], CaughtUp(STANDINGS[standing].term), rules)


@cache
def after_a_step(standing: int, rules: Rules) -> tuple[int, bool]:
    """Now is always 0: what lies behind moves back."""
    before = STANDINGS[standing]
    seen_at, renewed_at = before.seen_at_s, before.renewed_at_s
    shifted = replace(
        before,
        seen_at_s=None if seen_at is None else max(-OLDEST, seen_at - 1),
        renewed_at_s=None if renewed_at is None else max(-OLDEST, renewed_at - 1),
        may_bind_from_s=before.may_bind_from_s - 1,
    )
    return told(shifted, Tick(), rules)


@cache
def may_bind(standing: int, rules: Rules) -> bool:
    return STANDINGS[standing].may_bind(0.0, rules)


def moved(replica: Replica, outcome: tuple[int, bool]) -> Replica:
    standing, good = outcome
    return Replica(standing, replica.booked, good and replica.stamped, good and replica.owes, replica.news)


def sees(replica: Replica, found: Found, age: int, place: int, bounds: Bounds) -> Replica:
    counted = age if found.holder == place and bounds.ages else 0
    return moved(replica, after_seeing(replica.standing, found, place, counted, bounds.rules))


def put(world: World, place: int, replica: Replica) -> World:
    return world._replace(one=replica) if place == 0 else world._replace(two=replica)


def later(world: World, bounds: Bounds) -> Iterator[World]:
    """One step of time, unless something must happen before."""
    late = any(
        lag is not None and any(age >= lag for _, age in replica.news)
        for lag, replica in zip(bounds.lags, (world.one, world.two), strict=True)
    )
    if late or (world.flight is not None and world.flight + 1 >= TIMEOUT):
        return
    one, two = (
        moved(r, after_a_step(r.standing, bounds.rules))._replace(
            news=tuple((found, min(age + 1, OLDEST)) for found, age in r.news)
        )
        for r in (world.one, world.two)
    )
    flight = None if world.flight is None else world.flight + 1
    yield world._replace(age=min(world.age + 1, OLDEST), one=one, two=two, flight=flight)


def elections(world: World, bounds: Bounds) -> Iterator[World]:
    holder, term = world.lease if world.lease is not None else Found(None, 0)
    written = []
    if holder is not None and world.age:
        written.append(Found(holder, term))
    if holder is not None and bounds.releases:
        written.append(Found(None, term))
    if (holder is None or world.age >= DURATION) and term < bounds.terms:
        # The replicas are alike until one of them has led.
        written += [Found(place, term + 1) for place in range(2 if term else 1)]
    one, two = world.one, world.two
    if max(len(one.news), len(two.news)) < bounds.queue:
        for changed in written:
            news = ((changed, 0),)
            shown = world._replace(one=one._replace(news=one.news + news), two=two._replace(news=two.news + news))
            yield shown._replace(lease=changed, age=0)


def outcomes(world: World) -> Iterator[World]:
    """The Binding under way lands, or is lost."""
    if world.flight is None:
        return
    over = world._replace(flight=None, sender=None)
    yield over._replace(landed=True)
    if world.sender is not None:
        over = put(over, world.sender, (world.one, world.two)[world.sender]._replace(booked=False))
    yield over


def of_replica(world: World, place: int, bounds: Bounds) -> Iterator[World]:
    replica = (world.one, world.two)[place]
    if replica.news:
        (found, age), *rest = replica.news
        yield put(world, place, sees(replica._replace(news=tuple(rest)), found, age, place, bounds))
        if bounds.gaps and world.lease is not None:
            listed = replica._replace(news=())
            if bounds.tells_of_lists:
                listed = moved(listed, after_list(listed.standing, bounds.rules))
            yield put(world, place, sees(listed, world.lease, world.age, place, bounds))
    if world.landed and not replica.booked:
        yield put(world, place, replica._replace(booked=True, owes=False))
    if STANDINGS[replica.standing].phase is Phase.STAMPING:
        if bounds.stamps and not replica.stamped:
            yield put(world, place, replica._replace(stamped=True, owes=world.landed and not replica.booked))
        elif not replica.owes:
            yield put(world, place, moved(replica, after_catching_up(replica.standing, bounds.rules)))
    if not replica.booked and may_bind(replica.standing, bounds.rules):
        if world.landed or world.flight is not None:
            yield world._replace(twice=True)
        else:
            yield put(world, place, replica._replace(booked=True))._replace(flight=0, sender=place)
    if world.restarts < bounds.restarts:
        anew = Replica(told(Standing(), Gone(), bounds.rules)[0], booked=world.landed)
        if world.lease is not None:
            anew = sees(anew, world.lease, world.age, place, bounds)
        sender = None if world.sender == place else world.sender
        yield put(world, place, anew)._replace(sender=sender, restarts=world.restarts + 1)


def steps(world: World, bounds: Bounds) -> Iterator[World]:
    yield from later(world, bounds)
    yield from elections(world, bounds)
    yield from outcomes(world)
    yield from of_replica(world, 0, bounds)
    yield from of_replica(world, 1, bounds)


def search(bounds: Bounds) -> tuple[int, int, bool]:
    """How many states there are, in how many the card is taken, and whether it can be taken twice."""
    start = World(None, 0, Replica(), Replica())
    known, waiting, taken = {start}, deque([start]), 0
    while waiting:
        world = waiting.popleft()
        taken += world.landed
        if world.landed and world.one.booked and world.two.booked:
            continue  # everybody knows, also after a restart: nothing can go wrong any more
        for following in steps(world, bounds):
            if following.twice:
                return len(known), taken, True
            if following not in known:
                known.add(following)
                waiting.append(following)
    return len(known), taken, False


HOLDS = {
    "Leases that are released or run out": Bounds(),
    "three terms": Bounds(terms=3, releases=False),
    "restarts": Bounds(restarts=1),
    "a watch that is late by any time": Bounds(lags=(None, None), releases=False),
    "a watch of the next leader that is late by any time, with gaps": Bounds(lags=(0, None), queue=3, gaps=True),
    "a clock of the machine that says nothing, for a watch within the margin": Bounds(ages=False, releases=False),
}


@pytest.mark.parametrize("bounds", HOLDS.values(), ids=HOLDS)
def test_no_history_books_the_card_twice(bounds: Bounds) -> None:
    states, taken, twice = search(bounds)
    assert not twice
    assert states > taken > 100


BROKEN = {
    "Bindings to the last moment": Bounds(rules=Rules(0, RULES.wait_s)),
    "no wait after a Lease that was handed over": Bounds(rules=Rules(RULES.needed_s, 0)),
    "a wait that leaves no time for a watch that is late": Bounds(rules=Rules(RULES.needed_s, TIMEOUT)),
    "no wait after a restart": Bounds(rules=Rules(RULES.needed_s, 0), restarts=1, releases=False),
    "no stamp": Bounds(stamps=False),
    "Bindings without a margin": Bounds(rules=Rules(TIMEOUT, RULES.wait_s), ages=False, releases=False),
    "the age of a late renewal does not count": Bounds(lags=(None, None), releases=False, ages=False),
    "what a list skipped passes for seen": Bounds(lags=(0, None), queue=3, gaps=True, tells_of_lists=False),
}


@pytest.mark.parametrize("bounds", BROKEN.values(), ids=BROKEN)
def test_each_rule_keeps_a_history_out(bounds: Bounds) -> None:
    assert search(bounds)[2]
