"""What a body may be, as the caller sees it."""

import asyncio
import gzip
import io
import logging
from collections.abc import AsyncIterator

import pytest
from aiohttp import ClientSession, web

from serving.limits import read_body, read_json_body
from tests.serving.running import PATIENCE_S, Plain, running, within_patience

LIMIT = 2**20


async def pieces(count: int) -> AsyncIterator[bytes]:
    """A body without Content-Length."""
    for _ in range(count):
        yield b"x" * 1024


def echoing(*, json: bool, timeout_s: float = 60.0) -> Plain:
    plain = Plain()

    async def echo(request: web.Request) -> web.Response:
        read = read_json_body if json else read_body
        return web.Response(body=await read(request, LIMIT, timeout_s=timeout_s))

    plain.app.router.add_post("/echo", echo)
    return plain


SIZES = {
    "none": (lambda: b"", {}, 200, ""),
    "exactly the limit": (lambda: b"x" * LIMIT, {}, 200, "x" * LIMIT),
    "one over, announced": (
        lambda: io.BytesIO(b"x" * (LIMIT + 1)),
        {},
        413,
        "request body too large: 1048577 bytes, the limit is 1048576 bytes (1 MiB)\n",
    ),
    "in pieces up to the limit": (lambda: pieces(1024), {}, 200, "x" * LIMIT),
    "in pieces beyond it": (
        lambda: pieces(1025),
        {},
        413,
        "request body too large: the limit is 1048576 bytes (1 MiB)\n",
    ),
    "small, unpacks to the limit": (
        lambda: gzip.compress(b"x" * LIMIT),
        {"Content-Encoding": "gzip"},
        200,
        "x" * LIMIT,
    ),
    "small, unpacks beyond it": (
        lambda: gzip.compress(b"x" * (50 * LIMIT)),
        {"Content-Encoding": "gzip"},
        413,
        "request body too large: the limit is 1048576 bytes (1 MiB)\n",
    ),
}


@pytest.mark.parametrize(("body", "headers", "status", "text"), SIZES.values(), ids=SIZES)
async def test_size(body: object, headers: dict[str, str], status: int, text: str) -> None:
    assert callable(body)
    async with running([echoing(json=False).listener()]) as server, ClientSession() as client:
        for _ in range(2):
            async with client.post(server.url("/echo"), data=body(), headers=headers) as answer:
                assert answer.status == status
                assert await answer.text() == text


KINDS = {
    "json": ("application/json", 200, "{}"),
    "json with a parameter": ("application/json; charset=utf-8", 200, "{}"),
    "json in capitals": ("Application/JSON;charset=utf-8", 200, "{}"),
    "text": ("text/plain", 415, "Content-Type 'text/plain' is not accepted: send application/json\n"),
    "a longer name": (
        "application/jsonp",
        415,
        "Content-Type 'application/jsonp' is not accepted: send application/json\n",
    ),
    "empty": ("", 415, "Content-Type '' is not accepted: send application/json\n"),
    "missing": (None, 415, "no Content-Type: send application/json\n"),
}


@pytest.mark.parametrize(("kind", "status", "text"), KINDS.values(), ids=KINDS)
async def test_kind(kind: str | None, status: int, text: str) -> None:
    async with running([echoing(json=True).listener()]) as server, ClientSession() as client:
        headers = {} if kind is None else {"Content-Type": kind}
        async with client.post(
            server.url("/echo"), data=b"{}", headers=headers, skip_auto_headers=["Content-Type"]
        ) as answer:
            assert (answer.status, await answer.text()) == (status, text)


BROKEN = {
    "chunk of no size, after which aiohttp reads nothing more": (
        b"Transfer-Encoding: chunked",
        b"zz\r\n",
        408,
        "request body did not arrive within 0.5 s (0 bytes came)\n",
    ),
    "no gzip": (
        b"Content-Encoding: gzip\r\nContent-Length: 5",
        b"hello",
        400,
        "request body is broken: Can not decode content-encoding: gzip\n",
    ),
    "stops coming": (b"Content-Length: 5", b"he", 408, "request body did not arrive within 0.5 s (2 bytes came)\n"),
}


@pytest.mark.parametrize(("header", "body", "status", "text"), BROKEN.values(), ids=BROKEN)
async def test_a_broken_body(
    header: bytes, body: bytes, status: int, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    plain, entered = Plain(), asyncio.Event()

    async def echo(request: web.Request) -> web.Response:
        entered.set()
        return web.Response(body=await read_body(request, LIMIT, timeout_s=0.5))

    plain.app.router.add_post("/echo", echo)
    async with running([plain.listener()]) as server:
        reader, writer = await asyncio.open_connection(*server.addresses[0])
        writer.write(b"POST /echo HTTP/1.1\r\nHost: x\r\n" + header + b"\r\n\r\n")
        await within_patience(entered.wait())
        writer.write(body)
        async with asyncio.timeout(PATIENCE_S):
            answer = await reader.read()  # the connection closes: nobody knows where a next request would begin
        writer.close()
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    assert answer.partition(b"\r\n\r\n")[2].decode() == text
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_broken_http_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="serving.http")
    async with running([echoing(json=False).listener()]) as server:
        reader, writer = await asyncio.open_connection(*server.addresses[0])
        writer.write(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: many\r\n\r\n")
        async with asyncio.timeout(PATIENCE_S):
            answer = await reader.read()
        writer.close()
    assert answer.split()[1] == b"400"
    (record,) = [record for record in caplog.records if record.name == "serving.http"]
    assert record.getMessage().startswith("broken HTTP: Error handling request from 127.0.0.1: ")
    assert record.exc_info is None
