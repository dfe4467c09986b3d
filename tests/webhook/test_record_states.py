"""Every history, within bounds, that pods, lagging watches, lists, crashes and expiry can make of the record's rules: never over.

The search runs over the real rules (`webhook.admitted.record`). A write by compare-and-swap is one step here: the record did not
change between decision and write, and a view older than the moment of the write is a lagging replica.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pytest

from devices.model import Charge
from webhook.admitted.record import Entry, Outstanding, Record, decide, merged, pruned, reached

IDLE, FLYING, LIVE, ENDED, LOST = "idle", "flying", "live", "ended", "lost"
ONE = {"NVIDIA": Charge(cards=1)}
ENTRY = Entry(ONE)


class Replica(NamedTuple):
    """A view: how far its watch has come, its last list, what the watch has shown (pod, revision), who lives and who has ended."""

    watch: int = 0
    listed: int = 0
    seen: tuple[tuple[int, int], ...] = ()
    alive: tuple[int, ...] = ()
    over: tuple[int, ...] = ()

    @property
    def revision(self) -> int:
        return max(self.watch, self.listed)

    def shown(self, uid: str) -> int | None:
        return next((at for pod, at in self.seen if pod == int(uid)), None)

    def counts(self, uid: str) -> bool:
        return int(uid) in self.alive

    def is_over(self, uid: str) -> bool:
        return int(uid) in self.over


class World(NamedTuple):
    """`events`: (pod, alive after it, delivered to watches), the revision is the place from 1 on."""

    pods: tuple[str, ...]
    replicas: tuple[Replica, ...]
    events: tuple[tuple[int, bool, bool], ...] = ()
    seen_through: int = 0
    listed_through: int = 0
    entries: tuple[int, ...] = ()

    @property
    def record(self) -> Record:
        return Record(self.seen_through, self.listed_through, {str(uid): ENTRY for uid in self.entries})

    def stored(self, record: Record) -> "World":
        entries = tuple(sorted(map(int, record.entries)))
        return self._replace(seen_through=record.seen_through, listed_through=record.listed_through, entries=entries)

    def pod(self, number: int, state: str) -> "World":
        return self._replace(pods=(*self.pods[:number], state, *self.pods[number + 1 :]))

    def replica(self, number: int, changed: Replica) -> "World":
        # Replicas are alike: their order makes no new state.
        return self._replace(replicas=tuple(sorted((*self.replicas[:number], changed, *self.replicas[number + 1 :]))))

    def happened(self, pod: int, alive: bool, delivered: bool = True) -> "World":
        return self._replace(events=(*self.events, (pod, alive, delivered)))


@dataclass(frozen=True)
class Bounds:
    pods: int
    replicas: int
    limit: int
    lists: bool = True
    restarts: bool = True
    lost_events: bool = False


def watched(replica: Replica, world: World) -> Replica:
    """The next event of the watch; one that is lost moves the revision alone, as the next one would."""
    pod, alive, delivered = world.events[replica.watch]
    at = replica.watch + 1
    if not delivered:
        return replica._replace(watch=at)
    seen = tuple(sorted({**dict(replica.seen), pod: at}.items()))
    if at <= replica.listed:  # a list has shown what came after it
        return replica._replace(watch=at, seen=seen)
    living = {*replica.alive, pod} if alive else {*replica.alive} - {pod}
    over = replica.over if alive else tuple(sorted({*replica.over, pod}))
    return replica._replace(watch=at, seen=seen, alive=tuple(sorted(living)), over=over)


def listing(replica: Replica, world: World) -> Replica:
    """A quorum list: it shows who lives, and that those who lived and are not in it have ended."""
    alive = tuple(n for n, state in enumerate(world.pods) if state == LIVE)
    over = {*replica.over, *replica.alive} - {*alive}
    return replica._replace(listed=len(world.events), alive=alive, over=tuple(sorted(over)))


def restarted(world: World) -> Replica:
    """A replica that starts anew: a list, and a watch from there on."""
    head = len(world.events)
    return listing(Replica(), world)._replace(watch=head)


def steps(world: World, bounds: Bounds) -> Iterator[World]:
    head, record = len(world.events), world.record
    # Too old to come into being: never created, or created long ago.
    states = (LIVE, ENDED, LOST) if bounds.lists else (LOST,)
    old = {str(n) for n in world.entries if world.pods[n] in states}
    for number, state in enumerate(world.pods):
        if state == FLYING:
            yield world.pod(number, LIVE).happened(number, True)
            if bounds.lost_events:
                yield world.pod(number, LIVE).happened(number, True, delivered=False)
            yield world.pod(number, LOST)
        elif state == LIVE:
            yield world.pod(number, ENDED).happened(number, False)
    asking = [n for n, state in enumerate(world.pods) if state in (IDLE, FLYING, LIVE)]
    first_idle = next((n for n, state in enumerate(world.pods) if state == IDLE), None)
    for place, replica in enumerate(world.replicas):
        if replica.watch < head:
            yield world.replica(place, watched(replica, world))
        if bounds.lists and replica.listed < head:
            yield world.replica(place, listing(replica, world))
        if bounds.restarts and replica.watch:
            yield world.replica(place, restarted(world))
        if old:
            fresh = listing(replica, world)
            yield world.replica(place, fresh).stored(pruned(record, fresh, old))
        if not reached(record, replica):
            continue
        shorter = pruned(record, replica)
        if shorter is not record:
            yield world.stored(shorter)
        for number in asking:
            if world.pods[number] == IDLE and number != first_idle:
                continue  # pods that have not asked yet are alike
            yield from admitted(world, record, replica, number, bounds)


@dataclass(frozen=True)
class Asking:
    uid: str
    entry: Entry = ENTRY


def admitted(world: World, record: Record, replica: Replica, number: int, bounds: Bounds) -> Iterator[World]:
    def fits(asked: Asking, outstanding: Outstanding) -> bool:
        under_way = outstanding.under().get("NVIDIA", Charge()).cards
        return len(replica.alive) + under_way + 1 <= bounds.limit

    decision = decide(record, replica, [Asking(str(number))], fits, 10_000)
    if decision.admitted:
        after = world.stored(merged(pruned(record, replica), decision.entries))
        yield after.pod(number, FLYING) if world.pods[number] == IDLE else after


def search(bounds: Bounds) -> tuple[int, int]:
    """How many states there are, and in how many of them every pod has had its turn; fails at the first overrun."""
    start = World((IDLE,) * bounds.pods, (Replica(),) * bounds.replicas)
    seen, waiting, over = {start}, [start], 0
    while waiting:
        world = waiting.pop()
        assert sum(state in (FLYING, LIVE) for state in world.pods) <= bounds.limit, world
        over += IDLE not in world.pods
        for after in steps(world, bounds):
            if after not in seen:
                seen.add(after)
                waiting.append(after)
    return len(seen), over


SEARCHES = {
    "4 pods, 3 replicas, one at a time": Bounds(4, 3, 1, lists=False, restarts=False),
    "3 pods, 3 replicas, two at a time": Bounds(3, 3, 2, lists=False, restarts=False),
    "2 pods, 2 replicas, lists and restarts": Bounds(2, 2, 1),
    "2 pods, 2 replicas, events that no watch delivers": Bounds(2, 2, 1, lost_events=True),
}


@pytest.mark.parametrize("bounds", SEARCHES.values(), ids=SEARCHES)
def test_no_history_is_over_the_limit(bounds: Bounds) -> None:
    states, over = search(bounds)
    assert states > 100
    assert over > 0
