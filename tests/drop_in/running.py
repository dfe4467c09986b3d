"""The drop-in served in this process beside an embedded API server, with HAMi's webhook registered."""

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from prometheus_client import CollectorRegistry

from cli.hami import DropIn
from cli.hami_flags import Settings, parse
from devices.config import default_config
from devices.kube.client import ClientSettings, KubeClient
from devices.kube.config import explicit_access
from devices.kube.feed import LedgerFeed
from devices.kube.freshness import own_pod
from devices.ledger import Ledger
from lab.apiserver import ApiServer
from tests.drop_in.chart import Values, command, mutating_webhook
from tests.serving.running import Running, Tls, running

__all__ = ["AGENT", "ServedDropIn", "serve_drop_in"]

AGENT = "slotwise-scheduler"
LOOPBACK = "127.0.0.1"
ALONE = Values(leader_elect=False)


@dataclass
class ServedDropIn:
    """A running drop-in and what is around it."""

    service: DropIn
    ledger: Ledger
    feed: LedgerFeed
    server: Running
    scheme: str
    session: aiohttp.ClientSession
    client: KubeClient
    """Of a user."""

    @property
    def url(self) -> str:
        """HAMi's port."""
        return self.server.url("", scheme=self.scheme)

    async def get(self, path: str, *, plain: bool = False) -> tuple[int, str]:
        """Status and body, from HAMi's port or from that of the metrics."""
        url = self.server.url(path, listener=1) if plain else self.url + path
        async with self.session.get(url) as answer:
            return answer.status, await answer.text()

    async def post(self, path: str, body: object, *, kind: str = "application/json") -> tuple[int, Any]:
        """Status, and the answer as JSON or text; a body of bytes goes out as it is."""
        data = body if isinstance(body, bytes) else orjson.dumps(body)
        async with self.session.post(self.url + path, data=data, headers={"Content-Type": kind}) as answer:
            text = await answer.text()
            return answer.status, orjson.loads(text) if answer.content_type == "application/json" else text


def settings_of(tls: Tls | None, values: Values, more: Sequence[str] = (), **environment: str) -> Settings:
    """The chart's settings, on free loopback ports and with certificates of the test's."""
    own = [f"--http_bind={LOOPBACK}:0", f"--metrics-bind-address={LOOPBACK}:0", "--device-config-file="]
    if tls is not None:
        own += [f"--cert_file={tls.certificate}", f"--key_file={tls.key}"]
    return parse([*command(values)[1:], *own, *more], environment)


@asynccontextmanager
async def serve_drop_in(
    api: ApiServer,
    folder: Path,
    values: Values = ALONE,
    more: Sequence[str] = (),
    *,
    environment: Mapping[str, str] | None = None,
    ledger: Ledger | None = None,
    start_feed: bool = True,
) -> AsyncIterator[ServedDropIn]:
    """The chart's container beside `api`; its webhook is registered where the chart registers one."""
    tls: Tls | None = None
    if values.webhook:
        tls = Tls(folder)
        tls.write_fresh()
    environment = dict(environment or {})
    settings = settings_of(tls, values, more, **environment)
    ledger = ledger or Ledger(default_config(settings.enabled_families), settings.node_selector)
    registry = CollectorRegistry()
    access = explicit_access(api.url)
    async with (
        KubeClient(access, ClientSettings(user_agent=AGENT, qps=0)) as client,
        KubeClient(access, ClientSettings(user_agent="user", qps=0)) as user,
        aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=tls.client_context() if tls else True),
            timeout=aiohttp.ClientTimeout(total=30),
        ) as session,
    ):
        feed = LedgerFeed(client, ledger, time.time, own_pod=own_pod(environment), registry=registry)
        service = DropIn(settings, client, ledger, feed, registry)
        if start_feed:
            await feed.start()
            await feed.wait_synced()
        await service.start()
        try:
            async with running(service.listeners(), drain=service.drain, drain_timeout_s=5) as server:
                scheme = "https" if tls else "http"
                if tls is not None:
                    ca = tls.ca.certificate_pem()
                    api.put("mutatingwebhookconfigurations", mutating_webhook(server.url("", scheme=scheme), ca))
                yield ServedDropIn(service, ledger, feed, server, scheme, session, user)
        finally:
            await service.stop()
            await feed.stop()
