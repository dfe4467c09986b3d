"""The binding sub-resource: one write that assigns the node and carries metadata into the pod."""

from __future__ import annotations

from typing import Any

from tests.cluster.switch import a_binding_carries_labels

from .client import Http
from .webhook import pod


def binding(name: str, node: str = "n1", **metadata: Any) -> dict[str, Any]:
    return {
        "kind": "Binding",
        "apiVersion": "v1",
        "metadata": {"name": name, **metadata},
        "target": {"kind": "Node", "name": node},
    }


async def test_binding_sets_node_and_metadata_in_one_write(http: Http, pods: str) -> None:
    stored = await http.created(pods, pod("a", annotations={"keep": "1", "over": "old"}, labels={"app": "x"}))
    async with http.watch(pods, resourceVersion=stored["metadata"]["resourceVersion"]) as watch:
        answer = await http.post(
            f"{pods}/a/binding",
            binding(
                "a",
                uid=stored["metadata"]["uid"],
                annotations={"over": "new", "hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,1000,0:;"},
                labels={"hami.io/vgpu-node": "n1"},
            ),
        )
        event = await watch.next()
    assert answer.code == 201
    assert answer.body == {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
    bound = event["object"]
    assert bound["spec"]["nodeName"] == "n1"
    assert bound["metadata"]["annotations"] == {
        "keep": "1",
        "over": "new",
        "hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,1000,0:;",
    }
    assert bound["metadata"]["labels"] == {
        "app": "x",
        **({"hami.io/vgpu-node": "n1"} if a_binding_carries_labels() else {}),
    }
    assert (await http.get(f"{pods}/a")).body == bound


async def test_binding_sets_the_scheduled_condition(http: Http, pods: str) -> None:
    await http.created(pods, pod("a"))
    waiting = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    await http.merge(f"{pods}/a/status", {"status": {"conditions": [waiting]}})
    await http.post(f"{pods}/a/binding", binding("a"))
    conditions = (await http.get(f"{pods}/a")).body["status"]["conditions"]
    assert [(entry["type"], entry["status"]) for entry in conditions] == [("PodScheduled", "True")]
    assert "reason" not in conditions[0]


async def test_a_bound_pod_is_not_bound_again(http: Http, pods: str) -> None:
    await http.created(pods, pod("a"))
    await http.created(f"{pods}/a/binding", binding("a", "n1"))
    answer = await http.post(f"{pods}/a/binding", binding("a", "n2", annotations={"late": "1"}))
    assert (answer.code, answer.body["reason"]) == (409, "Conflict")
    assert answer.body["message"] == (
        'Operation cannot be fulfilled on pods/binding "a": pod a is already assigned to node "n1"'
    )
    kept = (await http.get(f"{pods}/a")).body
    assert kept["spec"]["nodeName"] == "n1"
    assert "late" not in kept["metadata"].get("annotations", {})


async def test_a_pod_being_deleted_is_not_bound(http: Http, pods: str) -> None:
    await http.created(pods, pod("a", finalizers=["example.com/hold"]))
    await http.delete(f"{pods}/a")
    answer = await http.post(f"{pods}/a/binding", binding("a"))
    assert answer.code == 409
    assert answer.body["message"].endswith("pod a is being deleted, cannot be assigned to a host")
    await http.merge(f"{pods}/a", {"metadata": {"finalizers": None}})


async def test_a_binding_for_another_uid_conflicts(http: Http, pods: str) -> None:
    stored = await http.created(pods, pod("a"))
    answer = await http.post(f"{pods}/a/binding", binding("a", uid="11111111-2222-3333-4444-555555555555"))
    assert (answer.code, answer.body["reason"]) == (409, "Conflict")
    assert answer.body["message"].startswith('Operation cannot be fulfilled on pods "a": ')
    assert (
        "Precondition failed: UID in precondition: 11111111-2222-3333-4444-555555555555, "
        f"UID in object meta: {stored['metadata']['uid']}"
    ) in answer.body["message"]
    assert "nodeName" not in (await http.get(f"{pods}/a")).body["spec"]


async def test_a_binding_for_an_older_version_conflicts(http: Http, pods: str) -> None:
    stored = await http.created(pods, pod("a"))
    await http.merge(f"{pods}/a", {"metadata": {"labels": {"x": "1"}}})
    answer = await http.post(f"{pods}/a/binding", binding("a", resourceVersion=stored["metadata"]["resourceVersion"]))
    assert answer.code == 409
    assert "Precondition failed: ResourceVersion in precondition" in answer.body["message"]


async def test_a_binding_for_a_missing_pod_is_not_found(http: Http, pods: str) -> None:
    answer = await http.post(f"{pods}/absent/binding", binding("absent"))
    assert (answer.code, answer.body["message"]) == (404, 'pods "absent" not found')


async def test_the_name_in_a_binding_has_to_be_the_one_in_the_path(http: Http, pods: str) -> None:
    await http.created(pods, pod("a"))
    answer = await http.post(f"{pods}/a/binding", binding("b"))
    assert (answer.code, answer.body["message"]) == (400, "name in URL does not match name in Binding object")


async def test_a_binding_without_node_fails(http: Http, pods: str) -> None:
    await http.created(pods, pod("a"))
    answer = await http.post(f"{pods}/a/binding", {"metadata": {"name": "a"}, "target": {"kind": "Node"}})
    assert answer.code == 500
    assert "target.name: Required value" in answer.body["message"]


async def test_an_annotation_that_is_no_text_is_a_bad_request(http: Http, pods: str) -> None:
    await http.created(pods, pod("a"))
    answer = await http.post(f"{pods}/a/binding", binding("a", annotations={"hami.io/vgpu-time": 1}))
    assert (answer.code, answer.body["reason"]) == (400, "BadRequest")


async def test_a_gated_pod_is_not_bound(http: Http, pods: str) -> None:
    document = pod("a")
    document["spec"]["schedulingGates"] = [{"name": "example.com/wait"}]
    await http.created(pods, document)
    answer = await http.post(f"{pods}/a/binding", binding("a"))
    assert answer.code == 409
    assert "non-empty .spec.schedulingGates" in answer.body["message"]


async def test_the_bindings_collection_binds_too(http: Http, pods: str, namespace: str) -> None:
    await http.created(pods, pod("a"))
    answer = await http.post(f"/api/v1/namespaces/{namespace}/bindings", binding("a", annotations={"x": "1"}))
    assert answer.code == 201
    bound = (await http.get(f"{pods}/a")).body
    assert (bound["spec"]["nodeName"], bound["metadata"]["annotations"]) == ("n1", {"x": "1"})


async def test_a_dry_run_binds_nothing(http: Http, pods: str) -> None:
    await http.created(pods, pod("a"))
    assert (await http.post(f"{pods}/a/binding", binding("a"), dryRun="All")).code == 201
    assert "nodeName" not in (await http.get(f"{pods}/a")).body["spec"]


async def test_binding_metadata_is_stored_unchecked_and_spoils_later_writes(http: Http, pods: str) -> None:
    await http.created(pods, pod("a"))
    answer = await http.post(f"{pods}/a/binding", binding("a", labels={"hami.io/vgpu-node": "n" * 70}))
    assert answer.code == 201
    if not a_binding_carries_labels():
        assert "labels" not in (await http.get(f"{pods}/a")).body["metadata"]
        return
    assert (await http.get(f"{pods}/a")).body["metadata"]["labels"]["hami.io/vgpu-node"] == "n" * 70
    for later in (
        await http.merge(f"{pods}/a", {"metadata": {"annotations": {"x": "1"}}}),
        await http.merge(f"{pods}/a/status", {"status": {"phase": "Running"}}),
    ):
        assert (later.code, later.body["reason"]) == (422, "Invalid")
        assert "metadata.labels: Invalid value" in later.body["message"]
        assert "must be no more than 63 bytes" in later.body["message"]
    repaired = await http.merge(f"{pods}/a", {"metadata": {"labels": {"hami.io/vgpu-node": None}}})
    assert repaired.code == 200
