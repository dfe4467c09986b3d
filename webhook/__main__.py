"""`python -m webhook`: the admission service on its own."""

import asyncio
import logging
import sys
import time
from collections.abc import Sequence

from prometheus_client import CollectorRegistry

from devices.config import DeviceConfig, default_config, load
from devices.errors import DeviceError
from devices.kube.client import ClientSettings, KubeClient
from devices.kube.config import load_access
from devices.kube.errors import ConfigError, KubeError
from devices.kube.feed import LedgerFeed
from devices.kube.freshness import own_pod
from devices.ledger import Ledger
from serving.errors import ServingError
from serving.server import run, serve, stop_on_signals
from webhook.config import Settings, parse
from webhook.errors import WebhookError
from webhook.service import WebhookService

__all__ = ["main"]

logger = logging.getLogger("webhook")

_BAD_INPUT = 2


def device_config(settings: Settings) -> DeviceConfig:
    """The accelerator families, with what has no effect in the file logged. Raises `devices.errors.ConfigError`."""
    config = (
        load(settings.device_config_file, settings.enabled_families)
        if settings.device_config_file
        else default_config(settings.enabled_families)
    )
    for warning in config.warnings:
        logger.warning("%s: %s", settings.device_config_file, warning)
    return config


async def _serve(settings: Settings) -> None:
    counts = settings.admission.quota_counts
    ledger = Ledger(device_config(settings), settings.node_selector, quota_counts=counts)
    client_settings = ClientSettings(
        user_agent="slotwise-webhook",
        timeout_s=settings.kube_timeout_s,
        qps=settings.kube_qps,
        burst=settings.kube_burst,
    )
    stop = asyncio.Event()
    registry = CollectorRegistry()
    access = await load_access(settings.kubeconfig)
    async with KubeClient(access, client_settings, registry=registry) as client:
        feed = LedgerFeed(client, ledger, time.time, own_pod=own_pod(), registry=registry)
        service = WebhookService(settings, ledger, feed, client=client, registry=registry)
        with stop_on_signals(stop):
            await feed.start()
            await service.start()
            try:
                await serve(
                    service.listeners(),
                    stop=stop,
                    drain=service.drain,
                    drain_timeout_s=settings.drain_timeout_s,
                    on_bound=lambda addresses: logger.info(
                        "listening on %s", ", ".join(f"{host}:{port}" for host, port in addresses)
                    ),
                    handle_signals=False,
                )
            finally:
                await service.stop()
                await feed.stop()


def main(argv: Sequence[str] | None = None) -> int:
    """Run until told to stop. Exit status 2 for flags or files that cannot be used, 1 where the cluster cannot be reached."""
    try:
        settings = parse(sys.argv[1:] if argv is None else argv)
        logging.basicConfig(
            level=logging.DEBUG if settings.debug else logging.INFO,
            format="%(asctime)s %(levelname)s %(name)s %(message)s",
        )
        run(_serve(settings))
    except (WebhookError, DeviceError, ServingError, ConfigError) as error:
        print(f"webhook: {error}", file=sys.stderr)
        return _BAD_INPUT
    except KubeError as error:
        print(f"webhook: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
