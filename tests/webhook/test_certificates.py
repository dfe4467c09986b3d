"""Two webhook replicas that keep their certificate themselves: from nothing to served, and rotation under load."""

import asyncio
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
from cryptography import x509

from certs.secret import CA_KEY, CERTIFICATE, KEY
from certs.settings import KeptCertificates
from devices.kube.client import ClientSettings, KubeClient
from devices.kube.config import explicit_access
from devices.kube.resources import SECRETS
from lab.apiserver import ApiServer
from tests.certs.replicas import MUTATING, NAMESPACE, VALIDATING, bundle, contents, install, is_settled, trusts, until
from tests.serving.running import Running, on_uvloop, running
from tests.webhook.builders import Cluster, container, pod
from tests.webhook.test_http import review
from webhook.config import Settings
from webhook.errors import SettingsError
from webhook.service import WebhookService

OVERLAP_S = 1.5
LAG_S = 0.5
"""An API server may be so far behind with what it reads of its configurations."""
SETTINGS = Settings(
    host="127.0.0.1",
    port=0,
    plain_host="127.0.0.1",
    plain_port=0,
    certificates=KeptCertificates(
        secret="tls",
        namespace=NAMESPACE,
        hosts=("slotwise-webhook.slotwise-system.svc", "127.0.0.1"),
        overlap_s=OVERLAP_S,
    ),
)


@dataclass
class Started:
    """A replica that listens."""

    service: WebhookService
    server: Running

    @property
    def url(self) -> str:
        return self.server.url("/webhook", scheme="https")

    def value(self, name: str) -> float:
        found = self.service.registry.get_sample_value(name)
        assert found is not None
        return found


@asynccontextmanager
async def api_server() -> AsyncIterator[ApiServer]:
    server = ApiServer()
    await server.start()
    server.put("namespaces", {"metadata": {"name": NAMESPACE}})
    install(server)
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def replica(api: ApiServer) -> AsyncIterator[Started]:
    access = explicit_access(api.url)
    async with KubeClient(access, ClientSettings(user_agent="slotwise-webhook", timeout_s=10)) as client:
        service = WebhookService(SETTINGS, Cluster().ledger, client=client)
        async with running(service.listeners(), drain=service.drain) as server:
            await service.start()
            try:
                yield Started(service, server)
            finally:
                await service.stop()


async def ask(session: aiohttp.ClientSession, url: str, context: ssl.SSLContext) -> None:
    async with session.post(url, json=review(pod(container(gpu=1))), ssl=context) as answer:
        assert answer.status == 200
        assert (await answer.json())["response"]["patchType"] == "JSONPatch"


def without(api: ApiServer, *parts: str) -> None:
    """Somebody takes parts out of the Secret, which asks for new ones."""
    stored = api.get("secrets", NAMESPACE, "tls")
    assert stored is not None
    data: Any = stored["data"]
    api.put("secrets", {**stored, "data": {key: value for key, value in data.items() if key not in parts}})


@on_uvloop
async def test_nothing_is_served_before_there_is_a_certificate() -> None:
    async with api_server() as api:
        refusal = api.faults.answer(503, verb="list", resource="secrets", count=1000)
        async with replica(api) as one, aiohttp.ClientSession() as session:
            await until(lambda: refusal.hits > 0)
            assert one.service.not_ready() == [
                "no certificate yet: Secret slotwise-system/tls holds none that can be served"
            ]
            anybody = ssl.create_default_context()
            anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
            with pytest.raises(aiohttp.ClientError):
                await ask(session, one.url, anybody)
            assert one.value("slotwise_tls_certificate_expiry_timestamp_seconds") == 0
            api.faults.clear()
            await until(lambda: is_settled(api) and not one.service.not_ready())
            await ask(session, one.url, trusts(bundle(api, MUTATING)))
            held = contents(api)
            assert held.serving is not None
            expiry = held.serving.certificate.not_valid_after_utc.timestamp()
            assert one.value("slotwise_tls_certificate_expiry_timestamp_seconds") == expiry
            assert one.value("slotwise_certificates_keeper") == 1
            authority = held.trusted[0]
            assert (
                one.service.registry.get_sample_value(
                    "slotwise_certificates_ca_expiry_timestamp_seconds", {"serial": f"{authority.serial_number:x}"}
                )
                == authority.not_valid_after_utc.timestamp()
            )
        # Told to end, it has let go of the Lease.
        lease: Any = api.get("leases", NAMESPACE, "slotwise-webhook-certificates")
        assert lease["spec"]["holderIdentity"] == ""


async def test_a_secret_needs_the_api_server() -> None:
    with pytest.raises(SettingsError, match="--cert-secret needs the API server"):
        WebhookService(SETTINGS, Cluster().ledger)


