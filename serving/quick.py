"""Requests that are answered as soon as they have arrived.

aiohttp gives every request a task, an object, a way through the router and one through the middlewares, which together take as long as
judging a pod. A route that need not wait can be asked as soon as a request stands in memory whole. That is so for the usual one: a
POST of JSON that is not large, on a connection with nothing else under way, while nobody shuts down; Go clients send its head and body in
several pieces, which are waited for a moment. Every other one goes
aiohttp's way, and so does what a route leaves to it or fails at. Callers, log and counters see no difference.

`QuickConnection` uses what aiohttp does not promise (`_messages`, `_waiter`, a body's `_buffer`), so each minor version of it is taken up by hand.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Final, NamedTuple

from aiohttp import HttpVersion11, StreamReader, hdrs, web
from aiohttp.http import RawRequestMessage

from serving.access_log import write_line
from serving.answer import JSON, whole_answer
from serving.connections import Connections
from serving.metrics import RequestMetrics
from serving.route import CALLER_GONE

__all__ = ["QUICK", "Answered", "BufferedConnection", "Quick", "QuickConnection", "QuickRoutes"]

_BUFFER_BYTES: Final = 2**16
_HELD_S: Final = 0.05
"""So long the rest of a body is waited for before the task is woken to do so."""
_TOGETHER_S: Final = 0.002
"""No more is judged before what was judged in this time is sent."""


class Answered(NamedTuple):
    """An answer of status 200."""

    body: bytes
    """JSON."""
    outcome: str
    """What the log line says."""


Quick = Callable[[bytes], Answered | None]
"""The body of a POST in, which is never empty, its answer out; None, before anything was done, leaves the request to the route's handler.

