"""The webhook service put together: one ledger, two applications, the certificate, and who feeds the ledger."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from prometheus_client import CollectorRegistry

from devices.ledger import Ledger
from serving.drain import Drain
from serving.metrics import RequestMetrics
from serving.server import Listener
from serving.tls import TlsReloader
from webhook.admission import Admission
from webhook.app import admission_app, plain_app
from webhook.config import Settings
from webhook.metrics import AdmissionMetrics

__all__ = ["Feed", "WebhookService"]


class Feed(Protocol):
    """What fills the ledger from the cluster."""

    def reason(self) -> str | None:
        """Why the ledger may not show the cluster as it is; None when it does."""
        ...


class WebhookService:
    """Everything that runs; ledger and feed are the caller's, who starts and stops the feed.

    Without a feed the ledger counts as current: whoever shares it in-process keeps it so. Raises `TlsFilesError` for a certificate
    that cannot be served.
    """

    def __init__(
        self,
        settings: Settings,
        ledger: Ledger,
        feed: Feed | None = None,
        *,
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
        requests = RequestMetrics(self.registry)
        self._admission_app = admission_app(self.admission, AdmissionMetrics(self.registry), requests)
        self._plain_app = plain_app(self.registry, requests, self.not_ready, self.drain)
        self._watching: asyncio.Task[None] | None = None

    def not_ready(self) -> Sequence[str]:
        """Why the service cannot decide truthfully right now; nothing means ready."""
        reason = self._feed.reason() if self._feed is not None else None
        return [] if reason is None else [reason]

    def listeners(self) -> list[Listener]:
        """The sockets to open: admission first, then the plain port."""
        settings = self._settings
        return [
            Listener(self._admission_app, settings.host, settings.port, self._tls.context if self._tls else None),
            Listener(self._plain_app, settings.plain_host, settings.plain_port),
        ]

    async def start(self) -> None:
        """Begin to follow changes of the certificate files."""
        if self._tls is not None and self._watching is None:
            self._watching = asyncio.create_task(self._tls.watch())

    async def stop(self) -> None:
        """Stop what `start` began."""
        if self._watching is not None:
            self._watching.cancel()
            with suppress(asyncio.CancelledError):
                await self._watching
            self._watching = None
