"""The reflector against a small API server over real HTTP: every way a list or watch can go wrong."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from devices.kube.client import KubeClient
from devices.kube.metrics import ReflectorMetrics
from devices.kube.reflector import Reflector, ReflectorSettings
from devices.kube.resources import PODS
from devices.objects import Metadata
from tests.devices.kube.fake_api import FakeApi, answer, hang_up, ok
from tests.devices.kube.holders import Holder, Thing, decode


class Bench:
    """A reflector at work, and what it did."""

    def __init__(self, api: FakeApi, client: KubeClient) -> None:
        self.api = api
        self.client = client
        self.holder = Holder()
        self.registry = CollectorRegistry()
        self.waits: list[float] = []
        self.metadata: Callable[[Thing], Metadata] | None = None
        self.now_s = 0.0

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(round(seconds, 3))
        self.api.happening.tell()
        await asyncio.sleep(0)

    @asynccontextmanager
    async def running(self, **settings: object) -> AsyncIterator[Reflector[Thing]]:
        reflector = Reflector(
            self.client,
            PODS,
            decode,
            self.holder,
            ReflectorSettings(**settings),  # type: ignore[arg-type] # fields of several types in one mapping
            metadata=self.metadata,
            metrics=ReflectorMetrics(self.registry),
            clock=lambda: self.now_s,
            sleep=self._sleep,
            random=lambda: 1.0,
        )
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(reflector.run())
            try:
                yield reflector
            finally:
                task.cancel()

    async def until(self, holds: Callable[[], object]) -> None:
        """Wait for the holder."""
        await self.holder.happening.until(holds)

    async def watching(self, count: int = 1) -> None:
        """Wait for the `count`-th watch to be open."""
        await self.api.happening.until(lambda: self.api.watches >= count and self.api.open_watches)

    def in_step(self) -> bool:
        return self.holder.versions() == self.api.server_state()

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"slotwise_watch_{name}_total", {"resource": "pods"} | labels) or 0.0


@pytest.fixture
def bench(api: FakeApi, client: KubeClient) -> Bench:
    return Bench(api, client)


async def test_list_in_pages_then_changes_in_order(bench: Bench) -> None:
    api = bench.api
    for name in "abc":
        api.put(name)
    async with bench.running(page_size=2) as reflector:
        await reflector.synced.wait()
        assert bench.holder.calls == ["replace a,b,c"]
        assert reflector.resource_version == 103
        await bench.watching()
        api.put("b", changed=1)
        api.put("d")
        api.delete("uid-a")
        await bench.until(bench.in_step)
        assert bench.holder.calls[1:] == ["put b@104", "put d@105", "delete a"]
        assert reflector.resource_version == 106
    queries = [dict(request.query) for request in api.requests]
    assert queries[:2] == [{"limit": "2"}, {"limit": "2", "continue": "103-2"}]
    # Twice the shortest time, as random is 1 here.
    assert queries[2]["timeoutSeconds"] == "600"
    assert queries[2]["resourceVersion"] == "103"
    assert queries[2]["allowWatchBookmarks"] == "true"


async def test_only_what_the_settings_select(bench: Bench) -> None:
    async with bench.running(namespace="ns", label_selector="a=b", field_selector="spec.nodeName=n"):
        await bench.watching()
    for request in bench.api.requests:
        assert request.path == "/api/v1/namespaces/ns/pods"
        assert request.query["labelSelector"] == "a=b"
        assert request.query["fieldSelector"] == "spec.nodeName=n"


async def test_cut_watch_goes_on_where_it_stopped(bench: Bench) -> None:
    api = bench.api
    async with bench.running():
        await bench.watching()
        api.put("a")
        await bench.until(bench.in_step)
        api.cut()
        api.put("b")
        await bench.until(bench.in_step)
        assert bench.holder.calls == ["replace ", "put a@101", "put b@102"]
        assert api.lists == 1
        assert api.requests[-1].query["resourceVersion"] == "101"
        assert bench.waits == []  # it had made progress: no reason to wait


async def test_broken_connection_goes_on_where_it_stopped(bench: Bench) -> None:
    api = bench.api

    async def breaks(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        api.put("a")
        api.put("b")
        await response.write(api.history[0][1] + api.history[1][1][:20])
        assert request.transport is not None
        request.transport.abort()
        return response

    api.script.extend([None, breaks])
    async with bench.running():
        await bench.until(lambda: "uid-b" in bench.holder.things)
        assert bench.holder.calls == ["replace ", "put a@101", "put b@102"]
        assert api.lists == 1


@pytest.mark.parametrize("in_stream", [False, True], ids=["HTTP 410", "ERROR event"])
async def test_expired_revision_lists_again_and_loses_no_deletion(bench: Bench, in_stream: bool) -> None:
    api = bench.api
    api.gone_in_stream = in_stream
    for name in "abc":
        api.put(name)
    async with bench.running() as reflector:
        await bench.watching()
        api.delete("uid-a", silently=True)
        api.put("b", silently=True, changed=1)
        api.put("d", silently=True)
        api.forget()
        api.cut()
        await bench.until(bench.in_step)
        assert bench.holder.calls == ["replace a,b,c", "delete a", "put b@105", "put d@106"]
        await bench.watching(3)
        assert reflector.resource_version == 106
        api.put("e")
        await bench.until(bench.in_step)
    assert bench.metric("lists", cause="expired") == 1
    assert bench.metric("resync_differences", cause="expired", kind="gone") == 1
    assert bench.metric("resync_differences", cause="expired", kind="newer") == 2
    assert bench.metric("resync_differences", cause="expired", kind="missed") == 0


async def test_revision_expired_again_and_again_is_waited_for_longer_and_longer(bench: Bench) -> None:
    api = bench.api
    api.script.extend([None, answer(410, "Expired")] * 4)
    async with bench.running():
        await bench.watching()
    # The first costs no wait, and a 410 is never answered with the same resourceVersion again without a list.
    assert bench.waits == [0.4, 0.8, 1.6]
    assert api.lists == 5


async def test_silent_watch_is_replaced_by_a_full_list(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    api = bench.api
    async with bench.running(quiet_s=0.05):
        await bench.watching()
        api.put("a", silently=True)
        await bench.until(bench.in_step)
    assert bench.metric("lists", cause="quiet") >= 1
    assert "nothing heard for 0.05 s" in caplog.text


async def test_bookmarks_carry_the_revision_on(bench: Bench) -> None:
    api = bench.api
    async with bench.running() as reflector:
        await bench.watching()
        bench.now_s = 50
        assert reflector.last_event_age_s == 50
        api.revision += 7
        api.bookmark()
        assert await reflector.wait_for_revision("107", 10)
        assert reflector.last_event_age_s == 0
        api.cut()
        await bench.watching(2)
        assert api.requests[-1].query["resourceVersion"] == "107"


async def test_waiters_are_woken_by_their_revision(bench: Bench) -> None:
    api = bench.api
    async with bench.running() as reflector:
        await bench.watching()
        assert not await reflector.wait_for_revision(101, 0.01)
        async with asyncio.TaskGroup() as tasks:
            second = tasks.create_task(reflector.wait_for_revision(102, 10))
            first = tasks.create_task(reflector.wait_for_revision(101, 10))
            abandoned = tasks.create_task(reflector.wait_for_revision(101, 10))
            await asyncio.sleep(0)
            abandoned.cancel()
            api.put("a")
            assert await first
            assert "uid-a" in bench.holder.things
            assert not second.done()
            api.put("b")
        assert second.result()
        assert await reflector.wait_for_revision(99, 0)
        with pytest.raises(ValueError, match="invalid literal"):
            await reflector.wait_for_revision("soon", 1)


async def test_duplicated_and_late_events_change_nothing(bench: Bench) -> None:
    api = bench.api
    async with bench.running():
        await bench.watching()
        api.put("a")
        old = json.loads(json.dumps(api.pods["uid-a"]))
        api.put("a", changed=1)
        api.send("MODIFIED", api.pods["uid-a"])
        api.send("ADDED", old)
        api.delete("uid-a")
        api.send_line(api.history[-1][1])
        api.send("MODIFIED", old)
        api.put("z")
        await bench.until(lambda: "uid-z" in bench.holder.things)
    assert bench.holder.calls == ["replace ", "put a@101", "put a@102", "delete a", "put z@104"]
    assert bench.metric("events_ignored") == 4


async def test_late_event_of_another_object_still_counts(bench: Bench) -> None:
    api = bench.api
    async with bench.running() as reflector:
        await bench.watching()
        api.put("a", silently=True)
        api.put("b")
        api.send("ADDED", api.pods["uid-a"])
        await bench.until(bench.in_step)
        assert reflector.resource_version == 102


async def test_recreated_pod_of_the_same_name_is_another_object(bench: Bench) -> None:
    api = bench.api
    api.put("a", uid="one")
    async with bench.running():
        await bench.watching()
        api.delete("one")
        api.put("a", uid="two")
        await bench.until(bench.in_step)
    assert bench.holder.versions() == {"two": "103"}


def _metadata(thing: Thing) -> Metadata:
    metadata = thing.metadata
    return Metadata(metadata.name, "ns", metadata.uid, metadata.resource_version)


@pytest.mark.parametrize("metadata", [None, _metadata], ids=["identity by itself", "identity from the object"])
async def test_malformed_objects_are_counted_and_skipped(
    bench: Bench, caplog: pytest.LogCaptureFixture, metadata: Callable[[Thing], Metadata] | None
) -> None:
    api = bench.api
    bench.metadata = metadata
    api.put("a")
    api.put("bad", typed=[1])
    api.put("nameless", uid="")
    async with bench.running() as reflector:
        await bench.watching()
        assert bench.holder.calls == ["replace a"]
        assert bench.metric("malformed") == 2
        api.put("a", typed={})  # cannot be read: the older state stays
        api.put("c")
        await bench.until(lambda: "uid-c" in bench.holder.things)
        assert bench.holder.versions()["uid-a"] == "101"
        assert reflector.resource_version == 105
        assert api.lists == 1
        api.delete("uid-bad")
        api.delete("uid-a")
        await bench.until(lambda: "uid-a" not in bench.holder.things)
    assert bench.metric("malformed") == 3
    assert "pods ns/bad cannot be read and is skipped" in caplog.text


async def test_object_that_comes_after_its_successor_is_gone(bench: Bench) -> None:
    api = bench.api
    async with bench.running():
        await bench.watching()
        api.put("a", uid="one", silently=True)
        old = json.loads(json.dumps(api.pods["one"]))
        api.delete("one", silently=True)
        api.put("a", uid="two")
        api.send("ADDED", old)
        api.put("z")
        await bench.until(bench.in_step)
    assert bench.holder.calls == ["replace ", "put a@103", "put z@104"]
    assert bench.metric("events_ignored") == 1


async def test_end_of_an_object_that_never_came_is_told_by_its_successor(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    api = bench.api
    api.put("a", uid="one")
    async with bench.running():
        await bench.watching()
        old = json.loads(json.dumps(api.pods["one"]))
        old["metadata"]["resourceVersion"] = "102"
        api.delete("one", silently=True)
        api.put("a", uid="two")
        api.send("MODIFIED", old)  # late
        api.delete("two")
        api.put("z")
        await bench.until(bench.in_step)
    assert bench.holder.calls == ["replace a", "delete a", "put a@103", "delete a", "put z@105"]
    assert bench.metric("resync_differences", cause="namesake", kind="missed") == 1
    assert "never came" in caplog.text


@pytest.mark.parametrize(
    "line",
    [b"{broken", b"[]", b'{"type":"ADDED","object":{"metadata":{"uid":"x","resourceVersion":"soon"}}}'],
)
async def test_line_that_tells_of_no_object(bench: Bench, line: bytes) -> None:
    api = bench.api
    async with bench.running():
        await bench.watching()
        api.put("lost", silently=True)
        api.send_line(line)
        await bench.until(bench.in_step)
    assert bench.metric("malformed") == 1
    # Whose change that was cannot be told, so everything is listed again.
    assert bench.metric("lists", cause="malformed") == 1


async def test_event_of_a_type_nobody_knows_is_skipped(bench: Bench) -> None:
    api = bench.api
    async with bench.running():
        await bench.watching()
        api.send_line(b'{"type":"NEW","object":{}}')
        api.put("a")
        await bench.until(bench.in_step)
    assert bench.metric("events", type="unknown") == 1
    assert api.lists == 1


UNWELL = {
    "unreachable": hang_up,
    "server fault": answer(500, "InternalError"),
    "forbidden": answer(403, "Forbidden"),
    "nonsense": ok([]),
    "no revision": ok({"metadata": {}, "items": []}),
    "items that are none": ok({"metadata": {"resourceVersion": "1"}, "items": {}}),
}


@pytest.mark.parametrize("handler", UNWELL.values(), ids=UNWELL)
async def test_list_that_fails_is_made_again(
    api: FakeApi, client: KubeClient, handler: Callable[[web.Request], object], bench: Bench
) -> None:
    api.put("a")
    api.script.extend([handler] * 2)  # type: ignore[list-item]  # any answer will do here
    async with bench.running() as reflector:
        await reflector.synced.wait()
        assert bench.in_step()


async def test_throttled_watch_waits_as_told(bench: Bench) -> None:
    api = bench.api
    api.script.extend([None, answer(429, "TooManyRequests", headers={"Retry-After": "17"})])
    async with bench.running():
        await bench.watching()
    assert bench.waits == [17]


async def test_waits_between_failures_grow_to_their_cap_and_end_in_a_list(bench: Bench) -> None:
    api = bench.api
    api.script.extend([None, *[answer(500, "InternalError")] * 5])
    async with bench.running(longest_backoff_s=2):
        await bench.watching()
    assert bench.waits == [0.2, 0.4, 0.8, 1.6, 2.0]
    assert bench.metric("lists", cause="failures") == 1
    assert bench.metric("failures") == 5


async def test_server_that_ends_every_watch_at_once_is_not_run_after(bench: Bench) -> None:
    async def empty(request: web.Request) -> web.StreamResponse:
        return web.Response()

    bench.api.script.extend([None, empty, empty, empty])
    async with bench.running():
        await bench.watching()
    assert bench.waits == [0.2, 0.4, 0.8]


async def test_snapshot_that_expires_between_pages_is_listed_in_one_piece(bench: Bench) -> None:
    api = bench.api
    for name in "abc":
        api.put(name)
    api.script.extend([None, answer(410, "Expired")])
    async with bench.running(page_size=2) as reflector:
        await reflector.synced.wait()
        assert bench.holder.calls == ["replace a,b,c"]
    assert [dict(request.query) for request in api.requests[:3]] == [
        {"limit": "2"},
        {"limit": "2", "continue": "103-2"},
        {},
    ]


async def test_resync_finds_what_the_watch_missed(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    api = bench.api
    api.put("a")
    api.put("b")
    async with bench.running() as reflector:
        await bench.watching()
        api.put("a", silently=True, changed=1)
        api.delete("uid-b", silently=True)
        api.put("c")
        assert await reflector.wait_for_revision(105, 10)
        reflector.request_resync()
        await bench.until(bench.in_step)
    assert bench.holder.calls == ["replace a,b", "put c@105", "delete b", "put a@103"]
    assert bench.metric("lists", cause="resync") == 1
    assert bench.metric("resync_differences", cause="resync", kind="missed") == 1
    assert bench.metric("resync_differences", cause="resync", kind="gone") == 1
    reports = [record.getMessage() for record in caplog.records if "full list" in record.getMessage()]
    assert reports == ["full list of pods (resync): 2 objects, 1 missed by the watch, 0 changed since, 1 gone since"]


async def test_unreadable_object_of_a_later_list_leaves_the_older_state(bench: Bench) -> None:
    api = bench.api
    api.put("a")
    async with bench.running() as reflector:
        await bench.watching()
        api.put("a", silently=True, typed=[])
        api.put("b", silently=True)
        reflector.request_resync()
        await bench.until(lambda: "uid-b" in bench.holder.things)
    assert bench.holder.versions() == {"uid-a": "101", "uid-b": "103"}
    assert bench.metric("malformed") == 1


async def test_bookmark_without_a_revision_is_counted_and_skipped(bench: Bench) -> None:
    api = bench.api
    async with bench.running() as reflector:
        await bench.watching()
        api.send("BOOKMARK", {"metadata": {}})
        api.put("a")
        await bench.until(bench.in_step)
        assert reflector.resource_version == 101
    assert bench.metric("malformed") == 1
    assert api.lists == 1


async def test_resync_without_differences_says_and_does_nothing(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.api.put("a")
    async with bench.running() as reflector:
        await bench.watching()
        reflector.request_resync()
        await bench.watching(2)
    assert bench.holder.calls == ["replace a"]
    assert caplog.text == ""
    assert bench.waits == []


async def test_old_list_is_compared_when_a_watch_ends(bench: Bench) -> None:
    api = bench.api
    async with bench.running(resync_s=100):
        await bench.watching()
        bench.now_s = 99
        api.cut()
        await bench.watching(2)
        assert api.lists == 1
        bench.now_s = 100
        api.cut()
        await bench.watching(3)
        assert api.lists == 2


async def test_consumer_that_lost_something_gets_it_back_and_gives_up_what_is_gone(bench: Bench) -> None:
    api = bench.api
    api.put("a")
    async with bench.running() as reflector:
        await bench.watching()
        stray = decode(json.dumps({"metadata": {"name": "s", "uid": "stray", "resourceVersion": "1"}}).encode())
        bench.holder.things = {"stray": stray}
        reflector.request_resync()
        await bench.until(bench.in_step)
    assert bench.holder.calls == ["replace a", "delete stray", "put a@101"]


async def test_consumer_that_fails_is_offered_the_object_again(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    api = bench.api
    async with bench.running() as reflector:
        await bench.watching()
        bench.holder.fail_on = "a"
        api.put("a")
        api.put("b")
        await bench.until(lambda: "uid-b" in bench.holder.things)
        reflector.request_resync()
        await bench.until(bench.in_step)
    assert bench.metric("consumer_faults") == 1
    assert "put failed" in caplog.text


async def test_first_list_that_the_consumer_fails_at_is_made_again(bench: Bench) -> None:
    bench.api.put("a")
    bench.holder.fail_on = "replace"
    async with bench.running() as reflector:
        await reflector.synced.wait()
        assert bench.in_step()
    assert bench.waits == [0.2]


async def test_storage_restored_from_a_backup_is_followed_back(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    api = bench.api
    api.put("a")
    api.put("b")
    async with bench.running() as reflector:
        await bench.watching()
        del api.pods["uid-b"]
        api.history.clear()
        api.revision = 90
        api.put("a", changed=1)
        reflector.request_resync()
        await bench.until(bench.in_step)
        await bench.watching(2)
        assert reflector.resource_version == 91
        api.put("a", changed=2)
        await bench.until(bench.in_step)
    assert "went back from revision 102 to 91" in caplog.text


async def test_trouble_is_said_once_and_so_is_its_end(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    bench.api.script.extend([answer(403, "Forbidden", "not for you")] * 3)
    async with bench.running() as reflector:
        await reflector.synced.wait()
    said = [record.getMessage() for record in caplog.records if record.name == "devices.kube.reflector"]
    assert said == ["watching pods: not for you (403 Forbidden)", "watching pods again"]


BAD_SETTINGS = {
    "no silence": ({"quiet_s": 0}, "quiet_s"),
    "no time": ({"watch_s": -1}, "watch_s"),
    "no wait": ({"longest_backoff_s": 0}, "longest_backoff_s"),
    "negative pages": ({"page_size": -1}, "page_size"),
}


@pytest.mark.parametrize(("values", "named"), BAD_SETTINGS.values(), ids=BAD_SETTINGS)
def test_settings_that_make_no_sense(values: dict[str, float], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        ReflectorSettings(**values)  # type: ignore[arg-type] # fields of several types in one mapping
