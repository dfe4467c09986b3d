"""The node lock: whose it is, who may take it, and who waits how long for it."""

import asyncio
import logging

import pytest
from msgspec import structs

from devices.errors import LockError
from devices.kube.errors import Conflict, ServerError
from devices.node_lock import LockFormat, parse, rfc3339
from devices.objects import Pod
from lab.replay.cluster import StillClock
from scheduler.errors import BindError
from scheduler.nodelock import LockSettings, NodeLocks, lock_formats
from tests.builders import card, node, pod
from tests.scheduler.builders import (
    CONFIG,
    LOCK,
    NOW,
    NOW_S,
    Hitch,
    World,
    lost,
    settle,
    unreachable,
)

MINE = f"{NOW},default,a"
BUSY = "node n1 has been locked within 5m0s: node lock contention"


def at(seconds: float) -> str:
    """The time so many seconds from now, as locks are written."""
    return rfc3339(NOW_S + seconds)


def created(pod: Pod, seconds: float) -> Pod:
    """The pod, created so many seconds from now."""
    return structs.replace(pod, metadata=structs.replace(pod.metadata, creation_timestamp=at(seconds)))


def locked(value: str | None, *others: Pod, still: bool = False, own_age_s: float = 60) -> World:
    """A node with the lock, the pods others own locks by, and the pod `a` that wants it."""
    annotations = {} if value is None else {LOCK: value}
    world = World(node("n1", card("a"), annotations=annotations), clock=StillClock() if still else None)
    for other in (created(pod(), -own_age_s), *others):
        world.put_pod(other)
    return world


async def acquire(world: World, pod: Pod | None = None, *, gang: bool = False, until_s: float | None = None) -> str:
    try:
        await world.locks.acquire(pod or world.stored(), "n1", LOCK, gang, until_s)
    except BindError as error:
        return str(error)
    return ""


OTHER = pod(name="b", namespace="team")
BOUND_HERE, BOUND_ELSEWHERE = pod(name="b", namespace="team", node="n1"), pod(name="b", namespace="team", node="n2")

FOUND: dict[str, tuple[str | None, tuple[Pod, ...], str, bool]] = {
    # what is found, pods there are, what comes of it ("" taken), whether it is written anew
    "no lock": (None, (), "", True),
    "an empty value is no lock": ("", (), "", True),
    "another's": (f"{NOW},team,b", (OTHER,), BUSY, False),
    "another's, bound here": (f"{NOW},team,b", (BOUND_HERE,), BUSY, False),
    "one's own": (MINE, (), "", False),
    "one's own, some time ago": (f"{at(-30)},default,a", (), "", False),
    "one's own, expired": (f"{at(-301)},default,a", (), "", True),
    "one's own name's, from before the pod": (f"{at(-61)},default,a", (), "", True),
    "exactly as old as the expiry": (f"{at(-300)},team,b", (BOUND_HERE,), BUSY, False),
    "older than the expiry": (f"{at(-301)},team,b", (BOUND_HERE,), "", True),
    "the owner is unbound, and its bind may still be under way": (f"{at(-30)},team,b", (OTHER,), BUSY, False),
    "two pods whose binds failed kept each other's nodes locked": (f"{at(-31)},team,b", (OTHER,), "", True),
    "the older form": (NOW, (), BUSY, False),
    "the older form, expired": (at(-301), (), "", True),
    "the owner is gone": (f"{NOW},team,b", (), "", True),
    "the owner has succeeded": (f"{NOW},team,b", (pod(name="b", namespace="team", phase="Succeeded"),), "", True),
    "the owner has failed": (f"{NOW},team,b", (pod(name="b", namespace="team", phase="Failed"),), "", True),
    "the owner is bound elsewhere": (f"{NOW},team,b", (BOUND_ELSEWHERE,), "", True),
    **{
        f"the owner's bind phase is {phase}": (
            f"{NOW},team,b",
            (pod(name="b", namespace="team", node="n1", annotations={"hami.io/bind-phase": phase}),),
            text,
            not text,
        )
        for phase, text in (("success", ""), ("failed", ""), ("allocating", BUSY))
    },
    "the owner was made again since": (f"{at(-100)},team,b", (created(OTHER, -89),), "", True),
    "the owner was made a little later by another clock": (
        f"{at(-100)},team,b",
        (created(BOUND_HERE, -90),),
        BUSY,
        False,
    ),
    "an owner that can be no pod": (f"{NOW},team,b/c", (), "", True),
    "an owner without namespace": (f"{NOW},,b", (), "", True),
    "an owner without name": (f"{NOW},team,", (), BUSY, False),
    "no time": ("yesterday", (), "", True),
    "four parts": (f"{NOW},team,b,c", (OTHER,), "", True),
    "no such day": ("2026-02-30T00:00:00Z,team,b", (OTHER,), "", True),
    "another zone": ("2026-05-28T22:26:40+02:00,team,b", (OTHER,), BUSY, False),
    "a time ahead of our clock": (f"{at(3600)},team,b", (OTHER,), BUSY, False),
}


