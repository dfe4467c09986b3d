"""The webhook service put together: one ledger, two applications, the certificate, and who feeds the ledger."""

import asyncio
import ssl
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Protocol

from aiohttp import web
from prometheus_client import CollectorRegistry

from devices.kube.feed import LedgerFeed
from devices.kube.protocols import EventWriter, PodReader
from devices.ledger import ADMITTED, Ledger
from serving.drain import Drain
from serving.metrics import RequestMetrics
from serving.server import Listener
from serving.tls import TlsReloader
from webhook.admission import Admission
from webhook.admitted.store import (
    Admissions,
    AdmissionsApi,
    AdmittedSettings,
    RecordMetrics,
)
from webhook.app import add_drop_in_routes, admission_app, plain_app
from webhook.certificates import CertificatesApi, SecretCertificates, replica_identity
from webhook.config import Settings
from webhook.errors import SettingsError
from webhook.metrics import AdmissionMetrics
from webhook.quota_objects import QuotaAnnotations, QuotaEvents, QuotaPatcher
from webhook.quota_views import QuotaViews

__all__ = ["Feed", "WebhookApi", "WebhookService"]


class Feed(Protocol):
    """What fills the ledger from the cluster."""

    def reason(self) -> str | None:
        """Why the ledger may not show the cluster as it is; None when it does."""
        ...


class WebhookApi(AdmissionsApi, PodReader, EventWriter, QuotaPatcher, CertificatesApi, Protocol):
    """What the webhook asks of the API server; `devices.kube.client.KubeClient` has it."""


class WebhookService:
    """Everything that runs; ledger and feed are the caller's, who starts and stops the feed.

    Without a feed the ledger counts as current: whoever shares it in-process keeps it so. Counting `admitted` needs client and feed,
    a certificate kept in a Secret needs the client.
    Raises `TlsFilesError` for a certificate that cannot be served, `SettingsError` where something is missing.
    """

    def __init__(
        self,
        settings: Settings,
        ledger: Ledger,
        feed: Feed | LedgerFeed | None = None,
        *,
        client: WebhookApi | None = None,
        registry: CollectorRegistry | None = None,
        drain: Drain | None = None,
    ) -> None:
        self._settings = settings
        self._feed = feed
        self.drain = drain or Drain()
        self.registry = registry or CollectorRegistry()
        self.admission = Admission(settings.admission, ledger.config, ledger)
        self._tls = (
            TlsReloader(settings.cert_file, settings.key_file, registry=self.registry)
            if settings.cert_file is not None and settings.key_file is not None
            else None
        )
        self._certificates = self._new_certificates(feed, client)
        self.admissions = self._new_admissions(ledger, feed, client)
        self._runs: list[Callable[[], Coroutine[None, None, None]]] = []
        if self.admissions is not None:
            self._runs.append(self.admissions.run)
        if client is not None and isinstance(feed, LedgerFeed):
            events = QuotaEvents(client, ledger, time.time, self.registry)
            feed.quota_changed.append(events.changed)
            for quota in ledger.quotas():
                events.changed(quota)
            self._runs.append(events.run)
        if client is not None and settings.quota_annotation:
            self._runs.append(QuotaAnnotations(client, ledger).run)
        if self._tls is not None:
            self._runs.append(self._tls.watch)
        if self._certificates is not None:
            self._runs.extend(self._certificates.runs)
        self._pods: PodReader | None = client
        self._metrics = AdmissionMetrics(self.registry)
        self._views = QuotaViews(ledger, self.admissions)
        self._tasks: list[asyncio.Task[None]] = []

    def _new_admissions(
        self, ledger: Ledger, feed: Feed | LedgerFeed | None, client: WebhookApi | None
    ) -> Admissions | None:
        counts = self._settings.admission.quota_counts
        metrics = RecordMetrics(self.registry)
        if ledger.quota_counts != counts:
            raise SettingsError(f"--quota-counts: {counts!r}, but the ledger counts {ledger.quota_counts!r}")
        if counts != ADMITTED:
            return None
        if client is None or not isinstance(feed, LedgerFeed):
            raise SettingsError("--quota-counts: admitted needs the API server, where admissions are recorded")
        settings = AdmittedSettings(namespace=self._settings.own_namespace)
        return Admissions(client, feed, ledger, settings, metrics=metrics)

    def _new_certificates(self, feed: Feed | LedgerFeed | None, client: WebhookApi | None) -> SecretCertificates | None:
        if self._settings.certificates is None:
            return None
        if client is None:
            raise SettingsError("--cert-secret needs the API server, where the Secret is kept")
        return SecretCertificates(
            self._settings.certificates,
            client,
            identity=replica_identity(),
            registry=self.registry,
            watch_metrics=feed.watch_metrics if isinstance(feed, LedgerFeed) else None,
        )

    def not_ready(self) -> Sequence[str]:
        """Why the service cannot decide truthfully, or be called at all, right now; nothing means ready."""
        reasons = (source.reason() for source in (self._feed, self._certificates) if source is not None)
        return [reason for reason in reasons if reason is not None]

    def _ssl_context(self) -> ssl.SSLContext | None:
        source = self._tls or self._certificates
        return None if source is None else source.context

    def listeners(self) -> list[Listener]:
        """The sockets to open: admission first, then the plain port. To be called once."""
        settings, requests = self._settings, RequestMetrics(self.registry)
        admission = admission_app(self.admission, self._metrics, requests, self.admissions, self._pods)
        plain = plain_app(self.registry, requests, self.not_ready, self.drain, self._views)
        return [
            Listener(admission, settings.host, settings.port, self._ssl_context()),
            Listener(plain, settings.plain_host, settings.plain_port),
        ]

    def drop_in(self, app: web.Application, plain: web.Application) -> None:
        """Instead of `listeners`: serve admission as HAMi does on an application of others', and the views on their plain one."""
        add_drop_in_routes(app, self.admission, self._metrics, self._pods)
        plain.add_routes(self._views.routes())

    async def start(self) -> None:
        """Begin what runs beside the requests."""
        if not self._tasks:
            self._tasks = [asyncio.create_task(run()) for run in self._runs]

    async def stop(self) -> None:
        """Stop what `start` began."""
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        self._tasks = []
        if self.admissions is not None:
            await self.admissions.stop()
        if self._certificates is not None:
            await self._certificates.stop()
