"""What is special about pods: defaults, fixed fields, status, graceful deletion."""

from __future__ import annotations

from typing import Any

import pytest

from .client import Http
from .webhook import pod


def gpu_pod(name: str, resources: dict[str, Any]) -> dict[str, Any]:
    document = pod(name)
    document["spec"]["containers"][0]["resources"] = resources
    return document


async def bound_pod(http: Http, pods: str, name: str, **spec: Any) -> dict[str, Any]:
    document = pod(name)
    document["spec"].update(nodeName="n1", **spec)
    return await http.created(pods, document)


async def test_a_new_pod_has_the_usual_defaults(http: Http, pods: str) -> None:
    stored = await http.created(pods, pod("a"))
    assert stored["spec"]["schedulerName"] == "default-scheduler"
    assert stored["spec"]["restartPolicy"] == "Always"
    assert stored["spec"]["terminationGracePeriodSeconds"] == 30
    assert stored["spec"]["containers"][0]["imagePullPolicy"] == "IfNotPresent"
    assert stored["status"]["phase"] == "Pending"
    assert stored["status"]["qosClass"] == "BestEffort"


async def test_a_status_sent_on_create_is_dropped(http: Http, pods: str) -> None:
    stored = await http.created(pods, {**pod("a"), "status": {"phase": "Running", "podIP": "10.0.0.1"}})
    assert stored["status"]["phase"] == "Pending"
    assert "podIP" not in stored["status"]


async def test_requests_are_copied_from_limits_where_missing(http: Http, pods: str) -> None:
    document = gpu_pod("a", {"limits": {"nvidia.com/gpu": "1", "cpu": "2"}, "requests": {"cpu": "1"}})
    document["spec"]["initContainers"] = [
        {"name": "init", "image": "i:1", "resources": {"limits": {"nvidia.com/gpu": "2"}}}
    ]
    stored = await http.created(pods, document)
    assert stored["spec"]["containers"][0]["resources"]["requests"] == {"nvidia.com/gpu": "1", "cpu": "1"}
    assert stored["spec"]["initContainers"][0]["resources"]["requests"] == {"nvidia.com/gpu": "2"}


REFUSED_RESOURCES = {
    "fraction of a device": ({"limits": {"nvidia.com/gpu": "500m"}}, "must be an integer"),
    "request other than limit": (
        {"limits": {"nvidia.com/gpu": "2"}, "requests": {"nvidia.com/gpu": "1"}},
        "must be equal to nvidia.com/gpu limit",
    ),
    "device request without limit": (
        {"requests": {"nvidia.com/gpu": "1"}},
        "Limit must be set for non overcommitable resources",
    ),
    "half a request": (
        {"limits": {"nvidia.com/gpumem": "1Ki"}, "requests": {"nvidia.com/gpumem": "1023"}},
        "must be equal to nvidia.com/gpumem limit of 1Ki",
    ),
    "negative": ({"limits": {"nvidia.com/gpu": "-1"}}, "must be greater than or equal to 0"),
}


@pytest.mark.parametrize(("resources", "why"), REFUSED_RESOURCES.values(), ids=REFUSED_RESOURCES)
async def test_device_amounts_the_server_refuses(http: Http, pods: str, resources: dict[str, Any], why: str) -> None:
    answer = await http.post(pods, gpu_pod("a", resources))
    assert (answer.code, answer.body["reason"]) == (422, "Invalid")
    assert why in answer.body["message"]


QUANTITIES = {
    "a thousand": ("1000", "1k"),
    "thousands": ("15360", "15360"),
    "a number": (2000, "2k"),
    "millions": ("3000000", "3M"),
    "a fraction": ("1.5Gi", "1536Mi"),
    "small and binary": ("0.5Ki", "512"),
    "an exponent": ("2e3", "2e3"),
    "zeros in front": ("007", "007"),
    "zeros behind": ("1.500k", "1.500k"),
    "a whole number with a point": ("2.0", "2"),
    "whole in small units": ("3000m", "3"),
    "an odd number of Ki": ("3Ki", "3Ki"),
    "nothing": ("0", "0"),
    "more than fits below 1024": ("2048Ki", "2Mi"),
}