@pytest.mark.parametrize(("found", "others", "text", "written"), FOUND.values(), ids=FOUND)
async def test_what_is_found(found: str | None, others: tuple[Pod, ...], text: str, written: bool) -> None:
    world = locked(found, *others, still=True)
    assert await acquire(world) == text
    assert world.api.lock() == (MINE if written else found)
    if found == MINE:
        assert "patch_node" not in world.api.calls


async def test_the_value() -> None:
    world = locked(None)
    assert await acquire(world) == ""
    value = parse(world.api.lock() or "")
    assert (value.at_s, value.namespace, value.name, value.text()) == (NOW_S, "default", "a", MINE)


async def test_an_unreadable_lock_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    assert await acquire(locked(f"{NOW},x")) == ""
    assert "node n1: its lock is taken for expired: malformed lock annotation: expected 3 parts, got 2" in caplog.text
    with pytest.raises(LockError, match="expected 3 parts, got 2 from"):
        parse(f"{NOW},x")


async def test_a_time_ahead_of_our_clock_ages_from_when_we_first_saw_it() -> None:
    world = locked(f"{at(3600)},team,b", OTHER)
    assert await acquire_in_vain(world) == BUSY
    await world.clock.advance(300)
    assert await acquire_in_vain(world) == ""
    assert world.api.lock() != f"{at(3600)},team,b"


async def acquire_in_vain(world: World) -> str:
    """Acquire and let the wait for somebody else's lock end."""
    task = asyncio.create_task(acquire(world))
    await settle()
    if not task.done():
        await world.clock.advance(2)
    return await task


class TestWriting:
    async def test_a_conflict_is_tried_again(self) -> None:
        world = locked(None, still=True)
        world.api.meets("patch_node", *[Conflict(409, "Conflict", "modified")] * 4)
        assert await acquire(world) == ""
        assert world.api.calls.count("patch_node") == 5

    async def test_and_given_up_after_five_tries(self) -> None:
        world = locked(None)
        world.api.meets("patch_node", *[Conflict(409, "Conflict", "modified")] * 5)
        task = asyncio.create_task(acquire(world))
        await world.clock.advance(5)
        assert await task == (
            "failed to set node lock (node=n1, retry strategy={Duration:100ms Factor:2 Jitter:0.5 Steps:5 Cap:0s}):"
            " modified (409 Conflict)"
        )
        assert world.clock.waits == [0.1, 0.2, 0.4, 0.8]
        assert world.api.lock() is None

    async def test_every_write_rests_on_the_node_as_it_was_read(self) -> None:
        """Between reading and writing somebody else has taken the lock."""
        world = locked(None, OTHER, still=True)
        hold = asyncio.Event()
        world.api.meets("patch_node", Hitch(hold=hold))
        task = asyncio.create_task(acquire(world))
        await settle()
        world.api.silent = True
        world.api.annotate_node("n1", LOCK, f"{NOW},team,b")
        hold.set()
        assert await task == "node n1 is locked: node lock contention"
        assert world.api.lock() == f"{NOW},team,b"

    @pytest.mark.parametrize("done", [True, False])
    async def test_a_lost_reply_is_looked_into(self, done: bool) -> None:
        world = locked(None, still=True)
        world.api.meets("patch_node", Hitch(lost(), after=done))
        assert await acquire(world) == ""
        assert (world.api.lock(), world.api.calls.count("patch_node")) == (MINE, 1 if done else 2)

    @pytest.mark.parametrize("verb", ["get_node", "patch_node", "get_pod"])
    async def test_other_errors_end_it(self, verb: str) -> None:
        world = locked(f"{NOW},team,b" if verb == "get_pod" else None, still=True)
        world.api.meets(verb, ServerError(500, "InternalError", "broken"))
        assert await acquire(world) == "failed to set node lock (node=n1): broken (500 InternalError)"

    async def test_a_node_that_is_gone(self) -> None:
        world = locked(None, still=True)
        del world.api.nodes["n1"]
        assert (await acquire(world)).startswith("failed to set node lock (node=n1): nodes")


