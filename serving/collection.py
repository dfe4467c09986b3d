"""Python's garbage collection kept out of the way of requests.

What a ledger holds is freed by counting references; a collection would look at all of it and find next to nothing, in the middle of a
decision. So none runs while the first lists come in, all that stands then is set apart for good (`gc.freeze`), and from then on only young
objects are looked at by themselves. The rest is looked at in idle moments: what has come since the last time, and then set apart as well.
"""

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry, Histogram

from serving.quick import QUICK

__all__ = ["Collection", "Idle", "collecting"]

_YOUNG: Final = 20_000
"""Containers made, less those freed, until the young are looked at: some hundred decisions, and a third of a millisecond."""
_MIDDLE: Final = 10
_NEVER: Final = 1_000_000
"""The old are not looked at in the middle of something: not before so many looks at the middle ones."""
_EVERY_S: Final = 20.0
_IDLE_S: Final = 0.02
"""A moment is idle when nothing has been asked for so long: kube-scheduler asks again within a few milliseconds."""
_PATIENCE_S: Final = 40.0
_WHOLE_EVERY_S: Final = 6 * 3600.0
"""How often everything is looked at, in a moment in which nothing has been asked for `_WHOLE_IDLE_S`."""
_WHOLE_IDLE_S: Final = 5.0
_BUCKETS_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class Idle:
    """Since when nothing has been asked of an application that it follows."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._asked_at = clock()

    def follow(self, app: web.Application) -> None:
        """Count the answers of this application of `serving.app.new_app`, which has not started yet."""
        app.on_response_prepare.append(self._answers)
        app[QUICK].followers.append(self._answered)

    async def _answers(self, request: web.Request, response: web.StreamResponse) -> None:
        self._answered()

    def _answered(self) -> None:
        self._asked_at = self._clock()

    @property
    def seconds(self) -> float:
        """How long nothing has been asked."""
        return self._clock() - self._asked_at


class Collection:
    """One a process. `hold` before the first lists, then `run`; clock (monotonic seconds) and sleep can be replaced."""

    def __init__(
        self,
        idle: Idle,
        registry: CollectorRegistry,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._idle = idle
        self._clock = clock
        self._sleep = sleep
        self._whole_at = clock()
        self._before = (gc.isenabled(), gc.get_threshold())
        self._seconds = Histogram(
            "slotwise_garbage_collection_seconds",
            "Collections in idle moments: of what came since the last one, or of everything.",
            ["of"],
            registry=registry,
            buckets=_BUCKETS_S,
        )

    def hold(self) -> None:
        """No collection until `run` finds the books complete."""
        self._before = (gc.isenabled(), gc.get_threshold())
        gc.collect()
        gc.disable()

    def release(self) -> None:
        """As it was before `hold`, for a process that goes on after the service."""
        enabled, thresholds = self._before
        gc.unfreeze()
        gc.set_threshold(*thresholds)
        if enabled:
            gc.enable()

    async def run(self, complete: Callable[[], Awaitable[None]]) -> None:
        """Set apart what stands once `complete` returns, then collect in idle moments until cancelled."""
        await complete()
        gc.freeze()
        gc.set_threshold(_YOUNG, _MIDDLE, _NEVER)
        gc.enable()
        self._whole_at = self._clock()
        while True:
            await self._sleep(_EVERY_S)
            await self._idle_moment()
            began = self._clock()
            whole = began - self._whole_at >= _WHOLE_EVERY_S and self._idle.seconds >= _WHOLE_IDLE_S
            if whole:
                gc.unfreeze()
                self._whole_at = began
            gc.collect()
            gc.freeze()
            self._seconds.labels("everything" if whole else "recent").observe(self._clock() - began)

    async def _idle_moment(self) -> None:
        """Wait for one, but not for ever: what is looked at grows meanwhile."""
        ends_at = self._clock() + _PATIENCE_S
        while self._idle.seconds < _IDLE_S and self._clock() < ends_at:
            await self._sleep(_IDLE_S / 2)


@contextmanager
def collecting(collection: Collection, complete: Callable[[], Awaitable[None]]) -> Iterator[None]:
    """The collection at work, from before the first lists until the service ends."""
    collection.hold()
    task = asyncio.create_task(collection.run(complete), name="garbage collection")
    try:
        yield
    finally:
        task.cancel()
        collection.release()
