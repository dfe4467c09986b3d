"""`python -m scheduler`: the extender on its own."""

import logging
import sys
from collections.abc import Sequence

from prometheus_client import CollectorRegistry

from devices.config import DeviceConfig
from devices.kube.client import KubeClient
from devices.kube.feed import LedgerFeed
from devices.ledger import Ledger
from scheduler.config import Settings, parse
from scheduler.errors import SchedulerError
from scheduler.policies import unknown_defaults
from scheduler.service import SchedulerService, new_lead
from serving.process import live, run_process

__all__ = ["main", "serve"]

_LOG = logging.getLogger("scheduler")


def _books(settings: Settings, config: DeviceConfig) -> Ledger:
    for warning in unknown_defaults(settings.gpu_scheduler_policy, settings.node_scheduler_policy):
        _LOG.warning("%s", warning)
    return Ledger(config, settings.node_selector, settings.reservation_timeout_s, settings.quota_counts)


def _compose(
    settings: Settings, client: KubeClient, ledger: Ledger, feed: LedgerFeed, registry: CollectorRegistry
) -> SchedulerService:
    lead = new_lead(settings, client, feed, registry)
    return SchedulerService(settings, client, ledger, feed, registry=registry, lead=lead)


async def serve(settings: Settings) -> None:
    """The service's life until it is told to stop (see `serving.process.live`)."""
    await live(settings, "scheduler", _books, _compose)


def main(argv: Sequence[str] | None = None) -> int:
    """Run until told to stop; the exit statuses are those of `serving.process.run_process`."""
    return run_process("scheduler", argv, parse, serve, SchedulerError)


if __name__ == "__main__":
    sys.exit(main())
