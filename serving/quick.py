"""Requests that are answered where they arrive.

aiohttp gives every request a task, an object, a way through the router and one through the middlewares, which together take as long as
judging a pod. A route that need not wait can be asked as soon as a request stands in memory whole. That is so for the usual one: a
POST of JSON that came in one piece, on a connection with nothing else under way, while nobody shuts down. Every other one goes
aiohttp's way, and so does what a route leaves to it or fails at. Callers, log and counters see no difference.

`QuickConnection` uses what aiohttp does not promise (`_messages`, `_waiter`), so each minor version of it is taken up by hand.
"""

import asyncio
import logging
from collections.abc import Callable
from time import perf_counter
from typing import Final, NamedTuple

from aiohttp import HttpVersion11, StreamReader, hdrs, web
from aiohttp.http import RawRequestMessage

from serving.access_log import write_line
from serving.answer import JSON, whole_answer
from serving.connections import Connections
from serving.metrics import RequestMetrics

__all__ = ["QUICK", "Answered", "BufferedConnection", "Quick", "QuickConnection", "QuickRoutes"]

_BUFFER_BYTES: Final = 2**16


class Answered(NamedTuple):
    """An answer of status 200."""

    body: bytes
    """JSON."""
    outcome: str
    """What the log line says."""


Quick = Callable[[bytes], Answered | None]
"""The body of a POST in, which is never empty, its answer out; None, before anything was done, leaves the request to the route's handler.

What it raises is answered, logged and counted as if that handler had raised it, which has to read the body with `serving.limits`.
A body is as large as one read at most, so that no limit applies.
"""


class QuickRoutes:
    """Those of one application, by path; each has a handler for POST beside it."""

    def __init__(self, metrics: RequestMetrics, log: logging.Logger) -> None:
        self._metrics = metrics
        self._log = log
        self._routes: dict[str, Quick] = {}
        self.followers: list[Callable[[], None]] = []
        """Called after each answer; `on_response_prepare` is not sent."""

    def add(self, path: str, quick: Quick) -> None:
        """Ask `quick` about the usual POST to `path`, which has no variable parts."""
        self._routes[path] = quick

    def get(self, path: str) -> Quick | None:
        """The route of a path."""
        return self._routes.get(path)

    def answer(self, path: str, quick: Quick, body: bytes) -> bytes | None:
        """The whole answer, head and body, logged and counted; None for a request that is left to the handler."""
        began = perf_counter()
        answered = quick(body)
        if answered is None:
            return None
        elapsed_s = perf_counter() - began
        self._metrics.count(path, 200, elapsed_s)
        write_line(self._log, hdrs.METH_POST, path, 200, elapsed_s, answered.outcome)
        for follow in self.followers:
            follow()
        return whole_answer(answered.body)


QUICK = web.AppKey("quick", QuickRoutes)
"""Of an application of `serving.app.new_app`."""


class QuickConnection(web.RequestHandler):
    """aiohttp's connection, but requests of quick routes do not reach the task that it answers in."""

    __slots__ = ("_connections", "_routes")

    def __init__(
        self,
        server: web.Server,
        routes: QuickRoutes,
        connections: Connections,
        *,
        logger: logging.LoggerAdapter[logging.Logger],
        keepalive_timeout_s: float,
    ) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]  # aiohttp's own way to say none; serving.access_log has its own
            logger=logger,  # type: ignore[arg-type]  # an adapter is called in the same way
            keepalive_timeout=keepalive_timeout_s,
        )
        self._routes = routes
        self._connections = connections

    def data_received(self, data: bytes) -> None:
        """Parse, as aiohttp does, and answer here or wake the task."""
        # Without a waiter aiohttp wakes nobody: the task sleeps until it is known to be needed.
        waiter, self._waiter = self._waiter, None
        sleeps = waiter is not None and not waiter.done()
        try:
            super().data_received(data)
            if sleeps and len(self._messages) == 1:
                self._answer_at_once()
        finally:
            self._waiter = waiter
        if waiter is not None and sleeps and self._messages:
            waiter.set_result(None)

    def _answer_at_once(self) -> None:
        """Answer the one message; where that cannot be done it stays, with its body or with what was raised."""
        message, payload = self._messages[0]
        if not isinstance(message, RawRequestMessage) or not self._is_usual(message, payload):
            return
        path = message.path.partition("?")[0]
        quick = self._routes.get(path)
        if quick is None:
            return
        # Taking out the body may make aiohttp parse on, and queue what comes next behind this message.
        self._messages.clear()
        body = payload.read_nowait()
        answer: bytes | None = None
        raised: Exception | None = None
        try:
            answer = self._routes.answer(path, quick, body) if body else None
        except Exception as error:  # raised again where the handler reads the body
            raised = error
        if answer is None:
            self._messages.appendleft((message, self._unread(body, raised)))
            return
        self._connections.served(self)
        self._next_keepalive_close_time = self._loop.time() + self.keepalive_timeout
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(answer)

    def _is_usual(self, message: RawRequestMessage, payload: StreamReader) -> bool:
        return (
            message.method == hdrs.METH_POST
            and message.version == HttpVersion11
            and not (message.should_close or message.upgrade or message.compression)
            and message.headers.get(hdrs.CONTENT_TYPE) == JSON
            and hdrs.EXPECT not in message.headers
            and payload.is_eof()
            and payload.exception() is None
            and not self.writing_paused
            and not self._connections.draining
        )

    def _unread(self, body: bytes, raised: Exception | None) -> StreamReader:
        payload = StreamReader(self, _BUFFER_BYTES, loop=self._loop)
        payload.feed_data(body)
        payload.feed_eof()
        if raised is not None:
            payload.set_exception(raised)
        return payload


class BufferedConnection(asyncio.BufferedProtocol):
    """A connection whose bytes come through one buffer. TLS makes an object of 256 KiB for every read of any other protocol, which takes
    as long as decrypting a request."""

    def __init__(self, connection: asyncio.Protocol) -> None:
        self._connection = connection
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Passed on."""
        self._connection.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Passed on."""
        self._connection.connection_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Passed on as data."""
        self._connection.data_received(bytes(self._buffer[:nbytes]))

    def eof_received(self) -> bool | None:
        """Passed on."""
        return self._connection.eof_received()

    def pause_writing(self) -> None:
        """Passed on."""
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """Passed on."""
        self._connection.resume_writing()
