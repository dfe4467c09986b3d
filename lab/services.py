"""Slotwise's two services inside the lab: the ones users run, over real TLS and HTTP on loopback, sharing one ledger."""

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from certs.pki import Pair, create_ca, issue_serving
from devices.kube.client import KubeClient
from devices.kube.feed import LedgerFeed
from devices.ledger import Ledger
from lab.errors import LabError
from scheduler.config import Settings as SchedulerSettings
from scheduler.service import SchedulerService
from serving.server import Address, Listener, serve
from webhook.config import AdmissionSettings
from webhook.config import Settings as WebhookSettings
from webhook.service import WebhookService

__all__ = ["LOOPBACK", "SCHEDULER_NAME", "ServiceUrls", "start_services"]

LOOPBACK: Final = "127.0.0.1"
SCHEDULER_NAME: Final = "hami-scheduler"
_START_S: Final = 10.0
_DRAIN_S: Final = 1.0


@dataclass(frozen=True)
class ServiceUrls:
    """Where the services listen: base addresses without a trailing slash."""

    webhook: str
    ca_pem: bytes
    """Who signed the webhook's certificate."""
    extender: str
    views: str
    """The scheduler's read-only port."""


async def start_services(stack: AsyncExitStack, client: KubeClient, ledger: Ledger, folder: Path) -> ServiceUrls:
    """Start feed, webhook and scheduler; `stack` stops them. Certificates go into `folder`.

    Raises `LabError` if they do not come up.
    """
    feed = LedgerFeed(client, ledger, time.time)
    await feed.start()
    stack.push_async_callback(feed.stop)
    async with asyncio.timeout(_START_S):
        await feed.wait_synced()

    ca = create_ca("slotwise lab", now=datetime.now(UTC), days=1)
    certificate, key = _write(issue_serving(ca, [LOOPBACK], now=datetime.now(UTC), days=1), folder)
    webhook = WebhookService(
        WebhookSettings(
            admission=AdmissionSettings(scheduler_name=SCHEDULER_NAME),
            host=LOOPBACK,
            port=0,
            cert_file=certificate,
            key_file=key,
            plain_host=LOOPBACK,
            plain_port=0,
        ),
        ledger,
        feed,
    )
    await webhook.start()
    stack.push_async_callback(webhook.stop)
    admission, _ = await _listen(stack, webhook.listeners(), "webhook")

    scheduler = SchedulerService(
        SchedulerSettings(scheduler_name=SCHEDULER_NAME, host=LOOPBACK, port=0, plain_host=LOOPBACK, plain_port=0),
        client,
        ledger,
        feed,
    )
    await scheduler.start()
    stack.push_async_callback(scheduler.stop)
    extender, views = await _listen(stack, scheduler.listeners(), "scheduler")
    return ServiceUrls(
        webhook=f"https://{LOOPBACK}:{admission[1]}",
        ca_pem=ca.certificate_pem(),
        extender=f"http://{LOOPBACK}:{extender[1]}",
        views=f"http://{LOOPBACK}:{views[1]}",
    )


def _write(pair: Pair, folder: Path) -> tuple[Path, Path]:
    certificate, key = folder / "tls.crt", folder / "tls.key"
    certificate.write_bytes(pair.certificate_pem())
    key.touch(mode=0o600)
    key.write_bytes(pair.key_pem())
    return certificate, key


async def _listen(stack: AsyncExitStack, listeners: list[Listener], name: str) -> list[Address]:
    """Serve until the stack unwinds; returns the addresses bound."""
    stop = asyncio.Event()
    addresses: list[Address] = []
    bound = asyncio.Event()

    def on_bound(found: list[Address]) -> None:
        addresses.extend(found)
        bound.set()

    serving = asyncio.create_task(
        serve(
            listeners,
            stop=stop,
            drain_timeout_s=_DRAIN_S,
            idle_grace_s=0.0,
            on_bound=on_bound,
            handle_signals=False,
        ),
        name=f"serve {name}",
    )

    async def end() -> None:
        stop.set()
        await serving

    stack.push_async_callback(end)
    serving.add_done_callback(lambda _: bound.set())  # whatever kept it from listening ends the wait, too
    async with asyncio.timeout(_START_S):
        await bound.wait()
    if not addresses:
        await serving
        raise LabError(f"the {name} service ended before it listened")
    return addresses
