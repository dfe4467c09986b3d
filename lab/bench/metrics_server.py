"""The extender with a large cluster, in a process of its own: `python -m lab.bench.metrics_server NODES CARDS PODS`.

Beside its routes, `/floor` reads a filter request and gives a fixed answer, and on the plain port `/anew` makes the metrics page by way
of the Prometheus library. Prints one line of JSON with its ports when it listens; ends when its standard input does.
"""

import asyncio
import gc
import json
import logging
import sys

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest

from devices.config import default_config
from devices.ledger import Ledger
from lab.bench.anew_page import AnewPage
from lab.bench.server import Taker, add_floor
from lab.bench.synthetic import Size, fill
from scheduler.config import Settings
from scheduler.service import SchedulerService
from serving.server import Address, run, serve

__all__: list[str] = []


async def _main(size: Size) -> None:
    ledger = Ledger(default_config())
    fill(ledger, size)
    gc.collect()
    gc.freeze()
    service = SchedulerService(
        Settings(host="127.0.0.1", port=0, plain_host="127.0.0.1", plain_port=0), Taker(), ledger
    )

    async def anew(request: web.Request) -> web.Response:
        made = AnewPage(ledger, CollectorRegistry())
        made.refresh()
        text = await asyncio.to_thread(generate_latest, made)
        return web.Response(body=text, content_type="text/plain")

    main, plain = service.listeners()
    add_floor(main.app)
    plain.app.router.add_get("/anew", anew)
    stop = asyncio.Event()

    async def end_of_input() -> None:
        await asyncio.to_thread(sys.stdin.read)
        stop.set()

    def bound(addresses: list[Address]) -> None:
        print(json.dumps({"port": addresses[0][1], "plain_port": addresses[1][1]}), flush=True)

    await service.start()
    watching = asyncio.create_task(end_of_input())
    try:
        await serve([main, plain], stop=stop, on_bound=bound, idle_grace_s=0.0, handle_signals=False)
    finally:
        await service.stop()
        await watching


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    run(_main(Size(*(int(argument) for argument in sys.argv[1:4]))))