class TestWaiting:
    async def test_an_ordinary_pod_waits_two_seconds(self) -> None:
        world = locked(f"{NOW},team,b", OTHER)
        task = asyncio.create_task(acquire(world))
        await world.clock.advance(1.9)
        assert not task.done()
        await world.clock.advance(0.1)
        assert await task == BUSY

    async def test_a_gang_member_28(self) -> None:
        world = locked(f"{NOW},team,b", OTHER)
        task = asyncio.create_task(acquire(world, gang=True))
        await world.clock.advance(27.9)
        assert not task.done()
        await world.clock.advance(0.1)
        assert await task == "timed out after 28s waiting for node n1 to be unlocked: node lock contention"

    @pytest.mark.parametrize(("gang", "until", "waits_s"), [(True, 30, 28), (True, 12.5, 11.5), (False, 2.5, 1.5)])
    async def test_less_where_the_caller_would_be_gone_by_then(self, gang: bool, until: float, waits_s: float) -> None:
        world = locked(f"{NOW},team,b", OTHER)
        task = asyncio.create_task(acquire(world, gang=gang, until_s=NOW_S + until))
        await world.clock.advance(waits_s - 0.1)
        assert not task.done()
        await world.clock.advance(0.1)
        assert "node lock contention" in await task
        assert world.clock.waits == [waits_s]

    async def test_no_waiting_for_a_caller_that_has_no_time(self) -> None:
        world = locked(f"{NOW},team,b", OTHER)
        assert await acquire(world, until_s=NOW_S + 0.5) == BUSY

    async def test_it_is_woken_by_the_nodes_change(self) -> None:
        world = locked(f"{NOW},team,b", OTHER)
        task = asyncio.create_task(acquire(world))
        await settle()
        world.api.annotate_node("n1", "unrelated", "1")
        await settle()
        assert not task.done()
        world.api.annotate_node("n1", LOCK, None)
        assert await task == ""
        assert world.clock.now() == NOW_S
        world.locks.node_changed("n1")  # nobody waits: nothing to wake

    async def test_waiters_are_served_as_they_came(self) -> None:
        world = locked(f"{NOW},team,b", OTHER)
        pods = [world.put_pod(pod(name=name)) for name in ("p1", "p2", "p3")]
        served: list[str] = []

        async def one(asked: Pod) -> None:
            await world.locks.acquire(asked, "n1", LOCK, True)
            served.append(asked.name)

        tasks = []
        for asked in pods:
            tasks.append(asyncio.create_task(one(asked)))
            await settle()
        reads = world.api.calls.count("get_node")
        assert reads == 1  # only the first one asks; the others wait for their turn
        for name in ("p1", "p2", "p3"):
            world.api.annotate_node("n1", LOCK, None)
            await settle()
            assert (served[-1], world.api.lock()) == (name, f"{NOW},default,{name}")
        await asyncio.gather(*tasks)

    async def test_one_that_gives_up_lets_the_next_one_through(self) -> None:
        world = locked(f"{NOW},team,b", OTHER)
        gone, asked = world.put_pod(pod(name="p1")), world.stored()
        first = asyncio.create_task(acquire(world, gone))
        await settle()
        await world.clock.advance(1)
        second = asyncio.create_task(acquire(world, asked))
        await settle()
        await world.clock.advance(1)
        assert await first == BUSY
        world.api.annotate_node("n1", LOCK, None)
        assert await second == ""

    async def test_one_that_never_had_its_turn(self) -> None:
        world = locked(f"{NOW},team,b", OTHER)
        gang = asyncio.create_task(acquire(world, world.put_pod(pod(name="p1")), gang=True))
        await settle()
        second = asyncio.create_task(acquire(world))
        await settle()
        await world.clock.advance(2)
        assert await second == BUSY
        gang.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gang
        world.api.annotate_node("n1", LOCK, None)
        assert await acquire(world) == ""

    async def test_nodes_do_not_wait_for_each_other(self) -> None:
        world = locked(f"{NOW},team,b", OTHER)
        world.put_node(node("n2", card("z")))
        waiting = asyncio.create_task(acquire(world))
        await settle()
        await world.locks.acquire(world.put_pod(pod(name="p")), "n2", LOCK, False)
        assert world.api.lock("n2") == f"{NOW},default,p"
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting


