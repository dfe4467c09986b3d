"""The one place that says which API server the contract is held against."""

from __future__ import annotations

import ssl
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import pytest
import trustme

from lab.apiserver import ApiServer, ApiServerSettings

from .client import Api, Http
from .webhook import WebhookServer


@pytest.fixture
async def server(certificates: trustme.CA) -> AsyncIterator[ApiServer]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    certificates.issue_cert("127.0.0.1").configure_cert(context)
    server = ApiServer(
        ApiServerSettings(bookmark_interval_s=0.05), tokens={"contract-token": "contract"}, ssl_context=context
    )
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
def api(server: ApiServer, certificates: trustme.CA) -> Api:
    """Base URL, headers and TLS of the server under test; a real one needs only these three."""
    context = ssl.create_default_context()
    certificates.configure_trust(context)
    return Api(server.url, {"Authorization": "Bearer contract-token"}, context)


@pytest.fixture
def compact(server: ApiServer) -> Callable[[str], Awaitable[None]]:
    """Forget the history of a kind. On a real server: compact etcd and restart the watch cache."""

    async def forget(plural: str) -> None:
        server.faults.forget_changes(plural)

    return forget


@pytest.fixture(scope="session")
def certificates() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
async def http(api: Api) -> AsyncIterator[Http]:
    async with aiohttp.ClientSession() as session:
        yield Http(session, api)


@pytest.fixture
async def namespace(http: Http) -> str:
    """A namespace of the test's own, so that tests can share a server."""
    name = f"contract-{uuid.uuid4().hex[:10]}"
    await http.created("/api/v1/namespaces", {"metadata": {"name": name}})
    return name


@pytest.fixture
def pods(namespace: str) -> str:
    """Path of the namespace's pods."""
    return f"/api/v1/namespaces/{namespace}/pods"


@pytest.fixture
def configmaps(namespace: str) -> str:
    """Path of the namespace's config maps, for whatever holds for any kind."""
    return f"/api/v1/namespaces/{namespace}/configmaps"


@pytest.fixture
async def webhook(http: Http, namespace: str, certificates: trustme.CA) -> AsyncIterator[WebhookServer]:
    """A webhook server; `install` registers one of its webhooks for the test's namespace."""
    server = WebhookServer(http, namespace, certificates)
    await server.start()
    yield server
    await server.stop()
