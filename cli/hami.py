"""`python -m cli.hami`: Slotwise in the place of HAMi's extender container, with its command line, ports and rights.

One process, one ledger: what `/bind` has given away `/webhook` counts at once. In the image it is `scheduler` on PATH.
"""

import asyncio
import logging
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from typing import Final, Protocol

from prometheus_client import CollectorRegistry

import webhook.config
from cli.hami_flags import Settings, parse
from cli.hami_role import OnlyReplica
from devices.config import DeviceConfig
from devices.kube.feed import LedgerFeed
from devices.ledger import Ledger
from scheduler.election import ElectionApi
from scheduler.errors import SchedulerError
from scheduler.policies import unknown_defaults
from scheduler.service import SchedulerApi, SchedulerService, new_lead
from serving.drain import Drain
from serving.health import add_health
from serving.process import live, run_process
from serving.server import Listener
from webhook.service import WebhookApi, WebhookService

__all__ = ["DropIn", "main", "serve"]

_NAME: Final = "scheduler"
_LOG: Final = logging.getLogger("scheduler")


class DropInApi(SchedulerApi, WebhookApi, ElectionApi, Protocol):
    """What both services ask of the API server; `devices.kube.client.KubeClient` has it."""


class DropIn:
    """Both services over one ledger, on the two ports that HAMi's container has."""

    def __init__(
        self,
        settings: Settings,
        client: DropInApi,
        ledger: Ledger,
        feed: LedgerFeed,
        registry: CollectorRegistry,
    ) -> None:
        self.drain = Drain()
        lead = new_lead(settings, client, feed, registry)
        self._scheduler = SchedulerService(
            settings, client, ledger, feed, registry=registry, drain=self.drain, lead=lead
        )
        pod = settings.own_pod
        # With leader election each replica labels itself as it stands.
        self._role = None if pod is None or settings.leader_elect else OnlyReplica(client, pod)
        self._labelling: asyncio.Task[None] | None = None
        self._webhook = WebhookService(
            webhook.config.Settings(admission=settings.admission),
            ledger,
            feed,
            client=client,
            registry=registry,
            drain=self.drain,
        )

    def listeners(self) -> list[Listener]:
        """HAMi's port with everything the API server, kube-scheduler and the kubelet call, and the one with metrics and views."""
        main, plain = self._scheduler.listeners()
        self._webhook.drop_in(main.app, plain.app)
        add_health(main.app, self._scheduler.not_ready, self.drain)
        return [main, plain]

    async def start(self) -> None:
        """Begin what runs beside the requests."""
        await self._scheduler.start()
        await self._webhook.start()
        if self._role is not None:
            self._labelling = asyncio.create_task(self._role.run(), name="role label")

    async def stop(self) -> None:
        """Stop what `start` began."""
        if self._labelling is not None:
            self._labelling.cancel()
            with suppress(asyncio.CancelledError):
                await self._labelling
            self._labelling = None
        await self._webhook.stop()
        await self._scheduler.stop()


def _books(settings: Settings, config: DeviceConfig) -> Ledger:
    for notice in (
        *settings.notices,
        *unknown_defaults(settings.gpu_scheduler_policy, settings.node_scheduler_policy),
    ):
        _LOG.warning("%s", notice)
    return Ledger(config, settings.node_selector, settings.reservation_timeout_s, settings.quota_counts)


async def serve(settings: Settings) -> None:
    """The process's life until it is told to stop (see `serving.process.live`)."""
    await live(settings, _NAME, _books, DropIn)


def main(argv: Sequence[str] | None = None) -> int:
    """Run until told to stop; the exit statuses are those of `serving.process.run_process`."""
    given = sys.argv[1:] if argv is None else argv
    if list(given) == ["version"]:
        print(f"slotwise {version('slotwise')}")
        return 0
    return run_process(_NAME, given, parse, serve, SchedulerError)


if __name__ == "__main__":
    sys.exit(main())
