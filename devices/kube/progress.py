"""How far a watch has come, and who waits for it to come further."""

import asyncio
import heapq
import itertools

__all__ = ["Progress"]


class Progress:
    """The newest revision delivered; 0 before anything was."""

    def __init__(self) -> None:
        self.revision = 0
        self._waiters: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()  # orders waiters of the same revision: futures have no order

    def advance(self, revision: int) -> None:
        """Everything up to `revision` was delivered; an older one changes nothing."""
        if revision > self.revision:
            self.restart(revision)

    def restart(self, revision: int) -> None:
        """A full list was delivered as of `revision`, which counts even where it is older."""
        self.revision = revision
        while self._waiters and self._waiters[0][0] <= revision:
            reached = heapq.heappop(self._waiters)[2]
            if not reached.done():
                reached.set_result(None)

    async def wait_for(self, revision: int, timeout_s: float) -> bool:
        """True as soon as `revision` was delivered, False after `timeout_s` seconds."""
        if self.revision >= revision:
            return True
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (revision, next(self._numbers), reached)
        heapq.heappush(self._waiters, entry)
        try:
            async with asyncio.timeout(timeout_s):
                await reached
        except TimeoutError:
            return self.revision >= revision
        finally:
            if reached.cancelled():
                self._waiters = [waiter for waiter in self._waiters if waiter is not entry]
                heapq.heapify(self._waiters)
        return True
