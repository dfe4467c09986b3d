"""Creating, reading, replacing and deleting objects."""

from __future__ import annotations

import re
from typing import Any

import pytest

from .client import Http
from .webhook import pod


def configmap(name: str, **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "data": data}


async def test_create_fills_in_what_the_server_decides(http: Http, configmaps: str, namespace: str) -> None:
    stored = await http.created(configmaps, configmap("one", key="value"))
    meta = stored["metadata"]
    assert (stored["kind"], stored["apiVersion"], stored["data"]) == ("ConfigMap", "v1", {"key": "value"})
    assert meta["namespace"] == namespace
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", meta["uid"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", meta["creationTimestamp"])
    assert int(meta["resourceVersion"]) > 0
    assert (await http.get(f"{configmaps}/one")).body["metadata"]["uid"] == meta["uid"]


async def test_create_ignores_a_uid_sent_along(http: Http, configmaps: str) -> None:
    stored = await http.created(configmaps, {"metadata": {"name": "one", "uid": "mine"}})
    assert stored["metadata"]["uid"] != "mine"


async def test_generated_names_differ_and_end_in_five_letters(http: Http, configmaps: str) -> None:
    names = [
        (await http.created(configmaps, {"metadata": {"generateName": "job-"}}))["metadata"]["name"] for _ in range(5)
    ]
    assert len(set(names)) == 5
    assert all(re.fullmatch(r"job-[bcdfghjklmnpqrstvwxz2456789]{5}", name) for name in names)


async def test_a_long_generate_name_is_cut_to_fit(http: Http, configmaps: str) -> None:
    stored = await http.created(configmaps, {"metadata": {"generateName": "a" * 70}})
    assert len(stored["metadata"]["name"]) == 63


async def test_a_name_in_use_is_refused(http: Http, configmaps: str) -> None:
    await http.created(configmaps, configmap("one"))
    answer = await http.post(configmaps, configmap("one"))
    assert (answer.code, answer.body["reason"]) == (409, "AlreadyExists")
    assert answer.body["message"] == 'configmaps "one" already exists'
    assert answer.body["details"] == {"name": "one", "kind": "configmaps"}


async def test_a_missing_object_is_not_found(http: Http, configmaps: str) -> None:
    answer = await http.get(f"{configmaps}/absent")
    assert answer.code == 404
    assert answer.body == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": 'configmaps "absent" not found',
        "reason": "NotFound",
        "details": {"name": "absent", "kind": "configmaps"},
        "code": 404,
    }


