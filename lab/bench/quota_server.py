"""The webhook under load, in a process of its own: `python -m lab.bench.quota_server API_URL`.

It follows the API server at the address and records admissions there, as in a cluster. Prints one line of JSON with its port when
it listens; ends when its standard input does.
"""

import asyncio
import gc
import json
import logging
import sys
import time

from devices.config import default_config
from devices.kube.client import ClientSettings, KubeClient
from devices.kube.config import explicit_access
from devices.kube.feed import LedgerFeed
from devices.ledger import ADMITTED, Ledger
from serving.server import Address, run, serve
from webhook.config import AdmissionSettings, Settings
from webhook.service import WebhookService

__all__: list[str] = []


async def _main(url: str) -> None:
    ledger = Ledger(default_config(), quota_counts=ADMITTED)
    stop = asyncio.Event()

    async def end_of_input() -> None:
        await asyncio.to_thread(sys.stdin.read)
        stop.set()

    def bound(addresses: list[Address]) -> None:
        print(json.dumps({"port": addresses[0][1]}), flush=True)

    async with KubeClient(explicit_access(url), ClientSettings(user_agent="bench", qps=0)) as client:
        feed = LedgerFeed(client, ledger, time.time)
        await feed.start()
        await feed.wait_synced()
        settings = Settings(
            admission=AdmissionSettings(quota_counts=ADMITTED),
            host="127.0.0.1",
            port=0,
            plain_host="127.0.0.1",
            plain_port=0,
        )
        service = WebhookService(settings, ledger, feed, client=client)
        await service.start()
        gc.collect()
        gc.freeze()
        watching = asyncio.create_task(end_of_input())
        try:
            await serve(service.listeners(), stop=stop, on_bound=bound, idle_grace_s=0.0, handle_signals=False)
        finally:
            await service.stop()
            await feed.stop()
            await watching


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    run(_main(sys.argv[1]))
