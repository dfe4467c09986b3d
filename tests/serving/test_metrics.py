"""The metrics page and the request counters."""

import asyncio

import pytest
from aiohttp import ClientSession, web
from prometheus_client import CollectorRegistry, Gauge

from serving.metrics import metrics_handler
from serving.page import page
from tests.serving.running import Plain, running

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


async def test_others_run_between_any_two_metrics_of_a_page() -> None:
    registry = CollectorRegistry()
    for number in range(30):
        Gauge(f"gauge_{number}", "One of many.", registry=registry)

    async def made() -> list[bytes]:
        return [piece async for piece in page(registry, "", (), None)]

    task = asyncio.create_task(made())
    turns = 0
    while not task.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns >= 30
    assert len(await task) == 30


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
