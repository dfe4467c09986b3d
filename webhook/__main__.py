"""`python -m webhook`: the admission service on its own."""

import sys
from collections.abc import Sequence

from prometheus_client import CollectorRegistry

from devices.config import DeviceConfig
from devices.kube.client import KubeClient
from devices.kube.feed import LedgerFeed
from devices.ledger import Ledger
from serving.process import live, run_process
from webhook.config import Settings, parse
from webhook.errors import WebhookError
from webhook.service import WebhookService

__all__ = ["main", "serve"]


def _books(settings: Settings, config: DeviceConfig) -> Ledger:
    return Ledger(config, settings.node_selector, quota_counts=settings.admission.quota_counts)


def _compose(
    settings: Settings, client: KubeClient, ledger: Ledger, feed: LedgerFeed, registry: CollectorRegistry
) -> WebhookService:
    return WebhookService(settings, ledger, feed, client=client, registry=registry)


async def serve(settings: Settings) -> None:
    """The service's life until it is told to stop (see `serving.process.live`)."""
    await live(settings, "webhook", _books, _compose)


def main(argv: Sequence[str] | None = None) -> int:
    """Run until told to stop; the exit statuses are those of `serving.process.run_process`."""
    return run_process("webhook", argv, parse, serve, WebhookError)


if __name__ == "__main__":
    sys.exit(main())
