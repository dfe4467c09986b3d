"""A request that is answered as soon as it has arrived gets, byte for byte, what aiohttp's way would have given it; log and counters agree."""

import asyncio
import gzip
import logging
import re
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.http import HttpRequestParser, RawRequestMessage
from aiohttp.http_parser import HttpRequestParserPy, RawRequestMessagePy

from serving.access_log import OUTCOME
from serving.answer import json_answer
from serving.collection import Idle
from serving.errors import RequestError
from serving.limits import read_json_body
from serving.quick import QUICK, Answered, BufferedConnection, QuickConnection, read_buffer
from serving.tls import server_context
from tests.serving.running import PATIENCE_S, Plain, Running, Tls, on_uvloop, running, until, within_patience
from tests.serving.wired import KEEPALIVE_S, Wire, wired

LIMIT = 2**20
REQUESTS = "slotwise_http_requests_total"


def answer_to(body: bytes) -> Answered:
    match body:
        case b'"refuse"':
            raise RequestError("refused")
        case b'"http"':
            raise web.HTTPConflict(text="not now")
        case b'"fail"':
            raise ValueError("secret")
    return Answered(body * 2, f"{len(body)} bytes")


class Twins:
    """Two routes of the same answers: one that is quick where it can be, and one that never is."""

    def __init__(self) -> None:
        self.plain = Plain()
        self.quick_answers = 0
        for path in ("/quick", "/never"):
            self.plain.app.router.add_post(path, self._handle)
        self.plain.app[QUICK].add("/quick", self._at_once)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        answered = answer_to(await read_json_body(request, LIMIT))
        request[OUTCOME] = answered.outcome
        return json_answer(request, answered.body)

    def _at_once(self, body: bytes) -> Answered | None:
        if body == b'"leave"':
            return None
        answered = answer_to(body)
        self.quick_answers += 1
        return answered

    def counted(self, path: str) -> dict[str, float]:
        """How often each code was answered on the route, and how many were timed."""
        samples = [s for family in self.plain.registry.collect() for s in family.samples]
        requests = [s for s in samples if s.name == REQUESTS and s.labels["route"] == path]
        codes = {s.labels["code"]: s.value for s in requests}
        timed = [s.value for s in samples if s.labels.get("route") == path and s.name.endswith("_seconds_count")]
        return {**codes, "timed": sum(timed)}

    async def has_answered(self, count: float) -> bool:
        return self.requests >= count

    @property
    def requests(self) -> float:
        """All that were answered so far."""
        return sum(s.value for family in self.plain.registry.collect() for s in family.samples if s.name == REQUESTS)


def post(
    body: bytes = b'"x"', *headers: str, path: str = "PATH", version: str = "1.1", kind: str = "application/json"
) -> bytes:
    lines = [f"POST {path} HTTP/{version}", "Host: x", f"Content-Length: {len(body)}", *headers]
    if kind:
        lines.append(f"Content-Type: {kind}")
    return "\r\n".join([*lines, "", ""]).encode() + body


CHUNKED = b"POST PATH HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"

Pieces = tuple[bytes, ...]
CASES: dict[str, tuple[Pieces, int]] = {
    "usual": ((post(),), 1),
    "with a query, as the API server sends it": ((post(path="PATH?timeout=10s"),), 1),
    "one after the other": ((post(), post(b'"y"'), post(b'"z"')), 3),
    "forty one after the other, then two at once": ((*(post(),) * 40, post() + post(b'"y"')), 40),
    "two at once": ((post() + post(b'"y"'),), 0),
    "in chunks, all there": ((CHUNKED + b'3\r\n"x"\r\n0\r\n\r\n',), 1),
    "in chunks that are broken": ((CHUNKED + b"zz\r\n",), 0),
    "large, but in one piece": ((post(b'"' + b"x" * 40_000 + b'"'),), 1),
    "left to the handler": ((post(b'"leave"'),), 0),
    "left to the handler, another one behind it": ((post(b'"leave"'), post()), 1),
    "refused": ((post(b'"refuse"'), post()), 1),
    "failed": ((post(b'"fail"'), post()), 1),
    "answered by an exception of aiohttp": ((post(b'"http"'), post()), 1),
    "without a body": ((post(b""),), 0),
    "larger than allowed": ((post(b"x" * (LIMIT + 1)),), 0),
    "another kind": ((post(kind="text/plain"),), 0),
    "a kind with a parameter": ((post(kind="application/json; charset=utf-8"),), 0),
    "of no kind": ((post(kind=""),), 0),
    "packed": ((post(gzip.compress(b'"x"', mtime=0), "Content-Encoding: gzip"),), 0),
    "expects 100": ((post(b'"x"', "Expect: 100-continue"),), 0),
    "offers an upgrade": ((post(b'"x"', "Connection: upgrade", "Upgrade: h2c"),), 0),
    "closes": ((post(b'"x"', "Connection: close"),), 0),
    "of HTTP 1.0": ((post(version="1.0"),), 0),
    "of HTTP 1.0, stays": ((post(b'"x"', "Connection: keep-alive", version="1.0"),), 0),
    "a whole address": ((post(path="http://x" + "PATH"),), 0),
    "the path goes on": ((post(path="PATH/more"),), 0),
    "another method": ((post().replace(b"POST", b"PUT"),), 0),
    "no HTTP": ((b"POST PATH\r\n\r\n",), 0),
}
CLOSES = {"closes", "of HTTP 1.0", "in chunks that are broken", "no HTTP"}


