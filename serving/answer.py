"""Answers of JSON that cost little: the head as it always is, written with the body in one piece."""

from email.utils import formatdate
from time import time

from aiohttp import HttpVersion11, hdrs, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import SERVER_SOFTWARE

from serving.drain import DRAIN

__all__ = ["JSON", "json_answer", "whole_answer"]

JSON = "application/json"


def json_answer(request: web.Request, body: bytes) -> web.StreamResponse:
    """200 with `body`, for handlers of POST; nobody further out may change it.

    Building and writing aiohttp's own response takes as long as judging a pod, so the usual answer, on a connection that stays open, is
    written by `_Written`. Callers see no difference.
    """
    drain = request.app.get(DRAIN)
    is_usual = request.method == hdrs.METH_POST and request.version == HttpVersion11 and request.keep_alive
    if is_usual and (drain is None or not drain.began):
        return _Written(body)
    return web.Response(body=body, content_type=JSON)


class _Head:
    """Status line and headers up to the length, made anew every second because of the date."""

    def __init__(self) -> None:
        self._second = -1
        self._end = b""

    def before(self, body: bytes) -> bytes:
        second = int(time())
        if second != self._second:
            self._second = second
            self._end = f"\r\nDate: {formatdate(second, usegmt=True)}\r\nServer: {SERVER_SOFTWARE}\r\n\r\n".encode()
        return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d%b" % (len(body), self._end)


_HEAD = _Head()


def whole_answer(body: bytes) -> bytes:
    """Head and body of 200 on a connection that stays open."""
    return _HEAD.before(body) + body


class _Written(web.StreamResponse):
    """The answer as aiohttp's server asks for it; its headers stand in `_HEAD`, those of the object are not sent."""

    def __init__(self, body: bytes) -> None:
        super().__init__()
        self._whole_body = body
        self._writer: AbstractStreamWriter | None = None

    @property
    def keep_alive(self) -> bool:
        """The connection stays open."""
        return True

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter:
        """Tell whoever follows the application's answers."""
        if isinstance(request, web.Request):
            await request.app.on_response_prepare.send(request, self)
        self._writer = request.writer
        return self._writer

    async def write_eof(self, data: bytes = b"") -> None:
        """Write head and body at once."""
        if self._writer is None:
            raise AssertionError("an answer is prepared before it is written")
        writer, self._writer = self._writer, None
        await writer.write_eof(whole_answer(self._whole_body))
