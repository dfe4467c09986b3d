"""The extender under load, in a process of its own: `python -m lab.bench.server NODES CARDS PODS LINKED`.

Beside the extender's own routes, `/floor` reads the same request and gives a fixed answer, and `/plain` decides by the algorithm that
remembers nothing; LINKED is 1 for nodes whose cards say how they are linked.
It serves a ledger filled beforehand and writes to an API that takes everything at once, so that what is measured is the extender.
Prints one line of JSON with its port when it listens; ends when its standard input does.
"""

import asyncio
import gc
import json
import logging
import sys
from collections.abc import Callable

import orjson
from aiohttp import web

from devices.config import default_config
from devices.kube.protocols import JsonObject
from devices.ledger import Ledger
from lab.bench.plain import Rebuilding
from lab.bench.synthetic import Size, fill, node_name
from scheduler.config import Settings
from scheduler.handlers import BODY_LIMIT_BYTES
from scheduler.service import SchedulerService
from scheduler.wire import decode_filter, failed_filter
from serving.limits import read_body
from serving.quick import QUICK, Answered
from serving.server import Address, run, serve

__all__ = ["Taker", "add_floor"]

FIXED = orjson.dumps({**failed_filter(""), "NodeNames": [node_name(0)]})


class Taker:
    """An API server that takes every write."""

    async def bind(
        self,
        namespace: str,
        name: str,
        body: JsonObject,
        timeout_s: float,
        *,
        before_send: Callable[[], None] | None = None,
    ) -> None:
        if before_send is not None:
            before_send()

    async def create_event(self, namespace: str, body: JsonObject) -> None:
        return None

    async def get_pod(self, namespace: str, name: str) -> JsonObject:
        return {}

    async def get_node(self, name: str) -> JsonObject:
        return {}

    async def patch_node(self, name: str, body: JsonObject) -> JsonObject:
        return {}

    async def patch_pod(self, namespace: str, name: str, body: JsonObject) -> JsonObject:
        return {}


async def _end_of_input(stop: asyncio.Event) -> None:
    await asyncio.to_thread(sys.stdin.read)
    stop.set()


def add_floor(app: web.Application) -> None:
    """`/floor`: read a filter request, pod and names anew every time, and give a fixed answer, the way `/filter` is answered."""

    async def floor(request: web.Request) -> web.Response:
        decode_filter(await read_body(request, BODY_LIMIT_BYTES))
        return web.Response(body=FIXED, content_type="application/json")

    def at_once(body: bytes) -> Answered:
        decode_filter(body)
        return Answered(FIXED, "")

    app.router.add_post("/floor", floor)
    app[QUICK].add("/floor", at_once)


def _routes(plainly: Rebuilding) -> list[web.RouteDef]:
    async def plain(request: web.Request) -> web.Response:
        args = decode_filter(await read_body(request, BODY_LIMIT_BYTES))
        chosen = plainly.choose(args.pod, args.names or ())
        return web.Response(body=orjson.dumps({"NodeNames": [chosen]}), content_type="application/json")

    return [web.post("/plain", plain)]


async def _main(size: Size, linked: bool) -> None:
    ledger = Ledger(default_config())
    fill(ledger, size, linked)
    plainly = Rebuilding(ledger)
    gc.collect()
    gc.freeze()
    settings = Settings(host="127.0.0.1", port=0, plain_host="127.0.0.1", plain_port=0)
    service = SchedulerService(settings, Taker(), ledger)
    listeners = service.listeners()
    listeners[0].app.add_routes(_routes(plainly))
    add_floor(listeners[0].app)
    stop = asyncio.Event()

    def bound(addresses: list[Address]) -> None:
        print(json.dumps({"port": addresses[0][1], "plain_port": addresses[1][1]}), flush=True)

    await service.start()
    watching = asyncio.create_task(_end_of_input(stop))
    try:
        await serve(listeners, stop=stop, on_bound=bound, idle_grace_s=0.0)
    finally:
        await service.stop()
        await watching


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    run(_main(Size(*(int(argument) for argument in sys.argv[1:4])), sys.argv[4] == "1"))
