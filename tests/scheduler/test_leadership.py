"""When a replica leads, follows or waits: the plain rules, case by case."""

from dataclasses import replace

import pytest

from scheduler.leadership import CaughtUp, Event, Gone, Lease, Listed, Phase, Rules, Seen, Standing, Tick, after

RULES = Rules.of(bind_timeout_s=5, margin_s=1)
OURS = Lease("u", "host_1", "acquired-1", 3, "r0", 15.0)
THEIRS = Lease("u", "other_9", "acquired-0", 2, "r0", 15.0)
RELEASED = Lease("u", "", "acquired-0", 2, "r9", 1.0)


def ours(renewal: int, age_s: float = 0.0, **changed: object) -> Seen:
    return Seen(replace(OURS, renewed=f"r{renewal}", **changed), True, age_s)  # type: ignore[arg-type] # fields of several types in one mapping


def theirs(renewal: int) -> Seen:
    return Seen(replace(THEIRS, renewed=f"r{renewal}"), False)


def told(*events: tuple[float, Event], rules: Rules = RULES) -> Standing:
    standing = Standing()
    for now_s, event in events:
        standing = after(standing, event, now_s, rules)
    return standing


LEADING: tuple[tuple[float, Event], ...] = ((0, theirs(0)), (20, ours(0)), (21, CaughtUp(1)))

PHASES = {
    "no Lease": ([(0, Gone())], Phase.FOLLOWING, 0),
    "a Lease of another": ([(0, theirs(0)), (5, theirs(1))], Phase.FOLLOWING, 0),
    "after a Lease that ran out there is no wait": ([(0, theirs(0)), (15, ours(0))], Phase.STAMPING, 1),
    "after one that was handed over there is": ([(0, theirs(0)), (14.9, ours(0))], Phase.WAITING, 1),
    "as long as a Binding and the margin": ([(0, theirs(0)), (9, ours(0)), (14.9, Tick())], Phase.WAITING, 1),
    "and no longer": ([(0, theirs(0)), (9, ours(0)), (15, Tick())], Phase.STAMPING, 1),
    "a released Lease tells nothing of when it ran out": (
        [(0, theirs(0)), (1, Seen(RELEASED, False)), (40, ours(0))],
        Phase.WAITING,
        1,
    ),
    "a Lease that was gone before": ([(0, theirs(0)), (1, Gone()), (40, ours(0))], Phase.WAITING, 1),
    "renewals that a list may have skipped": ([(0, theirs(0)), (14, Listed()), (16, ours(0))], Phase.WAITING, 1),
    "renewals seen again after the list": (
        [(0, theirs(0)), (14, Listed()), (14, theirs(1)), (29, ours(0))],
        Phase.STAMPING,
        1,
    ),
    "the first Lease seen may be that of an earlier process": ([(0, ours(0)), (6, Tick())], Phase.WAITING, 1),
    "whose holder lives as soon as it renews": ([(0, ours(0)), (2, ours(1)), (6, Tick())], Phase.STAMPING, 1),
    "and not before its time": ([(0, ours(0)), (2, ours(1)), (5.9, Tick())], Phase.WAITING, 1),
    "the pod watch has caught up": ([*LEADING], Phase.LEADING, 1),
    "that of an earlier term does not count": (
        [*LEADING, (22, theirs(0)), (40, ours(1, acquired="acquired-2")), (41, CaughtUp(1))],
        Phase.STAMPING,
        2,
    ),
    "catching up while waiting means nothing": (
        [(0, theirs(0)), (9, ours(0)), (10, CaughtUp(1)), (15, Tick())],
        Phase.STAMPING,
        1,
    ),
    "renewed": ([*LEADING, (30, ours(1)), (44, Tick())], Phase.LEADING, 1),
    "the same news again is no renewal": ([*LEADING, (34, ours(0)), (35, Tick())], Phase.FOLLOWING, 1),
    "run out": ([*LEADING, (35, Tick())], Phase.FOLLOWING, 1),
    "run out while taking over": ([(0, theirs(0)), (20, ours(0)), (35, CaughtUp(1))], Phase.FOLLOWING, 1),
    "deleted": ([*LEADING, (22, Gone())], Phase.FOLLOWING, 1),
    "released": ([*LEADING, (22, Seen(RELEASED, False))], Phase.FOLLOWING, 1),
    "taken by another": ([*LEADING, (22, theirs(0))], Phase.FOLLOWING, 1),
    "the same holder once more": ([*LEADING, (22, ours(1, acquired="acquired-2"))], Phase.WAITING, 2),
    "another kube-scheduler beside us": ([*LEADING, (22, ours(1, holder="host_2"))], Phase.WAITING, 2),
    "a Lease made anew": ([*LEADING, (22, ours(1, uid="v"))], Phase.WAITING, 2),
    "gone on with after it ran out": ([*LEADING, (35, Tick()), (36, ours(1))], Phase.WAITING, 2),
    "which waits its time": ([*LEADING, (35, Tick()), (36, ours(1)), (41.9, Tick())], Phase.WAITING, 2),
}


@pytest.mark.parametrize(("events", "phase", "term"), PHASES.values(), ids=PHASES)
def test_where_a_replica_stands(events: list[tuple[float, Event]], phase: Phase, term: int) -> None:
    standing = told(*events)
    assert (standing.phase, standing.term) == (phase, term)


LEFT = {
    "all of it": ([*LEADING], 20, 15.0, True),
    "enough for a Binding": ([*LEADING], 29, 6.0, True),
    "not enough": ([*LEADING], 29.1, 5.9, False),
    "nothing": ([*LEADING], 36, 0.0, False),
    "a late renewal counts from when it was made": ([*LEADING, (30, ours(1, age_s=4))], 30, 11.0, True),
    "never back behind an earlier one": ([*LEADING, (21, ours(1)), (22, ours(2, age_s=9))], 22, 14.0, True),
    "not while taking over": ([(0, theirs(0)), (20, ours(0))], 20, 15.0, False),
    "nothing of another's": ([(0, theirs(0))], 0, 0.0, False),
    "nothing of one that was not seen renewed": ([(0, ours(0))], 0, 0.0, False),
}


@pytest.mark.parametrize(("events", "now_s", "left_s", "may"), LEFT.values(), ids=LEFT)
def test_what_is_left_for_a_binding(events: list[tuple[float, Event]], now_s: float, left_s: float, may: bool) -> None:
    standing = told(*events)
    assert standing.left_s(now_s) == pytest.approx(left_s)
    assert standing.may_bind(now_s, RULES) is may


NEXT = {
    "the end of the wait": ([(0, theirs(0)), (9, ours(0))], 15),
    "the end of the Lease": ([*LEADING], 35),
    "nothing while following": ([(0, theirs(0))], None),
    "nothing before a renewal was seen": ([(0, ours(0))], None),
}


@pytest.mark.parametrize(("events", "due_s"), NEXT.values(), ids=NEXT)
def test_when_time_alone_changes_something(events: list[tuple[float, Event]], due_s: float | None) -> None:
    assert told(*events).next_s() == due_s
