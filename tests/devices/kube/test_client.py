"""The client against a small API server over real HTTP and TLS."""

import asyncio
import json
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import pytest
import trustme
from aiohttp import web
from aiohttp.test_utils import TestServer
from prometheus_client import CollectorRegistry

from devices.kube.client import MALFORMED, ClientSettings, KubeClient
from devices.kube.config import ClusterAccess, Credentials, explicit_access
from devices.kube.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    Gone,
    MalformedReply,
    NotFound,
    NotSent,
    OutcomeUnknown,
    ServerError,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)
from devices.kube.resources import CONFIG_MAPS, NODES, PODS
from devices.kube.transport import _watchful_socket
from tests.devices.kube.fake_api import FakeApi, answer, hang_up, ok

SETTINGS = ClientSettings(user_agent="slotwise-test/1", timeout_s=10)


class Waits:
    """A sleep that only writes down how long it was asked to last."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.seconds.append(seconds)
        await asyncio.sleep(0)


def unhurried(base_url: str, waits: Waits, settings: ClientSettings = SETTINGS) -> KubeClient:
    return KubeClient(explicit_access(base_url), settings, sleep=waits.sleep, random=lambda: 1.0)


async def test_request_as_the_api_server_sees_it(api: FakeApi, client: KubeClient) -> None:
    api.script.append(ok({"kind": "Pod", "unknown": {"kept": 1}}))
    assert await client.get_pod("ns", "p") == {"kind": "Pod", "unknown": {"kept": 1}}
    (request,) = api.requests
    assert (request.method, request.path_qs) == ("GET", "/api/v1/namespaces/ns/pods/p")
    assert request.headers["Authorization"] == "Bearer let-me-in"
    assert request.headers["User-Agent"] == "slotwise-test/1"
    assert request.headers["Accept"] == "application/json"


WRITES: dict[str, tuple[Callable[[KubeClient], Awaitable[object]], str, str, object]] = {
    "bind": (
        lambda client: client.bind("ns", "p", {"kind": "Binding"}, 5.5),
        "POST",
        "/api/v1/namespaces/ns/pods/p/binding?timeout=5s",
        {"kind": "Binding"},
    ),
    "patch a node": (
        lambda client: client.patch_node("n1", {"metadata": {"resourceVersion": "7"}}),
        "PATCH",
        "/api/v1/nodes/n1",
        {"metadata": {"resourceVersion": "7"}},
    ),
    "patch a pod": (lambda client: client.patch_pod("ns", "p", {}), "PATCH", "/api/v1/namespaces/ns/pods/p", {}),
    "event": (
        lambda client: client.create_event("ns", {"reason": "x"}),
        "POST",
        "/api/v1/namespaces/ns/events",
        {"reason": "x"},
    ),
    "dry run": (
        lambda client: client.create(PODS, {"kind": "Pod"}, "ns", dry_run=True),
        "POST",
        "/api/v1/namespaces/ns/pods?dryRun=All",
        {"kind": "Pod"},
    ),
    "replace": (
        lambda client: client.replace(CONFIG_MAPS, "c", {"data": {}}, "ns"),
        "PUT",
        "/api/v1/namespaces/ns/configmaps/c",
        {"data": {}},
    ),
    "create a config map": (
        lambda client: client.create_config_map("ns", {"data": {}}),
        "POST",
        "/api/v1/namespaces/ns/configmaps",
        {"data": {}},
    ),
    "delete by UID": (
        lambda client: client.delete(PODS, "p", "ns", uid="u1", grace_s=0),
        "DELETE",
        "/api/v1/namespaces/ns/pods/p",
        {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": "u1"}, "gracePeriodSeconds": 0},
    ),
}


@pytest.mark.parametrize(("write", "method", "path", "body"), WRITES.values(), ids=WRITES)
async def test_write_as_the_api_server_sees_it(
    api: FakeApi,
    client: KubeClient,
    write: Callable[[KubeClient], Awaitable[object]],
    method: str,
    path: str,
    body: object,
) -> None:
    api.script.append(ok({"kind": "Status"}))
    await write(client)
    (request,) = api.requests
    assert (request.method, request.path_qs) == (method, path)
    assert json.loads(api.bodies[0]) == body
    merge = method == "PATCH"
    assert request.content_type == ("application/merge-patch+json" if merge else "application/json")


async def test_version_and_log_as_the_api_server_sees_them(api: FakeApi, client: KubeClient) -> None:
    api.script += [ok({"gitVersion": "v1.37.2"}), ok({"any": "text"})]
    assert (await client.version())["gitVersion"] == "v1.37.2"
    assert await client.pod_log("ns", "p", "main", 5) == '{"any": "text"}'
    assert [request.path_qs for request in api.requests] == [
        "/version",
        "/api/v1/namespaces/ns/pods/p/log?container=main&tailLines=5",
    ]


DEFINITE = {
    "not found": (404, "NotFound", NotFound),
    "conflict": (409, "Conflict", Conflict),
    "exists": (409, "AlreadyExists", AlreadyExists),
    "forbidden": (403, "Forbidden", Forbidden),
    "throttled": (429, "TooManyRequests", TooManyRequests),
    "unauthorized": (401, "Unauthorized", Unauthorized),
}


@pytest.mark.parametrize(("code", "reason", "expected"), DEFINITE.values(), ids=DEFINITE)
@pytest.mark.parametrize("write", [row[0] for row in WRITES.values()], ids=WRITES)
async def test_refused_write_is_definite_and_goes_out_once(
    api: FakeApi,
    client: KubeClient,
    write: Callable[[KubeClient], Awaitable[object]],
    code: int,
    reason: str,
    expected: type[Exception],
) -> None:
    api.script.extend([answer(code, reason), ok({})])
    with pytest.raises(expected) as raised:
        await write(client)
    assert type(raised.value) is expected
    assert len(api.requests) == 1


async def _not_json(request: web.Request) -> web.StreamResponse:
    return web.Response(text="<html>hello</html>")


async def _cut_body(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"kind":')
    assert request.transport is not None
    request.transport.abort()
    return response


UNKNOWN = {
    "reply lost": hang_up,
    "reply cut": _cut_body,
    "server fault": answer(500, "InternalError"),
    "gateway": answer(502, ""),
    "storage time-out": answer(504, "Timeout"),
}


@pytest.mark.parametrize("handler", UNKNOWN.values(), ids=UNKNOWN)
@pytest.mark.parametrize("write", [row[0] for row in WRITES.values()], ids=WRITES)
async def test_write_without_an_answer_may_have_happened_and_goes_out_once(
    api: FakeApi,
    client: KubeClient,
    write: Callable[[KubeClient], Awaitable[object]],
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
) -> None:
    # The first request leaves a connection in the pool: a broken pooled connection is what HTTP libraries try again.
    api.script.extend([ok({}), handler, ok({})])
    await client.get_node("n1")
    with pytest.raises(OutcomeUnknown) as raised:
        await write(client)
    assert raised.value.__cause__ is not None
    assert len(api.requests) == 2


async def test_write_answered_with_nonsense_may_have_happened(api: FakeApi, client: KubeClient) -> None:
    api.script.append(_not_json)
    with pytest.raises(OutcomeUnknown):
        await client.patch_node("n1", {})


async def test_bind_that_takes_too_long_may_have_happened(api: FakeApi, client: KubeClient) -> None:
    held = asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        await held.wait()
        return web.json_response({})

    api.script.append(slow)
    with pytest.raises(OutcomeUnknown, match="timed out"):
        await client.bind("ns", "p", {}, 0.05)
    held.set()


def _closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def test_write_without_a_connection_has_not_happened() -> None:
    async with KubeClient(explicit_access(f"http://127.0.0.1:{_closed_port()}"), SETTINGS) as client:
        with pytest.raises(Unreachable) as raised:
            await client.patch_node("n1", {})
        assert isinstance(raised.value.__cause__, OSError)


async def test_name_that_does_not_resolve_is_unreachable() -> None:
    access = explicit_access("http://no-such-host.invalid")
    async with KubeClient(access, ClientSettings(user_agent="t", timeout_s=0.3)) as client:
        with pytest.raises(Unreachable):
            await client.bind("ns", "p", {}, 5)


async def test_closed_client_sends_nothing(api: FakeApi, client: KubeClient) -> None:
    await client.close()
    with pytest.raises(Unreachable, match="closed"):
        await client.get_node("n1")
    assert api.requests == []


async def test_hook_runs_before_the_binding_goes_out_and_can_stop_it(api: FakeApi, client: KubeClient) -> None:
    class TooLateError(Exception):
        pass

    def too_late() -> None:
        raise TooLateError

    with pytest.raises(TooLateError):
        await client.bind("ns", "p", {}, 5, before_send=too_late)
    assert api.requests == []


# --- reads are tried again ---

TRIED_AGAIN = {
    "throttled": (answer(429, "TooManyRequests"), 0.1),
    "throttled with a time": (answer(429, "TooManyRequests", headers={"Retry-After": "3"}), 3.0),
    "server fault": (answer(500, "InternalError"), 0.1),
    "unavailable with a time": (answer(503, "ServiceUnavailable", headers={"Retry-After": "2"}), 2.0),
    "reply cut": (_cut_body, 0.1),
}


@pytest.mark.parametrize(("handler", "wait_s"), TRIED_AGAIN.values(), ids=TRIED_AGAIN)
async def test_read_is_tried_again(
    api: FakeApi, base_url: str, handler: Callable[[web.Request], Awaitable[web.StreamResponse]], wait_s: float
) -> None:
    waits = Waits()
    async with unhurried(base_url, waits) as client:
        api.script.extend([handler, ok({"kind": "Node"})])
        assert await client.get_node("n1") == {"kind": "Node"}
    assert waits.seconds == [wait_s]
    assert len(api.requests) == 2


async def test_waits_between_reads_grow_and_are_capped(api: FakeApi, base_url: str) -> None:
    waits = Waits()
    async with unhurried(base_url, waits) as client:
        api.script.extend([answer(500, "InternalError")] * 8 + [ok({})])
        await client.get_node("n1")
    assert waits.seconds == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


async def test_read_gives_up_when_the_wait_asked_for_is_longer_than_its_time(api: FakeApi, base_url: str) -> None:
    waits = Waits()
    async with unhurried(base_url, waits) as client:
        api.script.append(answer(429, "TooManyRequests", headers={"Retry-After": "60"}))
        with pytest.raises(TooManyRequests) as raised:
            await client.get_node("n1")
    assert raised.value.retry_after_s == 60
    assert waits.seconds == []


@pytest.mark.parametrize("code", [400, 403, 404, 410, 422])
async def test_definite_answer_to_a_read_is_not_tried_again(api: FakeApi, client: KubeClient, code: int) -> None:
    api.script.extend([answer(code, ""), ok({})])
    with pytest.raises(Exception, match=str(code)):
        await client.get_node("n1")
    assert len(api.requests) == 1


async def test_read_that_hangs_ends_with_its_time(api: FakeApi, base_url: str) -> None:
    held = asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        await held.wait()
        return web.json_response({})

    api.script.append(slow)
    async with KubeClient(explicit_access(base_url), ClientSettings(user_agent="t", timeout_s=0.05)) as client:
        with pytest.raises(Unreachable, match="timed out"):
            await client.get_node("n1")
    held.set()


async def test_read_of_nonsense_is_malformed(api: FakeApi, client: KubeClient) -> None:
    api.script.extend([_not_json, ok([1])])
    with pytest.raises(MalformedReply, match="no JSON"):
        await client.get_node("n1")
    with pytest.raises(MalformedReply, match="not an object"):
        await client.get_node("n1")


# --- lists and watches ---


async def test_list_comes_in_pages_of_one_snapshot(api: FakeApi, client: KubeClient) -> None:
    for number in range(5):
        api.put(f"p{number}")
    pages = [page async for page in client.list_pages(PODS, limit=2)]
    assert [len(json.loads(page.raw)["items"]) for page in pages] == [2, 2, 1]
    assert {page.resource_version for page in pages} == {"105"}
    assert [request.path_qs for request in api.requests] == [
        "/api/v1/pods?limit=2",
        "/api/v1/pods?limit=2&continue=105-2",
        "/api/v1/pods?limit=2&continue=105-4",
    ]


async def test_list_of_a_namespace_by_name(api: FakeApi, client: KubeClient) -> None:
    api.put("p0")
    pods, version = await client.list_pods("ns")
    assert [pod["spec"] for pod in pods] == [{}]
    assert version == "101"
    # No resourceVersion: a quorum read.
    assert [request.path_qs for request in api.requests] == ["/api/v1/namespaces/ns/pods?limit=500"]


async def test_list_options(api: FakeApi, client: KubeClient) -> None:
    options = client.list_pages(
        PODS, "ns", limit=0, label_selector="a=b,c", field_selector="spec.nodeName=n1", resource_version="0"
    )
    _ = [page async for page in options]
    assert dict(api.requests[0].query) == {
        "labelSelector": "a=b,c",
        "fieldSelector": "spec.nodeName=n1",
        "resourceVersion": "0",
    }


async def test_list_whose_token_expired_says_so(api: FakeApi, client: KubeClient) -> None:
    for number in range(3):
        api.put(f"p{number}")
    api.script.extend([None, answer(410, "Expired")])
    with pytest.raises(Gone):
        _ = [page async for page in client.list_pages(PODS, limit=2)]


async def test_what_is_no_list_is_malformed(api: FakeApi, client: KubeClient) -> None:
    api.script.append(ok({"kind": "Pod"}))
    with pytest.raises(MalformedReply, match="no list"):
        _ = [page async for page in client.list_pages(PODS)]


async def test_watch_delivers_events_until_it_ends(api: FakeApi, client: KubeClient) -> None:
    api.put("p0")
    api.send_line(b"{broken")
    api.send_line(b"")
    api.put("p1", payload="x" * 300_000)  # longer than any read buffer
    api.delete("uid-p0")
    api.bookmark()
    got: list[tuple[str, str]] = []
    broken: list[bytes] = []
    async with aclosing(client.watch(PODS, resource_version="100", timeout_s=7.2)) as events:
        async for event in events:
            if event.type == MALFORMED:
                broken.append(event.raw)
                continue
            got.append((event.type, json.loads(event.raw)["metadata"]["resourceVersion"]))
            if event.type == "BOOKMARK":
                api.cut()
    assert got == [("ADDED", "101"), ("ADDED", "102"), ("DELETED", "103"), ("BOOKMARK", "103")]
    assert broken == [b"{broken"]
    assert dict(api.requests[0].query) == {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": "100",
        "timeoutSeconds": "8",
    }


async def test_watch_that_breaks_is_unreachable(api: FakeApi, client: KubeClient) -> None:
    async def breaks(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        await response.write(b'{"type":"ADDED","object":{}}\n{"type":"ADD')
        assert request.transport is not None
        request.transport.abort()
        return response

    api.script.append(breaks)
    events = client.watch(PODS, resource_version="1", timeout_s=5)
    assert (await anext(events)).type == "ADDED"
    with pytest.raises(Unreachable):
        await anext(events)


async def test_event_longer_than_any_object_ends_the_watch(
    api: FakeApi, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("devices.kube.client._LONGEST_EVENT_BYTES", 1000)

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        await response.write(b"x" * 1001)
        await api.happening.until(lambda: False)
        return response

    api.script.append(endless)
    with pytest.raises(MalformedReply, match="longer than 1000 bytes"):
        await anext(client.watch(PODS, resource_version="1", timeout_s=5))


async def test_watch_from_too_long_ago_is_gone(api: FakeApi, client: KubeClient) -> None:
    api.forget()
    with pytest.raises(Gone):
        _ = [event async for event in client.watch(PODS, resource_version="1", timeout_s=5)]


async def test_abandoned_watch_closes_its_connection(api: FakeApi, client: KubeClient) -> None:
    api.put("p0")
    async with aclosing(client.watch(PODS, resource_version="100", timeout_s=5)) as events:
        assert (await anext(events)).type == "ADDED"
        assert api.open_watches == 1
    api.put("p1")  # the server notices when it writes
    api.put("p2")
    await api.happening.until(lambda: api.open_watches == 0)


# --- limits, credentials, TLS, sockets, metrics ---


async def test_own_rate_limit_holds_back_and_says_so(api: FakeApi, base_url: str) -> None:
    waits = Waits()
    settings = ClientSettings(user_agent="t", timeout_s=10, qps=1, burst=1)
    now = [0.0]
    access = explicit_access(base_url)
    async with KubeClient(access, settings, sleep=waits.sleep, clock=lambda: now[0]) as client:
        api.script.extend([ok({})] * 2)
        await client.get_node("n1")
        await client.get_node("n1")
        with pytest.raises(NotSent, match="rate limit"):
            await client.bind("ns", "p", {}, 0.5)
    assert waits.seconds == [1.0]
    assert len(api.requests) == 2


async def test_time_that_is_up_before_the_request_leaves_sends_nothing(api: FakeApi, base_url: str) -> None:
    now = [0.0]

    async def slow_reload() -> Credentials:
        now[0] += 60
        return Credentials("Bearer late")

    access = ClusterAccess(
        base_url,
        source="test",
        credentials=Credentials("Bearer early", renew_at_unix_s=0),
        reload=slow_reload,
        wall_clock=iter([0.0, *[100.0] * 9]).__next__,
    )
    async with KubeClient(access, SETTINGS, clock=lambda: now[0]) as client:
        with pytest.raises(NotSent, match="time was up"):
            await client.bind("ns", "p", {}, 5)
    assert api.requests == []


class ChangingAccess(ClusterAccess):
    """Credentials that become `second` after the first refusal."""

    def __init__(self, host: str, second: str | None) -> None:
        self.now_s = 1000.0
        self.reloads = 0
        self._second = second
        super().__init__(
            host,
            source="test",
            credentials=Credentials("Bearer first"),
            reload=self._reloaded,
            wall_clock=lambda: self.now_s,
        )

    async def _reloaded(self) -> Credentials:
        self.reloads += 1
        return Credentials(f"Bearer {self._second}" if self._second else "Bearer first")


async def _only_second(request: web.Request) -> web.StreamResponse:
    if request.headers["Authorization"] == "Bearer second":
        return web.json_response({"kind": "Node"})
    return await answer(401, "Unauthorized")(request)


async def test_refused_token_is_replaced_and_the_write_repeated(api: FakeApi, base_url: str) -> None:
    access = ChangingAccess(base_url, "second")
    access.now_s += 60
    api.script.extend([_only_second] * 2)
    async with KubeClient(access, SETTINGS) as client:
        assert await client.patch_node("n1", {}) == {"kind": "Node"}
    assert [request.headers["Authorization"] for request in api.requests] == ["Bearer first", "Bearer second"]


async def test_refused_token_without_a_better_one_is_an_error(api: FakeApi, base_url: str) -> None:
    access = ChangingAccess(base_url, None)
    access.now_s += 60
    api.script.extend([_only_second] * 3)
    async with KubeClient(access, SETTINGS) as client:
        for _ in range(2):
            with pytest.raises(Unauthorized):
                await client.get_node("n1")
    assert access.reloads == 1  # not once for every refused request
    assert len(api.requests) == 2


async def test_tls_is_checked(api: FakeApi) -> None:
    authority, stranger = trustme.CA(), trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    server = TestServer(api.application(), scheme="https", host="127.0.0.1")
    await server.start_server(ssl=context)
    url = str(server.make_url("/"))
    api.script.append(ok({"kind": "Node"}))
    try:
        pem = authority.cert_pem.bytes().decode()
        async with KubeClient(explicit_access(url, ca_pem=pem), SETTINGS) as client:
            assert await client.get_node("n1") == {"kind": "Node"}
        pem = stranger.cert_pem.bytes().decode()
        async with KubeClient(explicit_access(url, ca_pem=pem), SETTINGS) as client:
            with pytest.raises(Unreachable, match="certificate"):
                await client.bind("ns", "p", {}, 5)
    finally:
        await server.close()
    assert len(api.requests) == 1


async def test_the_connection_of_a_cancelled_call_outlived_its_client() -> None:
    asked = asyncio.Event()

    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        asked.set()
        await reader.read()
        writer.close()

    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    server = await asyncio.start_server(never, "127.0.0.1", 0, ssl=context)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        client = KubeClient(explicit_access(url, ca_pem=authority.cert_pem.bytes().decode()), SETTINGS)
        call = asyncio.create_task(client.get_node("n1"))
        await asked.wait()
        (one,) = client._transport._sockets
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await client.close()
        assert one.fileno() == -1


def test_sockets_notice_a_dead_peer() -> None:
    with _watchful_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 0)), 15) as made:
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 15_000
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 5


async def test_requests_are_counted(api: FakeApi, base_url: str) -> None:
    registry = CollectorRegistry()
    waits = Waits()
    async with KubeClient(explicit_access(base_url), SETTINGS, registry=registry, sleep=waits.sleep) as client:
        api.script.extend([answer(500, ""), ok({}), hang_up, answer(404, "NotFound")])
        await client.get(NODES, "n1")
        with pytest.raises(OutcomeUnknown):
            await client.patch_pod("ns", "p", {})
        with pytest.raises(NotFound):
            await client.bind("ns", "p", {}, 5)

    def count(verb: str, resource: str, code: str) -> float | None:
        labels = {"verb": verb, "resource": resource, "code": code}
        return registry.get_sample_value("slotwise_kube_requests_total", labels)

    assert count("get", "nodes", "500") == 1
    assert count("get", "nodes", "200") == 1
    assert count("patch", "pods", "unknown") == 1
    assert count("create/binding", "pods", "404") == 1
    assert registry.get_sample_value("slotwise_kube_retries_total", {"resource": "nodes", "code": "500"}) == 1


BAD_SETTINGS = {
    "no name": ({"user_agent": ""}, "user_agent"),
    "no time to connect": ({"connect_timeout_s": 0}, "connect_timeout_s"),
    "no connections": ({"connections": 0}, "connections"),
    "impatient": ({"dead_peer_s": 0.5}, "dead_peer_s"),
    "rate without burst": ({"qps": 5, "burst": 0}, "burst"),
}


@pytest.mark.parametrize(("values", "named"), BAD_SETTINGS.values(), ids=BAD_SETTINGS)
def test_settings_that_make_no_sense(values: dict[str, float], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        ClientSettings(**{"user_agent": "t"} | values)  # type: ignore[arg-type] # fields of several types in one mapping


def test_no_time_out_means_the_default_never_forever() -> None:
    assert ClientSettings(user_agent="t", timeout_s=0).longest_call_s == 30
    assert ClientSettings(user_agent="t", timeout_s=2).longest_call_s == 2


async def test_server_fault_of_a_read_stays_what_it_is(api: FakeApi, base_url: str) -> None:
    async with KubeClient(explicit_access(base_url), ClientSettings(user_agent="t", timeout_s=0.01)) as client:
        api.script.extend([answer(500, "InternalError")] * 3)
        with pytest.raises(ServerError):
            await client.get_node("n1")
