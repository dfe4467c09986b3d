"""Faults on demand, as a client meets them."""

from __future__ import annotations

import aiohttp
import pytest

from lab.apiserver import ApiServer
from tests.contract.client import Http
from tests.contract.webhook import pod

from .conftest import CONFIGMAPS, PODS, Delays


async def newest(http: Http) -> str:
    version: str = (await http.get(PODS)).body["metadata"]["resourceVersion"]
    return version


ANSWERS = {
    "conflict": (409, "Conflict"),
    "too many requests": (429, "TooManyRequests"),
    "internal error": (500, "InternalError"),
    "unavailable": (503, "ServiceUnavailable"),
    "timeout": (504, "Timeout"),
}


@pytest.mark.parametrize(("code", "reason"), ANSWERS.values(), ids=ANSWERS)
async def test_requests_that_match_are_answered_with_the_error(
    server: ApiServer, http: Http, code: int, reason: str
) -> None:
    rule = server.faults.answer(code, verb="create", resource="pods", count=2)
    first = await http.post(PODS, pod("a"))
    assert (first.code, first.body["reason"], first.body["status"]) == (code, reason, "Failure")
    assert (await http.post(CONFIGMAPS, {"metadata": {"name": "other-kind"}})).code == 201
    assert (await http.get(PODS)).code == 200
    assert (await http.post(PODS, pod("a"))).code == code
    assert (await http.post(PODS, pod("a"))).code == 201
    assert (rule.hits, rule.remaining) == (2, 0)


async def test_an_error_can_say_when_to_come_back(server: ApiServer, http: Http) -> None:
    server.faults.answer(429, resource="pods", retry_after_s=7)
    async with aiohttp.ClientSession() as session, session.get(server.url + PODS) as response:
        assert (response.status, response.headers["Retry-After"]) == (429, "7")
        assert (await response.json())["details"]["retryAfterSeconds"] == 7


async def test_a_rule_can_mean_a_subresource_alone(server: ApiServer, http: Http) -> None:
    await http.created(PODS, pod("a"))
    server.faults.answer(500, verb="patch", resource="pods", subresource="status")
    assert (await http.merge(f"{PODS}/a", {"metadata": {"labels": {"x": "1"}}})).code == 200
    assert (await http.merge(f"{PODS}/a/status", {"status": {"phase": "Running"}})).code == 500


async def test_a_slow_request_is_held_back_and_then_handled(server: ApiServer, http: Http, delays: Delays) -> None:
    server.faults.slow(3.5, verb="create", resource="pods")
    assert (await http.post(PODS, pod("a"))).code == 201
    assert delays.asked_s == [3.5]


async def test_a_lost_reply_leaves_the_write_done(server: ApiServer, http: Http) -> None:
    stored = await http.created(PODS, pod("a"))
    server.faults.lose_reply(verb="create", resource="pods", subresource="binding")
    with pytest.raises(aiohttp.ClientConnectionError):
        await http.post(f"{PODS}/a/binding", {"metadata": {"name": "a"}, "target": {"name": "n1"}})
    bound = server.get("pods", "default", "a")
    assert bound is not None
    assert bound["spec"]["nodeName"] == "n1"
    assert bound["metadata"]["uid"] == stored["metadata"]["uid"]


async def test_cut_watches_break_off_and_others_stay(server: ApiServer, http: Http) -> None:
    async with http.watch(PODS, resourceVersion=await newest(http)) as pods, http.watch(CONFIGMAPS) as others:
        await http.created(PODS, pod("a"))
        assert await pods.take(1) == [("ADDED", "a")]
        assert server.watches("pods") == 1
        assert server.faults.cut_watches("pods") == 1
        with pytest.raises(aiohttp.ClientError):
            await pods.rest()
        await http.created(CONFIGMAPS, {"metadata": {"name": "still-seen"}})
        assert await others.take(1) == [("ADDED", "still-seen")]
        assert server.faults.cut_watches() == 1


async def test_a_dropped_change_is_missing_from_the_watch_but_not_from_the_history(
    server: ApiServer, http: Http
) -> None:
    start = await newest(http)
    async with http.watch(PODS, resourceVersion=start) as watch:
        server.faults.drop_changes("pods")
        await http.created(PODS, pod("lost"))
        await http.created(PODS, pod("seen"))
        assert await watch.take(1) == [("ADDED", "seen")]
    async with http.watch(PODS, resourceVersion=start) as again:
        assert await again.take(2) == [("ADDED", "lost"), ("ADDED", "seen")]


async def test_a_duplicated_change_comes_twice(server: ApiServer, http: Http) -> None:
    async with http.watch(PODS, resourceVersion=await newest(http)) as watch:
        server.faults.duplicate_changes("pods")
        await http.created(PODS, pod("a"))
        await http.created(PODS, pod("b"))
        assert await watch.take(3) == [("ADDED", "a"), ("ADDED", "a"), ("ADDED", "b")]


async def test_a_delayed_change_holds_back_those_behind_it(server: ApiServer, http: Http, delays: Delays) -> None:
    async with http.watch(PODS, resourceVersion=await newest(http)) as watch:
        server.faults.delay_changes("pods", 9.0)
        await http.created(PODS, pod("a"))
        await http.created(PODS, pod("b"))
        assert await watch.take(2) == [("ADDED", "a"), ("ADDED", "b")]
    assert delays.asked_s == [9.0]


async def test_the_next_watch_can_be_answered_with_gone(server: ApiServer, http: Http) -> None:
    start = await newest(http)
    server.faults.expire_next_watch("pods")
    async with http.watch(PODS, resourceVersion=start) as watch:
        (event,) = await watch.rest()
    assert (event["type"], event["object"]["code"]) == ("ERROR", 410)
    await http.created(PODS, pod("a"))
    async with http.watch(PODS, resourceVersion=start) as watch:
        assert await watch.take(1) == [("ADDED", "a")]


async def test_clear_takes_every_rule_back(server: ApiServer, http: Http) -> None:
    server.faults.answer(500, count=9)
    server.faults.drop_changes("pods", 9)
    server.faults.expire_next_watch("pods", 9)
    server.faults.clear()
    async with http.watch(PODS, resourceVersion=await newest(http)) as watch:
        await http.created(PODS, pod("a"))
        assert await watch.take(1) == [("ADDED", "a")]


def test_rules_that_cannot_be_meant_are_refused(server: ApiServer) -> None:
    with pytest.raises(ValueError, match="code is 404; accepted: 409, 429"):
        server.faults.answer(404)
    with pytest.raises(ValueError, match="resource is 'pod'; accepted: pods,"):
        server.faults.drop_changes("pod")
    with pytest.raises(ValueError, match="count is 0"):
        server.faults.slow(1.0, count=0)