async def test_a_broken_secret_leaves_the_old_certificate_serving() -> None:
    async with api_server() as api, replica(api) as one, aiohttp.ClientSession() as session:
        await until(lambda: is_settled(api) and not one.service.not_ready())
        trusted = bundle(api, MUTATING)
        api.faults.answer(503, verb="update", resource="secrets", count=1000)  # nobody repairs it
        stored = api.get("secrets", NAMESPACE, "tls")
        assert stored is not None
        data: Any = stored["data"]
        api.put("secrets", {**stored, "data": {**data, KEY: ""}})
        rejected = {"outcome": "rejected"}
        await until(lambda: one.service.registry.get_sample_value("slotwise_tls_reloads_total", rejected) == 1.0)
        assert one.service.not_ready() == []
        await ask(session, one.url, trusts(trusted))
        api.remove("secrets", NAMESPACE, "tls")
        await asyncio.sleep(0.05)
        await ask(session, one.url, trusts(trusted))


class Load:
    """Callers of all replicas: on kept connections, on new ones that trust what the configuration says now, and on new ones
    of an API server whose view of the configuration is late.
    """

    def __init__(self, api: ApiServer, urls: list[str]) -> None:
        self._api = api
        self._urls = urls
        self._going = True
        self.answers = {"kept": 0, "new": 0, "late": 0}
        self._bundles: deque[tuple[float, tuple[x509.Certificate, ...]]] = deque()

    def stop(self) -> None:
        self._going = False

    def _now(self) -> tuple[x509.Certificate, ...]:
        # Both configurations are written one after the other; either may be the one that is asked for.
        return min((bundle(self._api, plural) for plural in (MUTATING, VALIDATING)), key=len)

    def _late(self) -> tuple[x509.Certificate, ...]:
        now = time.monotonic()
        self._bundles.append((now, self._now()))
        while len(self._bundles) > 1 and self._bundles[1][0] <= now - LAG_S:
            self._bundles.popleft()
        return self._bundles[0][1]

    async def run(self, kind: str) -> None:
        """Ask on and on; any failure ends the test through the task group."""
        number = 0
        async with aiohttp.ClientSession() as kept:
            first = trusts(self._now())
            while self._going:
                url = self._urls[number % len(self._urls)]
                number += 1
                if kind == "kept":
                    await ask(kept, url, first)
                else:
                    context = trusts(self._now() if kind == "new" else self._late())
                    connector = aiohttp.TCPConnector(force_close=True)
                    async with aiohttp.ClientSession(connector=connector) as fresh:
                        await ask(fresh, url, context)
                self.answers[kind] += 1
                await asyncio.sleep(0.001)

    async def more(self) -> None:
        """Every kind of caller has had more answers."""
        goal = {kind: count + 5 for kind, count in self.answers.items()}
        await until(lambda: all(self.answers[kind] >= goal[kind] for kind in goal))


@on_uvloop
async def test_serving_certificate_and_ca_change_under_load_and_nobody_fails() -> None:
    async with api_server() as api, AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(replica(api)) for _ in range(2)]
        await until(lambda: is_settled(api) and not any(one.service.not_ready() for one in replicas))
        assert sum(one.value("slotwise_certificates_keeper") for one in replicas) == 1
        load = Load(api, [one.url for one in replicas])

        def serve(leaf: x509.Certificate) -> bool:
            expiry, name = leaf.not_valid_after_utc.timestamp(), "slotwise_tls_certificate_expiry_timestamp_seconds"
            return all(one.value(name) == expiry for one in replicas)

        async def rotated(done: Callable[[], bool]) -> None:
            await until(done)
            held = contents(api)
            assert held.serving is not None
            leaf = held.serving.certificate
            await until(lambda: serve(leaf))
            await load.more()

        async with asyncio.TaskGroup() as callers:
            for kind in load.answers:
                callers.create_task(load.run(kind))
            await load.more()
            before = contents(api)
            without(api, CERTIFICATE, KEY)
            await rotated(lambda: contents(api).serving not in (None, before.serving))
            without(api, CA_KEY)
            await rotated(lambda: contents(api).signing is not None)
            await rotated(lambda: len(contents(api).trusted) == 1 and is_settled(api))
            assert not set(before.trusted) & set(contents(api).trusted)
            load.stop()
        writes = [
            one.service.registry.get_sample_value("slotwise_certificates_writes_total", {"resource": SECRETS.label})
            for one in replicas
        ]
        # Made; serving; new CA trusted, signs, old one gone.
        assert sorted(writes, key=lambda count: count or 0) == [None, 5.0]
