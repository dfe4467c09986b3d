"""Slotwise's two services inside the lab: the ones users run, over real TLS and HTTP on loopback, sharing one ledger."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from certs.pki import Pair, create_ca, issue_serving
from devices.kube.client import KubeClient
from devices.kube.feed import LedgerFeed
from devices.ledger import Ledger
from lab.balancer import balancer
from lab.errors import LabError
from scheduler.config import Settings as SchedulerSettings
from scheduler.service import SchedulerService
from serving.server import Address, Listener, serve
from webhook.config import AdmissionSettings
from webhook.config import Settings as WebhookSettings
from webhook.service import WebhookService

__all__ = ["LOOPBACK", "OWN_NAMESPACE", "SCHEDULER_NAME", "ServiceUrls", "start_services"]

LOOPBACK: Final = "127.0.0.1"
SCHEDULER_NAME: Final = "hami-scheduler"
OWN_NAMESPACE: Final = "slotwise-system"
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
    quotas: str
    """The first webhook's read-only port."""
    ledgers: tuple[Ledger, ...]
    """Everybody's books: the first webhook shares the scheduler's."""


async def start_services(
    stack: AsyncExitStack,
    client: KubeClient,
    ledger: Ledger,
    folder: Path,
    more_clients: Sequence[KubeClient] = (),
) -> ServiceUrls:
    """Start feed, webhook and scheduler; `stack` stops them. Certificates go into `folder`.

    Each of `more_clients` becomes a further webhook replica with books of its own, all behind one address.
    Raises `LabError` if they do not come up.
    """
    ca = create_ca("slotwise lab", now=datetime.now(UTC), days=1)
    pair = _write(issue_serving(ca, [LOOPBACK], now=datetime.now(UTC), days=1), folder)
    feed = await _start_feed(stack, client, ledger)
    admission, views = await _start_webhook(stack, client, ledger, feed, pair)
    targets, ledgers = [admission], [ledger]
    for other in more_clients:
        own = Ledger(ledger.config, quota_counts=ledger.quota_counts)
        address, _ = await _start_webhook(stack, other, own, await _start_feed(stack, other, own), pair)
        targets.append(address)
        ledgers.append(own)
    if len(targets) > 1:
        admission = await stack.enter_async_context(balancer(lambda: targets, LOOPBACK))

    scheduler = SchedulerService(
        SchedulerSettings(
            scheduler_name=SCHEDULER_NAME,
            host=LOOPBACK,
            port=0,
            plain_host=LOOPBACK,
            plain_port=0,
            quota_counts=ledger.quota_counts,
        ),
        client,
        ledger,
        feed,
    )
    await scheduler.start()
    stack.push_async_callback(scheduler.stop)
    extender, decisions = await _listen(stack, scheduler.listeners(), "scheduler")
    return ServiceUrls(
        webhook=f"https://{LOOPBACK}:{admission[1]}",
        ca_pem=ca.certificate_pem(),
        extender=f"http://{LOOPBACK}:{extender[1]}",
        views=f"http://{LOOPBACK}:{decisions[1]}",
        quotas=f"http://{LOOPBACK}:{views[1]}",
        ledgers=tuple(ledgers),
    )


async def _start_feed(stack: AsyncExitStack, client: KubeClient, ledger: Ledger) -> LedgerFeed:
    feed = LedgerFeed(client, ledger, time.time)
    await feed.start()
    stack.push_async_callback(feed.stop)
    async with asyncio.timeout(_START_S):
        await feed.wait_synced()
    return feed


async def _start_webhook(
    stack: AsyncExitStack, client: KubeClient, ledger: Ledger, feed: LedgerFeed, pair: tuple[Path, Path]
) -> tuple[Address, Address]:
    """A replica; its admission address and its plain one."""
    settings = WebhookSettings(
        admission=AdmissionSettings(scheduler_name=SCHEDULER_NAME, quota_counts=ledger.quota_counts),
        host=LOOPBACK,
        port=0,
        cert_file=pair[0],
        key_file=pair[1],
        plain_host=LOOPBACK,
        plain_port=0,
        own_namespace=OWN_NAMESPACE,
    )
    webhook = WebhookService(settings, ledger, feed, client=client)
    await webhook.start()
    stack.push_async_callback(webhook.stop)
    admission, plain = await _listen(stack, webhook.listeners(), "webhook")
    return admission, plain


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
