"""Which connections are closed while a process drains."""

import asyncio
import socket
from collections.abc import Callable

import pytest
from aiohttp import web

from serving.connections import Connections
from serving.drain import Drain
from tests.serving.running import Plain, on_uvloop
from tests.serving.wired import wired

REQUEST = b"GET / HTTP/1.1\r\nHost: test\r\n\r\n"


async def hello(request: web.Request) -> web.Response:
    return web.Response(text="hello")


@on_uvloop
async def test_a_request_that_had_arrived_but_was_not_read_yet_was_cut_off() -> None:
    app, drain = web.Application(), Drain()
    app.router.add_get("/", hello)
    connections = Connections(app, drain)
    runner = web.AppRunner(app)
    await runner.setup()
    assert runner.server is not None
    connections.attach(runner.server)
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    caller = socket.create_connection(("127.0.0.1", site.port))
    caller.setblocking(False)
    loop = asyncio.get_running_loop()

    async def answer() -> bytes:
        return await asyncio.wait_for(loop.sock_recv(caller, 65536), 10)

    try:
        await loop.sock_sendall(caller, REQUEST)
        assert b"hello" in await answer()
        drain.begin()
        connections.close_idle(3600.0)
        caller.send(REQUEST)  # and no turn of the event loop before it is looked at
        connections.close_idle(0.0)
        assert b"Connection: close" in await answer()
        assert await answer() == b""
    finally:
        caller.close()
        await runner.cleanup()


SWEEPS: dict[str, Callable[[Connections], None]] = {
    "while serving": lambda connections: connections.close_headless(3600.0),
    "while draining": lambda connections: connections.close_idle(3600.0),
}


@pytest.mark.parametrize("sweep", SWEEPS.values(), ids=SWEEPS)
async def test_a_connection_that_is_gone_was_busy_for_good(
    sweep: Callable[[Connections], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with wired(Plain().app, monkeypatch) as server:
        (gone, wire), (here, _) = await server.connect(), await server.connect()
        wire.close()
        await server.settled()
        server.connections.took(gone)
        server.connections.took(here)
        sweep(server.connections)
        assert server.connections.busy_count == 1
