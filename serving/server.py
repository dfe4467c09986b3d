"""Listening, and stopping without dropping anything."""

import asyncio
import logging
import signal
import ssl
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import uvloop
from aiohttp import web

from serving.connections import Connections
from serving.drain import Drain
from serving.errors import BindError
from serving.heap import steady_heap
from serving.http_log import HttpLog
from serving.quick import QUICK, BufferedConnection, QuickConnection, read_buffer

__all__ = ["Address", "Listener", "run", "serve", "stop_on_signals"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

Address = tuple[str, int]
"""Host as configured and the port really bound."""

_WRITE_OUT_S = 0.2
"""What is left to a request at the end of the drain time-out: to notice its cancellation and end."""

_BACKLOG = 128

_POLL_S = 0.02
"""aiohttp announces no closed connection, so draining looks; only while shutting down."""


@dataclass(frozen=True)
class Listener:
    """One listening socket of an application that `serving.app.new_app` made.

    `port` 0 takes a free one. With `handler_cancellation` a handler is cancelled when its caller hangs up; without,
    it runs to its end. Listeners may share an application, if they agree on that.
    """

    app: web.Application
    host: str
    port: int
    ssl_context: ssl.SSLContext | None = None
    handler_cancellation: bool = False


async def serve(
    listeners: Sequence[Listener],
    *,
    stop: asyncio.Event,
    drain: Drain | None = None,
    drain_timeout_s: float = 25.0,
    lame_duck_s: float = 0.0,
    idle_grace_s: float = 2.0,
    keepalive_timeout_s: float = 120.0,
    head_timeout_s: float = 15.0,
    on_bound: Callable[[list[Address]], None] | None = None,
    handle_signals: bool = True,
) -> None:
    """Serve all listeners until `stop` is set, then drain and return.

    `on_bound` is called once all sockets listen, with their addresses in the order of `listeners`. Raises
    `BindError` if one cannot be opened; whatever was opened before is closed again.

    Draining: `drain` begins (readiness turns false); for `lame_duck_s` new connections are still taken, so that
    callers learn of it; the sockets close; every answer from the beginning on says `Connection: close`; idle
    connections close after `idle_grace_s`; requests being answered have `drain_timeout_s` from then on, after which
    they are cancelled. A second signal ends the waiting at once.

    `keepalive_timeout_s` must exceed the 90 s for which Go clients keep idle connections, or they send on closed ones.
    `head_timeout_s` is what a new connection has for its first request's head (a later one on the same connection
    falls under the keep-alive time-out); bodies: `serving.limits`. With `handle_signals` SIGTERM and SIGINT set
    `stop`; a process that serves several times sets it false and uses `stop_on_signals` around all.
    """
    drain = drain or Drain()
    hurry = asyncio.Event()
    servers = _group(listeners, drain)
    async with AsyncExitStack() as opened:
        for server in servers:
            opened.push_async_callback(server.runner.cleanup)
            opened.callback(server.close_sockets)
        addresses = await _start(listeners, servers, keepalive_timeout_s)
        with stop_on_signals(stop, hurry, enabled=handle_signals):
            if on_bound is not None:
                on_bound(addresses)
            async with asyncio.TaskGroup() as tasks:
                sweeping = tasks.create_task(_close_headless(servers, head_timeout_s))
                await stop.wait()
                drain.begin()
                await _wait_at_most(lame_duck_s, hurry)
                sweeping.cancel()
            await _drain(servers, drain_timeout_s, idle_grace_s, hurry)


@contextmanager
def stop_on_signals(stop: asyncio.Event, hurry: asyncio.Event | None = None, *, enabled: bool = True) -> Iterator[None]:
    """Within the block SIGTERM and SIGINT set `stop`, and `hurry` when `stop` is set already (main thread only)."""
    if not enabled:
        yield
        return
    loop = asyncio.get_running_loop()

    def received(number: signal.Signals) -> None:
        if not stop.is_set():
            logger.info("%s: shutting down", number.name)
            stop.set()
        elif hurry is not None:
            logger.warning("%s again: not waiting for requests under way", number.name)
            hurry.set()

    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, received, number)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def run(main: Coroutine[object, None, T]) -> T:
    """Run `main` on uvloop and return what it returns; the process takes memory from the kernel as a service should, from now on."""
    steady_heap()
    return uvloop.run(main)


