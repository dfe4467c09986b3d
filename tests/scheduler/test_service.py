"""The service put together: what it listens to, what runs beside the requests, and the process around it."""

import asyncio
import json
import logging
import os
import re
import signal
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import aiohttp
import pytest

from devices.ledger import Ledger
from devices.objects import pod_of
from lab.apiserver import ApiServer
from lab.nodes import CardSpec, NodeSpec, node_document
from scheduler.__main__ import serve
from scheduler.columns import Columns
from scheduler.config import Settings, parse
from scheduler.metric_lines import node_lines
from scheduler.metrics_page import LedgerPage
from scheduler.retry import RETRY
from scheduler.service import SchedulerService
from serving.errors import TlsFilesError
from tests.builders import allocated, card, entry, node, pod
from tests.scheduler.builders import CONFIG, LOCK, NOW, Api, settle
from tests.scheduler.served import LOCAL, Feed, filter_args, served
from tests.serving.running import Tls, running, until


async def test_the_extenders_port_speaks_tls_where_it_has_a_certificate(tmp_path: Path) -> None:
    tls = Tls(tmp_path)
    tls.write_fresh()
    ledger = Ledger(CONFIG)
    ledger.put_node(node("n1", card("a")))
    settings = Settings(**LOCAL, cert_file=tls.certificate, key_file=tls.key)
    service = SchedulerService(settings, Api(), ledger)
    await service.start()
    try:
        async with running(service.listeners(), drain=service.drain) as server, aiohttp.ClientSession() as session:
            url = server.url("/filter", scheme="https")
            async with session.post(url, json=filter_args(pod(), "n1"), ssl=tls.client_context()) as answer:
                assert (await answer.json())["NodeNames"] == ["n1"]
            async with session.get(server.url("/metrics", listener=1)) as answer:
                assert "slotwise_tls_certificate_expiry_timestamp_seconds" in await answer.text()
    finally:
        await service.stop()


def test_a_certificate_that_cannot_be_served_ends_the_start(tmp_path: Path) -> None:
    settings = Settings(cert_file=tmp_path / "none.crt", key_file=tmp_path / "none.key")
    with pytest.raises(TlsFilesError, match=r"none\.crt: No such file"):
        SchedulerService(settings, Api(), Ledger(CONFIG))


async def test_the_first_decision_after_a_start_took_in_all_nodes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    followed: list[int] = []
    follow = Columns.follow

    def noted(columns: Columns, cluster: Ledger) -> None:
        follow(columns, cluster)
        followed.append(len(columns.slot_of))

    monkeypatch.setattr(Columns, "follow", noted)
    async with served(node("n1", card("a")), node("n2", card("b"))):
        await settle()
        assert followed == [2]


async def test_pages_are_prepared_again_after_one_could_not_be(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried: list[LedgerPage] = []

    async def failing(page: LedgerPage) -> None:
        tried.append(page)
        raise RuntimeError("as if a label could not be written")

    monkeypatch.setattr(LedgerPage, "prepare", failing)
    async with served(node("n1", card("a"))) as service:
        await settle()
        assert len(tried) == 1
        for listener in service.service.lead.promoted:
            listener()
        await settle()
        assert len(tried) == 2
    assert caplog.text.count("the metrics page could not be prepared") == 2


async def test_callers_that_hang_up_end_the_handler() -> None:
    extender, plain = SchedulerService(Settings(**LOCAL), Api(), Ledger(CONFIG)).listeners()
    assert (extender.handler_cancellation, plain.handler_cancellation) == (True, False)


async def test_locks_whose_owner_is_gone_are_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler.service._SWEEP_EVERY_S", 0.001)
    stale = {LOCK: f"{NOW},default,gone"}
    async with served(node("n1", card("a"), annotations=stale), node("n2", card("b"))) as service:
        service.put_pod(pod(name="there", node="n2"))
        kept = f"{NOW},default,there"
        service.api.annotate_node("n2", LOCK, kept)

        async def swept() -> bool:
            return service.api.lock("n1") is None

        await until(swept)
        assert service.api.lock("n2") == kept


async def test_what_the_watch_shows_of_nodes_wakes_waiters_and_answers_handshakes() -> None:
    feed = Feed()
    async with served(node("n1", card("a")), feed=feed) as service:
        key = "hami.io/node-handshake"
        service.api.annotate_node("n1", key, "Reported")
        for listener in feed.node_changed:
            listener("n1")
        await settle()
        assert (service.api.lock("n1", key) or "").startswith("Requesting_")
        for listener in feed.node_gone:
            listener("n1")
        assert (len(feed.node_changed), len(feed.node_gone)) == (2, 1)


async def test_stopping_twice_is_stopping() -> None:
    service = SchedulerService(Settings(**LOCAL), Api(), Ledger(CONFIG))
    await service.start()
    await service.stop()
    await service.stop()
    assert service.not_ready() == []


@pytest.fixture
async def lab() -> AsyncIterator[ApiServer]:
    server = ApiServer()
    await server.start()
    yield server
    await server.stop()


def kubeconfig(folder: Path, url: str) -> Path:
    path = folder / "kubeconfig"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }
    path.write_text(json.dumps(config))
    return path


