"""The extender through a long history, in a process of its own: `python -m lab.bench.history_process`.

Its feed follows an API server inside the process (`lab.bench.told_api`), which is told by `POST /told` what happens; its clock runs as
told, too, so that a day passes in minutes. `GET /memory` collects garbage and says what the process holds. Prints one line of JSON with
its port when it listens; ends when its standard input does.
"""

import asyncio
import gc
import json
import logging
import os
import sys
from collections.abc import Mapping
from typing import Final

import msgspec
import orjson
from aiohttp import web

from devices.config import default_config
from devices.kube.feed import LedgerFeed
from devices.kube.resources import NODES, PODS, RESOURCE_QUOTAS, Resource
from devices.ledger import Ledger
from lab.bench.figures import rss_mib
from lab.bench.told_api import ToldApi
from scheduler.clock import SystemClock
from scheduler.config import Settings
from scheduler.service import SchedulerService
from serving.server import Address, run, serve

__all__ = ["Told", "history_routes"]

_RESOURCES: Final[Mapping[str, Resource]] = {resource.plural: resource for resource in (NODES, PODS, RESOURCE_QUOTAS)}


class Told(msgspec.Struct):
    """What has happened since: objects put and UIDs deleted, by the plural of their resource, and the time in Unix seconds."""

    now_s: float
    put: list[tuple[str, dict[str, object]]] = []
    deleted: list[tuple[str, str]] = []


class _SqueezedClock(SystemClock):
    """A day in minutes: the time is what it is told to be, waiting takes its time all the same."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def now(self) -> float:
        return self.now_s


def history_routes(api: ToldApi, clock: "_SqueezedClock") -> list[web.RouteDef]:
    """`/told` and `/memory`."""
    decoder = msgspec.json.Decoder(Told)

    async def told(request: web.Request) -> web.Response:
        happened = decoder.decode(await request.read())
        clock.now_s = happened.now_s
        for plural, uid in happened.deleted:
            api.delete(_RESOURCES[plural], uid)
        for plural, document in happened.put:
            api.put(_RESOURCES[plural], document)
        await api.delivered()
        return web.Response()

    async def memory(request: web.Request) -> web.Response:
        gc.collect()
        held = {"rss_mib": rss_mib(os.getpid()), "blocks": sys.getallocatedblocks(), "bound": api.bound}
        return web.Response(body=orjson.dumps(held), content_type="application/json")

    return [web.post("/told", told), web.get("/memory", memory)]


async def _main() -> None:
    ledger, api, clock = Ledger(default_config()), ToldApi(), _SqueezedClock()
    feed = LedgerFeed(api, ledger, clock.now)
    settings = Settings(host="127.0.0.1", port=0, plain_host="127.0.0.1", plain_port=0)
    service = SchedulerService(settings, api, ledger, feed, clock=clock)
    listeners = service.listeners()
    listeners[0].app.add_routes(history_routes(api, clock))
    stop = asyncio.Event()

    async def end_of_input() -> None:
        await asyncio.to_thread(sys.stdin.read)
        stop.set()

    def bound(addresses: list[Address]) -> None:
        print(json.dumps({"port": addresses[0][1], "plain_port": addresses[1][1]}), flush=True)

    await feed.start()
    await feed.wait_synced()
    await service.start()
    watching = asyncio.create_task(end_of_input())
    try:
        await serve(listeners, stop=stop, on_bound=bound, idle_grace_s=0.0)
    finally:
        await service.stop()
        await feed.stop()
        await watching


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    run(_main())
