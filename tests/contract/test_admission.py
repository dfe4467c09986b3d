"""Admission webhooks: who is asked, in which order, with what, and what their answers do."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import orjson
import pytest
from aiohttp import web

from .client import Http
from .webhook import (
    PROBE,
    Request,
    WebhookServer,
    allow,
    denying,
    patching,
    pod,
    pod_rule,
)


async def test_a_mutating_webhook_sees_the_pod_as_sent_with_defaults(
    http: Http, pods: str, namespace: str, webhook: WebhookServer
) -> None:
    await webhook.install("see", mutating=True)
    document = pod(generateName="job-")
    document["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    stored = await http.created(pods, document)
    (request,) = webhook.requests("see")
    assert (request["operation"], request["namespace"], request["dryRun"]) == ("CREATE", namespace, False)
    assert request["kind"] == {"group": "", "version": "v1", "kind": "Pod"}
    assert request["resource"] == {"group": "", "version": "v1", "resource": "pods"}
    assert request["options"]["kind"] == "CreateOptions"
    assert request["oldObject"] is None
    assert "name" not in request
    seen = request["object"]
    assert seen["spec"]["schedulerName"] == "default-scheduler"
    assert seen["spec"]["containers"][0]["resources"]["requests"] == {"nvidia.com/gpu": "1"}
    assert seen["metadata"]["generateName"] == "job-"
    assert "name" not in seen["metadata"]
    assert "uid" not in seen["metadata"]
    assert stored["metadata"]["name"].startswith("job-")


async def test_a_configuration_of_webhooks_is_seen_by_none(http: Http, webhook: WebhookServer) -> None:
    every = {"apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"]}
    await webhook.install("see", rules=[{**every, "apiGroups": ["admissionregistration.k8s.io"]}])
    await webhook.install("other")
    assert webhook.reviews == []


async def test_a_dry_run_does_not_reach_deletion(http: Http, pods: str, webhook: WebhookServer) -> None:
    await http.created(pods, pod("a"))
    await webhook.install("see", rules=[pod_rule("DELETE")])
    await http.delete(f"{pods}/a", {"gracePeriodSeconds": 0, "dryRun": ["All"]})
    (request,) = webhook.requests("see")
    assert request["dryRun"] is True
    assert request["options"] == {
        "kind": "DeleteOptions",
        "apiVersion": "meta.k8s.io/v1",
        "gracePeriodSeconds": 0,
        "dryRun": ["All"],
    }
    assert (await http.get(f"{pods}/a")).code == 200


async def test_the_sender_is_named(http: Http, pods: str, webhook: WebhookServer) -> None:
    await webhook.install("see")
    await http.created(pods, pod("a"))
    (request,) = webhook.requests("see")
    assert request["userInfo"]["username"] == "contract"
    assert "system:authenticated" in request["userInfo"]["groups"]


async def test_a_mutation_is_stored_and_defaulted_again(http: Http, pods: str, webhook: WebhookServer) -> None:
    operation = {
        "op": "replace",
        "path": "/spec/containers/0/resources",
        "value": {"limits": {"nvidia.com/gpumem": "1000"}},
    }
    await webhook.install("mutate", patching(operation), mutating=True)
    stored = await http.created(pods, pod("a"))
    assert stored["spec"]["containers"][0]["resources"] == {
        "limits": {"nvidia.com/gpumem": "1k"},
        "requests": {"nvidia.com/gpumem": "1k"},
    }


async def test_validating_comes_last_and_sees_the_final_pod(http: Http, pods: str, webhook: WebhookServer) -> None:
    label = {"op": "add", "path": "/metadata/labels", "value": {"mutated": "yes"}}
    await webhook.install("validate")
    await webhook.install("mutate", patching(label), mutating=True)
    stored = await http.created(pods, pod(generateName="job-"))
    assert [review["path"] for review in webhook.reviews] == ["mutate", "validate"]
    (request,) = webhook.requests("validate")
    seen = request["object"]["metadata"]
    assert (seen["uid"], seen["name"]) == (stored["metadata"]["uid"], stored["metadata"]["name"])
    assert request["name"] == stored["metadata"]["name"]
    assert seen["labels"] == {"mutated": "yes"}
    assert request["object"]["status"]["phase"] == "Pending"


async def test_mutating_webhooks_follow_one_another_by_configuration_name(
    http: Http, pods: str, webhook: WebhookServer
) -> None:
    second = {"op": "add", "path": "/metadata/labels/second", "value": "b"}
    first = {"op": "add", "path": "/metadata/labels", "value": {"first": "a"}}
    # Installed together: on its own the second would not apply to the pods that probe for it.
    await webhook.install("a-first", patching(first), mutating=True)
    await webhook.install("b-second", patching(second), mutating=True)
    stored = await http.created(pods, pod("a"))
    assert stored["metadata"]["labels"] == {"first": "a", "second": "b"}
    (request,) = webhook.requests("b-second")
    assert request["object"]["metadata"]["labels"] == {"first": "a"}


async def test_a_refusal_is_worded_with_the_webhooks_name_and_code(
    http: Http, pods: str, webhook: WebhookServer
) -> None:
    name = await webhook.install("deny", denying(code=403, reason="Forbidden", message="no room for you"))
    answer = await http.post(pods, pod("a"))
    assert (answer.code, answer.body["reason"]) == (403, "Forbidden")
    assert answer.body["message"] == f'admission webhook "{name}" denied the request: no room for you'
    assert (await http.get(f"{pods}/a")).code == 404


async def test_a_refusal_without_code_is_a_400(http: Http, pods: str, webhook: WebhookServer) -> None:
    name = await webhook.install("deny", denying(message="no"), mutating=True)
    answer = await http.post(pods, pod("a"))
    assert answer.code == 400
    assert answer.body["message"] == f'admission webhook "{name}" denied the request: no'


async def test_a_refusal_without_words_says_so(http: Http, pods: str, webhook: WebhookServer) -> None:
    name = await webhook.install("deny", denying())
    answer = await http.post(pods, pod("a"))
    assert answer.body["message"] == f'admission webhook "{name}" denied the request without explanation'


async def test_warnings_reach_the_sender(http: Http, pods: str, webhook: WebhookServer) -> None:
    await webhook.install("warn", lambda _: {"allowed": True, "warnings": ['cores "120" clamped', "second"]})
    answer = await http.post(pods, pod("a"))
    assert answer.warnings == ['299 - "cores \\"120\\" clamped"', '299 - "second"']


async def test_an_update_shows_old_and_new(http: Http, pods: str, webhook: WebhookServer) -> None:
    await http.created(pods, pod("a"))
    await webhook.install("see", rules=[pod_rule("UPDATE")])
    await http.merge(f"{pods}/a", {"metadata": {"labels": {"n": "1"}}})
    (request,) = webhook.requests("see")
    assert (request["operation"], request["name"]) == ("UPDATE", "a")
    assert request["object"]["metadata"]["labels"] == {"n": "1"}
    assert "labels" not in request["oldObject"]["metadata"]


async def test_a_delete_shows_the_old_object_alone(http: Http, pods: str, webhook: WebhookServer) -> None:
    await http.created(pods, pod("a"))
    name = await webhook.install(
        "deny",
        lambda request: {"allowed": request["operation"] != "DELETE", "status": {"message": "stay"}},
        rules=[pod_rule("DELETE")],
    )
    answer = await http.delete(f"{pods}/a")
    assert answer.body["message"] == f'admission webhook "{name}" denied the request: stay'
    (request,) = webhook.requests("deny")
    assert request["object"] is None
    assert request["options"]["kind"] == "DeleteOptions"
    assert request["oldObject"]["metadata"]["name"] == "a"
    assert (await http.get(f"{pods}/a")).code == 200


async def test_the_deletion_of_a_pod_is_asked_about_twice(http: Http, pods: str, webhook: WebhookServer) -> None:
    await http.created(pods, pod("a"))
    await webhook.install("see", rules=[pod_rule("DELETE")])
    await http.delete(f"{pods}/a")
    requests = webhook.requests("see")
    marked = ["deletionTimestamp" in request["oldObject"]["metadata"] for request in requests]
    # Before the mark and before the removal; a real server may ask once more where its cache was behind.
    assert (marked[0], marked[-1]) == (False, True)


async def test_a_binding_is_a_create_of_a_subresource(http: Http, pods: str, webhook: WebhookServer) -> None:
    await http.created(pods, pod("a"))
    await webhook.install("see", rules=[pod_rule("CREATE", resource="pods/binding")])
    body = {"metadata": {"name": "a", "annotations": {"x": "1"}}, "target": {"kind": "Node", "name": "n1"}}
    await http.created(f"{pods}/a/binding", body)
    (request,) = webhook.requests("see")
    assert (request["subResource"], request["kind"]["kind"], request["name"]) == ("binding", "Binding", "a")
    assert request["object"]["metadata"]["annotations"] == {"x": "1"}
    assert request["object"]["target"]["name"] == "n1"


async def test_a_rule_for_pods_does_not_cover_their_status(http: Http, pods: str, webhook: WebhookServer) -> None:
    await http.created(pods, pod("a"))
    await webhook.install("main", rules=[pod_rule("UPDATE")])
    await webhook.install("status", rules=[pod_rule("UPDATE", resource="pods/status")])
    await http.merge(f"{pods}/a/status", {"status": {"phase": "Running"}})
    assert [review["path"] for review in webhook.reviews] == ["status"]


async def test_another_namespace_is_left_alone(http: Http, pods: str, namespace: str, webhook: WebhookServer) -> None:
    await webhook.install("deny", denying(message="no"))
    other = "/api/v1/namespaces/default/pods"
    await http.created(other, pod(namespace))
    await http.delete(f"{other}/{namespace}")
    assert webhook.reviews == []


async def test_an_object_selector_leaves_others_out(http: Http, pods: str, webhook: WebhookServer) -> None:
    ignore = {"matchExpressions": [{"key": "hami.io/webhook", "operator": "NotIn", "values": ["ignore"]}]}
    await webhook.install("see", objectSelector=ignore)
    await http.created(pods, pod("seen"))
    await http.created(pods, pod("ignored", labels={"hami.io/webhook": "ignore"}))
    assert [request["name"] for request in webhook.requests("see")] == ["seen"]


async def test_the_timeout_is_told_to_the_webhook(http: Http, pods: str, webhook: WebhookServer) -> None:
    await webhook.install("see", timeoutSeconds=7)
    await http.created(pods, pod("a"))
    assert webhook.reviews[0]["query"] == {"timeout": "7s"}


async def test_v1beta1_is_spoken_where_it_comes_first(http: Http, pods: str, webhook: WebhookServer) -> None:
    label = {"op": "add", "path": "/metadata/labels", "value": {"old": "way"}}
    await webhook.install("old", patching(label), mutating=True, admissionReviewVersions=["v1beta1", "v1"])
    stored = await http.created(pods, pod("a"))
    assert webhook.reviews[0]["apiVersion"] == "admission.k8s.io/v1beta1"
    assert stored["metadata"]["labels"] == {"old": "way"}


async def test_a_dry_run_is_marked_as_one(http: Http, pods: str, webhook: WebhookServer) -> None:
    await webhook.install("see", sideEffects="NoneOnDryRun")
    await http.post(pods, pod("a"), dryRun="All")
    (request,) = webhook.requests("see")
    assert request["dryRun"] is True
    assert request["options"]["dryRun"] == ["All"]


def refuse_connection(webhook: WebhookServer) -> dict[str, Any]:
    return {"clientConfig": {"url": "https://127.0.0.1:1/none"}}


def distrust(webhook: WebhookServer) -> dict[str, Any]:
    return {"clientConfig": {"url": f"{webhook.url}/x"}}


UNREACHABLE = {"nobody listens": refuse_connection, "certificate of an unknown authority": distrust}


@pytest.mark.parametrize("broken", UNREACHABLE.values(), ids=UNREACHABLE)
async def test_an_unreachable_webhook_that_fails_closed_refuses(
    http: Http, pods: str, webhook: WebhookServer, broken: Any
) -> None:
    name = await webhook.install("broken", await_call=False, **broken(webhook))
    async with asyncio.timeout(10):
        while (answer := await http.post(pods, pod(PROBE), dryRun="All")).code == 201:
            pass
    assert (answer.code, answer.body["reason"]) == (500, "InternalError")
    assert answer.body["message"].startswith(
        f'Internal error occurred: failed calling webhook "{name}": failed to call webhook: '
    )
    assert webhook.reviews == []


@pytest.mark.parametrize("broken", UNREACHABLE.values(), ids=UNREACHABLE)
@pytest.mark.parametrize("mutating", [True, False])
async def test_an_unreachable_webhook_that_fails_open_is_skipped(
    http: Http, pods: str, webhook: WebhookServer, broken: Any, mutating: bool
) -> None:
    await webhook.install("broken", await_call=False, mutating=mutating, failurePolicy="Ignore", **broken(webhook))
    await webhook.install("after")
    await http.created(pods, pod("a"))
    assert len(webhook.requests("after")) == 1


def answered(response: dict[str, Any], **review: Any) -> Any:
    def answer(asked: dict[str, Any]) -> web.Response:
        body = {"uid": asked["request"]["uid"], **response}
        return web.json_response(
            {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": body, **review}
        )

    return answer


NOOP = base64.b64encode(b"[]").decode()
NO_ANSWERS = {
    "status 500": (lambda _: web.Response(status=500, text="broken"), "failed to call webhook: "),
    "no JSON": (lambda _: web.Response(text="ok"), "failed to call webhook: "),
    "no response": (
        lambda _: web.json_response({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}),
        "received invalid webhook response: webhook response was absent",
    ),
    "another uid": (
        answered({"uid": "other", "allowed": True}),
        "received invalid webhook response: expected response.uid=",
    ),
    "another version": (
        answered({"allowed": True}, apiVersion="admission.k8s.io/v1beta1"),
        "failed to call webhook: converting (v1beta1.AdmissionReview) to (v1.AdmissionReview): unknown conversion",
    ),
    "patch without type": (
        answered({"allowed": True, "patch": NOOP}),
        "received invalid webhook response: webhook returned response.patch but not response.patchType",
    ),
    "type without patch": (
        answered({"allowed": True, "patchType": "JSONPatch"}),
        "received invalid webhook response: webhook returned response.patchType but not response.patch",
    ),
}


@pytest.mark.parametrize(("answer", "why"), NO_ANSWERS.values(), ids=NO_ANSWERS)
async def test_what_is_no_valid_answer_counts_as_failure(
    http: Http, pods: str, webhook: WebhookServer, answer: Any, why: str
) -> None:
    name = await webhook.install("odd", mutating=True)
    webhook.raw_answer = answer
    refused = await http.post(pods, pod("a"))
    assert refused.code == 500
    assert refused.body["message"].startswith(f'Internal error occurred: failed calling webhook "{name}": {why}')


async def test_a_validating_webhook_may_not_patch(http: Http, pods: str, webhook: WebhookServer) -> None:
    name = await webhook.install("odd")
    webhook.raw_answer = answered({"allowed": True, "patch": NOOP, "patchType": "JSONPatch"})
    refused = await http.post(pods, pod("a"))
    assert refused.code == 500
    assert refused.body["message"] == (
        f'Internal error occurred: failed calling webhook "{name}": received invalid webhook response: '
        "validating webhook may not return response.patch"
    )


async def test_a_patch_that_does_not_apply_fails_even_when_failures_are_ignored(
    http: Http, pods: str, webhook: WebhookServer
) -> None:
    encoded = base64.b64encode(orjson.dumps([{"op": "remove", "path": "/spec/none"}])).decode()

    def respond(request: Request) -> dict[str, Any]:
        if request.get("name") == PROBE:
            return {"allowed": True}
        return {"allowed": True, "patchType": "JSONPatch", "patch": encoded}

    await webhook.install("odd", respond, mutating=True, failurePolicy="Ignore")
    answer = await http.post(pods, pod("a"))
    assert (answer.code, answer.body["reason"]) == (500, "InternalError")
    assert answer.body["message"].startswith("Internal error occurred: ")


async def test_a_webhook_that_answers_too_late_counts_as_failure(http: Http, pods: str, webhook: WebhookServer) -> None:
    gate = asyncio.Event()
    name = await webhook.install("late", allow, timeoutSeconds=1)
    webhook.hold = gate
    answer = await http.post(pods, pod("a"))
    gate.set()
    assert answer.code == 500
    assert answer.body["message"].startswith(
        f'Internal error occurred: failed calling webhook "{name}": failed to call webhook: '
    )


INVALID_HOOKS = {
    "no side effects named": ({"sideEffects": "Some"}, "webhooks[0].sideEffects: Unsupported value"),
    "no review versions": ({"admissionReviewVersions": []}, "webhooks[0].admissionReviewVersions: Required value"),
    "plain http": ({"clientConfig": {"url": "http://127.0.0.1/x"}}, "'https' is the only allowed URL scheme"),
    "short name": ({"name": "short"}, "should be a domain with at least three segments"),
    "endless timeout": ({"timeoutSeconds": 31}, "the timeout value must be between 1 and 30 seconds"),
}


@pytest.mark.parametrize(("fields", "why"), INVALID_HOOKS.values(), ids=INVALID_HOOKS)
async def test_a_configuration_that_is_invalid(http: Http, namespace: str, fields: dict[str, Any], why: str) -> None:
    hook = {
        "name": "a.contract.example",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "clientConfig": {"url": "https://127.0.0.1/x"},
        **fields,
    }
    answer = await http.post(
        "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
        {"metadata": {"name": namespace}, "webhooks": [hook]},
    )
    assert (answer.code, answer.body["reason"]) == (422, "Invalid")
    assert why in answer.body["message"]


async def test_a_configuration_has_its_defaults(http: Http, pods: str, webhook: WebhookServer) -> None:
    path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
    name = pods.split("/")[4]
    hook = {
        "name": "a.contract.example",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "clientConfig": {"url": "https://127.0.0.1/x"},
        "rules": [{**pod_rule("CREATE"), "resources": ["none"]}],
    }
    stored = await http.created(path, {"metadata": {"name": name}, "webhooks": [hook]})
    filled = stored["webhooks"][0]
    assert (filled["failurePolicy"], filled["timeoutSeconds"], filled["matchPolicy"]) == ("Fail", 10, "Equivalent")
    assert (filled["reinvocationPolicy"], filled["rules"][0]["scope"]) == ("Never", "*")
    await http.delete(f"{path}/{name}")