class Caller:
    """One connection on which something has been answered already."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def all(self) -> bytes:
        """Everything that comes back until the connection closes."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.reader.read()


@asynccontextmanager
async def calling(server: Running, context: ssl.SSLContext | None = None) -> AsyncIterator[Caller]:
    reader, writer = await asyncio.open_connection(*server.addresses[0], ssl=context)
    writer.write(b"GET /first HTTP/1.1\r\nHost: x\r\n\r\n")
    async with asyncio.timeout(PATIENCE_S):
        await reader.readuntil(b"no such path: /first\n")
    try:
        yield Caller(reader, writer)
    finally:
        writer.close()


def shown(text: str, path: str) -> str:
    """Without what differs from call to call."""
    text = re.sub(r"Date: [^\r]+", "Date: -", text.replace(path, "PATH"))
    return re.sub(r" \d+\.\dms", " -ms", text)


async def outcome_of(path: str, pieces: Pieces, closes: bool, caplog: pytest.LogCaptureFixture) -> tuple[object, ...]:
    """All that callers, log and counters see of such requests; and how many were answered where they arrived."""
    caplog.clear()
    twins = Twins()
    async with running([twins.plain.listener()]) as server, calling(server) as caller:
        for piece in pieces:
            before = twins.requests
            caller.writer.write(piece.replace(b"PATH", path.encode()))
            if not closes:
                await until(partial(twins.has_answered, before + 1))
        if not closes:
            caller.writer.write(b"GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = await caller.all()
    lines = [shown(f"{r.name} {r.levelname} {r.getMessage()}", path) for r in caplog.records]
    return shown(answer.decode(), path), lines, twins.counted(path), twins.quick_answers


PARSERS = {
    "in C": (HttpRequestParser, RawRequestMessage),
    "in Python": (HttpRequestParserPy, RawRequestMessagePy),
}


@pytest.mark.parametrize(("parser", "message"), PARSERS.values(), ids=PARSERS)
@pytest.mark.parametrize("name", CASES)
@on_uvloop
async def test_nobody_sees_a_difference(
    name: str, parser: type, message: type, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiohttp.web_protocol.HttpRequestParser", parser)
    monkeypatch.setattr("aiohttp.http_parser.RawRequestMessage", message)
    monkeypatch.setattr("serving.quick.RawRequestMessage", message)
    caplog.set_level(logging.INFO)
    pieces, expected = CASES[name]
    *quick, taken = await outcome_of("/quick", pieces, name in CLOSES, caplog)
    *ordinary, none = await outcome_of("/never", pieces, name in CLOSES, caplog)
    assert quick == ordinary
    assert (taken, none) == (expected, 0)


@on_uvloop
async def test_over_tls(tmp_path: Path) -> None:
    twins, tls = Twins(), Tls(tmp_path)
    tls.write_fresh()
    listener = twins.plain.listener(ssl_context=server_context(tls.certificate, tls.key))
    large = b'"' + b"x" * 300_000 + b'"'
    async with running([listener]) as server, calling(server, tls.client_context()) as caller:
        caller.writer.write(post(path="/quick"))
        async with asyncio.timeout(PATIENCE_S):
            assert (await caller.reader.readuntil(b'"x""x"')).startswith(b"HTTP/1.1 200 OK\r\n")
        caller.writer.write(post(large, "Connection: close", path="/quick"))
        assert (await caller.all()).endswith(b"\r\n\r\n" + large * 2)
    assert twins.quick_answers == 1


@pytest.mark.parametrize("over_tls", [False, True], ids=["plain", "TLS"])
@on_uvloop
async def test_connections_that_read_at_the_same_time_get_their_own_bytes(over_tls: bool, tmp_path: Path) -> None:
    twins, tls = Twins(), Tls(tmp_path)
    tls.write_fresh()
    ours, theirs = (server_context(tls.certificate, tls.key), tls.client_context()) if over_tls else (None, None)
    bodies = [b'"' + letter.encode() * 300_000 + b'"' for letter in "abcd"]
    async with running([twins.plain.listener(ssl_context=ours)]) as server, AsyncExitStack() as opened:
        callers = [await opened.enter_async_context(calling(server, theirs)) for _ in bodies]
        for caller, body in zip(callers, bodies, strict=True):
            caller.writer.write(post(body, "Connection: close", path="/quick"))
        answers = await asyncio.gather(*(caller.all() for caller in callers))
    assert [answer.partition(b"\r\n\r\n")[2] for answer in answers] == [body * 2 for body in bodies]


class Seen(asyncio.Protocol):
    def __init__(self) -> None:
        self.data: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        self.data.append(data)


def test_what_was_read_stays_when_the_buffer_is_used_again() -> None:
    buffer, seen = read_buffer(), (Seen(), Seen())
    for reader, data in zip((BufferedConnection(one, buffer) for one in seen), (b"abc", b"de"), strict=True):
        reader.get_buffer(-1)[: len(data)] = data
        reader.buffer_updated(len(data))
    assert [one.data for one in seen] == [[b"abc"], [b"de"]]


LONG = b'"' + b"x" * 5000 + b'"'
PIECES = {
    "the head first": (post(LONG), [len(post(LONG)) - len(LONG)], 0.0, 1),
    "as Go sends it": (post(LONG), [4096], 0.049, 1),
    "in small ones": (post(LONG), [1200, 2400, 3600, 4800], 0.01, 1),
    "too late": (post(LONG), [4096], 0.051, 0),
    "too late in all": (post(LONG), [1200, 2400, 3600, 4800], 0.015, 0),
    "the names of many nodes": (post(b'"' + b"x" * (2**19 - 2) + b'"'), [4096, 2**18, 2**19 - 100], 0.01, 1),
    "larger than is waited for": (post(b'"' + b"x" * (2**19 - 1) + b'"'), [4096], 0.0, 0),
    "in chunks": (CHUNKED + b'3\r\n"x"\r\n0\r\n\r\n', [len(CHUNKED) + 4], 0.0, 0),
    "refused in the end": (post(b'"refuse"'), [90], 0.0, 0),
}


@pytest.mark.parametrize(("whole", "cuts", "between_s", "taken"), PIECES.values(), ids=PIECES)
async def test_the_rest_of_a_body_is_waited_for(
    whole: bytes, cuts: list[int], between_s: float, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    twins, answers = Twins(), list[str]()
    async with wired(twins.plain.app, monkeypatch) as server:
        for path in ("/quick", "/never"):
            connection, wire = await server.connect()
            for start, end in pairwise([0, *cuts, len(whole)]):
                connection.data_received(whole[start:end].replace(b"PATH", path.encode()))
                await server.passed(between_s)
            connection.data_received(b"GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            await server.settled()
            assert wire.closed
            answers.append(shown(wire.written.decode(), path))
    assert answers[0] == answers[1]
    assert twins.counted("/quick") == twins.counted("/never")
    assert twins.quick_answers == taken


async def test_it_is_judged_once_whatever_comes_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    twins = Twins()
    async with wired(twins.plain.app, monkeypatch) as server:
        connection, wire = await server.connect()
        whole, *begun = post(path="/quick"), b"POST /qu", b"ick HTT"
        for piece in (whole, *begun):
            connection.data_received(piece)
        await server.settled()
        assert wire.written.count(b"HTTP/1.1 200 OK\r\n") == 1
    assert twins.quick_answers == 1


def lose(connection: QuickConnection, wire: Wire) -> None:
    wire.closed = True
    connection.connection_lost(None)


def lose_as_its_wait_ends(connection: QuickConnection, wire: Wire) -> None:
    """In the same turn of the loop as that timer, behind it and before the task that it wakes."""
    asyncio.get_running_loop().call_later(0.0500001, lose, connection, wire)


PART, WHOLE = post(path="/quick")[:-1], post(path="/quick")
GONE: dict[str, tuple[bytes, float, Callable[[QuickConnection, Wire], None]]] = {
    "while the rest is waited for": (PART, 0.0, lose),
    "just as that ends": (PART, 0.0, lose_as_its_wait_ends),
    "later": (PART, 0.06, lose),
    "before its turn came": (WHOLE, -1.0, lose),
    "closed by the end of the process": (PART, 0.0, lambda connection, wire: connection.force_close()),
}


@pytest.mark.parametrize(("sent", "after_s", "gone"), GONE.values(), ids=GONE)
async def test_a_caller_that_hangs_up(
    sent: bytes,
    after_s: float,
    gone: Callable[[QuickConnection, Wire], None],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.INFO)
    twins = Twins()
    async with wired(twins.plain.app, monkeypatch) as server:
        others = asyncio.all_tasks()
        connection, wire = await server.connect()
        tasks = asyncio.all_tasks() - others
        connection.data_received(sent)
        if after_s >= 0:
            await server.passed(after_s)
        gone(connection, wire)
        await server.passed(0.06)
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert server.connections.busy_count == 0
    assert twins.counted("/quick") == {"499": 1.0, "timed": 1.0}
    assert [shown(record.getMessage(), "/quick") for record in caplog.records] == ["POST PATH 499 -ms"]
    assert [fault for fault in ended if isinstance(fault, Exception)] == []


async def test_a_request_that_is_waited_for_keeps_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    twins = Twins()
    async with wired(twins.plain.app, monkeypatch) as server:
        connection, wire = await server.connect()
        await server.passed(KEEPALIVE_S - 0.01)
        connection.data_received(PART)
        await server.passed(0.02)
        connection.data_received(WHOLE[-1:])
        await server.settled()
        assert wire.written.endswith(b'"x""x"')
        await server.passed(KEEPALIVE_S - 0.03)
        assert not wire.is_closing()
        await server.passed(KEEPALIVE_S)
        assert wire.is_closing()
    assert twins.quick_answers == 1


class BrokenLog(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.is_broken = True

    def emit(self, record: logging.LogRecord) -> None:
        if self.is_broken:
            self.is_broken = False
            raise OSError("no room")


ANSWERED, ALL = b'"x""x"', 60.0
FAULTS = {
    "a follower, each judged alone": ("follower", 0.0, [True, False, False], 3, {"200": 5.0}),
    "a follower": ("follower", ALL, [True, True, True], 1, {"200": 5.0}),
    "the log, each judged alone": ("log", 0.0, [True, False, False], 2, {"200": 5.0}),
    "the log": ("log", ALL, [True, True, True], 0, {"200": 3.0, "500": 2.0}),
    "a write, each judged alone": ("write", 0.0, [True, False, False], 2, {"200": 5.0}),
    "the process, amid judging": ("quick", ALL, [True, False, False], 2, {"200": 4.0, "500": 1.0}),
}


@pytest.mark.parametrize(("what", "together_s", "closed", "answers", "counted"), FAULTS.values(), ids=FAULTS)
async def test_a_fault_while_answering_leaves_nobody_waiting(
    what: str,
    together_s: float,
    closed: list[bool],
    answers: int,
    counted: dict[str, float],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("serving.quick._TOGETHER_S", together_s)
    twins, faults = Twins(), [what]
    log, broken = logging.getLogger("tests.access"), BrokenLog()
    caplog.set_level(logging.INFO, log.name)

    def fail(kind: str) -> None:
        if kind in faults:
            faults.remove(kind)
            raise asyncio.CancelledError if kind == "quick" else RuntimeError

    def quick(body: bytes) -> Answered | None:
        fail("quick")
        return None if body == b'"leave"' else answer_to(body)

    twins.plain.app[QUICK].add("/quick", quick)
    twins.plain.app[QUICK].followers.append(lambda: fail("follower"))
    if what == "log":
        log.addHandler(broken)
    try:
        async with wired(twins.plain.app, monkeypatch) as server:
            asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
            opened = [await server.connect() for _ in range(3)]
            left_to_the_task, its_wire = await server.connect()
            opened[0][1].breaks = what == "write"
            for connection, _ in opened:
                connection.data_received(WHOLE)
            left_to_the_task.data_received(post(b'"leave"', path="/quick"))
            await server.settled()
            assert its_wire.written.endswith(b'"leave""leave"')
            assert not its_wire.closed
            assert [wire.closed for _, wire in opened] == closed
            assert sum(wire.written.endswith(ANSWERED) for _, wire in opened) == answers
            assert server.connections.busy_count == 0
            connection, wire = await server.connect()
            connection.data_received(WHOLE)
            await server.settled()
            assert wire.written.endswith(ANSWERED)
    finally:
        log.removeHandler(broken)
    assert twins.counted("/quick") == {**counted, "timed": 5.0}


@on_uvloop
async def test_while_draining_the_answer_says_that_the_connection_closes() -> None:
    twins = Twins()
    async with running([twins.plain.listener()], idle_grace_s=PATIENCE_S) as server, calling(server) as caller:
        server.stop.set()
        await within_patience(server.drain.wait())
        caller.writer.write(post(path="/quick"))
        answer = await caller.all()
    assert b"\r\nConnection: close\r\n" in answer
    assert answer.endswith(b'\r\n\r\n"x""x"')
    assert twins.quick_answers == 0


TOGETHER = {
    "all judged before any is answered": (60.0, [4, 4, 4, 4]),
    "no more once that takes long": (0.0, [1, 2, 3, 4]),
}


@pytest.mark.parametrize(("together_s", "judged"), TOGETHER.values(), ids=TOGETHER)
@on_uvloop
async def test_what_has_arrived_is_judged_together(
    together_s: float, judged: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.quick._TOGETHER_S", together_s)
    twins, seen = Twins(), list[int]()
    bodies = [b'"a"', b'"fail"', b'"b"', b'"leave"', b'"c"', b'"d"']
    async with running([twins.plain.listener()]) as server, AsyncExitStack() as opened:
        callers = [await opened.enter_async_context(calling(server)) for _ in bodies]
        twins.plain.app[QUICK].followers.append(lambda: seen.append(twins.quick_answers))
        for caller, body in zip(callers, bodies, strict=True):
            caller.writer.write(post(body, path="/quick"))
        for caller in callers:
            await until(partial(twins.has_answered, 2 * len(bodies)))
            caller.writer.write(b"GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answers = [(await caller.all()).partition(b"\r\n\r\n")[2].partition(b"HTTP/1.1")[0] for caller in callers]
    failed = b"internal error, see the log of this process\n"
    assert answers == [b'"a""a"', failed, b'"b""b"', b'"leave""leave"', b'"c""c"', b'"d""d"']
    assert seen == judged


@on_uvloop
async def test_a_drain_that_begins_between_two_requests() -> None:
    twins = Twins()
    async with (
        running([twins.plain.listener()], idle_grace_s=PATIENCE_S) as server,
        calling(server) as first,
        calling(server) as second,
    ):

        def begin(body: bytes) -> Answered:
            server.drain.begin()
            return Answered(body, "")

        twins.plain.app[QUICK].add("/drain", begin)
        first.writer.write(post(path="/drain"))
        second.writer.write(post(path="/quick"))
        answer = await second.all()
    assert b"\r\nConnection: close\r\n" in answer
    assert answer.endswith(b'\r\n\r\n"x""x"')
    assert twins.quick_answers == 0


async def test_a_connection_that_was_answered_has_sent_a_head(monkeypatch: pytest.MonkeyPatch) -> None:
    twins = Twins()
    async with wired(twins.plain.app, monkeypatch) as server:
        connection, answered = await server.connect()
        _, silent = await server.connect()
        server.connections.close_headless(15.0)
        connection.data_received(WHOLE)
        await server.passed(15.0)
        server.connections.close_headless(15.0)
        assert (answered.closed, silent.closed) == (False, True)
    assert twins.quick_answers == 1


@on_uvloop
async def test_idleness_ends_with_an_answer() -> None:
    twins, now_s = Twins(), [0.0]
    idle = Idle(lambda: now_s[0])
    idle.follow(twins.plain.app)
    async with running([twins.plain.listener()]) as server, calling(server) as caller:
        now_s[0] = 5.0
        assert idle.seconds == 5.0
        caller.writer.write(post(path="/quick"))
        async with asyncio.timeout(PATIENCE_S):
            await caller.reader.readuntil(b'"x""x"')
        assert idle.seconds == 0.0
    assert twins.quick_answers == 1
