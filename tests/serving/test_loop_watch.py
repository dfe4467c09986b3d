"""The watch over the event loop: what it shows of blocks, by a clock of the test's."""

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from serving.loop_watch import LoopWatch

EVERY_S = 0.0025


class Turns:
    """A loop whose turns come late by what the test says, one after the other."""

    def __init__(self, *late_s: float) -> None:
        self.now_s = 100.0
        self._late_s = list(late_s)
        self.registry = CollectorRegistry()
        self.watch = LoopWatch(self.registry, clock=lambda: self.now_s, sleep=self._sleep)

    async def _sleep(self, seconds: float) -> None:
        if not self._late_s:
            raise asyncio.CancelledError
        self.now_s += seconds + self._late_s.pop(0)

    async def turned(self, *late_s: float) -> None:
        self._late_s += late_s
        with pytest.raises(asyncio.CancelledError):
            await self.watch.run()

    @property
    def longest_s(self) -> float:
        found = self.registry.get_sample_value("slotwise_event_loop_blocked_seconds")
        assert found is not None
        return round(found, 6)

    @property
    def blocks(self) -> float | None:
        return self.registry.get_sample_value("slotwise_event_loop_blocks_total")


async def test_the_longest_is_shown_and_what_is_over_five_milliseconds_counted() -> None:
    turns = Turns()
    await turns.turned(0.0, 0.004, 0.0051, 0.2, 0.001)
    assert (turns.longest_s, turns.blocks) == (0.2, 2.0)


async def test_a_scrape_takes_nothing_from_the_next() -> None:
    turns = Turns()
    await turns.turned(0.03)
    assert [turns.longest_s, turns.longest_s] == [0.03, 0.03]


async def test_a_block_is_forgotten_after_two_minutes_at_most() -> None:
    turns = Turns()
    await turns.turned(0.03)
    turns.now_s += 60
    await turns.turned(0.001)
    assert turns.longest_s == 0.03
    turns.now_s += 60
    await turns.turned(0.002)
    assert turns.longest_s == 0.002
    turns.now_s += 600
    assert turns.longest_s == 0.0
