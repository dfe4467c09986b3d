"""The one place that says which API server the contract is held against: the embedded one, or a real one where one was chosen."""

from __future__ import annotations

import ssl
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import pytest
import trustme

from lab.apiserver import ApiServer, ApiServerSettings
from lab.control_plane import ControlPlane
from tests.cluster.fixtures import CONTRACT, control_plane, pytest_runtest_makereport
from tests.cluster.switch import chosen_minor

from .client import Api, Http
from .webhook import WebhookServer

__all__ = ["control_plane", "pytest_runtest_makereport"]

IS_REAL = chosen_minor() is not None


@pytest.fixture
async def embedded(certificates: trustme.CA) -> AsyncIterator[ApiServer]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    certificates.issue_cert("127.0.0.1").configure_cert(context)
    server = ApiServer(
        ApiServerSettings(bookmark_interval_s=0.05), tokens={"contract-token": CONTRACT.name}, ssl_context=context
    )
    await server.start()
    yield server
    await server.stop()


if IS_REAL:

    @pytest.fixture
    def api(control_plane: ControlPlane) -> Api:
        """Base URL, headers and TLS of the server under test."""
        authorization = f"Bearer {control_plane.token(CONTRACT.name)}"
        return Api(control_plane.url, {"Authorization": authorization}, control_plane.tls())

    @pytest.fixture
    def compact(control_plane: ControlPlane) -> Callable[[str], Awaitable[None]]:
        """Forget the history of a kind, or more."""

        async def forget(_: str) -> None:
            control_plane.forget_history()  # in this thread: processes live as long as the thread that started them

        return forget

else:

    @pytest.fixture
    def api(embedded: ApiServer, certificates: trustme.CA) -> Api:
        """Base URL, headers and TLS of the server under test."""
        context = ssl.create_default_context()
        certificates.configure_trust(context)
        return Api(embedded.url, {"Authorization": "Bearer contract-token"}, context)

    @pytest.fixture
    def compact(embedded: ApiServer) -> Callable[[str], Awaitable[None]]:
        """Forget the history of a kind, or more."""

        async def forget(plural: str) -> None:
            embedded.faults.forget_changes(plural)

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
    if IS_REAL:
        await until_pods_are_taken(http, name)
    return name


async def until_pods_are_taken(http: Http, namespace: str) -> None:
    """A real server refuses pods until the controllers have given their namespace its service account."""
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    async with http.watch(accounts, fieldSelector="metadata.name=default") as watch:
        await watch.take(1)


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
