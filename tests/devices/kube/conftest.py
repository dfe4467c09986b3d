"""A running fake API server and a client of it."""

from collections.abc import AsyncIterator

import pytest
from aiohttp.test_utils import TestServer

from devices.kube.client import ClientSettings, KubeClient
from devices.kube.config import explicit_access
from tests.devices.kube.fake_api import FakeApi


@pytest.fixture
def api() -> FakeApi:
    return FakeApi()


@pytest.fixture
async def server(api: FakeApi) -> AsyncIterator[TestServer]:
    running = TestServer(api.application(), host="127.0.0.1")
    await running.start_server()
    yield running
    await running.close()


@pytest.fixture
def base_url(server: TestServer) -> str:
    return str(server.make_url("/")).rstrip("/")


@pytest.fixture
async def client(base_url: str) -> AsyncIterator[KubeClient]:
    access = explicit_access(base_url, token="let-me-in")
    async with KubeClient(access, ClientSettings(user_agent="slotwise-test/1", timeout_s=10)) as running:
        yield running
