"""Client connections that cost little: one request at a time, kept alive, over TLS or without."""

import asyncio
import ssl
from typing import cast

__all__ = ["Connection", "connected", "post"]

_END_OF_HEAD = b"\r\n\r\n"
_LENGTH = b"content-length:"


def post(path: str, body: bytes) -> bytes:
    """A whole POST of JSON, head and body."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Connection(asyncio.Protocol):
    """One keep-alive connection; requests go one after the other."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._whole = 0
        self._answer: asyncio.Future[bytes] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's over TLS is none by its class

    def data_received(self, data: bytes) -> None:
        """Part of an answer."""
        received = self._received
        received += data
        if not self._whole:
            head = received.find(_END_OF_HEAD)
            if head < 0:
                return
            lines = bytes(received[:head]).lower()
            at = lines.find(_LENGTH)
            if at < 0:
                self._fail(ConnectionError("an answer without Content-Length"))
                return
            self._whole = head + len(_END_OF_HEAD) + int(lines[at + len(_LENGTH) :].split(b"\r\n", 1)[0])
        if len(received) >= self._whole and self._answer is not None:
            answer, self._answer = self._answer, None
            whole = bytes(received)
            received.clear()
            self._whole = 0
            if not answer.done():
                answer.set_result(whole)

    def connection_lost(self, exc: Exception | None) -> None:
        """Whoever waits gets a `ConnectionError`."""
        self._fail(ConnectionError("the server closed the connection"))

    def _fail(self, error: ConnectionError) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    async def ask(self, request: bytes) -> bytes:
        """Send a whole request; the whole answer, head and body."""
        if self._transport is None or self._transport.is_closing():
            raise ConnectionError("the connection is closed")
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    def close(self) -> None:
        """Close it."""
        if self._transport is not None:
            self._transport.abort()


async def connected(port: int, context: ssl.SSLContext | None = None) -> Connection:
    """A connection to a port on loopback."""
    _, connection = await asyncio.get_running_loop().create_connection(
        Connection, "127.0.0.1", port, ssl=context, server_hostname="127.0.0.1" if context is not None else None
    )
    return connection
