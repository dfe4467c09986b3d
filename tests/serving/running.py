"""A running server for these tests: `serving.server.serve` in a task, stopped when the block ends."""

import asyncio
import functools
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import ParamSpec

from aiohttp import web
from prometheus_client import CollectorRegistry

from certs.files import write_pair
from certs.pki import Pair, create_ca, issue_serving
from serving.app import new_app
from serving.drain import Drain
from serving.metrics import RequestMetrics
from serving.server import Address, Listener, run, serve

NOW = datetime.now(UTC)
PATIENCE_S = 20.0
"""How long a test waits for something that must happen, before it fails instead of hanging."""


Arguments = ParamSpec("Arguments")


def on_uvloop(test: Callable[Arguments, Coroutine[object, None, None]]) -> Callable[Arguments, None]:
    """Run an async test on the loop that the services run on."""

    @functools.wraps(test)
    def runs(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        run(test(*args, **kwargs))

    return runs


async def within_patience(wait: Awaitable[object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await wait


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait for something outside that announces itself to nobody: it is asked until it holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not await holds():  # noqa: ASYNC110 - a socket or a handshake has no event to wait for
            await asyncio.sleep(0.005)


@dataclass
class Running:
    """Handles of a server that is listening."""

    addresses: list[Address]
    stop: asyncio.Event
    drain: Drain
    task: "asyncio.Task[None]"

    def url(self, path: str, *, listener: int = 0, scheme: str = "http") -> str:
        host, port = self.addresses[listener]
        return f"{scheme}://{host}:{port}{path}"

    async def stopped(self) -> None:
        """Stop and wait until `serve` has returned."""
        self.stop.set()
        async with asyncio.timeout(PATIENCE_S):
            await self.task


@asynccontextmanager
async def running(
    listeners: Sequence[Listener],
    *,
    drain: Drain | None = None,
    drain_timeout_s: float = 10.0,
    lame_duck_s: float = 0.0,
    head_timeout_s: float = 15.0,
    idle_grace_s: float = 0.05,
) -> AsyncIterator[Running]:
    stop = asyncio.Event()
    drain = drain or Drain()
    bound: asyncio.Future[list[Address]] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(
        serve(
            listeners,
            stop=stop,
            drain=drain,
            drain_timeout_s=drain_timeout_s,
            lame_duck_s=lame_duck_s,
            head_timeout_s=head_timeout_s,
            idle_grace_s=idle_grace_s,
            on_bound=bound.set_result,
            handle_signals=False,
        )
    )

    def ended(task: "asyncio.Task[None]") -> None:
        if not bound.done():
            bound.set_exception(task.exception() or AssertionError("serve returned before it listened"))

    task.add_done_callback(ended)
    server = Running(await bound, stop, drain, task)
    try:
        yield server
    finally:
        await server.stopped()


@dataclass
class Plain:
    """An application of `new_app` with its registry; routes are the test's."""

    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    def __post_init__(self) -> None:
        self.app: web.Application = new_app(
            client_max_size=2**20, metrics=RequestMetrics(self.registry), log=logging.getLogger("tests.access")
        )

    def listener(self, *, ssl_context: ssl.SSLContext | None = None, handler_cancellation: bool = False) -> Listener:
        return Listener(self.app, "127.0.0.1", 0, ssl_context, handler_cancellation)


@dataclass
class Tls:
    """A CA, a folder with a serving pair it signed, and what its clients trust."""

    folder: Path
    ca: Pair = field(default_factory=lambda: create_ca("test CA", now=NOW, days=10))

    @property
    def certificate(self) -> Path:
        return self.folder / "tls.crt"

    @property
    def key(self) -> Path:
        return self.folder / "tls.key"

    def fresh(self, *hosts: str) -> Pair:
        return issue_serving(self.ca, hosts or ("127.0.0.1",), now=NOW, days=5)

    def write_fresh(self, *hosts: str) -> Pair:
        pair = self.fresh(*hosts)
        write_pair(pair, self.certificate, self.key)
        return pair

    def client_context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cadata=self.ca.certificate_pem().decode())


async def served_serial(address: Address, client: ssl.SSLContext) -> int:
    """The serial of the certificate that a new handshake is shown."""
    _, writer = await asyncio.open_connection(*address, ssl=client)
    try:
        return int(writer.get_extra_info("peercert")["serialNumber"], 16)
    finally:
        writer.close()
        await writer.wait_closed()
