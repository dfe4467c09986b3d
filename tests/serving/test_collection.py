"""Garbage collection in idle moments alone; what is collected is read from Python's own callbacks."""

import asyncio
import gc
from collections.abc import Callable, Iterator

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client import CollectorRegistry

from serving.collection import Collection, Idle, collecting
from tests.serving.running import Plain


class Watch:
    """A clock that sleeping moves, and what was collected meanwhile, by generation."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.collected: list[tuple[float, int]] = []
        self.until_s = 0.0
        self.at_sleep: Callable[[], None] = lambda: None

    def clock(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        if self.now_s >= self.until_s:
            await asyncio.Event().wait()
        self.now_s += seconds
        self.at_sleep()
        await asyncio.sleep(0)

    def note(self, phase: str, about: dict[str, int]) -> None:
        if phase == "start":
            self.collected.append((self.now_s, about["generation"]))


@pytest.fixture
def watch() -> Iterator[Watch]:
    watch = Watch()
    gc.callbacks.append(watch.note)
    yield watch
    gc.callbacks.remove(watch.note)


async def complete() -> None:
    return None


async def run(watch: Watch, seconds: float, idle: Idle | None = None) -> CollectorRegistry:
    """Let the collection be at work for so long by its clock."""
    watch.until_s, registry = seconds, CollectorRegistry()
    collection = Collection(idle or Idle(watch.clock), registry, clock=watch.clock, sleep=watch.sleep)
    with collecting(collection, complete):
        while watch.now_s < seconds:  # noqa: ASYNC110 - the clock is ours
            await asyncio.sleep(0)
    return registry


async def test_nothing_is_collected_until_the_books_are_complete(watch: Watch) -> None:
    ready = asyncio.Event()

    async def wait() -> None:
        await ready.wait()

    before = gc.isenabled(), gc.get_threshold()
    collection = Collection(Idle(watch.clock), CollectorRegistry(), clock=watch.clock, sleep=watch.sleep)
    with collecting(collection, wait):
        assert not gc.isenabled()
        for _ in range(3):
            await asyncio.sleep(0)
        assert gc.get_freeze_count() == 0
        ready.set()
        for _ in range(3):
            await asyncio.sleep(0)
        assert gc.isenabled()
        assert gc.get_freeze_count() > 0
        assert gc.get_threshold()[2] > 100_000
    assert (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()) == (*before, 0)


async def test_what_came_since_is_collected_and_set_apart_in_an_idle_moment(watch: Watch) -> None:
    await run(watch, 100.0)
    assert [found for found in watch.collected if 0 < found[0] < 100] == [(20.0, 2), (40.0, 2), (60.0, 2), (80.0, 2)]


async def test_a_cycle_made_since_is_freed(watch: Watch) -> None:
    class Cycle:
        pass

    freed: list[float] = []

    def make() -> None:
        watch.at_sleep = lambda: None
        made = Cycle()
        made.__dict__["itself"] = made
        made.__dict__["told"] = type("Told", (), {"__del__": lambda of: freed.append(watch.now_s)})()

    watch.at_sleep = make
    await run(watch, 30.0)
    assert freed == [20.0]


async def test_a_busy_service_is_waited_for_but_not_for_ever(watch: Watch) -> None:
    idle = Idle(watch.clock)

    async def answer(request: web.Request) -> web.Response:
        return web.Response()

    app = Plain().app
    app.add_routes([web.get("/", answer)])
    idle.follow(app)
    async with TestClient(TestServer(app)) as client:
        watch.now_s = 5.0
        assert idle.seconds == 5.0
        await client.get("/")
        assert idle.seconds == 0.0
    watch.now_s = 0.0
    watch.at_sleep = lambda: idle.__dict__.update(_asked_at=watch.now_s)
    await run(watch, 61.0, idle)
    assert [round(at) for at, _ in watch.collected if at > 0] == [60]


async def test_everything_is_looked_at_now_and_then_if_nobody_asks(watch: Watch) -> None:
    registry = await run(watch, 6 * 3600.0 + 40.0)

    def collections(of: str) -> float | None:
        return registry.get_sample_value("slotwise_garbage_collection_seconds_count", {"of": of})

    assert (collections("everything"), (collections("recent") or 0) > 1000) == (1.0, True)