What it raises is answered, logged and counted as if that handler had raised it, which has to read the body with `serving.limits`.
A body has 64 KiB at most, so that no limit applies.
"""


class _Request(NamedTuple):
    connection: "QuickConnection"
    path: str
    quick: Quick
    body: bytes
    began: float


class QuickRoutes:
    """Those of one application, by path; each has a handler for POST beside it.

    What has arrived by one turn of the event loop is judged, then logged, then sent: code that runs again at once is still in the
    processor's caches, and takes two thirds of the time.
    """

    def __init__(self, metrics: RequestMetrics, log: logging.Logger) -> None:
        self._metrics = metrics
        self._log = log
        self._routes: dict[str, Quick] = {}
        self._arrived: deque[_Request] = deque()
        self.followers: list[Callable[[], None]] = []
        """Called after each answer; `on_response_prepare` is not sent."""

    def add(self, path: str, quick: Quick) -> None:
        """Ask `quick` about the usual POST to `path`, which has no variable parts."""
        self._routes[path] = quick

    def get(self, path: str) -> Quick | None:
        """The route of a path."""
        return self._routes.get(path)

    def later(self, connection: "QuickConnection", path: str, quick: Quick, body: bytes, began: float) -> None:
        """Ask about the request of this connection, which `began` to arrive then, once everything that has arrived is read."""
        if not self._arrived:
            asyncio.get_running_loop().call_soon(self._answer)
        self._arrived.append(_Request(connection, path, quick, body, began))

    def gone(self, path: str, began: float) -> None:
        """Log and count a request whose caller hung up before it had come whole."""
        elapsed_s = perf_counter() - began
        self._metrics.count(path, CALLER_GONE, elapsed_s)
        write_line(self._log, hdrs.METH_POST, path, CALLER_GONE, elapsed_s)

    def _answer(self) -> None:
        while self._arrived:
            judged = list(self._judged())
            for request, answered, elapsed_s in judged:
                self._metrics.count(request.path, 200, elapsed_s)
                write_line(self._log, hdrs.METH_POST, request.path, 200, elapsed_s, answered.outcome)
            for request, answered, _ in judged:
                request.connection.send(whole_answer(answered.body))
                for follow in self.followers:
                    follow()

    def _judged(self) -> Iterator[tuple[_Request, Answered, float]]:
        """Those that have an answer, with the seconds since they came; so many that none waits long for the others."""
        ends_at = perf_counter() + _TOGETHER_S
        while self._arrived:
            request = self._arrived.popleft()
            answered = request.connection.judged(request.quick, request.body)
            now = perf_counter()
            if answered is not None:
                yield request, answered, now - request.began
            if now >= ends_at:
                return


QUICK = web.AppKey("quick", QuickRoutes)
"""Of an application of `serving.app.new_app`."""


class _Held(NamedTuple):
    path: str
    began: float
    ends: asyncio.TimerHandle


class QuickConnection(web.RequestHandler):
    """aiohttp's connection, but requests of quick routes do not reach the task that it answers in."""

    __slots__ = ("_connections", "_held", "_routes")

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
        self._held: _Held | None = None

    def data_received(self, data: bytes) -> None:
        """Parse, as aiohttp does, and wake the task or have the request answered without it."""
        # Without a waiter aiohttp wakes nobody: the task sleeps until it is known to be needed.
        waiter, self._waiter = self._waiter, None
        try:
            super().data_received(data)
        finally:
            self._waiter = waiter
        if self._messages and self._task_sleeps() and not self._is_left_for_later():
            self._wake_task()

    def _task_sleeps(self) -> bool:
        return self._waiter is not None and not self._waiter.done()

    def _wake_task(self) -> None:
        self._release()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _is_left_for_later(self) -> bool:
        message, payload = self._messages[0]
        if len(self._messages) > 1 or not isinstance(message, RawRequestMessage):
            return False
        path = message.path.partition("?")[0]
        quick = self._routes.get(path)
        if quick is None or not self._is_usual(message, payload):
            return False
        if not payload.is_eof():
            return self._is_held(message, path)
        if not payload.total_bytes:
            return False
        began = self._release() or perf_counter()
        # Looked at, not taken out: it has to be there for the handler, and aiohttp would try to parse on at once.
        self._routes.later(self, path, quick, b"".join(payload._buffer), began)
        self._connections.took(self)
        return True

    def _is_held(self, message: RawRequestMessage, path: str) -> bool:
        """Wait for the rest of a body that is announced and not large."""
        if self._held is None:
            length = message.headers.get(hdrs.CONTENT_LENGTH)
            if length is None or int(length) > _BUFFER_BYTES:
                return False
            self._connections.took(self)
            self._held = _Held(path, perf_counter(), self._loop.call_later(_HELD_S, self._wake_task))
        return True

    def _release(self) -> float | None:
        """Wait no longer; when the request began to arrive, if it was waited for."""
        held, self._held = self._held, None
        if held is None:
            return None
        held.ends.cancel()
        return held.began

    def connection_lost(self, exc: BaseException | None) -> None:
        """A request that has come in part is logged and counted, as it is by the task."""
        if self._held is not None:
            self._routes.gone(self._held.path, self._held.began)
            self._release()
            self._connections.left(self)
        super().connection_lost(exc)

    def judged(self, quick: Quick, body: bytes) -> Answered | None:
        """The answer to the request; None where its caller is gone, where the task answers, or where it has to from now on."""
        if len(self._messages) != 1 or not self._task_sleeps():
            self._connections.left(self)
            return None
        answered = None
        if not self._connections.draining:
            try:
                answered = quick(body)
            except Exception as error:  # raised again where the handler reads the body
                self._messages[0][1].set_exception(error)
        if answered is None:
            self._wake_task()
        return answered

    def send(self, answer: bytes) -> None:
        """Answer the request that was judged."""
        self._messages.clear()
        self._connections.left(self)
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
            and payload.exception() is None
            and not self.writing_paused
        )


class BufferedConnection(asyncio.BufferedProtocol):
    """A connection whose bytes come through one buffer.

    TLS makes an object of 256 KiB for every read of any other protocol. Where the allocator maps memory for that, which depends on what
    the process did before, it takes as long as decrypting a request.
    """

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
