"""The open connections of one server: who has sent a request yet, who is being answered, who is idle."""

import asyncio
import select

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware

from serving.drain import DRAIN, Drain

__all__ = ["Connections"]


class Connections:
    """Follows the connections of one application, because aiohttp times no request heads and cannot tell idle ones.

    Build it before the application starts; `attach` names the running server.
    """

    def __init__(self, app: web.Application, drain: Drain) -> None:
        self._drain = app[DRAIN] = drain
        self._server: web.Server | None = None
        self._busy: set[web.RequestHandler] = set()
        # Answered after draining began: they close once the answer is written out.
        self._leaving: set[web.RequestHandler] = set()
        self._served: set[web.RequestHandler] = set()
        self._first_seen_s: dict[web.RequestHandler, float] = {}
        self._draining_since_s: dict[web.RequestHandler, float] = {}
        app.middlewares.insert(0, self._follow())
        app.on_response_prepare.append(self._say_close)

    def attach(self, server: web.Server) -> None:
        """Follow `server`'s connections from now on."""
        self._server = server

    @property
    def open_count(self) -> int:
        """Connections not closed yet."""
        return 0 if self._server is None else len(self._server.connections)

    @property
    def busy_count(self) -> int:
        """Requests being answered."""
        return len(self._busy)

    @property
    def draining(self) -> bool:
        """Whether the process is on its way out: answers then say that their connection closes."""
        return self._drain.began

    def took(self, connection: web.RequestHandler) -> None:
        """A request has come that may be answered outside the application; it is under way until `left` or the application's answer."""
        self._served.add(connection)
        self._busy.add(connection)

    def left(self, connection: web.RequestHandler) -> None:
        """It is answered, or its caller is gone."""
        self._busy.discard(connection)

    def close_headless(self, timeout_s: float) -> None:
        """Close connections that were opened `timeout_s` ago and have not sent a whole request head yet."""
        now_s = asyncio.get_running_loop().time()
        open_now = self._open()
        self._served.intersection_update(open_now)
        self._busy.intersection_update(open_now)
        waiting = [connection for connection in open_now if connection not in self._served]
        self._first_seen_s = {connection: self._first_seen_s.get(connection, now_s) for connection in waiting}
        for connection, since_s in self._first_seen_s.items():
            if now_s - since_s >= timeout_s:
                connection.force_close()

    def close_idle(self, grace_s: float) -> None:
        """Close connections that nobody is answered on, but not within `grace_s` of when draining first saw them.

        A caller may just be sending on a connection it believes usable, and a POST cut off is not sent again. Within
        the grace it is answered, with `Connection: close`, after which its connection closes by itself. What has arrived and
        waits to be read, in a process that is short of time, is answered as well.
        """
        now_s = asyncio.get_running_loop().time()
        open_now = self._open()
        self._leaving.intersection_update(open_now)
        self._busy.intersection_update(open_now)
        self._draining_since_s = {c: self._draining_since_s.get(c, now_s) for c in open_now}
        for connection, since_s in self._draining_since_s.items():
            if now_s - since_s >= grace_s and self._is_idle(connection):
                # Not close(): that leaves an idle connection open, and drops the rest of a body still coming in.
                connection.force_close()

    def _is_idle(self, connection: web.RequestHandler) -> bool:
        if connection in self._busy or connection in self._leaving:
            return False
        transport = connection.transport
        if transport is None or transport.is_closing():
            return True
        return transport.get_write_buffer_size() == 0 and not _has_unread(transport)

    def _open(self) -> list[web.RequestHandler]:
        return [] if self._server is None else self._server.connections

    def _follow(self) -> Middleware:
        @web.middleware
        async def follow(request: web.Request, handler: Handler) -> web.StreamResponse:
            connection = request.protocol
            self._served.add(connection)
            self._busy.add(connection)
            try:
                return await handler(request)
            finally:
                self._busy.discard(connection)
                if self._drain.began:
                    self._leaving.add(connection)

        return follow

    async def _say_close(self, request: web.Request, response: web.StreamResponse) -> None:
        if self._drain.began:
            response.force_close()
            response.headers[hdrs.CONNECTION] = "close"


def _has_unread(transport: asyncio.WriteTransport) -> bool:
    """Whether bytes have arrived that the event loop has not read yet."""
    arrived = select.poll()
    arrived.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
    return bool(arrived.poll(0))
