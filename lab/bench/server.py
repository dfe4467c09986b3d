"""The extender under load, in a process of its own: `python -m lab.bench.server NODES CARDS PODS`.

It serves a ledger filled beforehand and writes to an API that takes everything at once, so that what is measured is the extender.
Prints one line of JSON with its port when it listens; ends when its standard input does.
"""

import asyncio
import gc
import json
import logging
import sys
from collections.abc import Callable

from devices.config import default_config
from devices.kube.protocols import JsonObject
from devices.ledger import Ledger
from lab.bench.synthetic import Size, fill
from scheduler.config import Settings
from scheduler.service import SchedulerService
from serving.server import Address, run, serve

__all__: list[str] = []


class _Taker:
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


async def _end_of_input(stop: asyncio.Event) -> None:
    await asyncio.to_thread(sys.stdin.read)
    stop.set()


async def _main(size: Size) -> None:
    ledger = Ledger(default_config())
    fill(ledger, size)
    gc.collect()
    gc.freeze()
    settings = Settings(host="127.0.0.1", port=0, plain_host="127.0.0.1", plain_port=0)
    service = SchedulerService(settings, _Taker(), ledger)
    stop = asyncio.Event()

    def bound(addresses: list[Address]) -> None:
        print(json.dumps({"port": addresses[0][1], "plain_port": addresses[1][1]}), flush=True)

    await service.start()
    watching = asyncio.create_task(_end_of_input(stop))
    try:
        await serve(service.listeners(), stop=stop, on_bound=bound, idle_grace_s=0.0)
    finally:
        await service.stop()
        await watching


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    run(_main(Size(*(int(argument) for argument in sys.argv[1:4]))))
