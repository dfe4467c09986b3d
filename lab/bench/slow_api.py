"""An API server that takes every write after a while, in a process of its own: `python -m lab.bench.slow_api MILLISECONDS`.

It keeps nothing but counts: `GET /counts` gives the writes so far by resource. Prints one line of JSON with its port when it listens; ends
when its standard input does.
"""

import asyncio
import json
import sys
from collections import Counter
from typing import cast

from serving.server import run

__all__: list[str] = []

_DONE = b'{"kind":"Status","apiVersion":"v1","status":"Success","code":201}'
_END_OF_HEAD = b"\r\n\r\n"
_LENGTH = b"content-length:"


def _answer(status: bytes, body: bytes) -> bytes:
    head = b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % (status, len(body)) + body


class _Requests(asyncio.Protocol):
    """One connection: requests one after the other."""

    def __init__(self, delay_s: float, written: Counter[str]) -> None:
        self._delay_s, self._written = delay_s, written
        self._received = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head = self._received.find(_END_OF_HEAD)
        if head < 0:
            return
        lines = bytes(self._received[:head])
        at = lines.lower().find(_LENGTH)
        length = int(lines[at + len(_LENGTH) :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if len(self._received) < head + len(_END_OF_HEAD) + length:
            return
        self._received.clear()
        method, path = lines.split(b" ", 2)[:2]
        if method == b"GET":
            self._transport.write(_answer(b"200 OK", json.dumps(self._written).encode()))
            return
        self._written[path.split(b"?")[0].rsplit(b"/", 1)[1].decode()] += 1
        asyncio.get_running_loop().call_later(self._delay_s, self._done)

    def _done(self) -> None:
        if not self._transport.is_closing():
            self._transport.write(_answer(b"201 Created", _DONE))


async def _main(delay_s: float) -> None:
    written: Counter[str] = Counter()
    server = await asyncio.get_running_loop().create_server(lambda: _Requests(delay_s, written), "127.0.0.1", 0)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()


if __name__ == "__main__":
    run(_main(float(sys.argv[1]) / 1000))