RELEASED: dict[str, tuple[str | None, str | None]] = {
    "nothing there": (None, None),
    "one's own": (MINE, None),
    "one's own by a clock behind the pod's creation": (f"{at(-120)},default,a", None),
    "another's": (f"{NOW},default,b", f"{NOW},default,b"),
    "another namespace's": (f"{NOW},team,a", f"{NOW},team,a"),
    "the older form, which we never write": (NOW, NOW),
    "unreadable": ("x,y", "x,y"),
}


@pytest.mark.parametrize(("found", "left"), RELEASED.values(), ids=RELEASED)
async def test_release(found: str | None, left: str | None) -> None:
    world = locked(found)
    await world.locks.release(world.stored(), "n1", LOCK)
    assert world.api.lock() == left


class TestReleaseFails:
    async def test_conflicts_and_lost_replies_are_tried_again(self) -> None:
        world = locked(MINE, still=True)
        world.api.meets("patch_node", Conflict(409, "Conflict", "modified"), Hitch(lost(), after=True))
        await world.locks.release(world.stored(), "n1", LOCK)
        assert (world.api.lock(), world.api.calls.count("patch_node")) == (None, 2)

    async def test_up_to_five_times(self, caplog: pytest.LogCaptureFixture) -> None:
        world = locked(MINE, still=True)
        world.api.meets("patch_node", *[lost()] * 5)
        await world.locks.release(world.stored(), "n1", LOCK)
        assert world.api.lock() == MINE
        assert "node n1: its lock could not be given back in 5 tries" in caplog.text

    async def test_other_errors_are_said(self, caplog: pytest.LogCaptureFixture) -> None:
        world = locked(MINE, still=True)
        world.api.meets("get_node", unreachable())
        await world.locks.release(world.stored(), "n1", LOCK)
        assert "node n1: its lock could not be given back: GET: connection refused" in caplog.text

    async def test_a_node_that_is_gone_has_no_lock(self, caplog: pytest.LogCaptureFixture) -> None:
        world = locked(MINE, still=True)
        del world.api.nodes["n1"]
        await world.locks.release(world.stored(), "n1", LOCK)
        assert not caplog.records


SWEPT: dict[str, tuple[str, tuple[Pod, ...], bool]] = {
    "the owner is gone": (f"{NOW},team,b", (), True),
    "the owner is there": (f"{NOW},team,b", (OTHER,), False),
    "the owner has its cards": (
        f"{NOW},team,b",
        (pod(name="b", namespace="team", node="n1", annotations={"hami.io/bind-phase": "success"}),),
        True,
    ),
    "an owner that can be no pod": (f"{NOW},team,b/c", (), True),
    "a time at the edge of time": ("0001-01-01T00:00:00+14:00,team,b", (), True),
    "the older form": (NOW, (), False),
    "unreadable": ("yesterday", (), False),
}


