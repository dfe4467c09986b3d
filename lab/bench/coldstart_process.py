"""One start against an API server: `python -m lab.bench.coldstart_process MODE PORT`.

MODE says how far it goes: `feed` is the extender with its real feed, ready when its books are complete; `download` reads the same pages and
throws them away, which is what no start can be faster than; `whole` keeps every object as it came, decoded, as the plain way does.
Prints one line of JSON when it is there; ends when its standard input does.
"""

import asyncio
import json
import logging
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import orjson
from prometheus_client import CollectorRegistry

from devices.config import default_config
from devices.kube.client import ClientSettings, KubeClient
from devices.kube.config import explicit_access
from devices.kube.feed import LedgerFeed
from devices.ledger import Ledger
from lab.bench.pages import PATHS
from scheduler.config import Settings
from scheduler.service import SchedulerService
from serving.collection import Collection, Idle, collecting
from serving.server import run

__all__: list[str] = []


def peak_mib() -> float:
    """The most memory this process has held, in MiB."""
    for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("VmHWM:"):
            return round(int(line.split()[1]) / 1024, 1)
    raise RuntimeError("/proc/self/status has no VmHWM")


def _say(**figures: object) -> None:
    print(json.dumps({"peak_mib": peak_mib(), "cpu_s": round(time.process_time(), 3), **figures}), flush=True)


async def _pages(session: aiohttp.ClientSession, url: str) -> AsyncIterator[bytes]:
    token: str | None = ""
    while token is not None:
        async with session.get(url, params={"continue": token} if token else {}) as response:
            page = await response.read()
        yield page
        found = page[:200].partition(b'"continue":"')[2].partition(b'"')[0]
        token = found.decode() or None


async def _download(url: str, *, keep: bool) -> None:
    kept: list[object] = []

    async def one(session: aiohttp.ClientSession, path: str) -> None:
        async for page in _pages(session, url + path):
            if keep:
                kept.extend(orjson.loads(page)["items"])

    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*(one(session, path) for path in PATHS.values()))
    _say()
    await asyncio.to_thread(sys.stdin.read)


async def _feed(url: str) -> None:
    ledger = Ledger(default_config())
    async with KubeClient(explicit_access(url), ClientSettings(user_agent="bench", qps=0)) as client:
        feed = LedgerFeed(client, ledger, time.time)
        service = SchedulerService(
            Settings(host="127.0.0.1", port=0, plain_host="127.0.0.1", plain_port=0), client, ledger, feed
        )
        with collecting(Collection(Idle(), CollectorRegistry()), feed.wait_synced):
            await feed.start()
            await service.start()
            try:
                await feed.wait_synced()
                _say(pods=sum(1 for _ in ledger.pods()), nodes=sum(1 for _ in ledger.node_names()))
                await asyncio.to_thread(sys.stdin.read)
            finally:
                await service.stop()
                await feed.stop()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    mode, url = sys.argv[1], f"http://127.0.0.1:{sys.argv[2]}"
    run(_feed(url) if mode == "feed" else _download(url, keep=mode == "whole"))