@pytest.mark.parametrize(("sent", "stored"), QUANTITIES.values(), ids=QUANTITIES)
async def test_quantities_are_written_anew(http: Http, pods: str, sent: object, stored: str) -> None:
    created = await http.created(pods, gpu_pod("a", {"limits": {"nvidia.com/gpumem": sent}}))
    resources = created["spec"]["containers"][0]["resources"]
    assert resources == {"limits": {"nvidia.com/gpumem": stored}, "requests": {"nvidia.com/gpumem": stored}}


async def test_millicores_are_whole_where_they_can_be(http: Http, pods: str) -> None:
    created = await http.created(pods, gpu_pod("a", {"requests": {"cpu": "2000m", "memory": "1500m"}}))
    requests = created["spec"]["containers"][0]["resources"]["requests"]
    assert requests == {"cpu": "2", "memory": "1500m"}


async def test_a_malformed_quantity_is_a_bad_request(http: Http, pods: str) -> None:
    answer = await http.post(pods, gpu_pod("a", {"limits": {"nvidia.com/gpumem": "1 GiB"}}))
    assert answer.code == 400
    assert "quantities must match the regular expression" in answer.body["message"]


async def test_a_pod_without_containers_is_invalid(http: Http, pods: str) -> None:
    answer = await http.post(pods, {"metadata": {"name": "a"}, "spec": {"containers": []}})
    assert answer.code == 422
    assert "spec.containers: Required value" in answer.body["message"]


async def test_the_node_of_a_pod_is_not_changed_by_update(http: Http, pods: str) -> None:
    stored = await http.created(pods, pod("a"))
    changed = {**stored, "spec": {**stored["spec"], "nodeName": "n1"}}
    for answer in (
        await http.put(f"{pods}/a", changed),
        await http.merge(f"{pods}/a", {"spec": {"nodeName": "n1"}}),
    ):
        assert (answer.code, answer.body["reason"]) == (422, "Invalid")
        assert "spec: Forbidden: pod updates may not change fields other than" in answer.body["message"]


TOLERATION = {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}
SPEC_PATCHES = {
    "a toleration is added": ([{"op": "add", "path": "/spec/tolerations/-", "value": {**TOLERATION, "key": "x"}}], 200),
    "a toleration is removed": ([{"op": "remove", "path": "/spec/tolerations/0"}], 422),
    "a gate is removed": ([{"op": "remove", "path": "/spec/schedulingGates/0"}], 200),
    "a gate is added": (
        [{"op": "add", "path": "/spec/schedulingGates/-", "value": {"name": "example.com/more"}}],
        422,
    ),
    "a deadline is set": ([{"op": "add", "path": "/spec/activeDeadlineSeconds", "value": 60}], 200),
    "a container is added": (
        [{"op": "add", "path": "/spec/containers/-", "value": {"name": "more", "image": "i:1"}}],
        422,
    ),
    "a resource is changed": (
        [{"op": "add", "path": "/spec/containers/0/resources/limits", "value": {"cpu": "1"}}],
        422,
    ),
    "the scheduler is changed": ([{"op": "replace", "path": "/spec/schedulerName", "value": "other"}], 422),
}


@pytest.mark.parametrize(("operations", "code"), SPEC_PATCHES.values(), ids=SPEC_PATCHES)
async def test_what_may_change_in_a_pods_spec(
    http: Http, pods: str, operations: list[dict[str, Any]], code: int
) -> None:
    document = pod("a")
    document["spec"].update(tolerations=[TOLERATION], schedulingGates=[{"name": "example.com/wait"}])
    await http.created(pods, document)
    answer = await http.json_patch(f"{pods}/a", operations)
    assert answer.code == code, answer.body
    if code == 422:
        assert answer.body["details"]["causes"][0]["field"].startswith("spec")


async def test_an_image_may_change_and_raises_the_generation(http: Http, pods: str) -> None:
    stored = await http.created(pods, pod("a"))
    answer = await http.json_patch(
        f"{pods}/a", [{"op": "replace", "path": "/spec/containers/0/image", "value": "registry.example/app:2"}]
    )
    assert answer.code == 200
    assert answer.body["metadata"]["generation"] == stored["metadata"]["generation"] + 1


