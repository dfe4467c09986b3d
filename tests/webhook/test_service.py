"""The service put together: TLS, health, metrics."""

import logging
import ssl
from collections.abc import Mapping
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from devices.kube.client import ClientSettings, KubeClient
from devices.kube.config import explicit_access
from lab.apiserver import ApiServer
from serving.app import new_app
from serving.errors import TlsFilesError
from serving.metrics import RequestMetrics
from serving.quick import QUICK
from tests.serving.running import Tls, running
from tests.webhook.builders import Cluster, container, ours, pod
from tests.webhook.test_http import review
from webhook.config import Settings
from webhook.service import WebhookService

LOCAL = {"host": "127.0.0.1", "port": 0, "plain_host": "127.0.0.1", "plain_port": 0}


class Feed:
    """What says how the ledger stands."""

    def __init__(self, reason: str | None) -> None:
        self.why = reason

    def reason(self) -> str | None:
        return self.why


async def test_both_ports(tmp_path: Path) -> None:
    tls, feed = Tls(tmp_path), Feed("the pods are not listed yet")
    tls.write_fresh()
    settings = Settings(cert_file=tls.certificate, key_file=tls.key, **LOCAL)  # type: ignore[arg-type] # fields of several types in one mapping
    service = WebhookService(settings, Cluster().ledger, feed)
    await service.start()
    try:
        async with running(service.listeners(), drain=service.drain) as server, aiohttp.ClientSession() as session:
            url = server.url("/webhook", scheme="https")
            async with session.post(url, json=review(pod(container(gpu=1))), ssl=tls.client_context()) as answer:
                assert (await answer.json())["response"]["patchType"] == "JSONPatch"
            async with session.get(server.url("/healthz", listener=1)) as answer:
                assert (answer.status, await answer.text()) == (200, "")
            async with session.get(server.url("/readyz", listener=1)) as answer:
                assert (answer.status, await answer.text()) == (503, "the pods are not listed yet\n")
            feed.why = None
            async with session.get(server.url("/readyz", listener=1)) as answer:
                assert (answer.status, await answer.text()) == (200, "")
            async with session.get(server.url("/metrics", listener=1)) as answer:
                page = await answer.text()
            assert 'slotwise_admission_seconds_count{outcome="patched",path="/webhook"} 1.0' in page
            assert "slotwise_tls_certificate_expiry_timestamp_seconds" in page
            async with session.get(server.url("/webhook", listener=1)) as answer:
                assert answer.status == 404
    finally:
        await service.stop()


async def test_without_a_certificate_it_is_plain_http_and_without_a_feed_ready() -> None:
    service = WebhookService(Settings(**LOCAL), Cluster().ledger)  # type: ignore[arg-type] # fields of several types in one mapping
    await service.start()
    async with running(service.listeners(), drain=service.drain) as server, aiohttp.ClientSession() as session:
        async with session.post(server.url("/validate"), json=review(pod(container()))) as answer:
            assert (await answer.json())["response"] == {"uid": "u", "allowed": True}
        async with session.get(server.url("/readyz", listener=1)) as answer:
            assert answer.status == 200
        service.drain.begin()
        async with session.get(server.url("/readyz", listener=1)) as answer:
            assert (answer.status, await answer.text()) == (503, "shutting down\n")
    await service.stop()


def test_a_certificate_that_cannot_be_served_ends_the_start(tmp_path: Path) -> None:
    settings = Settings(cert_file=tmp_path / "none.crt", key_file=tmp_path / "none.key")
    with pytest.raises(TlsFilesError, match=r"none\.crt: No such file"):
        WebhookService(settings, Cluster().ledger)


async def test_a_changed_certificate_is_looked_for_while_started(tmp_path: Path) -> None:
    tls = Tls(tmp_path)
    tls.write_fresh()
    service = WebhookService(Settings(cert_file=tls.certificate, key_file=tls.key), Cluster().ledger)
    assert isinstance(service.listeners()[0].ssl_context, ssl.SSLContext)
    await service.start()
    await service.stop()
    await service.stop()


@pytest.mark.parametrize("path", ["/webhook", "/validate"])
async def test_pods_are_judged_where_they_arrive(path: str) -> None:
    service, at_once = WebhookService(Settings(**LOCAL), Cluster().ledger), list[int]()  # type: ignore[arg-type] # fields of several types in one mapping
    listeners = service.listeners()
    listeners[0].app[QUICK].followers.append(lambda: at_once.append(1))
    async with running(listeners, drain=service.drain) as server, aiohttp.ClientSession() as session:
        for sent in (review(pod(container(gpu=1))), review({"target": {"name": "n1"}}, kind={"kind": "Binding"})):
            async with session.post(server.url(path), json=sent) as answer:
                assert answer.status == 200
    assert len(at_once) == (2 if path == "/webhook" else 1)  # a Binding's pod has to be read


@pytest.mark.parametrize("as_drop_in", [False, True], ids=["listeners of its own", "as HAMi's single webhook"])
async def test_bindings_of_others_are_judged_by_the_pod_that_is_stored(as_drop_in: bool) -> None:
    api = ApiServer()
    await api.start()
    stored = api.put("pods", {"metadata": {"name": "a", "namespace": "default"}, **ours(container(gpu=1))})
    async with KubeClient(explicit_access(api.url), ClientSettings(user_agent="tests")) as client:
        service = WebhookService(Settings(**LOCAL), Cluster().ledger, client=client)  # type: ignore[arg-type] # fields of several types in one mapping
        if as_drop_in:
            metrics = RequestMetrics(service.registry)
            app = new_app(client_max_size=2**20, metrics=metrics, log=logging.getLogger("tests"))
            plain = web.Application()
            service.drop_in(app, plain)
        else:
            app = service.listeners()[0].app
        given: dict[str, object] = {"metadata": {"name": "a", "uid": str(uid_of(stored))}, "target": {"name": "n1"}}
        sent = review(given, kind={"kind": "Binding"}, subResource="binding", userInfo={"username": "mallory"})
        async with TestClient(TestServer(app)) as browser:
            answer = (await (await browser.post("/validate", json=sent)).json())["response"]
    await api.stop()
    assert answer["allowed"] is False
    assert answer["status"]["message"].startswith("pod default/a asks for NVIDIA cards, so mallory may not bind it")


def uid_of(document: Mapping[str, object]) -> object:
    metadata = document["metadata"]
    assert isinstance(metadata, dict)
    return metadata["uid"]
