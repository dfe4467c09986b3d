import asyncio

import pytest

from lab.scheduling_queue import Backoff, SchedulingQueue

SHORT = Backoff(initial_s=0.01, longest_s=0.04, flush_s=300.0)
NEVER = Backoff(initial_s=300.0, longest_s=300.0, flush_s=300.0)


async def take(queue: SchedulingQueue) -> str:
    async with asyncio.timeout(5):
        return await queue.take()


@pytest.mark.parametrize(("attempts", "seconds"), [(1, 1.0), (2, 2.0), (3, 4.0), (4, 8.0), (5, 10.0), (40, 10.0)])
def test_waits_double_up_to_the_longest(attempts: int, seconds: float) -> None:
    assert Backoff().wait_s(attempts) == seconds


async def test_first_come_first_served_and_nobody_twice() -> None:
    queue = SchedulingQueue(SHORT)
    for uid in ("b", "a", "b", "c"):
        queue.add(uid)
    assert [await take(queue) for _ in range(3)] == ["b", "a", "c"]
    assert queue.waiting == 3


async def test_refused_pod_waits_for_a_change_of_the_cluster() -> None:
    now = 0.0
    queue = SchedulingQueue(Backoff(initial_s=1.0), clock=lambda: now)
    queue.add("a")
    await take(queue)
    queue.refused("a")
    assert queue.waiting == 0
    now = 2.0  # its back-off is over, so the change alone brings it back
    queue.cluster_changed()
    assert await take(queue) == "a"


async def test_change_during_back_off_waits_for_its_end() -> None:
    queue = SchedulingQueue(NEVER)
    queue.add("a")
    await take(queue)
    queue.refused("a")
    queue.cluster_changed()
    queue.add("b")
    assert await take(queue) == "b"
    assert queue.waiting == 2
    queue.close()
    assert "a" not in queue


async def test_change_during_the_attempt_is_not_lost() -> None:
    queue = SchedulingQueue(SHORT)
    queue.add("a")
    await take(queue)
    queue.cluster_changed()
    queue.refused("a")
    assert await take(queue) == "a"


async def test_failed_pod_comes_back_by_itself() -> None:
    queue = SchedulingQueue(SHORT)
    queue.add("a")
    await take(queue)
    queue.failed("a")
    assert await take(queue) == "a"


async def test_refused_pod_is_flushed_in_the_end() -> None:
    queue = SchedulingQueue(Backoff(initial_s=0.0, longest_s=0.0, flush_s=0.02))
    queue.add("a")
    await take(queue)
    queue.refused("a")
    assert await take(queue) == "a"


async def test_dropped_pod_does_not_come_back() -> None:
    queue = SchedulingQueue(Backoff(initial_s=0.0, longest_s=0.0, flush_s=0.01))
    queue.add("a")
    await take(queue)
    queue.failed("a")
    queue.drop("a")
    queue.failed("a")
    queue.refused("a")
    queue.add("b")
    assert await take(queue) == "b"
    assert "a" not in queue
