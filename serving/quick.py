"""Requests that are answered as soon as they have arrived.

aiohttp gives every request a task, an object, a way through the router and one through the middlewares, which together take as long as
judging a pod. A route that need not wait can be asked as soon as a request stands in memory whole. That is so for the usual one: a
POST of JSON that is not large, on a connection with nothing else under way, while nobody shuts down; Go clients send its head and body in
several pieces, which are waited for a moment. Every other one goes
aiohttp's way, and so does what a route leaves to it or fails at. Callers, log and counters see no difference.

`QuickConnection` uses what aiohttp does not promise, so each minor version of it is taken up by hand: of a connection `_messages`, `_waiter`,
`_task_handler`, `_loop`, `_parser` (its `message_consumed`, since 3.14.1), `_next_keepalive_close_time` and `_process_keepalive`; of a body `_buffer`.
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

__all__ = ["QUICK", "Answered", "BufferedConnection", "Quick", "QuickConnection", "QuickRoutes", "read_buffer"]

_BUFFER_BYTES: Final = 2**18
_LARGEST_BYTES: Final = 2**19
"""The names of 5,000 nodes take 100 KiB at least. More than this aiohttp does not take in before somebody reads."""
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
A body has 512 KiB at most, so that no limit applies.
"""


class _Taken(NamedTuple):
    """A request that stands first in a connection's queue, and is of no concern here once the task has taken it out."""

    queued: tuple[object, object]
    path: str
    quick: Quick
    began: float
    """When its head had arrived."""


class QuickRoutes:
    """Those of one application, by path; each has a handler for POST beside it.

    What has arrived by one turn of the event loop is judged, then logged, then sent: code that runs again at once is still in the
    processor's caches, and takes two thirds of the time.
    """

    def __init__(self, metrics: RequestMetrics, log: logging.Logger) -> None:
        self._metrics = metrics
        self._log = log
        self._routes: dict[str, Quick] = {}
        self._arrived: deque[QuickConnection] = deque()
        self.followers: list[Callable[[], None]] = []
        """Called after each answer; `on_response_prepare` is not sent."""

    def add(self, path: str, quick: Quick) -> None:
        """Ask `quick` about the usual POST to `path`, which has no variable parts."""
        self._routes[path] = quick

    def get(self, path: str) -> Quick | None:
        """The route of a path."""
        return self._routes.get(path)

    def later(self, connection: "QuickConnection") -> None:
        """Answer the request of this connection once everything that has arrived is read."""
        if not self._arrived:
            asyncio.get_running_loop().call_soon(self._answer)
        self._arrived.append(connection)

    def gone(self, path: str, code: int, began: float) -> None:
        """Log and count a request that gets no answer, because its caller hung up or for a fault of ours."""
        elapsed_s = perf_counter() - began
        self._metrics.count(path, code, elapsed_s)
        write_line(self._log, hdrs.METH_POST, path, code, elapsed_s)

    def _answer(self) -> None:
        """A fault in here closes the connections of those that were judged together, and nobody else waits for ever."""
        under_way: list[QuickConnection] = []
        try:
            while self._arrived:
                judged = list(self._judged(under_way))
                for connection, answered, now in judged:
                    taken = connection.claimed()
                    if taken is not None:
                        elapsed_s = now - taken.began
                        self._metrics.count(taken.path, 200, elapsed_s)
                        write_line(self._log, hdrs.METH_POST, taken.path, 200, elapsed_s, answered.outcome)
                for connection, answered, _ in judged:
                    connection.send(whole_answer(answered.body))
                    for follow in self.followers:
                        follow()
                under_way.clear()
        finally:
            for connection in under_way:
                connection.fail()
            if self._arrived:
                asyncio.get_running_loop().call_soon(self._answer)

    def _judged(self, under_way: list["QuickConnection"]) -> Iterator[tuple["QuickConnection", Answered, float]]:
        """Those that have an answer, with the time at which they had it; so many that none waits long for the others."""
        ends_at = perf_counter() + _TOGETHER_S
        while self._arrived:
            connection = self._arrived.popleft()
            under_way.append(connection)
            answered = connection.judged()
            now = perf_counter()
            if answered is None:
                under_way.pop()
            else:
                yield connection, answered, now
            if now >= ends_at:
                return


QUICK = web.AppKey("quick", QuickRoutes)
"""Of an application of `serving.app.new_app`."""


