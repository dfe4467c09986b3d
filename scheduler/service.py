"""The extender put together: one ledger, its engine, the binder, two applications, and what runs beside them."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Sequence
from typing import Protocol

from prometheus_client import CollectorRegistry

from devices.kube.feed import LedgerFeed
from devices.kube.protocols import EventWriter, PodPatcher
from devices.ledger import Ledger
from scheduler.app import extender_app, plain_app
from scheduler.ask import Defaults
from scheduler.bind import BindApi, BindSettings, PodBinder
from scheduler.clock import Clock, SystemClock
from scheduler.config import Settings
from scheduler.election import Election, ElectionApi, ElectionSettings
from scheduler.engine import Engine
from scheduler.events import EventBudget, Events
from scheduler.handlers import ExtenderHandlers, Synced, ViewHandlers
from scheduler.handshake import Handshake
from scheduler.labels import Labels
from scheduler.lead import AlwaysLeads, Lead
from scheduler.metrics import DecisionMetrics, show_build
from scheduler.metrics_page import LedgerPage
from scheduler.nodelock import LockSettings, NodeLocks, lock_formats
from scheduler.retry import Retry
from scheduler.ring import Ring
from serving.drain import Drain
from serving.metrics import RequestMetrics
from serving.server import Listener
from serving.tls import TlsReloader

__all__ = ["SchedulerApi", "SchedulerService", "new_lead"]

_SWEEP_EVERY_S = 15.0
_LOG = logging.getLogger(__name__)


class SchedulerApi(BindApi, EventWriter, PodPatcher, Protocol):
    """What the extender asks of the API server; `devices.kube.client.KubeClient` has it."""


class SchedulerService:
    """Everything that runs. Ledger, client and feed belong to the caller, who may share them with the webhook.

    Without a feed the ledger counts as complete, and waiters for a node's lock look again only when their time is up.
    `lead` (see `new_lead`) says whether this replica decides; the only one always does.
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
        lead: Lead | None = None,
    ) -> None:
        clock = clock or SystemClock()
        self._settings = settings
        self._feed = feed
        self._ledger = ledger
        self.drain = drain or Drain()
        self.registry = registry or CollectorRegistry()
        if lead is None and settings.leader_elect:
            raise AssertionError("settings that ask for leader election, and nobody who says who leads")
        self.lead = lead = lead or AlwaysLeads()
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
        self._binder = PodBinder(self.engine, client, self._locks, clock, self._events, bind_settings, lead)
        self._handshake = Handshake(
            ledger, client, clock, ledger.config.vendors, settings.handshake, lambda: lead.leads
        )
        self._labels = Labels(ledger, client, clock, lead)
        self._retry = Retry(self.engine, client, clock, lead, settings.retry_waiting, self.registry)
        lead.promoted += [
            self._new_term,
            self._handshake.look_again,
            self._labels.look_again,
            self._retry.look_again,
        ]
        lead.demoted += [self._new_term, self._retry.forget_all]
        if feed is not None:
            feed.pod_changed.append(self._labels.pod_changed)
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
            lead,
            node_choice=settings.node_choice,
            event_nodes=settings.event_nodes,
            answered=self._retry.answered,
        )
        show_build(self.registry)
        self._extender_app = extender_app(extender, requests)
        self._ledger_page = LedgerPage(
            ledger,
            legacy=settings.legacy_metrics,
            max_series=settings.metrics_max_series,
            leads=lambda: lead.leads,
        )
        self._page_wanted = asyncio.Event()
        lead.promoted.append(self._page_wanted.set)
        self._plain_app = plain_app(
            ViewHandlers(self.engine, ledger),
            self.registry,
            self._ledger_page,
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
        """Why the service cannot decide truthfully, or could not if it came to lead; nothing means ready."""
        behind = self._behind()
        return [*([behind] if behind is not None else []), *self.lead.unready()]

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
        self._labels.start()
        self._retry.start()
        self._tasks = [asyncio.create_task(work) for work in (self._sweep(), self._first_look(), self._prepare_pages())]
        await self.lead.start()
        if self._tls is not None:
            self._tasks.append(asyncio.create_task(self._tls.watch()))

    async def stop(self) -> None:
        """Stop what `start` began, and waiting for open outcomes."""
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._tasks = []
        await self.lead.stop()
        await self._binder.stop()
        await self._handshake.stop()
        await self._retry.stop()
        await self._labels.stop()
        await self._events.stop()

    def _behind(self) -> str | None:
        return self._feed.reason() if self._feed is not None else None

    async def _complete(self) -> None:
        if self._feed is not None:
            await self._feed.wait_synced()

    def _new_term(self) -> None:
        self._ledger.new_term()

    async def _first_look(self) -> None:
        await self._complete()
        self.engine.catch_up()
        self._retry.look_again()

    async def _prepare_pages(self) -> None:
        """The first page of a process, or of a term, takes several times as long as others, and scrapers give up after some seconds."""
        await self._complete()
        while True:
            await self._page_wanted.wait()
            self._page_wanted.clear()
            try:
                await self._ledger_page.prepare()
            except Exception:
                _LOG.exception("the metrics page could not be prepared; the first one takes longer")

    async def _sweep(self) -> None:
        """Locks whose owner cannot need them any more do not have to wait for their expiry."""
        keys = tuple(dict.fromkeys(v.node_lock for v in self._ledger.config.vendors if v.node_lock))
        while True:
            await asyncio.sleep(_SWEEP_EVERY_S)
            if not self.lead.leads:
                continue
            found: list[tuple[str, str, str]] = []
            for name in list(self._ledger.node_names()):
                node = self._ledger.node_object(name)
                for key in keys if node is not None else ():
                    text = node.annotations.get(key) if node is not None else None
                    if text:
                        found.append((name, key, text))
            await self._locks.sweep(found)


def new_lead(
    settings: Settings, client: ElectionApi, feed: LedgerFeed, registry: CollectorRegistry, host_name: str | None = None
) -> Lead:
    """Who says whether this replica leads: with `leader_elect` the Lease of the kube-scheduler beside it; else it always does.

    `host_name` is the one that kube-scheduler puts before its identity; None takes this machine's.
    """
    if not settings.leader_elect:
        return AlwaysLeads()
    if settings.own_pod is None:
        raise AssertionError("leader election without a pod of our own")
    election = ElectionSettings(
        settings.leader_elect_resource_name,
        settings.leader_elect_resource_namespace,
        socket.gethostname() if host_name is None else host_name,
        settings.own_pod,
        settings.bind_timeout_s,
        settings.leader_elect_margin_s,
    )
    return Election(client, election, feed.wait_for_pods, registry=registry, reflector_metrics=feed.watch_metrics)
