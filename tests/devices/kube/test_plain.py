"""Errors, paths, the token bucket and the watch's memory: everything without a network."""

import asyncio

import pytest

from devices.kube import errors
from devices.kube.rate import TokenBucket
from devices.kube.resources import LEASES, NODES, PODS, Resource
from devices.kube.seen import Seen, SeenObject
from tests.devices.kube.fake_api import status

STATUSES = {
    "not found": (404, "NotFound", errors.NotFound),
    "conflict": (409, "Conflict", errors.Conflict),
    "already exists": (409, "AlreadyExists", errors.AlreadyExists),
    "gone": (410, "Gone", errors.Gone),
    "expired": (410, "Expired", errors.Gone),
    "forbidden": (403, "Forbidden", errors.Forbidden),
    "unauthorized": (401, "Unauthorized", errors.Unauthorized),
    "invalid": (422, "Invalid", errors.Invalid),
    "bad request": (400, "BadRequest", errors.BadRequest),
    "throttled": (429, "TooManyRequests", errors.TooManyRequests),
    "server fault": (500, "InternalError", errors.ServerError),
    "gateway": (504, "Timeout", errors.ServerError),
    "teapot": (418, "", errors.ApiStatusError),
}


@pytest.mark.parametrize(("code", "reason", "expected"), STATUSES.values(), ids=STATUSES)
def test_status_becomes_its_error(code: int, reason: str, expected: type[errors.ApiStatusError]) -> None:
    error = errors.status_error(code, status(code, reason, "because"))
    assert type(error) is expected
    assert (error.code, error.reason, error.message) == (code, reason, "because")
    assert str(error) == (f"because ({code} {reason})" if reason else f"because ({code})")


def test_error_object_of_a_watch_knows_its_own_code() -> None:
    assert type(errors.status_error(0, status(410, "Expired"))) is errors.Gone
    assert type(errors.status_error(0, b'{"reason":"Expired"}')) is errors.Gone


@pytest.mark.parametrize("body", [b"", b"<html>Bad Gateway</html>", b"[]", b'{"code":"x"}', b"\xff\xfe"])
def test_any_body_of_a_failure_is_accepted(body: bytes) -> None:
    error = errors.status_error(502, body)
    assert type(error) is errors.ServerError
    assert error.message


def test_wait_comes_from_the_header_before_the_body() -> None:
    body = status(429, "TooManyRequests", retryAfterSeconds=7)
    assert errors.status_error(429, body).retry_after_s == 7
    assert errors.status_error(429, body, 2.0).retry_after_s == 2


RETRY_AFTER = {
    "absent": (None, None),
    "seconds": ("3", 3.0),
    "zero": (" 0 ", 0.0),
    "a date ahead": ("Thu, 01 Jan 1970 00:01:40 GMT", 90.0),
    "a date past": ("Thu, 01 Jan 1970 00:00:01 GMT", 0.0),
    "negative": ("-1", None),
    "nonsense": ("soon", None),
}


@pytest.mark.parametrize(("header", "expected"), RETRY_AFTER.values(), ids=RETRY_AFTER)
def test_retry_after(header: str | None, expected: float | None) -> None:
    assert errors.retry_after_s(header, now_unix_s=10.0) == expected


PATHS = {
    "pods everywhere": (PODS.collection(), "/api/v1/pods"),
    "pods of a namespace": (PODS.collection("a"), "/api/v1/namespaces/a/pods"),
    "a pod": (PODS.item("p", "a"), "/api/v1/namespaces/a/pods/p"),
    "a binding": (PODS.item("p", "a", "binding"), "/api/v1/namespaces/a/pods/p/binding"),
    "a node": (NODES.item("n1"), "/api/v1/nodes/n1"),
    "a lease": (LEASES.item("l", "a"), "/apis/coordination.k8s.io/v1/namespaces/a/leases/l"),
    "an odd name": (NODES.item("a b?c"), "/api/v1/nodes/a%20b%3Fc"),
}


@pytest.mark.parametrize(("path", "expected"), PATHS.values(), ids=PATHS)
def test_path(path: str, expected: str) -> None:
    assert path == expected


