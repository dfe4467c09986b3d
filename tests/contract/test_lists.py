"""Lists: order, pages, selectors and resource versions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from .client import Http
from .webhook import pod


async def create_named(http: Http, path: str, *names: str) -> None:
    for name in names:
        await http.created(path, {"metadata": {"name": name, "labels": {"first": name[0]}}})


def names(body: dict[str, Any]) -> list[str]:
    return [item["metadata"]["name"] for item in body["items"]]


async def test_a_list_is_ordered_by_name(http: Http, configmaps: str) -> None:
    await create_named(http, configmaps, "c", "a", "b")
    body = (await http.get(configmaps, labelSelector="first")).body
    assert (body["kind"], body["apiVersion"], names(body)) == ("ConfigMapList", "v1", ["a", "b", "c"])


async def test_items_of_a_list_leave_out_kind_and_version(http: Http, configmaps: str) -> None:
    await create_named(http, configmaps, "a")
    item = (await http.get(configmaps, labelSelector="first")).body["items"][0]
    assert "kind" not in item
    assert "apiVersion" not in item


async def test_the_version_of_a_list_is_the_newest_of_all_kinds(http: Http, configmaps: str, pods: str) -> None:
    await create_named(http, configmaps, "a")
    later = await http.created(pods, pod("p"))
    body = (await http.get(configmaps)).body
    assert int(body["metadata"]["resourceVersion"]) >= int(later["metadata"]["resourceVersion"])


async def test_pages_follow_each_other_without_gap(http: Http, configmaps: str) -> None:
    await create_named(http, configmaps, "a", "b", "c", "d", "e")
    seen, token = [], ""
    while True:
        query = {"continue": token} if token else {}
        body = (await http.get(configmaps, limit=2, labelSelector="first", **query)).body
        assert len(body["items"]) <= 2
        seen += names(body)
        token = body["metadata"].get("continue", "")
        if not token:
            break
    assert seen == ["a", "b", "c", "d", "e"]


async def test_a_page_says_how_many_remain(http: Http, pods: str) -> None:
    for name in ("a", "b", "c"):
        await http.created(pods, pod(name))
    body = (await http.get(pods, limit=1)).body
    assert body["metadata"]["remainingItemCount"] == 2
    last = (await http.get(pods, limit=2, **{"continue": body["metadata"]["continue"]})).body
    assert "remainingItemCount" not in last["metadata"]


async def test_later_pages_show_the_state_of_the_first(http: Http, configmaps: str) -> None:
    await create_named(http, configmaps, "a", "b", "c")
    first = (await http.get(configmaps, limit=1, labelSelector="first")).body
    await http.delete(f"{configmaps}/b")
    await create_named(http, configmaps, "bb")
    rest = (
        await http.get(configmaps, limit=9, labelSelector="first", **{"continue": first["metadata"]["continue"]})
    ).body
    assert names(first) + names(rest) == ["a", "b", "c"]
    assert rest["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


async def test_a_page_token_from_before_the_history_is_gone(
    http: Http, configmaps: str, compact: Callable[[str], Awaitable[None]]
) -> None:
    await create_named(http, configmaps, "a", "b", "c")
    first = (await http.get(configmaps, limit=1, labelSelector="first")).body
    await create_named(http, configmaps, "d")
    await compact("configmaps")
    answer = await http.get(configmaps, labelSelector="first", **{"continue": first["metadata"]["continue"]})
    assert (answer.code, answer.body["reason"]) == (410, "Expired")
    assert "The provided continue parameter is too old" in answer.body["message"]
    onward = await http.get(configmaps, labelSelector="first", **{"continue": answer.body["metadata"]["continue"]})
    assert (onward.code, names(onward.body)) == (200, ["b", "c", "d"])


async def test_a_token_that_is_none_is_a_bad_request(http: Http, configmaps: str) -> None:
    assert (await http.get(configmaps, **{"continue": "garbage"})).code == 400


async def test_version_zero_lists_everything_whatever_the_limit(http: Http, configmaps: str) -> None:
    await create_named(http, configmaps, "a", "b", "c")
    body = (await http.get(configmaps, resourceVersion=0, limit=1, labelSelector="first")).body
    assert names(body) == ["a", "b", "c"]
    assert "continue" not in body["metadata"]


async def test_a_list_not_older_than_a_write_shows_it(http: Http, configmaps: str) -> None:
    stored = await http.created(configmaps, {"metadata": {"name": "a", "labels": {"first": "a"}}})
    body = (
        await http.get(
            configmaps,
            labelSelector="first",
            resourceVersion=stored["metadata"]["resourceVersion"],
            resourceVersionMatch="NotOlderThan",
        )
    ).body
    assert names(body) == ["a"]


async def test_a_list_at_an_exact_version_shows_that_state(http: Http, configmaps: str) -> None:
    await create_named(http, configmaps, "a")
    then = (await http.get(configmaps)).body["metadata"]["resourceVersion"]
    await create_named(http, configmaps, "b")
    body = (await http.get(configmaps, labelSelector="first", resourceVersion=then, resourceVersionMatch="Exact")).body
    assert names(body) == ["a"]
    assert body["metadata"]["resourceVersion"] == then


async def test_a_version_not_reached_yet_times_out(http: Http, configmaps: str) -> None:
    answer = await http.get(configmaps, resourceVersion=2**50)
    assert (answer.code, answer.body["reason"]) == (504, "Timeout")
    assert answer.body["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"


async def test_a_match_rule_needs_a_version(http: Http, configmaps: str) -> None:
    answer = await http.get(configmaps, resourceVersionMatch="Exact")
    assert answer.code == 422
    assert "resourceVersionMatch is forbidden unless resourceVersion is provided" in answer.body["message"]


LABEL_SELECTORS = {
    "equal": ("tier=web", ["web-1", "web-2"]),
    "double equal": ("tier==web,env=test", ["web-2"]),
    "not equal takes those without": ("tier!=web,app", ["db-1", "none"]),
    "in": ("tier in (web,db)", ["db-1", "web-1", "web-2"]),
    "notin takes those without": ("tier notin (web),app", ["db-1", "none"]),
    "exists": ("env", ["web-2"]),
    "does not exist": ("!env,app", ["db-1", "none", "web-1"]),
}


@pytest.mark.parametrize(("selector", "expected"), LABEL_SELECTORS.values(), ids=LABEL_SELECTORS)
async def test_label_selectors(http: Http, configmaps: str, selector: str, expected: list[str]) -> None:
    for name, labels in {
        "web-1": {"tier": "web"},
        "web-2": {"tier": "web", "env": "test"},
        "db-1": {"tier": "db"},
        "none": {},
    }.items():
        await http.created(configmaps, {"metadata": {"name": name, "labels": {"app": "x", **labels}}})
    assert names((await http.get(configmaps, labelSelector=selector)).body) == expected


async def test_a_label_selector_that_is_none_is_a_bad_request(http: Http, configmaps: str) -> None:
    answer = await http.get(configmaps, labelSelector="tier in web")
    assert (answer.code, answer.body["reason"]) == (400, "BadRequest")


POD_FIELDS = {
    "name": ("metadata.name=a", ["a"]),
    "not the name": ("metadata.name!=a", ["b"]),
    "node": ("spec.nodeName=n1", ["a"]),
    "no node": ("spec.nodeName=", ["b"]),
    "phase": ("status.phase=Pending", ["a", "b"]),
    "phase and node": ("status.phase!=Failed,spec.nodeName=n1", ["a"]),
}


@pytest.mark.parametrize(("selector", "expected"), POD_FIELDS.values(), ids=POD_FIELDS)
async def test_field_selectors_of_pods(http: Http, pods: str, selector: str, expected: list[str]) -> None:
    on_a_node = pod("a")
    on_a_node["spec"]["nodeName"] = "n1"
    await http.created(pods, on_a_node)
    await http.created(pods, pod("b"))
    assert names((await http.get(pods, fieldSelector=selector)).body) == expected


async def test_pods_of_all_namespaces_by_namespace_field(http: Http, pods: str, namespace: str) -> None:
    await http.created(pods, pod("a"))
    body = (await http.get("/api/v1/pods", fieldSelector=f"metadata.namespace={namespace}")).body
    assert names(body) == ["a"]


async def test_events_by_what_they_are_about(http: Http, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/events"
    for name, about in (("e1", "pod-1"), ("e2", "pod-2")):
        event = {
            "metadata": {"name": name},
            "involvedObject": {"kind": "Pod", "name": about, "namespace": namespace, "uid": f"uid-of-{about}"},
            "reason": "FilteringSucceed",
            "type": "Normal",
        }
        await http.created(path, event)
    for selector in ("involvedObject.name=pod-2", "involvedObject.uid=uid-of-pod-2,involvedObject.kind=Pod"):
        assert names((await http.get(path, fieldSelector=selector)).body) == ["e2"]


async def test_a_field_the_kind_does_not_offer_is_a_bad_request(http: Http, pods: str) -> None:
    answer = await http.get(pods, fieldSelector="spec.hostname=x")
    assert (answer.code, answer.body["message"]) == (400, "field label not supported: spec.hostname")