@dataclass(frozen=True)
class _Server:
    """One application with everything that runs it."""

    app: web.Application
    handler_cancellation: bool
    runner: web.AppRunner
    connections: Connections
    sockets: list[asyncio.Server] = field(default_factory=list)

    def close_sockets(self) -> None:
        """Take no connection more."""
        for socket in self.sockets:
            socket.close()


def _group(listeners: Sequence[Listener], drain: Drain) -> list[_Server]:
    servers: list[_Server] = []
    for listener in listeners:
        known = next((server for server in servers if server.app is listener.app), None)
        if known is None:
            connections = Connections(listener.app, drain)
            runner = web.AppRunner(
                listener.app,
                handler_cancellation=listener.handler_cancellation,
                shutdown_timeout=_WRITE_OUT_S,
            )
            servers.append(_Server(listener.app, listener.handler_cancellation, runner, connections))
        elif known.handler_cancellation != listener.handler_cancellation:
            raise ValueError(
                f"listener {listener.host}:{listener.port}: handler_cancellation={listener.handler_cancellation}, but"
                " another listener of the same application says otherwise"
            )
    return servers


async def _start(
    listeners: Sequence[Listener], servers: Sequence[_Server], keepalive_timeout_s: float
) -> list[Address]:
    loop, log = asyncio.get_running_loop(), HttpLog(logging.getLogger("serving.http"))
    buffer = read_buffer()
    for server in servers:
        await server.runner.setup()
        if server.runner.server is None:
            raise AssertionError("an AppRunner has a server once it is set up")
        server.connections.attach(server.runner.server)
    addresses: list[Address] = []
    for listener in listeners:
        server = next(server for server in servers if server.app is listener.app)
        connection = partial(_connection, server, log, keepalive_timeout_s, buffer)
        try:
            socket = await loop.create_server(
                connection, listener.host, listener.port, ssl=listener.ssl_context, backlog=_BACKLOG
            )
        except (OSError, OverflowError) as error:
            raise BindError(f"cannot listen on {listener.host}:{listener.port}: {error}") from error
        server.sockets.append(socket)
        addresses.append((listener.host, socket.sockets[0].getsockname()[1]))
    return addresses


def _connection(server: _Server, log: HttpLog, keepalive_timeout_s: float, buffer: memoryview) -> BufferedConnection:
    if server.runner.server is None:
        raise AssertionError("a server listens once its runner is set up")
    return BufferedConnection(
        QuickConnection(
            server.runner.server,
            server.app[QUICK],
            server.connections,
            logger=log,
            keepalive_timeout_s=keepalive_timeout_s,
        ),
        buffer,
    )


async def _close_headless(servers: Sequence[_Server], timeout_s: float) -> None:
    while True:
        await asyncio.sleep(min(1.0, timeout_s / 4))
        for server in servers:
            server.connections.close_headless(timeout_s)


async def _drain(servers: Sequence[_Server], timeout_s: float, idle_grace_s: float, hurry: asyncio.Event) -> None:
    for server in servers:
        server.close_sockets()
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    while any(server.connections.open_count for server in servers):
        if hurry.is_set() or loop.time() >= deadline_s:
            busy = sum(server.connections.busy_count for server in servers)
            if busy:
                logger.warning("shutting down with %d requests unanswered after %g s", busy, timeout_s)
            return
        for server in servers:
            server.connections.close_idle(idle_grace_s)
        await _wait_at_most(_POLL_S, hurry)


async def _wait_at_most(timeout_s: float, event: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return
