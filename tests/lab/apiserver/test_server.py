"""The server from inside its process: life, counters, objects, races."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from lab.apiserver import ApiServer, ApiServerSettings, RequestKey
from tests.contract.client import Http
from tests.contract.webhook import WebhookServer, allow, pod, pod_rule

from .conftest import CONFIGMAPS, PODS


async def test_it_starts_on_a_free_port_and_keeps_its_objects_over_a_stop(clients: Callable[[str], Http]) -> None:
    server = ApiServer()
    url = await server.start()
    assert url.startswith("http://127.0.0.1:")
    with pytest.raises(RuntimeError, match="runs already"):
        await server.start()
    await clients(url).created(PODS, pod("a"))
    await server.stop()
    assert server.url == ""
    again = await server.start()
    assert (await clients(again).get(f"{PODS}/a")).code == 200
    await server.stop()


async def test_a_stop_ends_watches_in_order(server: ApiServer, http: Http) -> None:
    async with http.watch(PODS) as watch:
        stopping = asyncio.create_task(server.stop())
        assert await watch.rest() == []
        await stopping


async def test_a_watch_is_forgotten_when_its_client_goes(server: ApiServer, http: Http) -> None:
    async with http.watch(PODS):
        assert server.watches("pods") == 1
    async with asyncio.timeout(10):
        await server.until_watches("pods", 0)


async def test_requests_and_writes_are_counted_by_agent(server: ApiServer, clients: Any) -> None:
    scheduler = clients(server.url, "scheduler/1")
    kubelet = clients(server.url, "kubelet/1")
    await kubelet.created(PODS, pod("a"))
    await scheduler.created(f"{PODS}/a/binding", {"metadata": {"name": "a"}, "target": {"name": "n1"}})
    await scheduler.post(f"{PODS}/a/binding", {"metadata": {"name": "a"}, "target": {"name": "n1"}})
    await kubelet.merge(f"{PODS}/a/status", {"status": {"phase": "Running"}})
    await kubelet.merge(f"{PODS}/a/status", {"status": {"phase": "Running"}})
    await kubelet.post(PODS, pod("b"), dryRun="All")
    assert dict(server.requests.written) == {
        RequestKey("create", "pods", "", "kubelet/1"): 1,
        RequestKey("create", "pods", "binding", "scheduler/1"): 1,
        RequestKey("patch", "pods", "status", "kubelet/1"): 1,
    }
    assert dict(server.requests.received) == {
        RequestKey("create", "pods", "", "kubelet/1"): 2,
        RequestKey("create", "pods", "binding", "scheduler/1"): 2,
        RequestKey("patch", "pods", "status", "kubelet/1"): 2,
    }


async def test_objects_can_be_read_and_put_from_inside(server: ApiServer, http: Http) -> None:
    server.put("nodes", {"metadata": {"name": "n1"}, "status": {"allocatable": {"nvidia.com/gpu": "8"}}})
    stored = (await http.get("/api/v1/nodes/n1")).body
    assert stored["status"]["allocatable"] == {"nvidia.com/gpu": "8"}
    assert stored["metadata"]["uid"]
    assert server.get("nodes", "", "n1") == stored
    assert [node["metadata"]["name"] for node in server.objects("nodes")] == ["n1"]
    server.remove("nodes", "", "n1")
    assert server.get("nodes", "", "n1") is None
    with pytest.raises(ValueError, match="name and namespace are needed"):
        server.put("pods", {"metadata": {"name": "a"}})


async def test_a_stored_version_is_never_changed_by_later_writes(server: ApiServer, http: Http) -> None:
    await http.created(PODS, pod("a", labels={"x": "1"}))
    before = server.get("pods", "default", "a")
    assert before is not None
    spec, labels = dict(before["spec"]), dict(before["metadata"]["labels"])
    await http.merge(f"{PODS}/a", {"metadata": {"labels": {"x": "2"}}})
    await http.created(f"{PODS}/a/binding", {"metadata": {"name": "a"}, "target": {"name": "n1"}})
    await http.merge(f"{PODS}/a/status", {"status": {"phase": "Running"}})
    assert (before["spec"], before["metadata"]["labels"]) == (spec, labels)
    assert before["status"]["phase"] == "Pending"


async def test_a_watch_older_than_the_window_is_gone(server: ApiServer, http: Http) -> None:
    start = (await http.created(PODS, pod("first")))["metadata"]["resourceVersion"]
    for number in range(21):
        await http.created(PODS, pod(f"p{number}"))
    async with http.watch(PODS, resourceVersion=int(start) - 1) as watch:
        (event,) = await watch.rest()
    assert (event["type"], event["object"]["reason"]) == ("ERROR", "Expired")
    async with http.watch(PODS, resourceVersion=int(start) + 1) as watch:
        assert await watch.take(20) == [("ADDED", f"p{number}") for number in range(1, 21)]


async def test_the_window_of_one_kind_is_not_used_up_by_another(server: ApiServer, http: Http) -> None:
    start = (await http.created(PODS, pod("first")))["metadata"]["resourceVersion"]
    for number in range(30):
        await http.created(CONFIGMAPS, {"metadata": {"name": f"c{number}"}})
    await http.created(PODS, pod("second"))
    async with http.watch(PODS, resourceVersion=start) as watch:
        assert await watch.take(1) == [("ADDED", "second")]


async def test_the_clock_and_generated_names_are_injected(clients: Callable[[str], Http]) -> None:
    names = []
    for _ in range(2):
        server = ApiServer(now=lambda: datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), rng=random.Random(7))
        stored = await clients(await server.start()).created(PODS, pod(generateName="job-"))
        assert stored["metadata"]["creationTimestamp"] == "2026-01-02T03:04:05Z"
        names.append(stored["metadata"]["name"])
        await server.stop()
    assert names[0] == names[1]


async def test_without_tokens_everybody_is_anonymous(server: ApiServer, http: Http, webhook: WebhookServer) -> None:
    await webhook.install("see")
    await http.created(PODS, pod("a"))
    assert webhook.requests("see")[0]["userInfo"] == {
        "username": "system:anonymous",
        "groups": ["system:unauthenticated"],
    }


async def test_a_bookmark_can_be_sent_at_once(server: ApiServer, http: Http) -> None:
    async with http.watch(PODS, resourceVersion=server.revision, allowWatchBookmarks="true") as watch:
        server.put("nodes", {"metadata": {"name": "n1"}})
        server.send_bookmarks()
        event = await watch.next()
    assert event["object"]["metadata"]["resourceVersion"] == str(server.revision)


class Gate:
    """A webhook that tells when it was asked and answers when it is let."""

    def __init__(self, webhook: WebhookServer) -> None:
        self.webhook = webhook
        webhook.hold = asyncio.Event()

    async def asked(self, times: int = 1) -> None:
        await self.webhook.asked(times)

    def open(self) -> None:
        assert self.webhook.hold is not None
        self.webhook.hold.set()


async def test_a_patch_overtaken_during_admission_is_applied_anew(http: Http, webhook: WebhookServer) -> None:
    await http.created(PODS, pod("a"))
    await webhook.install("slow", allow, rules=[pod_rule("UPDATE")])
    gate = Gate(webhook)
    patching = asyncio.create_task(http.merge(f"{PODS}/a", {"metadata": {"labels": {"by": "patch"}}}))
    await gate.asked()
    await http.merge(f"{PODS}/a/status", {"status": {"phase": "Running"}})
    gate.open()
    answer = await patching
    assert (answer.code, answer.body["metadata"]["labels"]) == (200, {"by": "patch"})
    assert answer.body["status"]["phase"] == "Running"
    assert len(webhook.requests("slow")) == 2


async def test_an_update_overtaken_during_admission_conflicts(http: Http, webhook: WebhookServer) -> None:
    stored = await http.created(PODS, pod("a"))
    await webhook.install("slow", allow, rules=[pod_rule("UPDATE")])
    gate = Gate(webhook)
    changed = {**stored, "metadata": {**stored["metadata"], "labels": {"by": "update"}}}
    updating = asyncio.create_task(http.put(f"{PODS}/a", changed))
    await gate.asked()
    await http.merge(f"{PODS}/a/status", {"status": {"phase": "Running"}})
    gate.open()
    assert (await updating).code == 409


async def test_of_two_creates_of_one_name_in_admission_one_is_refused(http: Http, webhook: WebhookServer) -> None:
    await webhook.install("slow", allow)
    gate = Gate(webhook)
    creating = [asyncio.create_task(http.post(PODS, pod("a"))) for _ in range(2)]
    await gate.asked(2)
    gate.open()
    assert sorted([(await task).code for task in creating]) == [201, 409]


async def test_of_two_bindings_in_admission_one_is_refused(http: Http, webhook: WebhookServer) -> None:
    await http.created(PODS, pod("a"))
    await webhook.install("slow", allow, rules=[pod_rule("CREATE", resource="pods/binding")])
    gate = Gate(webhook)
    binding = [
        asyncio.create_task(http.post(f"{PODS}/a/binding", {"metadata": {"name": "a"}, "target": {"name": node}}))
        for node in ("n1", "n2")
    ]
    await gate.asked(2)
    gate.open()
    assert sorted([(await task).code for task in binding]) == [201, 409]


async def test_a_request_past_its_own_timeout_is_not_carried_out(
    server: ApiServer, http: Http, webhook: WebhookServer
) -> None:
    await webhook.install("slow", allow)
    gate = Gate(webhook)
    answer = await http.post(PODS, pod("a"), timeout="50ms")
    assert (answer.code, answer.body["reason"]) == (504, "Timeout")
    gate.open()
    assert (await http.get(f"{PODS}/a")).code == 404
    assert (await http.post(PODS, pod("b"), timeout="soon")).code == 400


async def test_a_write_still_in_admission_goes_with_its_client(
    server: ApiServer, http: Http, webhook: WebhookServer
) -> None:
    await webhook.install("slow", allow)
    gate = Gate(webhook)
    creating = asyncio.create_task(http.post(PODS, pod("a")))
    await gate.asked()
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating
    async with http.watch(PODS, resourceVersion=server.revision) as watch:
        gate.open()
        await http.created(PODS, pod("b"))
        assert await watch.take(1) == [("ADDED", "b")]


async def test_what_the_lab_does_not_evaluate_is_warned_about(
    http: Http, webhook: WebhookServer, caplog: pytest.LogCaptureFixture
) -> None:
    name = await webhook.install("later", mutating=True, reinvocationPolicy="IfNeeded")
    assert f"webhook {name} asks for reinvocation, which the lab does not do" in caplog.text


async def test_a_terminating_namespace_takes_nothing_new(server: ApiServer, http: Http) -> None:
    server.put("namespaces", {"metadata": {"name": "team"}, "status": {"phase": "Terminating"}})
    answer = await http.post("/api/v1/namespaces/team/pods", pod("a"))
    assert (answer.code, answer.body["reason"]) == (403, "Forbidden")
    assert answer.body["message"] == (
        'pods "a" is forbidden: unable to create new content in namespace team because it is being terminated'
    )


async def test_webhook_calls_are_counted_by_outcome(server: ApiServer, http: Http, webhook: WebhookServer) -> None:
    name = await webhook.install("count", matchConditions=[{"name": "never", "expression": "false"}])
    probes = server.admission.calls[name, "allowed"]
    assert server.admission.match_conditions_ignored == probes
    await http.created(PODS, pod("a"))
    assert server.admission.calls[name, "allowed"] == probes + 1
    assert server.admission.match_conditions_ignored == probes + 1


async def test_a_webhook_behind_a_service_cannot_be_reached(server: ApiServer, http: Http) -> None:
    hook = {
        "name": "a.contract.example",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Ignore",
        "clientConfig": {"service": {"name": "hook", "namespace": "default"}},
        "rules": [pod_rule("CREATE")],
    }
    path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    await http.created(path, {"metadata": {"name": "a"}, "webhooks": [hook]})
    await http.created(PODS, pod("a"))
    assert server.admission.calls["a.contract.example", "ignored"] == 1
    await http.merge(f"{path}/a", {"webhooks": [{**hook, "failurePolicy": "Fail"}]})
    refused = await http.post(PODS, pod("b"))
    assert refused.code == 500
    assert 'service "hook.default.svc" cannot be reached' in refused.body["message"]


async def test_a_fault_of_the_server_is_a_status_too(
    server: ApiServer, http: Http, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> bytes:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("lab.apiserver.reads.Reader.get", broken)
    answer = await http.get(f"{PODS}/a")
    assert (answer.code, answer.body["reason"]) == (500, "InternalError")
    assert "a bug" in answer.body["message"]
    assert "ZeroDivisionError" in caplog.text


async def test_an_emptied_namespace_goes_with_all_it_held(server: ApiServer, http: Http) -> None:
    await http.created("/api/v1/namespaces", {"metadata": {"name": "team"}})
    await http.created("/api/v1/namespaces/team/pods", pod("a"))
    async with http.watch("/api/v1/pods", resourceVersion=server.revision) as watch:
        answer = await http.delete("/api/v1/namespaces/team")
        assert answer.body["status"]["phase"] == "Terminating"
        assert await watch.take(1) == [("DELETED", "a")]
    assert server.get("namespaces", "", "team") is None


def test_a_window_has_to_hold_something() -> None:
    with pytest.raises(ValueError, match="window is 0"):
        ApiServer(ApiServerSettings(window_events=0))