async def test_errors_of_named_groups_carry_the_group(http: Http, namespace: str) -> None:
    answer = await http.get(f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/absent")
    assert answer.body["message"] == 'leases.coordination.k8s.io "absent" not found'
    assert answer.body["details"] == {"name": "absent", "group": "coordination.k8s.io", "kind": "leases"}


async def test_a_missing_namespace_is_not_found(http: Http) -> None:
    answer = await http.post("/api/v1/namespaces/nowhere-at-all/configmaps", configmap("one"))
    assert (answer.code, answer.body["message"]) == (404, 'namespaces "nowhere-at-all" not found')


async def test_another_namespace_in_the_body_is_a_bad_request(http: Http, configmaps: str) -> None:
    answer = await http.post(configmaps, {"metadata": {"name": "one", "namespace": "default"}})
    assert (answer.code, answer.body["reason"]) == (400, "BadRequest")
    assert answer.body["message"] == (
        "the namespace of the provided object does not match the namespace sent on the request"
    )


@pytest.mark.parametrize("name", ["Upper", "under_score", "-dash", "a" * 254])
async def test_an_invalid_name_is_refused(http: Http, configmaps: str, name: str) -> None:
    answer = await http.post(configmaps, configmap(name))
    assert (answer.code, answer.body["reason"]) == (422, "Invalid")
    assert answer.body["details"]["causes"][0]["field"] == "metadata.name"
    assert answer.body["message"].startswith(f'ConfigMap "{name}" is invalid: metadata.name: Invalid value: "{name}":')


async def test_a_name_is_required(http: Http, configmaps: str) -> None:
    answer = await http.post(configmaps, {"metadata": {}})
    assert answer.code == 422
    assert "name or generateName is required" in answer.body["message"]


async def test_an_invalid_label_value_is_refused(http: Http, configmaps: str) -> None:
    answer = await http.post(configmaps, {"metadata": {"name": "one", "labels": {"tier": "x" * 64}}})
    assert answer.code == 422
    assert answer.body["details"]["causes"][0]["field"] == "metadata.labels"


@pytest.mark.parametrize("field", ["labels", "annotations"])
@pytest.mark.parametrize("value", [5, True, {"a": "b"}])
async def test_a_value_that_is_no_text_is_a_bad_request(http: Http, configmaps: str, field: str, value: object) -> None:
    await http.created(configmaps, configmap("one"))
    created = await http.post(configmaps, {"metadata": {"name": "two", field: {"key": value}}})
    updated = await http.put(f"{configmaps}/one", {"metadata": {"name": "one", field: {"key": value}}})
    assert [(answer.code, answer.body["reason"]) for answer in (created, updated)] == [(400, "BadRequest")] * 2
    assert f"ObjectMeta.metadata.{field} of type" in created.body["message"]


async def test_too_many_annotation_bytes_are_refused(http: Http, configmaps: str) -> None:
    answer = await http.post(configmaps, {"metadata": {"name": "one", "annotations": {"big": "x" * 262_144}}})
    assert answer.code == 422
    assert "metadata.annotations: Too long" in answer.body["message"]


async def test_what_is_no_json_is_a_bad_request(http: Http, configmaps: str) -> None:
    answer = await http.post(configmaps, b'{"metadata": {"name"')
    assert (answer.code, answer.body["reason"]) == (400, "BadRequest")


async def test_another_kind_in_the_body_is_a_bad_request(http: Http, configmaps: str) -> None:
    answer = await http.post(configmaps, {"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "one"}})
    assert (answer.code, answer.body["reason"]) == (400, "BadRequest")
    assert "cannot be handled as a ConfigMap" in answer.body["message"]


async def test_an_unknown_content_type_is_not_taken(http: Http, configmaps: str) -> None:
    answer = await http.send("POST", configmaps, b"name: one", content_type="text/plain")
    assert (answer.code, answer.body["reason"]) == (415, "UnsupportedMediaType")


async def test_an_unknown_path_is_not_found(http: Http, namespace: str) -> None:
    answer = await http.get(f"/api/v1/namespaces/{namespace}/widgets")
    assert answer.code == 404


async def test_post_to_a_name_is_not_allowed(http: Http, configmaps: str) -> None:
    answer = await http.post(f"{configmaps}/one", configmap("one"))
    assert (answer.code, answer.body["reason"]) == (405, "MethodNotAllowed")


async def test_update_replaces_and_raises_the_version(http: Http, configmaps: str) -> None:
    first = await http.created(configmaps, configmap("one", a="1", b="2"))
    answer = await http.put(f"{configmaps}/one", {**first, "data": {"a": "9"}})
    assert (answer.code, answer.body["data"]) == (200, {"a": "9"})
    assert int(answer.body["metadata"]["resourceVersion"]) > int(first["metadata"]["resourceVersion"])
    assert answer.body["metadata"]["uid"] == first["metadata"]["uid"]


async def test_update_of_an_older_version_conflicts(http: Http, configmaps: str) -> None:
    first = await http.created(configmaps, configmap("one"))
    await http.put(f"{configmaps}/one", {**first, "data": {"a": "1"}})
    answer = await http.put(f"{configmaps}/one", {**first, "data": {"a": "2"}})
    assert (answer.code, answer.body["reason"]) == (409, "Conflict")
    assert answer.body["message"] == (
        'Operation cannot be fulfilled on configmaps "one": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )


async def test_update_without_version_takes_the_newest(http: Http, configmaps: str) -> None:
    await http.created(configmaps, configmap("one", a="1"))
    answer = await http.put(f"{configmaps}/one", configmap("one", a="2"))
    assert (answer.code, answer.body["data"]) == (200, {"a": "2"})


async def test_a_lease_is_never_updated_without_version(http: Http, namespace: str) -> None:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
    lease = {"metadata": {"name": "leader"}, "spec": {"holderIdentity": "a"}}
    await http.created(path, lease)
    answer = await http.put(f"{path}/leader", lease)
    assert (answer.code, answer.body["reason"]) == (422, "Invalid")
    assert "must be specified for an update" in answer.body["message"]


async def test_a_put_to_a_new_name_creates_a_lease_but_no_config_map(
    http: Http, configmaps: str, namespace: str
) -> None:
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/leader"
    answer = await http.put(lease, {"metadata": {"name": "leader"}, "spec": {"holderIdentity": "a"}})
    assert (answer.code, answer.body["spec"]) == (201, {"holderIdentity": "a"})
    assert answer.body["metadata"]["uid"]
    assert (await http.put(f"{configmaps}/new", configmap("new"))).code == 404


async def test_update_with_another_uid_conflicts(http: Http, configmaps: str) -> None:
    await http.created(configmaps, configmap("one"))
    answer = await http.put(f"{configmaps}/one", {"metadata": {"name": "one", "uid": "somebody-else"}})
    assert (answer.code, answer.body["reason"]) == (409, "Conflict")
    assert "Precondition failed: UID in precondition: somebody-else, UID in object meta: " in answer.body["message"]


async def test_update_under_another_name_is_a_bad_request(http: Http, configmaps: str) -> None:
    await http.created(configmaps, configmap("one"))
    answer = await http.put(f"{configmaps}/one", configmap("two"))
    assert (answer.code, answer.body["message"]) == (
        400,
        "the name of the object (two) does not match the name on the URL (one)",
    )


async def test_update_of_a_missing_object_is_not_found(http: Http, configmaps: str) -> None:
    assert (await http.put(f"{configmaps}/absent", configmap("absent"))).code == 404


async def test_an_update_that_changes_nothing_keeps_the_version(http: Http, configmaps: str) -> None:
    first = await http.created(configmaps, configmap("one", a="1"))
    answer = await http.put(f"{configmaps}/one", first)
    assert answer.code == 200
    assert answer.body["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


async def test_delete_answers_with_a_status(http: Http, configmaps: str) -> None:
    stored = await http.created(configmaps, configmap("one"))
    answer = await http.delete(f"{configmaps}/one")
    assert (answer.code, answer.body["kind"], answer.body["status"]) == (200, "Status", "Success")
    assert answer.body["details"] == {"name": "one", "kind": "configmaps", "uid": stored["metadata"]["uid"]}
    assert (await http.get(f"{configmaps}/one")).code == 404


async def test_delete_of_a_missing_object_is_not_found(http: Http, configmaps: str) -> None:
    assert (await http.delete(f"{configmaps}/absent")).code == 404


@pytest.mark.parametrize(("field", "word"), [("uid", "UID"), ("resourceVersion", "ResourceVersion")])
async def test_delete_preconditions_are_held(http: Http, configmaps: str, field: str, word: str) -> None:
    stored = await http.created(configmaps, configmap("one"))
    wrong = await http.delete(f"{configmaps}/one", {"preconditions": {field: "999999999"}})
    assert (wrong.code, wrong.body["reason"]) == (409, "Conflict")
    assert f"the {word} in the precondition (999999999) does not match" in wrong.body["message"]
    right = await http.delete(f"{configmaps}/one", {"preconditions": {field: stored["metadata"][field]}})
    assert right.code == 200


async def test_deletecollection_takes_what_the_selector_covers(http: Http, configmaps: str) -> None:
    for name, tier in (("a", "x"), ("b", "x"), ("c", "y")):
        await http.created(configmaps, {"metadata": {"name": name, "labels": {"tier": tier}}})
    answer = await http.delete(configmaps, labelSelector="tier=x")
    assert answer.code == 200
    left = await http.get(configmaps, labelSelector="tier")
    assert [item["metadata"]["name"] for item in left.body["items"]] == ["c"]


async def test_an_object_with_a_finalizer_stays_until_it_is_removed(http: Http, configmaps: str) -> None:
    await http.created(configmaps, {"metadata": {"name": "one", "finalizers": ["example.com/hold"]}})
    await http.delete(f"{configmaps}/one")
    held = await http.get(f"{configmaps}/one")
    assert held.body["metadata"]["deletionTimestamp"]
    await http.merge(f"{configmaps}/one", {"metadata": {"finalizers": None}})
    assert (await http.get(f"{configmaps}/one")).code == 404


async def test_dry_run_stores_nothing(http: Http, configmaps: str) -> None:
    answer = await http.post(configmaps, configmap("one"), dryRun="All")
    assert (answer.code, answer.body["metadata"]["name"]) == (201, "one")
    assert answer.body["metadata"]["uid"]
    assert (await http.get(f"{configmaps}/one")).code == 404


async def test_dry_run_of_patch_and_delete_changes_nothing(http: Http, configmaps: str) -> None:
    first = await http.created(configmaps, configmap("one", a="1"))
    patched = await http.merge(f"{configmaps}/one", {"data": {"a": "2"}}, dryRun="All")
    assert (patched.code, patched.body["data"]) == (200, {"a": "2"})
    assert (await http.delete(f"{configmaps}/one", dryRun="All")).code == 200
    kept = await http.get(f"{configmaps}/one")
    assert kept.body["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


async def test_a_delete_with_a_body_is_not_made_a_dry_run_by_its_query(http: Http, configmaps: str) -> None:
    await http.created(configmaps, configmap("one"))
    await http.delete(f"{configmaps}/one", {"kind": "DeleteOptions", "apiVersion": "v1"}, dryRun="All")
    assert (await http.get(f"{configmaps}/one")).code == 404


async def test_an_unknown_dry_run_value_is_invalid(http: Http, configmaps: str) -> None:
    answer = await http.post(configmaps, configmap("one"), dryRun="Some")
    assert (answer.code, answer.body["reason"]) == (422, "Invalid")


async def test_a_token_nobody_knows_is_unauthorized(http: Http, configmaps: str) -> None:
    answer = await http.send("GET", configmaps, headers={"Authorization": "Bearer wrong"})
    assert (answer.code, answer.body["reason"]) == (401, "Unauthorized")


async def test_a_body_above_the_limit_is_too_large(http: Http, configmaps: str) -> None:
    answer = await http.post(configmaps, configmap("one", big="x" * (3 * 1024 * 1024 + 1)))
    assert answer.code == 413


async def test_the_status_of_a_node_has_its_own_door(http: Http, namespace: str) -> None:
    path = f"/api/v1/nodes/{namespace}"
    await http.created("/api/v1/nodes", {"metadata": {"name": namespace}})
    await http.merge(f"{path}/status", {"status": {"allocatable": {"nvidia.com/gpu": "8"}}, "spec": {"podCIDR": "x"}})
    await http.merge(path, {"status": {"allocatable": {"nvidia.com/gpu": "9"}}, "metadata": {"labels": {"a": "b"}}})
    node = (await http.get(path)).body
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "8"
    assert node["metadata"]["labels"]["a"] == "b"
    assert "podCIDR" not in node.get("spec", {})
    await http.delete(path)


async def test_version_and_health_are_answered(http: Http) -> None:
    assert (await http.get("/version")).body["gitVersion"].startswith("v1.")
    for path in ("/healthz", "/livez", "/readyz"):
        assert (await http.get(path)).code == 200


async def test_discovery_lists_pods_with_their_subresources(http: Http) -> None:
    listed = {entry["name"]: entry for entry in (await http.get("/api/v1")).body["resources"]}
    assert listed["pods"]["namespaced"] is True
    assert {"pods/binding", "pods/status", "nodes", "namespaces", "bindings"} <= set(listed)
    groups = {group["name"] for group in (await http.get("/apis")).body["groups"]}
    assert {"coordination.k8s.io", "admissionregistration.k8s.io"} <= groups


async def test_a_terminating_namespace_takes_nothing_new_or_is_gone(http: Http, namespace: str) -> None:
    await http.delete(f"/api/v1/namespaces/{namespace}")
    answer = await http.post(f"/api/v1/namespaces/{namespace}/pods", pod("late"))
    assert answer.code in (403, 404)