@pytest.mark.parametrize(("found", "others", "removed"), SWEPT.values(), ids=SWEPT)
async def test_sweep(found: str, others: tuple[Pod, ...], removed: bool) -> None:
    world = locked(found, *others)
    assert await world.locks.sweep([("n1", LOCK, found)]) == removed
    assert world.api.lock() == (None if removed else found)


async def test_a_sweep_removes_exactly_what_it_judged() -> None:
    """A fresh lock that was taken in between was destroyed along with the stale one."""
    world = locked(f"{NOW},team,new", pod(name="new", namespace="team"))
    assert await world.locks.sweep([("n1", LOCK, f"{at(-9)},team,gone")]) == 0
    assert world.api.lock() == f"{NOW},team,new"


async def test_a_sweep_looks_at_every_lock_of_a_node_and_goes_on_after_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of a node with locks of two families only the last one was looked at."""
    caplog.set_level(logging.INFO)
    world = locked(f"{NOW},team,b")
    world.api.annotate_node("n1", "other.lock", f"{NOW},team,b")
    world.put_node(node("n2", card("z"), annotations={LOCK: f"{NOW},team,b"}))
    world.api.meets("get_pod", unreachable())
    found = [("n2", LOCK, f"{NOW},team,b"), ("n1", LOCK, f"{NOW},team,b"), ("n1", "other.lock", f"{NOW},team,b")]
    assert await world.locks.sweep(found) == 2
    assert (world.api.lock("n1"), world.api.lock("n1", "other.lock"), world.api.lock("n2")) == (
        f"{NOW},team,b",
        None,
        None,
    )
    assert "node n1: its stale lock stays for now: GET: connection refused" in caplog.text
    assert f"node n2: removed the lock {NOW},team,b, whose owner does not need it" in caplog.text


class TestLocksThatNameNobody:
    """A family may write the bare time, with an expiry and words of its own."""

    KEY = "made.up/lock"
    FORMAT = LockFormat(names_owner=False, expiry_s=120, takes_malformed=False, contention="{node} busy for {expiry}")

    def world(self, value: str | None = None) -> World:
        world = locked(None, OTHER, still=True)
        world.locks = NodeLocks(world.api, world.clock, LockSettings(), {self.KEY: self.FORMAT})
        if value is not None:
            world.api.annotate_node("n1", self.KEY, value)
        return world

    async def acquire(self, world: World, pod: Pod | None = None) -> str:
        try:
            await world.locks.acquire(pod or world.stored(), "n1", self.KEY, False)
        except BindError as error:
            return str(error)
        return ""

    async def test_taken_kept_and_given_back(self) -> None:
        world = self.world()
        assert await self.acquire(world) == ""
        assert world.api.lock("n1", self.KEY) == NOW
        assert await self.acquire(world) == ""  # one's own, as long as this process lives
        assert world.api.calls.count("patch_node") == 1
        other = world.stored("b", "team")
        assert await self.acquire(world, other) == "n1 busy for 2m0s"
        await world.locks.release(other, "n1", self.KEY)
        assert world.api.lock("n1", self.KEY) == NOW
        await world.locks.release(world.stored(), "n1", self.KEY)
        assert world.api.lock("n1", self.KEY) is None

    VALUES: dict[str, tuple[str, str]] = {
        "within its own expiry": (at(-120), "n1 busy for 2m0s"),
        "past it": (at(-121), ""),
        "unreadable": (
            "yesterday",
            "failed to set node lock (node=n1): malformed lock time 'yesterday':"
            " expected a time such as 2026-08-01T06:00:00Z",
        ),
    }

    @pytest.mark.parametrize(("value", "text"), VALUES.values(), ids=VALUES)
    async def test_found(self, value: str, text: str) -> None:
        world = self.world(value)
        assert await self.acquire(world) == text
        assert world.api.lock("n1", self.KEY) == (value if text else NOW)


def test_formats_come_with_the_families() -> None:
    assert lock_formats(CONFIG.vendors) == {LOCK: LockFormat()}
