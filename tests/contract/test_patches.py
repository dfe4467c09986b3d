"""JSON Patch and JSON Merge Patch."""

from __future__ import annotations

import pytest

from .client import Http
from .webhook import pod


async def test_a_merge_patch_merges_objects_and_removes_with_null(http: Http, pods: str) -> None:
    await http.created(pods, pod("a", annotations={"keep": "1", "drop": "2"}))
    answer = await http.merge(f"{pods}/a", {"metadata": {"annotations": {"drop": None, "new": "3"}}})
    assert answer.code == 200
    assert answer.body["metadata"]["annotations"] == {"keep": "1", "new": "3"}


async def test_a_json_patch_is_applied_in_order(http: Http, pods: str) -> None:
    await http.created(pods, pod("a", labels={"x": "1"}))
    answer = await http.json_patch(
        f"{pods}/a",
        [
            {"op": "test", "path": "/metadata/labels/x", "value": "1"},
            {"op": "replace", "path": "/metadata/labels/x", "value": "2"},
            {"op": "add", "path": "/metadata/annotations", "value": {"hami.io/a~b": "1"}},
            {"op": "remove", "path": "/metadata/annotations/hami.io~1a~0b"},
            {"op": "add", "path": "/metadata/annotations/done", "value": "yes"},
        ],
    )
    assert answer.code == 200
    assert answer.body["metadata"]["labels"] == {"x": "2"}
    assert answer.body["metadata"]["annotations"] == {"done": "yes"}


IMPOSSIBLE = {
    "test that fails": {"op": "test", "path": "/metadata/name", "value": "other"},
    "remove of what is not there": {"op": "remove", "path": "/metadata/annotations/none"},
    "add below what is not there": {"op": "add", "path": "/metadata/annotations/a", "value": "1"},
}


@pytest.mark.parametrize("operation", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
async def test_a_json_patch_that_does_not_apply_changes_nothing(
    http: Http, pods: str, operation: dict[str, str]
) -> None:
    stored = await http.created(pods, pod("a"))
    label = {"op": "add", "path": "/metadata/labels", "value": {"half": "done"}}
    answer = await http.json_patch(f"{pods}/a", [label, operation])
    assert (answer.code, answer.body["reason"]) == (422, "Invalid")
    assert (await http.get(f"{pods}/a")).body == stored


@pytest.mark.parametrize("body", [b"{", b'{"op":"add"}'])
async def test_a_json_patch_that_is_none_is_a_bad_request(http: Http, pods: str, body: bytes) -> None:
    await http.created(pods, pod("a"))
    answer = await http.json_patch(f"{pods}/a", body)
    assert (answer.code, answer.body["reason"]) == (400, "BadRequest")


async def test_an_unknown_patch_type_is_not_taken(http: Http, pods: str) -> None:
    await http.created(pods, pod("a"))
    answer = await http.send("PATCH", f"{pods}/a", {}, content_type="application/json")
    assert (answer.code, answer.body["reason"]) == (415, "UnsupportedMediaType")


async def test_a_patch_of_a_missing_object_is_not_found(http: Http, pods: str) -> None:
    assert (await http.merge(f"{pods}/absent", {})).code == 404


async def test_a_resource_version_in_a_patch_is_a_precondition(http: Http, pods: str) -> None:
    stored = await http.created(pods, pod("a"))
    version = stored["metadata"]["resourceVersion"]
    first = await http.merge(f"{pods}/a", {"metadata": {"resourceVersion": version, "labels": {"n": "1"}}})
    assert first.code == 200
    second = await http.merge(f"{pods}/a", {"metadata": {"resourceVersion": version, "labels": {"n": "2"}}})
    assert (second.code, second.body["reason"]) == (409, "Conflict")
    assert "the object has been modified" in second.body["message"]
    assert (await http.get(f"{pods}/a")).body["metadata"]["labels"] == {"n": "1"}


async def test_a_uid_in_a_patch_has_to_be_the_stored_one(http: Http, pods: str) -> None:
    stored = await http.created(pods, pod("a"))
    same = await http.merge(f"{pods}/a", {"metadata": {"uid": stored["metadata"]["uid"], "labels": {"n": "1"}}})
    assert same.code == 200
    other = await http.merge(f"{pods}/a", {"metadata": {"uid": "another", "labels": {"n": "2"}}})
    assert (other.code, other.body["reason"]) == (422, "Invalid")
    assert 'metadata.uid: Invalid value: "another": field is immutable' in other.body["message"]
    assert (await http.get(f"{pods}/a")).body["metadata"]["labels"] == {"n": "1"}


async def test_a_patch_to_a_value_that_is_no_text_is_invalid(http: Http, pods: str) -> None:
    stored = await http.created(pods, pod("a"))
    answer = await http.merge(f"{pods}/a", {"metadata": {"annotations": {"time": 5}}})
    assert (answer.code, answer.body["reason"]) == (422, "Invalid")
    assert answer.body["details"]["causes"][0]["field"] == "patch"
    assert (await http.get(f"{pods}/a")).body == stored


async def test_a_patch_cannot_rename(http: Http, pods: str) -> None:
    await http.created(pods, pod("a"))
    answer = await http.merge(f"{pods}/a", {"metadata": {"name": "b"}})
    assert (answer.code, answer.body["message"]) == (
        400,
        "the name of the object (b) does not match the name on the URL (a)",
    )


async def test_a_patch_cannot_change_creation_time(http: Http, pods: str) -> None:
    stored = await http.created(pods, pod("a"))
    answer = await http.merge(f"{pods}/a", {"metadata": {"creationTimestamp": "2001-01-01T00:00:00Z"}})
    assert answer.body["metadata"]["creationTimestamp"] == stored["metadata"]["creationTimestamp"]