async def test_the_process_from_start_to_sigterm(
    lab: ApiServer, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("POD_NAME", "POD_NAMESPACE"):
        monkeypatch.delenv(name, raising=False)
    caplog.set_level(logging.INFO)
    lab.put("nodes", node_document(NodeSpec("n1", (CardSpec("a"),))))
    devices = tmp_path / "devices.yaml"
    devices.write_text("nvidia:\n  nonsense: 1\n")
    settings = parse(
        [
            f"--kubeconfig={kubeconfig(tmp_path, lab.url)}",
            "--http_bind=127.0.0.1:0",
            "--metrics-bind-address=127.0.0.1:0",
            f"--device-config-file={devices}",
            "--gpu-scheduler-policy=best",
        ]
    )
    process = asyncio.create_task(serve(settings))

    async def listening() -> bool:
        assert not process.done()
        return "listening on" in caplog.text

    await until(listening)
    found = re.search(r"listening on (\S+), (\S+)", caplog.text)
    assert found is not None
    extender, views = (f"http://{address}" for address in found.groups())
    async with aiohttp.ClientSession() as session:

        async def ready() -> bool:
            async with session.get(f"{views}/readyz") as answer:
                return answer.status == 200

        await until(ready)
        async with session.post(f"{extender}/filter", json=filter_args(pod(), "n1", "n2")) as answer:
            assert (await answer.json())["NodeNames"] == ["n1"]
    os.kill(os.getpid(), signal.SIGTERM)
    async with asyncio.timeout(20):
        await process
    assert "SIGTERM: shutting down" in caplog.text
    assert "unknown key nvidia.nonsense has no effect" in caplog.text
    assert "--gpu-scheduler-policy: 'best' is unknown and acts as spread" in caplog.text


async def test_a_pod_refused_a_moment_before_its_room_is_seen_is_touched() -> None:
    async with served(node("n1", card("a", memory_mib=1500))) as service:
        service.put_pod(pod(name="tenant", node="n1", annotations=allocated(((entry("a", 1000),),))))
        waits = pod_of(service.put_pod(pod(name="waits", unschedulable=True)))
        assert (await service.post("/filter", filter_args(waits, "n1")))[1]["NodeNames"] is None
        service.ledger.delete_pod("uid-tenant")

        async def touched() -> bool:
            return RETRY in (service.api.pods["default", "waits"]["metadata"].get("annotations") or {})

        await until(touched)
        page = (await service.get("/metrics"))[1]
        assert "slotwise_waiting_pods 1.0" in page
        assert 'slotwise_waiting_pods_touched_total{outcome="sent"} 1.0' in page


async def test_who_waits_at_the_start_is_looked_after_once_the_books_are_complete() -> None:
    feed = Feed("the pods are not listed yet")
    async with served(feed=feed) as service:
        service.put_pod(pod(name="waits", unschedulable=True))
        feed.complete()

        async def waits() -> bool:
            return "slotwise_waiting_pods 1.0" in (await service.get("/metrics"))[1]

        await until(waits)


async def test_nodes_are_written_for_the_first_page_once_the_books_are_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    feed, written = Feed("the pods are not listed yet"), list[str]()

    def noted(ledger: Ledger, name: str, legacy: bool) -> Mapping[str, list[str]]:
        written.append(name)
        return node_lines(ledger, name, legacy)

    monkeypatch.setattr("scheduler.metrics_page.node_lines", noted)
    async with served(node("n1", card()), feed=feed):
        for _ in range(20):
            await asyncio.sleep(0)
        assert written == []
        feed.complete()

        async def are_written() -> bool:
            return written == ["n1"]

        await until(are_written)


async def test_a_bound_pod_without_its_label_gets_it_when_the_watch_shows_it() -> None:
    feed = Feed()
    async with served(node("n1", card("a")), feed=feed) as service:
        service.put_pod(pod(node="n1", annotations=allocated(((entry("a"),),))))
        for listener in feed.pod_changed:
            listener("uid-a")
        await settle()
        assert service.api.pods["default", "a"]["metadata"]["labels"] == {"hami.io/vgpu-node": "n1"}