async def test_the_status_changes_only_through_its_own_door(http: Http, pods: str) -> None:
    await http.created(pods, pod("a"))
    await http.merge(f"{pods}/a", {"status": {"phase": "Running"}})
    assert (await http.get(f"{pods}/a")).body["status"]["phase"] == "Pending"
    answer = await http.merge(f"{pods}/a/status", {"status": {"phase": "Running"}, "spec": {"nodeName": "n1"}})
    assert (answer.code, answer.body["status"]["phase"]) == (200, "Running")
    assert "nodeName" not in answer.body["spec"]


async def test_metadata_may_change_through_the_status(http: Http, pods: str) -> None:
    await http.created(pods, pod("a"))
    answer = await http.merge(f"{pods}/a/status", {"metadata": {"annotations": {"by": "kubelet"}}})
    assert answer.body["metadata"]["annotations"] == {"by": "kubelet"}


async def test_a_status_is_replaced_whole(http: Http, pods: str) -> None:
    stored = await http.created(pods, pod("a"))
    status = {**stored["status"], "phase": "Succeeded", "reason": "Done"}
    answer = await http.put(f"{pods}/a/status", {**stored, "status": status})
    assert (answer.code, answer.body["status"]) == (200, status)


async def test_an_unbound_pod_is_deleted_at_once(http: Http, pods: str) -> None:
    stored = await http.created(pods, pod("a"))
    answer = await http.delete(f"{pods}/a")
    assert (answer.code, answer.body["kind"]) == (200, "Pod")
    assert answer.body["metadata"]["uid"] == stored["metadata"]["uid"]
    assert (await http.get(f"{pods}/a")).code == 404


async def test_a_bound_pod_stays_until_it_is_deleted_with_no_grace(http: Http, pods: str) -> None:
    await bound_pod(http, pods, "a")
    answer = await http.delete(f"{pods}/a")
    assert answer.code == 200
    waiting = (await http.get(f"{pods}/a")).body["metadata"]
    assert waiting["deletionTimestamp"]
    assert waiting["deletionGracePeriodSeconds"] == 30
    await http.delete(f"{pods}/a", {"gracePeriodSeconds": 0})
    assert (await http.get(f"{pods}/a")).code == 404


async def test_the_grace_period_asked_for_counts_and_only_shrinks(http: Http, pods: str) -> None:
    await bound_pod(http, pods, "a")
    await http.delete(f"{pods}/a", {"gracePeriodSeconds": 20})
    await http.delete(f"{pods}/a", {"gracePeriodSeconds": 25})
    assert (await http.get(f"{pods}/a")).body["metadata"]["deletionGracePeriodSeconds"] == 20
    await http.delete(f"{pods}/a", gracePeriodSeconds=5)
    assert (await http.get(f"{pods}/a")).body["metadata"]["deletionGracePeriodSeconds"] == 5


async def test_a_terminating_pod_is_modified_twice_before_its_deletion(http: Http, pods: str) -> None:
    stored = await bound_pod(http, pods, "a")
    async with http.watch(pods, resourceVersion=stored["metadata"]["resourceVersion"]) as watch:
        await http.delete(f"{pods}/a")
        await http.merge(f"{pods}/a/status", {"status": {"phase": "Running"}})
        await http.delete(f"{pods}/a", {"gracePeriodSeconds": 0})
        seen = [await watch.next() for _ in range(4)]
    assert [event["type"] for event in seen] == ["MODIFIED", "MODIFIED", "MODIFIED", "DELETED"]
    graces = [event["object"]["metadata"]["deletionGracePeriodSeconds"] for event in seen]
    assert graces == [30, 30, 0, 0]


async def test_a_finished_pod_is_deleted_at_once(http: Http, pods: str) -> None:
    await bound_pod(http, pods, "a")
    await http.merge(f"{pods}/a/status", {"status": {"phase": "Succeeded"}})
    await http.delete(f"{pods}/a")
    assert (await http.get(f"{pods}/a")).code == 404
