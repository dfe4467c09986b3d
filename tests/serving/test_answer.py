"""An answer written in one piece is, byte for byte, the one that aiohttp would have written."""

import asyncio
import re

import pytest
from aiohttp import web

from serving.answer import json_answer
from serving.server import Listener
from tests.serving.running import PATIENCE_S, Plain, Running, running, within_patience

BODIES = {"nothing": b"", "short": b"{}", "text": '{"a": "é"}'.encode(), "large": b"[" + b"1," * 200_000 + b"1]"}

HEADS = {
    "usual": ("POST", "1.1", ""),
    "says keep-alive": ("POST", "1.1", "Connection: keep-alive\r\n"),
    "says close": ("POST", "1.1", "Connection: close\r\n"),
    "old": ("POST", "1.0", ""),
    "old, says keep-alive": ("POST", "1.0", "Connection: keep-alive\r\n"),
    "takes packed answers": ("POST", "1.1", "Accept-Encoding: gzip\r\n"),
    "another method": ("PUT", "1.1", ""),
}


def answering(body: bytes) -> Listener:
    """`/written` answers `body` as we do, `/made` as aiohttp does."""
    plain = Plain()

    async def written(request: web.Request) -> web.StreamResponse:
        return json_answer(request, body)

    async def made(request: web.Request) -> web.StreamResponse:
        return web.Response(body=body, content_type="application/json")

    plain.app.router.add_route("*", "/written", written)
    plain.app.router.add_route("*", "/made", made)
    return plain.listener()


async def exchange(server: Running, path: str, method: str, version: str, header: str) -> bytes:
    """All that comes back for one such request, or for two at once and a last one that closes; dates replaced."""
    reader, writer = await asyncio.open_connection(*server.addresses[0])
    ask = f"{method} {path} HTTP/{version}\r\nHost: x\r\nContent-Length: 2\r\n{header}\r\n{{}}"
    last = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    stays_open = "close" not in header and (version == "1.1" or "keep-alive" in header)
    writer.write((ask + ask + last if stays_open else ask).encode())
    async with asyncio.timeout(PATIENCE_S):
        answer = await reader.read()
    writer.close()
    shown, dates = re.subn(rb"\r\nDate: \w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT\r\n", b"\r\nDate: -\r\n", answer)
    assert dates >= 1
    return shown


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize(("method", "version", "header"), HEADS.values(), ids=HEADS)
async def test_the_same_bytes(method: str, version: str, header: str, body: bytes) -> None:
    async with running([answering(body)]) as server:
        ours = await exchange(server, "/written", method, version, header)
        assert ours == await exchange(server, "/made", method, version, header)


WRITTEN = {"usual": 2, "says keep-alive": 2, "takes packed answers": 2}
"""The last request of each connection closes it."""


@pytest.mark.parametrize("head", HEADS)
async def test_the_usual_answer_is_written_and_others_are_made(head: str) -> None:
    plain, answers = Plain(), list[web.StreamResponse]()

    async def handle(request: web.Request) -> web.StreamResponse:
        answers.append(json_answer(request, b"{}"))
        return answers[-1]

    plain.app.router.add_route("*", "/", handle)
    async with running([plain.listener()]) as server:
        await exchange(server, "/", *HEADS[head])
    assert sum(not isinstance(answer, web.Response) for answer in answers) == WRITTEN.get(head, 0)


async def test_who_is_answered_while_draining_is_told_to_close() -> None:
    plain, entered, leave = Plain(), asyncio.Event(), asyncio.Event()

    async def handle(request: web.Request) -> web.StreamResponse:
        entered.set()
        await leave.wait()
        return json_answer(request, b"{}")

    plain.app.router.add_post("/", handle)
    async with running([plain.listener()]) as server:
        reader, writer = await asyncio.open_connection(*server.addresses[0])
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        await within_patience(entered.wait())
        server.stop.set()
        await within_patience(server.drain.wait())
        leave.set()
        async with asyncio.timeout(PATIENCE_S):
            answer = await reader.read()
        writer.close()
    assert b"\r\nConnection: close\r\n" in answer
    assert answer.endswith(b"\r\n\r\n{}")


async def test_followers_of_answers_see_it() -> None:
    plain, seen = Plain(), list[str]()

    async def handle(request: web.Request) -> web.StreamResponse:
        return json_answer(request, b"{}")

    async def follow(request: web.Request, response: web.StreamResponse) -> None:
        seen.append(f"{request.path} {response.status}")

    plain.app.router.add_post("/", handle)
    plain.app.on_response_prepare.append(follow)
    async with running([plain.listener()]) as server:
        await exchange(server, "/", "POST", "1.1", "")
    assert seen == ["/ 200"] * 3