class QuickConnection(web.RequestHandler):
    """aiohttp's connection, but requests of quick routes do not reach the task that it answers in."""

    __slots__ = ("_connections", "_hold_ends", "_lost_as", "_routes", "_taken")

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
        self._taken: _Taken | None = None
        self._hold_ends: asyncio.TimerHandle | None = None
        self._lost_as = CALLER_GONE

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
        self._end_hold()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _is_left_for_later(self) -> bool:
        message, payload = queued = self._messages[0]
        if len(self._messages) > 1 or not isinstance(message, RawRequestMessage):
            return False
        path = message.path.partition("?")[0]
        quick = self._routes.get(path)
        if quick is None or not self._is_usual(message, payload):
            return False
        is_whole = payload.is_eof()
        if self._taken is None or self._taken.queued is not queued:
            if not (payload.total_bytes if is_whole else _is_waited_for(message)):
                return False
            self._taken = _Taken(queued, path, quick, perf_counter())
            self._connections.took(self)
        elif self._hold_ends is None:
            return True  # it was whole before, and more has come behind it
        if is_whole:
            self._end_hold()
            self._routes.later(self)
        elif self._hold_ends is None:
            self._hold_ends = self._loop.call_later(_HELD_S, self._wake_task)
        return True

    def _end_hold(self) -> None:
        if self._hold_ends is not None:
            self._hold_ends.cancel()
            self._hold_ends = None

    def _process_keepalive(self) -> None:
        """A connection with a request is not idle, even though its task sleeps."""
        if self._messages:
            self._next_keepalive_close_time = self._loop.time() + self.keepalive_timeout
        super()._process_keepalive()

    def connection_lost(self, exc: BaseException | None) -> None:
        """A request that nobody has begun to answer is logged and counted, as one under way is by the task."""
        task = self._task_handler
        is_woken = self._waiter is not None and self._waiter.done()
        taken = self.claimed()
        super().connection_lost(exc)
        self._connections.left(self)
        if is_woken and task is not None:
            # It would begin a request without a connection, and end with a TypeError.
            task.cancel()
        if taken is not None:
            self._routes.gone(taken.path, self._lost_as, taken.began)

    def claimed(self) -> _Taken | None:
        """The request that the task has not begun, which the caller logs and counts: it is handed out once."""
        taken, self._taken = self._taken, None
        return taken if taken is not None and self._is_first(taken) else None

    def _is_first(self, taken: _Taken) -> bool:
        return bool(self._messages) and self._messages[0] is taken.queued

    def judged(self) -> Answered | None:
        """The answer to the request; None where its caller is gone, where the task answers, or where it has to from now on."""
        taken = self._taken
        if taken is None or len(self._messages) != 1 or not self._is_first(taken) or not self._task_sleeps():
            return None
        payload = self._messages[0][1]
        answered = None
        if not self._connections.draining:
            try:
                # Looked at, not taken out: it has to be there for the handler, and aiohttp would try to parse on at once.
                answered = taken.quick(b"".join(payload._buffer))
            except Exception as error:  # raised again where the handler reads the body
                payload.set_exception(error)
        if answered is None:
            self._wake_task()
        return answered

    def send(self, answer: bytes) -> None:
        """Answer the request that was judged."""
        self._messages.clear()
        if self._parser is not None:
            # As the task does for each that it takes out: with 32 not given back no more is parsed.
            self._parser.message_consumed()
        self._connections.left(self)
        self._next_keepalive_close_time = self._loop.time() + self.keepalive_timeout
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(answer)

    def fail(self) -> None:
        """Close for a fault of ours, after what was sent."""
        self._lost_as = 500
        self.force_close()

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


def _is_waited_for(message: RawRequestMessage) -> bool:
    """Whether the rest of the body is announced and not large."""
    length = message.headers.get(hdrs.CONTENT_LENGTH)
    return length is not None and int(length) <= _LARGEST_BYTES


def read_buffer() -> memoryview:
    """What all connections of one event loop read into.

    One is enough: an event loop on Unix, with TLS and without, asks for it, reads, and says how much it has read without anything
    in between, and `BufferedConnection` copies those bytes out before it does anything else.
    """
    return memoryview(bytearray(_BUFFER_BYTES))


class BufferedConnection(asyncio.BufferedProtocol):
    """A connection whose bytes come through a `read_buffer`.

    TLS makes an object of 256 KiB for every read of any other protocol. Where the allocator maps memory for that, which depends on what
    the process did before, it takes as long as decrypting a request.
    """

    def __init__(self, connection: asyncio.Protocol, buffer: memoryview) -> None:
        self._connection = connection
        self._buffer = buffer

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