REFUSED = {
    "an empty name would be the collection": (PODS, "", "a"),
    "an empty namespace": (PODS, "p", ""),
    "no namespace": (PODS, "p", None),
    "a namespace where there is none": (NODES, "n", "a"),
    "another path": (PODS, "p/binding", "a"),
    "the parent": (PODS, "..", "a"),
    "already quoted": (PODS, "p%2Fbinding", "a"),
}


@pytest.mark.parametrize(("resource", "name", "namespace"), REFUSED.values(), ids=REFUSED)
def test_refused_names(resource: Resource, name: str, namespace: str | None) -> None:
    with pytest.raises(ValueError, match=r"name|namespace"):
        resource.item(name, namespace)


class FakeTime:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.waits_s: list[float] = []

    def clock(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.waits_s.append(round(seconds, 6))
        self.now_s += seconds


async def test_bucket_lets_the_burst_through_and_then_the_rate() -> None:
    time = FakeTime()
    bucket = TokenBucket(5, 2, clock=time.clock, sleep=time.sleep)
    for _ in range(4):
        assert await bucket.take(10)
    assert time.waits_s == [0.2, 0.2]
    time.now_s += 100  # never more than the burst is saved up
    for _ in range(3):
        assert await bucket.take(10)
    assert time.waits_s == [0.2, 0.2, 0.2]


async def test_bucket_switched_off_never_waits() -> None:
    time = FakeTime()
    bucket = TokenBucket(0, 1, clock=time.clock, sleep=time.sleep)
    assert [await bucket.take(0) for _ in range(5)] == [True] * 5
    assert time.waits_s == []


async def test_bucket_refuses_at_once_what_would_wait_too_long() -> None:
    time = FakeTime()
    bucket = TokenBucket(1, 1, clock=time.clock, sleep=time.sleep)
    assert await bucket.take(0)
    assert not await bucket.take(0.5)
    assert time.waits_s == []
    time.now_s += 1  # the refused one took no token
    assert await bucket.take(0)


async def test_cancelled_waiter_gives_its_token_back() -> None:
    time = FakeTime()

    async def cancelled(seconds: float) -> None:
        raise asyncio.CancelledError

    bucket = TokenBucket(1, 1, clock=time.clock, sleep=cancelled)
    assert await bucket.take(0)
    with pytest.raises(asyncio.CancelledError):
        await bucket.take(10)
    time.now_s += 1
    assert await bucket.take(0)


def _seen(revision: int) -> SeenObject:
    return SeenObject("u", "ns", "p", revision)


def test_seen_tells_news_from_duplicates_and_late_events() -> None:
    seen = Seen()
    assert seen.is_news(_seen(5), deleted=False)
    seen.put(_seen(5))
    assert not seen.is_news(_seen(5), deleted=False)
    assert not seen.is_news(_seen(4), deleted=False)
    assert seen.is_news(_seen(5), deleted=True)
    assert not seen.is_news(_seen(4), deleted=True)
    seen.delete(_seen(6))
    assert not seen.is_news(_seen(5), deleted=False)
    assert not seen.is_news(_seen(6), deleted=True)
    assert seen.is_news(_seen(7), deleted=False)


def test_memory_of_deletions_is_bounded() -> None:
    seen = Seen()
    for number in range(5000):
        seen.delete(SeenObject(f"u{number}", "ns", "p", number))
    assert seen.is_news(SeenObject("u0", "ns", "p", 0), deleted=False)
    assert not seen.is_news(SeenObject("u4999", "ns", "p", 4999), deleted=False)


def test_what_the_last_list_would_have_shown_is_no_news() -> None:
    seen = Seen()
    seen.replace([_seen(5)])
    seen.listed(10)
    late = SeenObject("gone before", "ns", "other", 9)
    assert not seen.is_news(late, deleted=False)
    assert seen.is_news(SeenObject("gone before", "ns", "other", 11), deleted=False)
    assert seen.is_news(_seen(6), deleted=False)
    seen.listed(8)  # the server's storage was restored
    assert seen.is_news(late, deleted=False)
