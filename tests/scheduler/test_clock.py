"""The machine's clock."""

import asyncio
import time

from scheduler.clock import SystemClock


async def test_waiting_ends_with_the_event_or_with_the_time() -> None:
    clock, event = SystemClock(), asyncio.Event()
    assert not await clock.wait(event, 0)
    assert not await clock.wait(event, -1)
    assert not await clock.wait(event, 0.001)
    waiting = asyncio.create_task(clock.wait(event, 60))
    await asyncio.sleep(0)
    event.set()
    assert await waiting
    assert await clock.wait(event, 0)


async def test_it_tells_unix_seconds() -> None:
    before = time.time()
    assert before <= SystemClock().now() <= time.time()
