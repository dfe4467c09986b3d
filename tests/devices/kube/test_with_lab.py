"""Client, reflector and freshness against the embedded API server and its faults."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from devices.kube.client import ClientSettings, KubeClient
from devices.kube.config import explicit_access
from devices.kube.errors import AlreadyExists, Conflict, Invalid, NotFound, OutcomeUnknown, TooManyRequests
from devices.kube.freshness import HEARTBEAT_ANNOTATION, Freshness, OwnPod
from devices.kube.protocols import JsonObject
from devices.kube.reflector import Reflector, ReflectorSettings
from devices.kube.resources import CONFIG_MAPS, PODS
from lab.apiserver import ApiServer
from tests.devices.kube.holders import Holder, Thing, decode


@pytest.fixture
async def lab() -> AsyncIterator[ApiServer]:
    server = ApiServer()
    await server.start()
    server.put("namespaces", {"metadata": {"name": "ns"}})
    yield server
    await server.stop()


class Waits:
    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.seconds.append(seconds)
        await asyncio.sleep(0)


@pytest.fixture
def waits() -> Waits:
    return Waits()


@pytest.fixture
async def client(lab: ApiServer, waits: Waits) -> AsyncIterator[KubeClient]:
    settings = ClientSettings(user_agent="slotwise-test/1", timeout_s=10)
    async with KubeClient(explicit_access(lab.url), settings, sleep=waits.sleep) as running:
        yield running


def pod(name: str, **annotations: str) -> JsonObject:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "ns", "annotations": annotations},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }


def store(lab: ApiServer, name: str, **annotations: str) -> None:
    """Create a pod past admission, or change the stored one of the name."""
    changed = pod(name, **annotations)
    stored = lab.get("pods", "ns", name)
    if stored is not None:
        changed["metadata"] = stored["metadata"] | changed["metadata"]
    lab.put("pods", changed)


def versions(lab: ApiServer) -> dict[str, str]:
    metadata = [obj["metadata"] for obj in lab.objects("pods")]
    return {meta["uid"]: meta["resourceVersion"] for meta in metadata}


def annotations(stored: JsonObject | None) -> object:
    assert stored is not None
    return stored["metadata"].get("annotations")  # type: ignore[attr-defined] # a JSON object, whose values have no type of their own


@asynccontextmanager
async def following(client: KubeClient, lab: ApiServer) -> AsyncIterator[tuple[Reflector[Thing], Holder]]:
    holder = Holder()
    reflector = Reflector(
        client, PODS, decode, holder, ReflectorSettings(page_size=2), sleep=lambda s: asyncio.sleep(0)
    )
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(reflector.run())
        try:
            await reflector.synced.wait()
            # The first event shows that the watch is open, not only asked for.
            store(lab, "first")
            assert await reflector.wait_for_revision(lab.revision, 10)
            yield reflector, holder
        finally:
            task.cancel()


async def settled(lab: ApiServer, reflector: Reflector[Thing]) -> None:
    store(lab, "last", at=str(lab.revision))
    assert await reflector.wait_for_revision(lab.revision, 10)


def _nothing(lab: ApiServer) -> None:
    pass


def _cut(lab: ApiServer) -> None:
    lab.faults.cut_watches("pods")


def _cut_and_expire(lab: ApiServer) -> None:
    lab.faults.expire_next_watch("pods")
    lab.faults.cut_watches("pods")


def _forget(lab: ApiServer) -> None:
    lab.faults.forget_changes("pods")
    lab.faults.cut_watches("pods")


def _duplicate(lab: ApiServer) -> None:
    lab.faults.duplicate_changes("pods", 4)


def _fail_lists(lab: ApiServer) -> None:
    lab.faults.answer(500, verb="list", resource="pods", count=2)
    _forget(lab)


def _throttle_watches(lab: ApiServer) -> None:
    lab.faults.answer(429, verb="watch", resource="pods", retry_after_s=1, count=2)
    lab.faults.cut_watches("pods")


FAULTS: dict[str, Callable[[ApiServer], None]] = {
    "none": _nothing,
    "watch cut": _cut,
    "watch cut and expired": _cut_and_expire,
    "history forgotten": _forget,
    "events duplicated": _duplicate,
    "lists fail": _fail_lists,
    "watches throttled": _throttle_watches,
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
async def test_reflector_keeps_in_step(lab: ApiServer, client: KubeClient, fault: Callable[[ApiServer], None]) -> None:
    for number in range(5):
        store(lab, f"p{number}")
    async with following(client, lab) as (reflector, holder):
        fault(lab)
        store(lab, "p1", changed="yes")
        lab.remove("pods", "ns", "p2")
        store(lab, "p5")
        await settled(lab, reflector)
        assert holder.versions() == versions(lab)


async def test_resync_repairs_what_events_that_never_came_left(lab: ApiServer, client: KubeClient) -> None:
    store(lab, "p0")
    async with following(client, lab) as (reflector, holder):
        lab.faults.drop_changes("pods", 2)
        lab.remove("pods", "ns", "p0")
        store(lab, "p1")
        await settled(lab, reflector)
        assert holder.versions() != versions(lab)
        reflector.request_resync()
        await holder.happening.until(lambda: holder.versions() == versions(lab))


@pytest.mark.parametrize("seed", range(4))
async def test_random_history(lab: ApiServer, client: KubeClient, seed: int) -> None:
    chance = random.Random(seed)
    harmless = [name for name in FAULTS if name != "none"]
    async with following(client, lab) as (reflector, holder):
        for _ in range(120):
            name = f"p{chance.randrange(5)}"
            roll = chance.random()
            if roll < 0.5:
                store(lab, name, roll=str(roll))
            elif roll < 0.8:
                if lab.get("pods", "ns", name) is not None:
                    lab.remove("pods", "ns", name)
            elif roll < 0.95:
                FAULTS[chance.choice(harmless)](lab)
            else:
                lab.faults.clear()
                await settled(lab, reflector)
                assert holder.versions() == versions(lab)
            await asyncio.sleep(0)
        lab.faults.clear()
        await settled(lab, reflector)
        assert holder.versions() == versions(lab)


async def test_reply_lost_after_a_patch(lab: ApiServer, client: KubeClient) -> None:
    await client.create(PODS, pod("p"), "ns")
    rule = lab.faults.lose_reply(verb="patch", resource="pods")
    with pytest.raises(OutcomeUnknown):
        await client.patch_pod("ns", "p", {"metadata": {"annotations": {"a": "b"}}})
    assert rule.hits == 1
    assert annotations(await client.get_pod("ns", "p")) == {"a": "b"}


async def test_reply_lost_after_a_binding(lab: ApiServer, client: KubeClient) -> None:
    store(lab, "p")
    lab.put("nodes", {"metadata": {"name": "n1"}})
    binding: JsonObject = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "p", "annotations": {"a": "b"}},
        "target": {"kind": "Node", "name": "n1"},
    }
    lab.faults.lose_reply(resource="pods", subresource="binding")
    with pytest.raises(OutcomeUnknown):
        await client.bind("ns", "p", binding, 5)
    stored = await client.get_pod("ns", "p")
    assert stored["spec"]["nodeName"] == "n1"  # type: ignore[index] # a JSON object, whose values have no type of their own
    assert annotations(stored) == {"a": "b"}
    with pytest.raises(Conflict):
        await client.bind("ns", "p", binding, 5)


async def test_preconditions_of_a_patch(lab: ApiServer, client: KubeClient) -> None:
    await client.create(PODS, pod("p"), "ns")
    stored = await client.get_pod("ns", "p")
    version = stored["metadata"]["resourceVersion"]  # type: ignore[index] # a JSON object, whose values have no type of their own
    body: JsonObject = {"metadata": {"resourceVersion": version, "annotations": {"a": "1"}}}
    await client.patch_pod("ns", "p", body)
    with pytest.raises(Conflict):
        await client.patch_pod("ns", "p", {"metadata": {"resourceVersion": version, "annotations": {"a": "2"}}})
    with pytest.raises(Invalid, match="uid"):
        await client.patch_pod("ns", "p", {"metadata": {"uid": "another", "annotations": {"a": "3"}}})
    with pytest.raises(Conflict):
        await client.delete(PODS, "p", "ns", uid="another")
    assert annotations(lab.get("pods", "ns", "p")) == {"a": "1"}


async def test_life_of_a_config_map(lab: ApiServer, client: KubeClient) -> None:
    body: JsonObject = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "1"}}
    with pytest.raises(NotFound):
        await client.get_config_map("ns", "c")
    await client.create_config_map("ns", body)
    with pytest.raises(AlreadyExists):
        await client.create_config_map("ns", body)
    stored = await client.patch_config_map("ns", "c", {"data": {"b": "2"}})
    assert stored["data"] == {"a": "1", "b": "2"}
    await client.delete(CONFIG_MAPS, "c", "ns")
    with pytest.raises(NotFound):
        await client.get_config_map("ns", "c")


async def test_throttled_read_waits_as_told_and_write_does_not(
    lab: ApiServer, client: KubeClient, waits: Waits
) -> None:
    store(lab, "p")
    lab.faults.answer(429, verb="get", resource="pods", retry_after_s=3)
    await client.get_pod("ns", "p")
    assert waits.seconds == [3]
    lab.faults.answer(429, verb="patch", resource="pods", retry_after_s=3)
    with pytest.raises(TooManyRequests) as raised:
        await client.patch_pod("ns", "p", {"metadata": {"annotations": {"a": "1"}}})
    assert raised.value.retry_after_s == 3
    assert waits.seconds == [3]
    assert annotations(lab.get("pods", "ns", "p")) == {}


async def test_binding_slower_than_its_time(lab: ApiServer, client: KubeClient) -> None:
    store(lab, "p")
    lab.faults.slow(60, resource="pods", subresource="binding")
    with pytest.raises(OutcomeUnknown, match="timed out"):
        await client.bind("ns", "p", {}, 0.05)


async def test_own_pod_is_touched_and_the_touch_delivered(lab: ApiServer, client: KubeClient) -> None:
    await client.create(PODS, pod("me"), "ns")
    beaten = asyncio.Event()

    async def sleep(seconds: float) -> None:
        beaten.set()
        await asyncio.Event().wait()

    async with following(client, lab) as (reflector, holder):
        freshness = Freshness(reflector, client, OwnPod("ns", "me"), sleep=sleep)
        task = asyncio.ensure_future(freshness.run())
        await beaten.wait()
        task.cancel()
        assert freshness.reason() is None
        assert HEARTBEAT_ANNOTATION in str(annotations(lab.get("pods", "ns", "me")))
        assert holder.versions() == versions(lab)
