"""`python -m scheduler`: the extender on its own."""

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
from scheduler.config import Settings, parse
from scheduler.errors import SchedulerError
from scheduler.policies import unknown_tokens
from scheduler.service import SchedulerService
from serving.errors import ServingError
from serving.server import run, serve, stop_on_signals

__all__ = ["main"]

_LOG = logging.getLogger("scheduler")
_BAD_INPUT = 2


def _device_config(settings: Settings) -> DeviceConfig:
    config = (
        load(settings.device_config_file, settings.enabled_families)
        if settings.device_config_file
        else default_config(settings.enabled_families)
    )
    for warning in config.warnings:
        _LOG.warning("%s: %s", settings.device_config_file, warning)
    for word in unknown_tokens(settings.gpu_scheduler_policy):
        _LOG.warning("--gpu-scheduler-policy: unknown word %r acts as spread", word)
    return config


async def _serve(settings: Settings) -> None:
    ledger = Ledger(
        _device_config(settings), settings.node_selector, settings.reservation_timeout_s, settings.quota_counts
    )
    client_settings = ClientSettings(
        user_agent="slotwise-scheduler",
        timeout_s=settings.kube_timeout_s,
        qps=settings.kube_qps,
        burst=settings.kube_burst,
    )
    stop = asyncio.Event()
    registry = CollectorRegistry()
    access = await load_access(settings.kubeconfig)
    async with KubeClient(access, client_settings, registry=registry) as client:
        feed = LedgerFeed(client, ledger, time.time, own_pod=own_pod(), registry=registry)
        service = SchedulerService(settings, client, ledger, feed, registry=registry)
        with stop_on_signals(stop):
            await feed.start()
            await service.start()
            try:
                await serve(
                    service.listeners(),
                    stop=stop,
                    drain=service.drain,
                    drain_timeout_s=settings.drain_timeout_s,
                    on_bound=lambda addresses: _LOG.info(
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
    except (SchedulerError, DeviceError, ServingError, ConfigError) as error:
        print(f"scheduler: {error}", file=sys.stderr)
        return _BAD_INPUT
    except KubeError as error:
        print(f"scheduler: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
