"""Refused pods are touched once there is room for them: the loop around the pure core, with a clock that tests move."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry

from devices.kube.errors import Invalid
from devices.objects import Pod
from scheduler.engine import Filtered
from scheduler.lead import AlwaysLeads
from scheduler.retry import RETRY, Retry
from tests.builders import allocated, card, container_document, entry, node, pod, quota
from tests.scheduler.builders import Hitch, World, lost, unreachable

BIG = container_document(gpu=1, gpumem=10000)


class Leading(AlwaysLeads):
    leads = True


class Waiting:
    """Node n1 with one card that pod `tenant` has nearly all of; `refuse` lets kube-scheduler ask in vain."""

    def __init__(self, per_second: float = 20.0) -> None:
        self.world = World(node("n1", card("GPU-a", memory_mib=16000)))
        self.lead = Leading()
        self.registry = CollectorRegistry()
        self.retry = Retry(self.world.engine, self.world.api, self.world.clock, self.lead, per_second, self.registry)
        self.world.put_pod(pod(BIG, name="tenant", node="n1", annotations=allocated(((entry("GPU-a", 10000),),))))

    def ask(self, name: str) -> Filtered:
        """kube-scheduler asks for the pod as it is stored."""
        stored = self.world.stored(name)
        found = self.world.filter(stored)
        self.retry.answered(stored, found)
        return found

    def refuse(self, *names: str, **changes: str) -> None:
        for name in names:
            self.world.put_pod(pod(BIG, name=name, unschedulable=True, **changes))  # type: ignore[arg-type] # fields of several types in one mapping
            assert self.ask(name).nodes is None

    def touched(self) -> list[str]:
        """Who has been, by name, sorted."""
        return sorted(
            name
            for (_, name), found in self.world.api.pods.items()
            if RETRY in (found["metadata"].get("annotations") or {})
        )

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)

    async def pass_time(self, seconds: float) -> None:
        await self.world.clock.advance(seconds)


@asynccontextmanager
async def running(per_second: float = 20.0) -> AsyncIterator[Waiting]:
    waiting = Waiting(per_second)
    waiting.retry.start()
    try:
        yield waiting
    finally:
        await waiting.retry.stop()


async def test_a_pod_refused_just_before_the_watch_shows_the_room_is_touched() -> None:
    async with running() as waiting:
        waiting.refuse("a")
        assert waiting.value("slotwise_waiting_pods") == 1
        await waiting.pass_time(5)
        assert waiting.touched() == []  # nothing has happened
        waiting.world.delete_pod("tenant")
        await waiting.pass_time(0.4)
        assert waiting.touched() == []  # left to kube-scheduler so long
        await waiting.pass_time(0.7)
        assert waiting.touched() == ["a"]
        assert waiting.world.api.bodies[-1]["metadata"]["uid"] == "uid-a"  # type: ignore[index] # a JSON object, whose values have no type of their own
        assert waiting.value("slotwise_waiting_pods_touched_total", outcome="sent") == 1
        assert waiting.ask("a").nodes == ("n1",)
        assert waiting.value("slotwise_waiting_pods") == 0


async def test_a_pod_that_kube_scheduler_tries_by_itself_is_not_touched() -> None:
    async with running() as waiting:
        waiting.refuse("a")
        waiting.world.delete_pod("tenant")
        assert waiting.ask("a").nodes == ("n1",)
        await waiting.pass_time(600)
        assert "patch_pod" not in waiting.world.api.calls


async def test_room_that_is_too_small_touches_nobody() -> None:
    async with running() as waiting:
        waiting.refuse("a")
        waiting.world.put_node(node("n2", card("GPU-b", memory_mib=9000)))
        await waiting.pass_time(600)
        assert waiting.touched() == []


def _own_cards(waiting: Waiting) -> None:
    waiting.world.put_node(node("n2", card("GPU-b", memory_mib=16000)))


def _finished(waiting: Waiting) -> None:
    waiting.world.put_pod(pod(BIG, name="tenant", node="n1", phase="Succeeded"))


ROOM: dict[str, Callable[[Waiting], object]] = {
    "the tenant is gone": lambda waiting: waiting.world.delete_pod("tenant"),
    "the tenant has finished": _finished,
    "a node is registered": _own_cards,
}


@pytest.mark.parametrize("make", ROOM.values(), ids=ROOM)
async def test_what_makes_room(make: Callable[[Waiting], object]) -> None:
    async with running() as waiting:
        waiting.refuse("a")
        make(waiting)
        await waiting.pass_time(1.1)
        assert waiting.touched() == ["a"]


async def test_a_quota_that_is_raised_makes_room_on_nodes_that_did_not_change() -> None:
    async with running() as waiting:
        waiting.world.put_node(node("n2", card("GPU-b", memory_mib=16000)))
        waiting.world.ledger.put_quota(quota(gpumem=12000))
        waiting.refuse("a")
        waiting.world.ledger.put_quota(quota(gpumem=20000))
        await waiting.pass_time(1.1)
        assert waiting.touched() == ["a"]


async def test_thousands_wait_and_one_card_comes_free() -> None:
    """kube-scheduler answers to the first touch; nobody else is touched for the same card."""
    async with running() as waiting:
        waiting.refuse(*(f"pod-{n}" for n in range(2000)))
        waiting.world.delete_pod("tenant")
        calls = len(waiting.world.api.calls)
        while not waiting.touched():
            await waiting.pass_time(0.01)
        assert waiting.ask("pod-0").nodes == ("n1",)
        await waiting.pass_time(60)
        assert waiting.world.api.calls[calls:] == ["patch_pod"]


async def test_nobody_comes_and_the_touches_stay_few() -> None:
    async with running() as waiting:
        waiting.refuse(*(f"pod-{n}" for n in range(100)))
        waiting.world.delete_pod("tenant")
        await waiting.pass_time(9)
        assert len(waiting.touched()) == 16
        await waiting.pass_time(3)
        assert len(waiting.touched()) == 32


async def test_a_replica_that_does_not_lead_touches_nobody() -> None:
    async with running() as waiting:
        waiting.refuse("a")
        waiting.lead.leads = False
        waiting.world.delete_pod("tenant")
        await waiting.pass_time(60)
        assert waiting.touched() == []
        waiting.retry.forget_all()
        assert waiting.value("slotwise_waiting_pods") == 0


async def test_who_waits_when_a_term_begins_is_given_time_and_then_touched() -> None:
    """An earlier leader refused it, and what made room since was seen by nobody who knew."""
    async with running() as waiting:
        waiting.world.put_pod(pod(BIG, name="a", unschedulable=True))
        waiting.world.put_pod(pod(BIG, name="new"))
        waiting.world.delete_pod("tenant")
        waiting.retry.look_again()
        await waiting.pass_time(29)
        assert waiting.touched() == []
        await waiting.pass_time(2)
        assert waiting.touched() == ["a"]


ENDS: dict[str, Callable[[Waiting], object]] = {
    "gone": lambda waiting: waiting.world.delete_pod("a"),
    "bound": lambda waiting: waiting.world.put_pod(pod(BIG, name="a", node="elsewhere")),
    "being deleted": lambda waiting: waiting.world.put_pod(pod(BIG, name="a", terminating=True)),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
async def test_who_does_not_wait_any_more_is_forgotten(end: Callable[[Waiting], object]) -> None:
    async with running() as waiting:
        waiting.refuse("a")
        end(waiting)
        await waiting.pass_time(0.6)
        assert waiting.value("slotwise_waiting_pods") == 0
        waiting.world.delete_pod("tenant")
        await waiting.pass_time(60)
        assert "patch_pod" not in waiting.world.api.calls


async def test_a_pod_whose_name_another_has_by_now_is_forgotten() -> None:
    async with running() as waiting:
        waiting.refuse("a")
        waiting.world.api.meets("patch_pod", Invalid(422, "Invalid", "another UID"))
        waiting.world.delete_pod("tenant")
        await waiting.pass_time(60)
        assert waiting.value("slotwise_waiting_pods_touched_total", outcome="gone") == 1
        assert waiting.value("slotwise_waiting_pods") == 0


async def test_a_patch_that_fails_is_repeated_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    async with running() as waiting:
        waiting.refuse("a")
        waiting.world.api.meets("patch_pod", unreachable(), Hitch(lost(), after=False))
        waiting.world.delete_pod("tenant")
        await waiting.pass_time(4)
        assert waiting.touched() == []
        await waiting.pass_time(9)
        assert waiting.touched() == ["a"]
        assert waiting.value("slotwise_waiting_pods_touched_total", outcome="failed") == 2
        assert [r.getMessage() for r in caplog.records if r.levelname == "WARNING"] == [
            "pod default/a waits although there may be room, and could not be touched: GET: connection refused"
        ]


async def test_with_a_rate_of_0_nobody_is_looked_after() -> None:
    async with running(0) as waiting:
        waiting.refuse("a")
        waiting.retry.look_again()
        waiting.world.delete_pod("tenant")
        await waiting.pass_time(60)
        assert "patch_pod" not in waiting.world.api.calls
        assert waiting.value("slotwise_waiting_pods") == 0


async def test_the_touch_takes_no_reservation_away() -> None:
    """kube-scheduler asks with the version before our patch; what the watch then shows says nothing new of the pod."""
    async with running() as waiting:
        waiting.refuse("a")
        earlier: Pod = waiting.world.stored("a")
        waiting.world.delete_pod("tenant")
        await waiting.pass_time(1.1)
        touched = waiting.world.stored("a")
        assert waiting.world.filter(earlier).nodes == ("n1",)
        waiting.world.ledger.put_pod(touched, waiting.world.clock.now())
        assert waiting.world.ledger.reservation("uid-a") is not None


async def test_pods_that_differ_are_judged_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's look at the nodes is skipped, but decisions come in between."""
    monkeypatch.setattr("scheduler.retry._JUDGED_AT_ONCE", 60)
    async with running() as waiting:
        world = waiting.world
        for size in range(10001, 10006):
            world.put_pod(pod(container_document(gpu=1, gpumem=size), name=f"p{size}", unschedulable=True))
            waiting.ask(f"p{size}")
        world.put_node(node("n2", card("GPU-b", memory_mib=10005 - 5)))
        await waiting.pass_time(3)
        assert waiting.touched() == []
        world.put_node(node("n2", card("GPU-b", memory_mib=10005)))
        await waiting.pass_time(3)
        assert waiting.touched() == [f"p{size}" for size in range(10001, 10006)]
