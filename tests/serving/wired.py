"""Connections without a socket, on an event loop whose clock only tests move: what has to happen in one order happens in it."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from serving.connections import Connections
from serving.drain import Drain
from serving.quick import QUICK, QuickConnection

KEEPALIVE_S = 120.0


class Wire(asyncio.Transport):
    """Keeps what is written; closed, it tells its connection so in the loop's next turn, as a socket does."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False
        self.breaks = False
        self.connection: QuickConnection | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.breaks:
            raise RuntimeError("broken wire")
        self.written += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        if not self.closed and self.connection is not None:
            self.closed = True
            asyncio.get_running_loop().call_soon(self.connection.connection_lost, None)

    def pause_reading(self) -> None:
        """Nothing is read from it."""

    def resume_reading(self) -> None:
        """Nothing is read from it."""

    def get_write_buffer_size(self) -> int:
        return 0


class Wired:
    """A server of one application; `at` is its time in seconds, which stands until `passed`."""

    def __init__(self, app: web.Application, runner: web.AppRunner, connections: Connections) -> None:
        self.app = app
        self.runner = runner
        self.connections = connections
        self.at = 0.0

    async def connect(self) -> tuple[QuickConnection, Wire]:
        """One whose task waits for a request."""
        assert self.runner.server is not None
        wire = Wire()
        wire.connection = QuickConnection(
            self.runner.server,
            self.app[QUICK],
            self.connections,
            logger=logging.LoggerAdapter(logging.getLogger("tests.http")),
            keepalive_timeout_s=KEEPALIVE_S,
        )
        wire.connection.connection_made(wire)
        await self.settled()
        return wire.connection, wire

    async def settled(self) -> None:
        """All that is due has been done: no step of these tests takes so many turns of the loop."""
        for _ in range(30):
            await asyncio.sleep(0)

    async def passed(self, seconds: float) -> None:
        self.at += seconds
        await self.settled()


@asynccontextmanager
async def wired(app: web.Application, patch: pytest.MonkeyPatch) -> AsyncIterator[Wired]:
    connections = Connections(app, Drain())
    runner = web.AppRunner(app, shutdown_timeout=0.0)
    await runner.setup()
    assert runner.server is not None
    connections.attach(runner.server)
    server = Wired(app, runner, connections)
    with patch.context() as stopped:
        stopped.setattr(asyncio.get_running_loop(), "time", lambda: server.at)
        try:
            yield server
        finally:
            await runner.cleanup()
