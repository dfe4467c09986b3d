"""`/validate` over HTTP where quota counts every admitted pod."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from devices.ledger import ADMITTED
from tests.serving.running import running
from tests.webhook.builders import Cluster, container, ours
from tests.webhook.replicas import OWN, TEAM, World, world
from webhook.config import AdmissionSettings, Settings
from webhook.errors import SettingsError
from webhook.service import WebhookService

LOCAL = {"host": "127.0.0.1", "port": 0, "plain_host": "127.0.0.1", "plain_port": 0}


class Served:
    """A running webhook: `validate` answers the response of a review, `metrics` the page."""

    def __init__(self, session: aiohttp.ClientSession, admission: str, plain: str) -> None:
        self._session, self._admission, self._plain = session, admission, plain

    async def validate(self, name: str, memory: int, **fields: Any) -> Any:
        document = ours(container(gpu=1, gpumem=memory))
        document["metadata"] = {"name": name, "namespace": TEAM, "uid": f"uid-{name}"}
        request = {"uid": "u", "operation": "CREATE", "namespace": TEAM, "object": document, **fields}
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
        async with self._session.post(self._admission, json=review) as answer:
            return (await answer.json())["response"]

    async def metrics(self) -> str:
        async with self._session.get(self._plain) as answer:
            return await answer.text()


@asynccontextmanager
async def served(made: World) -> AsyncIterator[Served]:
    (replica,) = made.replicas
    settings = Settings(
        admission=AdmissionSettings(quota_counts=ADMITTED, foreign_schedulers=frozenset("*")),
        own_namespace=OWN,
        **LOCAL,  # type: ignore[arg-type] # fields of several types in one mapping
    )
    service = WebhookService(settings, replica.ledger, replica.feed, client=replica.client)
    await service.start()
    try:
        async with running(service.listeners(), drain=service.drain) as server, aiohttp.ClientSession() as session:
            yield Served(session, server.url("/validate"), server.url("/metrics", listener=1))
    finally:
        await service.stop()


async def test_recorded_before_the_yes_and_counted_by_namespace_and_key() -> None:
    async with world(1) as made, served(made) as webhook:
        await made.quota(gpumem=1500, gpu=1)
        assert (await webhook.validate("dry", 1000, dryRun=True))["allowed"]
        assert made.record() == {}
        assert (await webhook.validate("a", 1000))["allowed"]
        assert "uid-a" in made.record()["entries"]
        over = await webhook.validate("b", 1000)
        assert (over["allowed"], over["status"]["code"]) == (False, 403)
        assert over["status"]["message"] == (
            "exceeding resource quota: team/q limits.nvidia.com/gpumem: asked 1000, used 1000, limit 1500 (500 too many);"
            " team/q limits.nvidia.com/gpu: asked 1, used 1, limit 1 (1 too many)"
        )
        page = await webhook.metrics()
        for line in (
            'slotwise_quota_admissions_total{key="limits.nvidia.com/gpumem",namespace="team"} 1.0',
            'slotwise_quota_denials_total{key="limits.nvidia.com/gpumem",namespace="team"} 1.0',
            'slotwise_quota_denials_total{key="limits.nvidia.com/gpu",namespace="team"} 1.0',
            'slotwise_quota_record_writes_total{outcome="stored"} 1.0',
        ):
            assert line in page


async def test_out_of_reach_is_a_refusal_with_words() -> None:
    async with world(1) as made, served(made) as webhook:
        await made.quota(gpumem=1500)
        made.api.faults.answer(429, resource="configmaps", retry_after_s=60, count=10_000)
        refused = await webhook.validate("a", 1000)
        assert (refused["allowed"], refused["status"]["code"]) == (False, 503)
        assert refused["status"]["message"].startswith("quota of namespace team cannot be checked: ")


async def test_pods_of_other_schedulers_count_too() -> None:
    async with world(1) as made, served(made) as webhook:
        await made.quota(gpumem=1500)
        foreign = ours(container(gpu=1, gpumem=2000), schedulerName="theirs")
        foreign["metadata"] = {"name": "f", "namespace": TEAM, "uid": "uid-f"}
        answer = await webhook.validate("f", 2000, object=foreign)
        assert "asked 2000, used 0, limit 1500" in answer["status"]["message"]


def test_counting_admitted_needs_books_that_do_and_an_api_server() -> None:
    settings = Settings(admission=AdmissionSettings(quota_counts=ADMITTED))
    with pytest.raises(SettingsError, match="the ledger counts 'placed'"):
        WebhookService(settings, Cluster().ledger)


async def test_without_an_api_server_it_does_not_start() -> None:
    async with world(1) as made:
        settings = Settings(admission=AdmissionSettings(quota_counts=ADMITTED))
        with pytest.raises(SettingsError, match="admitted needs the API server"):
            WebhookService(settings, made.replicas[0].ledger)
