"""Freshness: round trips over our own pod, or silence where there is none."""

import asyncio
import json

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from devices.kube.client import KubeClient
from devices.kube.errors import Forbidden, KubeError
from devices.kube.freshness import HEARTBEAT_ANNOTATION, Freshness, FreshnessSettings, OwnPod
from devices.kube.protocols import JsonObject
from devices.kube.reflector import Reflector
from devices.kube.resources import PODS
from tests.devices.kube.fake_api import FakeApi
from tests.devices.kube.holders import Holder, decode

ME = OwnPod("ns", "me")


class Scene:
    """A pod watch, an API server that takes patches, and a clock that only moves when a sleep or a wait makes it."""

    def __init__(self) -> None:
        self.synced = asyncio.Event()
        self.synced.set()
        self.now_s = 0.0
        self.age_s = 0.0
        self.revision = 0
        self.patches: list[JsonObject] = []
        self.delivers = True
        self.refuses: KubeError | None = None
        self.beats_left = 0

    @property
    def last_event_age_s(self) -> float:
        return self.age_s

    async def wait_for_revision(self, resource_version: str | int, timeout_s: float) -> bool:
        assert int(resource_version) == self.revision
        if not self.delivers:
            self.now_s += timeout_s
        return self.delivers

    async def patch_pod(self, namespace: str, name: str, body: JsonObject) -> JsonObject:
        self.patches.append({"namespace": namespace, "name": name} | body)
        if self.refuses is not None:
            raise self.refuses
        self.revision += 1
        return {"metadata": {"resourceVersion": str(self.revision)}}

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.beats_left -= 1
        if self.beats_left <= 0:
            raise asyncio.CancelledError

    def freshness(self, own_pod: OwnPod | None = ME, **options: object) -> Freshness:
        return Freshness(self, self, own_pod, clock=lambda: self.now_s, sleep=self.sleep, **options)  # type: ignore[arg-type] # fields of several types in one mapping

    async def beats(self, freshness: Freshness, count: int) -> None:
        self.beats_left = count
        with pytest.raises(asyncio.CancelledError):
            await freshness.run()


async def test_delivered_touches_keep_it_fresh() -> None:
    scene = Scene()
    freshness = scene.freshness()
    await scene.beats(freshness, 3)
    assert not freshness.is_stale()
    assert scene.now_s == 15
    assert [(patch["namespace"], patch["name"]) for patch in scene.patches] == [("ns", "me")] * 3
    stamps = [json.dumps(patch["metadata"]) for patch in scene.patches]
    assert all(HEARTBEAT_ANNOTATION in stamp for stamp in stamps)
    assert len(set(stamps)) == 3  # a patch that changes nothing makes no event


async def test_touch_that_is_not_delivered_makes_it_stale_after_the_limit(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    freshness = scene.freshness()
    await scene.beats(freshness, 1)
    scene.delivers = False
    await scene.beats(freshness, 1)
    assert scene.now_s == 15
    assert not freshness.is_stale()  # touched 10 s ago
    scene.now_s += 0.1
    assert freshness.is_stale()
    assert "has not delivered it" in str(freshness.reason())
    await scene.beats(freshness, 3)
    scene.delivers = True
    await scene.beats(freshness, 1)
    assert not freshness.is_stale()
    assert caplog.text.count("has not delivered it") == 1


async def test_touch_that_is_refused_makes_it_stale_and_says_why() -> None:
    scene = Scene()
    freshness = scene.freshness()
    scene.refuses = Forbidden(403, "Forbidden", "pods are not yours")
    await scene.beats(freshness, 2)
    assert not freshness.is_stale()
    await scene.beats(freshness, 2)
    assert freshness.is_stale()
    assert "pods are not yours" in str(freshness.reason())
    scene.refuses = None
    await scene.beats(freshness, 1)
    assert freshness.reason() is None


async def test_it_goes_stale_when_nobody_touches_the_pod_any_more() -> None:
    scene = Scene()
    freshness = scene.freshness()
    assert freshness.reason() == "our own pod has not been touched yet"
    await scene.beats(freshness, 1)
    scene.now_s = 15
    assert freshness.reason() is None
    scene.now_s = 15.1
    assert freshness.reason() == "our own pod was last touched 15 s ago (limit 15 s)"


async def test_it_is_stale_before_the_first_list_and_touches_nothing() -> None:
    scene = Scene()
    scene.synced.clear()
    freshness = scene.freshness()
    assert freshness.reason() == "the pods are not listed yet"
    running = asyncio.ensure_future(freshness.run())
    await asyncio.sleep(0)
    assert scene.patches == []
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_without_a_pod_of_our_own_silence_decides(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    scene = Scene()
    freshness = scene.freshness(None)
    await freshness.run()  # nothing to do
    assert scene.patches == []
    assert "no pod of our own" in freshness.driven_by
    assert "bookmarks and events alone" in caplog.text
    scene.age_s = 120
    assert not freshness.is_stale()
    scene.age_s = 121
    assert freshness.is_stale()
    assert freshness.reason() == "the pod watch has been silent for 121 s (limit 120 s)"


async def test_metrics_show_it() -> None:
    scene = Scene()
    registry = CollectorRegistry()
    scene.freshness(None, registry=registry)
    assert registry.get_sample_value("slotwise_pod_watch_stale") == 0
    scene.age_s = 200
    assert registry.get_sample_value("slotwise_pod_watch_stale") == 1
    assert registry.get_sample_value("slotwise_pod_watch_silence_seconds") == 200


@pytest.mark.parametrize("name", ["interval_s", "limit_s", "quiet_limit_s"])
def test_settings_that_make_no_sense(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        FreshnessSettings(**{name: 0.0})


async def test_round_trip_over_a_real_watch(api: FakeApi, client: KubeClient) -> None:
    api.put("me")

    async def patched(request: web.Request) -> web.StreamResponse:
        api.put("me", beat=1)
        return web.json_response(api.pods["uid-me"])

    reflector = Reflector(client, PODS, decode, Holder())
    beaten = asyncio.Event()

    async def sleep(seconds: float) -> None:
        beaten.set()
        await asyncio.Event().wait()

    freshness = Freshness(reflector, client, OwnPod("ns", "me"), sleep=sleep)
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(reflector.run())]
        await api.happening.until(lambda: api.open_watches)
        api.script.append(patched)
        running.append(tasks.create_task(freshness.run()))
        await beaten.wait()
        assert freshness.reason() is None
        assert reflector.resource_version == 102
        assert freshness.driven_by == "round trips over pod ns/me"
        for task in running:
            task.cancel()
