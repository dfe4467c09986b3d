"""The extender put together: one ledger, its engine, the binder, two applications, and what runs beside them."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Protocol

from prometheus_client import CollectorRegistry

from devices.kube.feed import LedgerFeed
from devices.kube.protocols import EventWriter
from devices.ledger import Ledger
from scheduler.app import extender_app, plain_app
from scheduler.ask import Defaults
from scheduler.bind import BindApi, BindSettings, PodBinder
from scheduler.clock import Clock, SystemClock
from scheduler.config import Settings
from scheduler.engine import Engine
from scheduler.events import EventBudget, Events
from scheduler.handlers import ExtenderHandlers, Synced, ViewHandlers
from scheduler.handshake import Handshake
from scheduler.metrics import DecisionMetrics, show_build
from scheduler.metrics_page import LedgerPage
from scheduler.nodelock import LockSettings, NodeLocks, lock_formats
from scheduler.ring import Ring
from serving.drain import Drain
from serving.metrics import RequestMetrics
from serving.server import Listener
from serving.tls import TlsReloader

__all__ = ["SchedulerApi", "SchedulerService"]

_SWEEP_EVERY_S = 15.0


class SchedulerApi(BindApi, EventWriter, Protocol):
    """What the extender asks of the API server; `devices.kube.client.KubeClient` has it."""


class SchedulerService:
    """Everything that runs. Ledger, client and feed belong to the caller, who may share them with the webhook.

    Without a feed the ledger counts as complete, and waiters for a node's lock look again only when their time is up.
    """

    def __init__(
        self,
        settings: Settings,
        client: SchedulerApi,
        ledger: Ledger,
        feed: LedgerFeed | None = None,
        *,
        clock: Clock | None = None,
        registry: CollectorRegistry | None = None,
        drain: Drain | None = None,
        event_budget: EventBudget | None = None,
    ) -> None:
        clock = clock or SystemClock()
        self._settings = settings
        self._feed = feed
        self._ledger = ledger
        self.drain = drain or Drain()
        self.registry = registry or CollectorRegistry()
        defaults = Defaults(settings.gpu_scheduler_policy, settings.node_scheduler_policy)
        self.engine = Engine(ledger, defaults, Ring(settings.decisions_kept))
        self._events = Events(client, clock, settings.scheduler_name, event_budget or EventBudget(), self.registry)
        self._locks = NodeLocks(
            client,
            clock,
            LockSettings(settings.node_lock_timeout_s, settings.node_lock_wait_s, settings.node_lock_retry_timeout_s),
            lock_formats(ledger.config.vendors),
        )
        bind_settings = BindSettings(settings.node_lock, settings.bind_timeout_s)
        self._binder = PodBinder(self.engine, client, self._locks, clock, self._events, bind_settings)
        self._handshake = Handshake(ledger, client, clock, ledger.config.vendors, settings.handshake)
        if feed is not None:
            feed.node_changed += [self._locks.node_changed, self._handshake.node_changed]
            feed.node_gone.append(self._locks.node_changed)
        requests = RequestMetrics(self.registry)
        extender = ExtenderHandlers(
            self.engine,
            self._binder,
            self._events,
            clock,
            DecisionMetrics(self.registry),
            Synced(self._behind, self._complete),
            node_choice=settings.node_choice,
            event_nodes=settings.event_nodes,
        )
        show_build(self.registry)
        self._extender_app = extender_app(extender, requests)
        self._plain_app = plain_app(
            ViewHandlers(self.engine, ledger),
            self.registry,
            LedgerPage(ledger, legacy=settings.legacy_metrics, max_series=settings.metrics_max_series),
            requests,
            self.not_ready,
            self.drain,
        )
        self._tls = (
            TlsReloader(settings.cert_file, settings.key_file, registry=self.registry)
            if settings.cert_file is not None and settings.key_file is not None
            else None
        )
        self._tasks: list[asyncio.Task[None]] = []

    def not_ready(self) -> Sequence[str]:
        """Why the service cannot decide truthfully right now; nothing means ready."""
        behind = self._behind()
        return [behind] if behind is not None else []

    def listeners(self) -> list[Listener]:
        """The sockets to open: the extender's first, then the plain port."""
        settings = self._settings
        context = self._tls.context if self._tls is not None else None
        return [
            Listener(self._extender_app, settings.host, settings.port, context, handler_cancellation=True),
            Listener(self._plain_app, settings.plain_host, settings.plain_port),
        ]

    async def start(self) -> None:
        """Begin what runs beside the requests."""
        self._events.start()
        self._handshake.start()
        self._tasks = [asyncio.create_task(self._sweep())]
        if self._tls is not None:
            self._tasks.append(asyncio.create_task(self._tls.watch()))

    async def stop(self) -> None:
        """Stop what `start` began, and waiting for open outcomes."""
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._tasks = []
        await self._binder.stop()
        await self._handshake.stop()
        await self._events.stop()

    def _behind(self) -> str | None:
        return self._feed.reason() if self._feed is not None else None

    async def _complete(self) -> None:
        if self._feed is not None:
            await self._feed.wait_synced()

    async def _sweep(self) -> None:
        """Locks whose owner cannot need them any more do not have to wait for their expiry."""
        keys = tuple(dict.fromkeys(v.node_lock for v in self._ledger.config.vendors if v.node_lock))
        while True:
            await asyncio.sleep(_SWEEP_EVERY_S)
            found: list[tuple[str, str, str]] = []
            for name in list(self._ledger.node_names()):
                node = self._ledger.node_object(name)
                for key in keys if node is not None else ():
                    text = node.annotations.get(key) if node is not None else None
                    if text:
                        found.append((name, key, text))
            await self._locks.sweep(found)
