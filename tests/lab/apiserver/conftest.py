"""A plain API server in the test's own process, and a client for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import aiohttp
import pytest
import trustme

from lab.apiserver import ApiServer, ApiServerSettings
from tests.contract.client import Api, Http
from tests.contract.webhook import WebhookServer

NAMESPACE = "default"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
CONFIGMAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"


class Delays:
    """Stands in for sleeping: notes what was asked for and returns at once."""

    def __init__(self) -> None:
        self.asked_s: list[float] = []

    async def __call__(self, delay_s: float) -> None:
        self.asked_s.append(delay_s)


@pytest.fixture
def delays() -> Delays:
    return Delays()


@pytest.fixture
async def server(delays: Delays) -> AsyncIterator[ApiServer]:
    server = ApiServer(ApiServerSettings(window_events=20), sleep=delays)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def clients() -> AsyncIterator[Callable[[str], Http]]:
    """Make clients with a user agent of their own."""
    sessions: list[aiohttp.ClientSession] = []

    def make(base_url: str, agent: str = "test") -> Http:
        session = aiohttp.ClientSession(headers={"User-Agent": agent})
        sessions.append(session)
        return Http(session, Api(base_url, {}, None))

    yield make
    for session in sessions:
        await session.close()


@pytest.fixture
async def http(server: ApiServer, clients: Callable[[str], Http]) -> Http:
    return clients(server.url)


@pytest.fixture
async def webhook(http: Http) -> AsyncIterator[WebhookServer]:
    server = WebhookServer(http, NAMESPACE, trustme.CA())
    await server.start()
    yield server
    await server.stop()
