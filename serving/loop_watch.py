"""How long the event loop is kept from turning: everything that waits for it is late by as much."""

import asyncio
from collections.abc import Awaitable, Callable
from time import perf_counter

from prometheus_client import CollectorRegistry, Counter, Gauge

__all__ = ["LoopWatch"]

_EVERY_S = 0.0025
"""Half of what counts as blocked, so that no such block falls between two looks."""
_BLOCKED_S = 0.005
_WINDOW_S = 60.0


class LoopWatch:
    """Looks every few milliseconds how much later than planned it is its turn.

    What is measured is at most the look's own interval (2.5 ms) short of the block; the machine giving the core to others counts, too.
    The gauge is the largest of the last one to two minutes, whoever scrapes how often.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        clock: Callable[[], float] = perf_counter,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._clock, self._sleep = clock, sleep
        self._began_s = clock()
        self._largest_s = self._before_s = 0.0
        gauge = Gauge(
            "slotwise_event_loop_blocked_seconds",
            "Longest time the event loop was kept from turning, in the last one to two minutes.",
            registry=registry,
        )
        gauge.set_function(self._longest)
        self._blocks = Counter(
            "slotwise_event_loop_blocks", "Times the event loop was blocked for more than 5 ms.", registry=registry
        )

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            before_s = self._clock()
            await self._sleep(_EVERY_S)
            self._note(self._clock() - before_s - _EVERY_S)

    def _note(self, late_s: float) -> None:
        self._turn_over()
        self._largest_s = max(self._largest_s, late_s)
        if late_s > _BLOCKED_S:
            self._blocks.inc()

    def _turn_over(self) -> None:
        elapsed_s = self._clock() - self._began_s
        if elapsed_s >= _WINDOW_S:
            self._before_s = self._largest_s if elapsed_s < 2 * _WINDOW_S else 0.0
            self._largest_s = 0.0
            self._began_s = self._clock()

    def _longest(self) -> float:
        self._turn_over()
        return max(self._largest_s, self._before_s)
