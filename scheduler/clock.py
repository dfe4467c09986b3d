"""Time as the extender's waiting parts see it; the replayer gives one in which every wait ends at once."""

import asyncio
import time
from typing import Protocol

__all__ = ["Clock", "MonotonicClock", "SystemClock"]


class Clock(Protocol):
    """Unix seconds, and waiting."""

    def now(self) -> float:
        """Unix seconds."""
        ...

    async def wait(self, event: asyncio.Event, timeout_s: float) -> bool:
        """Wait until the event is set or the time has passed; true when it was set."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        """Unix seconds."""
        return time.time()

    async def wait(self, event: asyncio.Event, timeout_s: float) -> bool:
        """Wait on the running loop."""
        if timeout_s <= 0:
            return event.is_set()
        try:
            async with asyncio.timeout(timeout_s):
                await event.wait()
        except TimeoutError:
            return False
        return True


class MonotonicClock(SystemClock):
    """Seconds that never jump, from some moment on."""

    def now(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()
