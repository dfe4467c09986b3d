"""Whether this process is on its way out."""

import asyncio

from aiohttp import web

__all__ = ["DRAIN", "Drain"]


class Drain:
    """Set once, when the process starts to shut down; `/readyz` and long answers (watch streams) look at it."""

    def __init__(self) -> None:
        self._began = asyncio.Event()

    @property
    def began(self) -> bool:
        """True from the moment shutting down starts."""
        return self._began.is_set()

    def begin(self) -> None:
        """Turn readiness false; `serving.server.serve` calls it before it closes anything."""
        self._began.set()

    async def wait(self) -> None:
        """Return when draining begins; a handler that streams without end waits for this to end its answer."""
        await self._began.wait()


DRAIN = web.AppKey("drain", Drain)
"""Of the process that serves an application; `serving.server.serve` puts it there."""
