"""The metrics page and the request counters."""

import asyncio
import threading
from collections.abc import Iterator

import pytest
from aiohttp import ClientSession, web
from prometheus_client import CollectorRegistry, Gauge, Metric
from prometheus_client.registry import Collector

from serving.metrics import metrics_handler
from tests.serving.running import PATIENCE_S, Plain, running

FORMATS = {
    "nothing asked": ({}, "text/plain; version=0.0.4; charset=utf-8", False),
    "plain": ({"Accept": "text/plain"}, "text/plain; version=0.0.4; charset=utf-8", False),
    "OpenMetrics": (
        {"Accept": "application/openmetrics-text; version=1.0.0, text/plain;q=0.5"},
        "application/openmetrics-text; version=1.0.0; charset=utf-8",
        True,
    ),
}


UNPACKED = {"Accept-Encoding": "identity"}


@pytest.mark.parametrize(("headers", "content_type", "ends_with_eof"), FORMATS.values(), ids=FORMATS)
async def test_format(headers: dict[str, str], content_type: str, ends_with_eof: bool) -> None:
    plain, registry = Plain(), CollectorRegistry()
    Gauge("cards", "Cards.", registry=registry).set(8)
    Gauge("nodes", "Nodes.", registry=registry).set(2)
    plain.app.router.add_get("/metrics", metrics_handler(registry))
    async with running([plain.listener()]) as server, ClientSession() as client:
        async with client.get(server.url("/metrics"), headers=headers) as answer:
            text = await answer.text()
            assert answer.headers["Content-Type"].startswith(content_type)
            assert answer.headers["Content-Encoding"] == "gzip"
            assert "cards 8.0\n" in text
            assert "nodes 2.0\n" in text
            assert text.endswith("# EOF\n") is ends_with_eof
        async with client.get(server.url("/metrics?name[]=cards"), headers={**headers, **UNPACKED}) as answer:
            assert "Content-Encoding" not in answer.headers
            assert "nodes" not in await answer.text()


async def test_a_slow_page_does_not_hold_up_others() -> None:
    called, release = threading.Event(), threading.Event()

    class Slow(Collector):
        def collect(self) -> Iterator[Metric]:
            called.set()
            assert release.wait(PATIENCE_S)
            yield Metric("slow", "Slow.", "gauge")

    plain, registry = Plain(), CollectorRegistry(auto_describe=False)
    registry.register(Slow())
    called.clear()

    async def hello(request: web.Request) -> web.Response:
        return web.Response()

    plain.app.router.add_get("/metrics", metrics_handler(registry))
    plain.app.router.add_get("/hello", hello)
    async with running([plain.listener()]) as server, ClientSession() as client:
        page = asyncio.create_task(client.get(server.url("/metrics")))
        try:
            assert await asyncio.to_thread(called.wait, PATIENCE_S)
            assert (await client.get(server.url("/hello"))).status == 200
            assert not page.done()
        finally:
            release.set()
        assert (await page).status == 200


async def test_requests_count_by_route_never_by_path() -> None:
    plain = Plain()

    async def decision(request: web.Request) -> web.Response:
        raise web.HTTPGone

    plain.app.router.add_get("/decisions/{namespace}/{pod}", decision)
    async with running([plain.listener()]) as server, ClientSession() as client:
        for path in ("/decisions/a/b", "/decisions/c/d", "/elsewhere/1", "/elsewhere/2"):
            await client.get(server.url(path))
        await client.post(server.url("/decisions/a/b"))
    counts = {
        (sample.labels["route"], sample.labels["code"]): sample.value
        for metric in plain.registry.collect()
        for sample in metric.samples
        if sample.name == "slotwise_http_requests_total"
    }
    decisions = "/decisions/{namespace}/{pod}"
    assert counts == {(decisions, "410"): 2.0, ("unmatched", "404"): 2.0, ("unmatched", "405"): 1.0}
    timed = plain.registry.get_sample_value("slotwise_http_request_seconds_count", {"route": decisions})
    assert timed == 2.0
