"""Listening, the plain answers, and a drain that finishes what it began."""

import asyncio
import logging
import os
import signal
from dataclasses import dataclass, field
from functools import partial

import pytest
import uvloop
from aiohttp import ClientConnectionError, ClientSession, web

from serving.access_log import OUTCOME
from serving.drain import Drain
from serving.errors import BindError
from serving.health import add_health
from serving.server import Address, Listener, run, serve
from tests.serving.running import (
    PATIENCE_S,
    Plain,
    on_uvloop,
    running,
    until,
    within_patience,
)


@dataclass
class Slow:
    """A handler that answers when the test says so."""

    entered: asyncio.Event = field(default_factory=asyncio.Event)
    finish: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    async def handle(self, request: web.Request) -> web.Response:
        self.entered.set()
        try:
            await self.finish.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return web.Response(text="finished")


async def hello(request: web.Request) -> web.Response:
    return web.Response(text="hello")


async def answer_text(text: str, request: web.Request) -> web.Response:
    return web.Response(text=text)


async def raw(address: Address, request: bytes) -> bytes:
    """Everything the server sends until it closes."""
    reader, writer = await asyncio.open_connection(*address)
    writer.write(request)
    async with asyncio.timeout(PATIENCE_S):
        answer = await reader.read()
    writer.close()
    return answer


async def refused(address: Address) -> bool:
    try:
        _, writer = await asyncio.open_connection(*address)
    except ConnectionRefusedError:
        return True
    writer.close()
    return False


def test_run_runs_on_uvloop_and_returns() -> None:
    async def main() -> bool:
        return isinstance(asyncio.get_running_loop(), uvloop.Loop)

    assert run(main()) is True


async def test_listeners_are_told_in_order_with_their_real_ports() -> None:
    one, two = Plain(), Plain()
    one.app.router.add_get("/who", partial(answer_text, "one"))
    two.app.router.add_get("/who", partial(answer_text, "two"))
    async with running([one.listener(), two.listener(), one.listener()]) as server, ClientSession() as client:
        said = [await (await client.get(server.url("/who", listener=number))).text() for number in range(3)]
    assert said == ["one", "two", "one"]
    assert len({port for _, port in server.addresses} - {0}) == 3


async def test_a_taken_port_is_named_and_nothing_stays_open() -> None:
    async with running([Plain().listener()]) as server:
        host, port = server.addresses[0]
        first = Plain()
        closed = asyncio.Event()

        async def note(app: web.Application) -> None:
            closed.set()

        first.app.on_cleanup.append(note)
        with pytest.raises(BindError, match=f"cannot listen on 127.0.0.1:{port}"):
            await serve(
                [first.listener(), Listener(Plain().app, host, port)], stop=asyncio.Event(), handle_signals=False
            )
        assert closed.is_set()


async def test_listeners_of_one_application_must_agree() -> None:
    plain = Plain()
    with pytest.raises(ValueError, match="handler_cancellation=True"):
        await serve(
            [plain.listener(), plain.listener(handler_cancellation=True)], stop=asyncio.Event(), handle_signals=False
        )


ANSWERS = {
    "unknown path": ("GET", "/nothing/here", 404, "no such path: /nothing/here\n"),
    "unknown path with a forged line": ("GET", "/a%0Ab", 404, "no such path: /a%0Ab\n"),
    "wrong method": ("DELETE", "/hello", 405, "DELETE is not allowed on /hello: use GET, HEAD\n"),
    "fault": ("GET", "/broken", 500, "internal error, see the log of this process\n"),
    "timeout inside is a fault too": ("GET", "/timeout", 500, "internal error, see the log of this process\n"),
}


@pytest.mark.parametrize(("method", "path", "status", "text"), ANSWERS.values(), ids=ANSWERS)
async def test_answers_without_a_handler_of_their_own(
    method: str, path: str, status: int, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    plain = Plain()

    async def broken(request: web.Request) -> web.Response:
        raise KeyError("a secret of the inside")

    async def timeout(request: web.Request) -> web.Response:
        raise TimeoutError

    plain.app.router.add_get("/hello", hello)
    plain.app.router.add_get("/broken", broken)
    plain.app.router.add_get("/timeout", timeout)
    async with running([plain.listener()]) as server, ClientSession() as client:
        for _ in range(2):  # and the connection stays usable
            async with client.request(method, server.url(path)) as answer:
                assert (answer.status, await answer.text()) == (status, text)
                assert answer.content_type == "text/plain"
                assert answer.headers.get("Allow") == ("GET, HEAD" if status == 405 else None)
    tracebacks = [record for record in caplog.records if record.exc_info]
    assert len(tracebacks) == (2 if status == 500 else 0)


@on_uvloop
async def test_a_fault_amid_an_answer_cuts_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    plain = Plain()

    async def half(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"half")
        raise KeyError("gone")

    plain.app.router.add_get("/half", half)
    async with running([plain.listener()]) as server:
        answer = await raw(server.addresses[0], b"GET /half HTTP/1.1\r\nHost: x\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b"half\r\n")  # no closing chunk, no second answer
    assert [record.message for record in caplog.records if record.exc_info] == ["GET /half failed"]


async def test_one_log_line_a_request(caplog: pytest.LogCaptureFixture) -> None:
    plain = Plain()

    async def outcome(request: web.Request) -> web.Response:
        request[OUTCOME] = await request.text() or "node n2,\nscore 1"
        return web.Response()

    plain.app.router.add_post("/filter", outcome)
    add_health(plain.app, lambda: ["no leader"], Drain())
    async with running([plain.listener()]) as server, ClientSession() as client:
        with caplog.at_level(logging.INFO, logger="tests.access"):
            for method, path in (("POST", "/filter?a=b"), ("GET", "/x"), ("GET", "/healthz"), ("GET", "/readyz")):
                await client.request(method, server.url(path))
            await client.post(server.url("/filter"), data="a" * 262_144)
    lines = [record.getMessage().split(" ", 4) for record in caplog.records if record.name == "tests.access"]
    assert [(line[:3], line[4:]) for line in lines] == [
        (["POST", "/filter", "200"], ["node n2, score 1"]),
        (["GET", "/x", "404"], []),
        (["GET", "/readyz", "503"], ["no leader"]),  # a good /healthz is left to DEBUG
        (["POST", "/filter", "200"], ["a" * 999 + "…"]),  # every retry wrote a whole annotation into the log
    ]
    assert all(line[3].endswith("ms") and float(line[3].removesuffix("ms")) >= 0 for line in lines)


@on_uvloop
async def test_a_caller_that_hangs_up_amid_its_body_is_no_fault(caplog: pytest.LogCaptureFixture) -> None:
    plain, entered = Plain(), asyncio.Event()

    async def read(request: web.Request) -> web.Response:
        entered.set()
        return web.Response(body=await request.read())

    plain.app.router.add_post("/read", read)
    async with running([plain.listener()]) as server:
        _, writer = await asyncio.open_connection(*server.addresses[0])
        writer.write(b"POST /read HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc")
        await within_patience(entered.wait())
        writer.close()
        await writer.wait_closed()
    assert plain.registry.get_sample_value("slotwise_http_requests_total", {"route": "/read", "code": "499"}) == 1.0
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


@on_uvloop
async def test_a_broken_connection_to_somebody_else_is_a_fault_of_ours() -> None:
    plain = Plain()

    async def asks(request: web.Request) -> web.Response:
        raise ConnectionResetError("the API server hung up")

    plain.app.router.add_get("/asks", asks)
    async with running([plain.listener()]) as server, ClientSession() as client:
        assert (await client.get(server.url("/asks"))).status == 500


@pytest.mark.parametrize("cancels", [True, False], ids=["cancels", "runs on"])
@on_uvloop
async def test_a_caller_that_hangs_up(cancels: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="tests.access")
    slow, plain = Slow(), Plain()
    plain.app.router.add_get("/slow", slow.handle)
    async with running([plain.listener(handler_cancellation=cancels)]) as server:
        _, writer = await asyncio.open_connection(*server.addresses[0])
        writer.write(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        await within_patience(slow.entered.wait())
        writer.close()
        await writer.wait_closed()
        if cancels:
            await within_patience(slow.cancelled.wait())
        else:
            slow.finish.set()
    assert slow.cancelled.is_set() is cancels
    code = "499" if cancels else "200"
    assert plain.registry.get_sample_value("slotwise_http_requests_total", {"route": "/slow", "code": code}) == 1.0
    assert [record.getMessage().split()[2] for record in caplog.records if record.name == "tests.access"] == [code]


@on_uvloop
async def test_drain_finishes_what_it_began_and_takes_nothing_new() -> None:
    slow, plain = Slow(), Plain()
    plain.app.router.add_get("/slow", slow.handle)
    plain.app.router.add_get("/hello", hello)
    async with running([plain.listener(), plain.listener()]) as server, ClientSession() as client:
        await client.get(server.url("/hello", listener=1))  # leaves an idle connection behind
        asking = asyncio.create_task(client.get(server.url("/slow")))
        await within_patience(slow.entered.wait())
        server.stop.set()
        await within_patience(server.drain.wait())
        for address in server.addresses:
            await until(partial(refused, address))
        assert not server.task.done()
        slow.finish.set()
        async with await asking as answer:
            assert (answer.status, await answer.text()) == (200, "finished")
            assert answer.headers["Connection"] == "close"
        await server.stopped()


@on_uvloop
async def test_a_body_still_on_its_way_when_the_drain_begins_is_read_whole() -> None:
    plain = Plain()

    entered = asyncio.Event()

    async def length(request: web.Request) -> web.Response:
        entered.set()
        return web.Response(text=str(len(await request.read())))

    plain.app.router.add_post("/length", length)
    async with running([plain.listener()]) as server:
        reader, writer = await asyncio.open_connection(*server.addresses[0])
        writer.write(b"POST /length HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\n\r\nabc")
        await within_patience(entered.wait())
        server.stop.set()
        await until(partial(refused, server.addresses[0]))
        writer.write(b"def")
        async with asyncio.timeout(PATIENCE_S):
            answer = await reader.read()
        writer.close()
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b"6")


@on_uvloop
async def test_drain_gives_up_at_its_timeout(caplog: pytest.LogCaptureFixture) -> None:
    slow, plain = Slow(), Plain()
    plain.app.router.add_get("/slow", slow.handle)
    async with running([plain.listener()], drain_timeout_s=0.1) as server, ClientSession() as client:
        asking = asyncio.create_task(client.get(server.url("/slow")))
        await within_patience(slow.entered.wait())
        await server.stopped()
        with pytest.raises(ClientConnectionError):
            await asking
    assert slow.cancelled.is_set()
    assert "1 requests unanswered after 0.1 s" in caplog.text


@on_uvloop
async def test_idle_connections_do_not_hold_up_the_drain() -> None:
    plain = Plain()
    plain.app.router.add_get("/hello", hello)
    async with running([plain.listener()], drain_timeout_s=3600.0) as server, ClientSession() as client:
        await client.get(server.url("/hello"))
        _, silent = await asyncio.open_connection(*server.addresses[0])
        await server.stopped()
        silent.close()


async def test_readiness_turns_false_while_connections_are_still_taken() -> None:
    plain = Plain()
    drain = Drain()
    add_health(plain.app, lambda: [], drain)
    async with running([plain.listener()], drain=drain, lame_duck_s=3600.0) as server, ClientSession() as client:
        assert (await client.get(server.url("/readyz"))).status == 200
        server.stop.set()
        await within_patience(drain.wait())
        for _ in range(2):
            async with client.get(server.url("/readyz")) as answer:
                assert (answer.status, await answer.text()) == (503, "shutting down\n")
                assert answer.headers["Connection"] == "close"
        assert (await client.get(server.url("/healthz"))).status == 200
        server.task.cancel()
        await asyncio.wait({server.task})
        server.task = asyncio.create_task(asyncio.sleep(0))


@on_uvloop
async def test_a_connection_that_sends_no_head_is_closed() -> None:
    plain = Plain()

    async def port(request: web.Request) -> web.Response:
        assert request.transport is not None
        return web.Response(text=str(request.transport.get_extra_info("peername")[1]))

    plain.app.router.add_get("/port", port)
    async with running([plain.listener()], head_timeout_s=0.1) as server, ClientSession() as client:
        used = [await (await client.get(server.url("/port"))).text()]
        assert await raw(server.addresses[0], b"") == b""
        assert await raw(server.addresses[0], b"GET /hello HTTP/1.1\r\nHost: x\r\n") == b""
        # Those that have sent a request are not under this clock: the first client still has the same connection.
        used.append(await (await client.get(server.url("/port"))).text())
    assert used[0] == used[1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@on_uvloop
async def test_signals_stop_and_a_second_one_does_not_wait(number: signal.Signals) -> None:
    slow, plain = Slow(), Plain()
    plain.app.router.add_get("/slow", slow.handle)
    stop = asyncio.Event()
    bound: asyncio.Future[list[Address]] = asyncio.get_running_loop().create_future()
    drain = Drain()
    serving = asyncio.create_task(
        serve([plain.listener()], stop=stop, drain=drain, drain_timeout_s=3600.0, on_bound=bound.set_result)
    )
    (host, port), *_ = await bound
    async with ClientSession() as client:
        asking = asyncio.create_task(client.get(f"http://{host}:{port}/slow"))
        await within_patience(slow.entered.wait())
        os.kill(os.getpid(), number)
        await within_patience(drain.wait())
        assert stop.is_set()
        assert not serving.done()
        os.kill(os.getpid(), number)
        await within_patience(serving)
        with pytest.raises(ClientConnectionError):
            await asking
    assert slow.cancelled.is_set()
