"""The two paths over HTTP: whole answers from files, and wrong input."""

import base64
import io
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client import CollectorRegistry

from serving.app import new_app
from serving.metrics import RequestMetrics
from tests.webhook.builders import Cluster, container, ours, pod
from webhook.admission import Admission, Verdict
from webhook.app import add_drop_in_routes, admission_app
from webhook.handlers import BODY_LIMIT_BYTES
from webhook.metrics import AdmissionMetrics
from webhook.wire import JsonObject

REVIEWS = yaml.safe_load((Path(__file__).parent / "reviews.yaml").read_text())
JSON = {"Content-Type": "application/json"}


class Served:
    """The application over a ledger, and a client of it."""

    def __init__(self) -> None:
        self.cluster = Cluster().quota(namespace="tight", gpumem=100)
        self.registry = CollectorRegistry()
        self.admission = self.cluster.admission
        app = admission_app(self.admission, AdmissionMetrics(self.registry), RequestMetrics(self.registry))
        self.client = TestClient(TestServer(app))

    def counted(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    made = Served()
    async with made.client:
        yield made


def review(pod: JsonObject, **fields: object) -> JsonObject:
    request = {"uid": "u", "operation": "CREATE", "namespace": "default", "object": pod, **fields}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


@pytest.mark.parametrize("row", REVIEWS.values(), ids=REVIEWS)
async def test_reviews(served: Served, row: JsonObject) -> None:
    answer = await served.client.post(str(row["path"]), json=row["request"])
    assert (answer.status, answer.content_type) == (200, "application/json")
    got = await answer.json()
    if "patch" in got["response"]:
        got["response"]["patch"] = json.loads(base64.b64decode(got["response"]["patch"]))
    assert got == row["answer"]
    assert served.cluster.ledger.namespaces() == ("tight",)


def body(**changes: object) -> bytes:
    return json.dumps({**review({"spec": {}}), **changes}).encode()


WRONG = {
    "cut": (body()[:-9], JSON, 400, "the body is not JSON: "),
    "empty": (b"", JSON, 400, "the body is not JSON: "),
    "not UTF-8": (b'"\xff"', JSON, 400, "the body is not JSON: "),
    "nested without end": (b"[" * 100_000, JSON, 400, "the body is not JSON: "),
    "a list": (b"[]", JSON, 400, "not an AdmissionReview: kind must be AdmissionReview"),
    "a pod": (json.dumps({"kind": "Pod"}).encode(), JSON, 400, "not an AdmissionReview: kind must be AdmissionReview"),
    "another version": (
        body(apiVersion="admission.k8s.io/v2"),
        JSON,
        400,
        "not an AdmissionReview: apiVersion must be one of admission.k8s.io/v1, admission.k8s.io/v1beta1",
    ),
    "a version of a wrong type": (body(apiVersion=[]), JSON, 400, "not an AdmissionReview: apiVersion must be one of"),
    "no request": (body(request=None), JSON, 400, "not an AdmissionReview: request must be an object"),
    "no uid": (body(request={}), JSON, 400, "not an AdmissionReview: request.uid is missing"),
    "a namespace of a wrong type": (
        body(request={"uid": "u", "namespace": 7}),
        JSON,
        400,
        "not an AdmissionReview: request.namespace must be a text",
    ),
    "an object of a wrong type": (
        body(request={"uid": "u", "object": "pod"}),
        JSON,
        400,
        "not an AdmissionReview: request.object must be an object",
    ),
    "an old object of a wrong type": (
        body(request={"uid": "u", "oldObject": []}),
        JSON,
        400,
        "not an AdmissionReview: request.oldObject must be an object",
    ),
    "a resource of a wrong type": (
        body(request={"uid": "u", "resource": "pods"}),
        JSON,
        400,
        "not an AdmissionReview: request.resource must be an object",
    ),
    "a user of a wrong type": (
        body(request={"uid": "u", "userInfo": "me"}),
        JSON,
        400,
        "not an AdmissionReview: request.userInfo must be an object",
    ),
    "groups of a wrong type": (
        body(request={"uid": "u", "userInfo": {"groups": "system:masters"}}),
        JSON,
        400,
        "not an AdmissionReview: request.userInfo.groups must be a list of texts",
    ),
    "another content type": (body(), {"Content-Type": "text/plain"}, 415, "Content-Type 'text/plain' is not accepted"),
    "too large": (b" " * (BODY_LIMIT_BYTES + 1), JSON, 413, "request body too large"),
}


@pytest.mark.parametrize("path", ["/webhook", "/validate"])
@pytest.mark.parametrize(("sent", "headers", "status", "text"), WRONG.values(), ids=WRONG)
async def test_wrong_input(
    served: Served, path: str, sent: bytes, headers: dict[str, str], status: int, text: str
) -> None:
    answer = await served.client.post(path, data=io.BytesIO(sent), headers=headers)
    shown = await answer.text()
    assert (answer.status, answer.content_type) == (status, "text/plain")
    assert shown.startswith(text)
    assert shown.count("\n") == 1
    good = await served.client.post(path, json=review({"spec": {"containers": [{"name": "x"}]}}))
    assert (await good.json())["response"] == {"uid": "u", "allowed": True}


async def test_a_body_of_the_limit_is_read(served: Served) -> None:
    """The largest pod that etcd can hold is far smaller; the limit is the recorded one."""
    sent = body()
    padded = io.BytesIO(sent.ljust(BODY_LIMIT_BYTES))
    answer = await served.client.post("/webhook", data=padded, headers=JSON)
    assert (await answer.json())["response"]["status"]["message"] == "pod has no containers"


async def test_wrong_method_and_path(served: Served) -> None:
    answer = await served.client.get("/webhook")
    assert (answer.status, answer.headers["Allow"]) == (405, "POST")
    assert (await served.client.post("/mutate", json={})).status == 404


class Broken(Admission):
    """A fault of ours."""

    def validate(self, pod: JsonObject, namespace: str) -> Verdict:
        raise KeyError("secret inside")


async def test_a_fault_refuses_without_a_word_about_the_inside(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster, registry = Cluster(), CollectorRegistry()
    broken = Broken(cluster.settings, cluster.config, cluster.ledger)
    app = admission_app(broken, AdmissionMetrics(registry), RequestMetrics(registry))
    async with TestClient(TestServer(app)) as client:
        answer = await client.post("/validate", json=review(pod(container())))
        assert (answer.status, await answer.json()) == (
            200,
            {
                "apiVersion": "admission.k8s.io/v1",
                "kind": "AdmissionReview",
                "response": {
                    "uid": "u",
                    "allowed": False,
                    "status": {
                        "code": 500,
                        "reason": "InternalError",
                        "status": "Failure",
                        "message": "internal error of the admission webhook, see its log",
                    },
                },
            },
        )
        assert (await (await client.post("/webhook", json=review(pod(container())))).json())["response"]["allowed"]
    faults = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert [(record.getMessage(), record.exc_info is not None) for record in faults] == [
        ("/validate: judging pod default/a failed", True)
    ]
    outcomes = {"path": "/validate", "outcome": "error"}
    assert registry.get_sample_value("slotwise_admission_seconds_count", outcomes) == 1
    assert "denials_total" not in str(list(registry.collect())[1].samples)


async def test_counters_and_one_log_line_a_request(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "webhook.access")
    await served.client.post("/webhook", json=review(pod(container(gpu=1)), dryRun=True))
    await served.client.post("/validate", json=review({"metadata": {"generateName": "job-"}, "spec": {}}))
    await served.client.post("/validate", json=review(pod(container())))
    lines = [record.getMessage().split("ms ")[1] for record in caplog.records if record.name == "webhook.access"]
    assert lines == [
        "patched CREATE default/a dry-run",
        "denied CREATE default/job-* no-containers: pod has no containers",
        "allowed CREATE default/a",
    ]
    seconds = "slotwise_admission_seconds_count"
    assert served.counted(seconds, path="/webhook", outcome="patched") == 1
    assert served.counted(seconds, path="/validate", outcome="denied") == 1
    assert served.counted(seconds, path="/validate", outcome="allowed") == 1
    assert served.counted("slotwise_admission_denials_total", path="/validate", reason="no-containers") == 1


async def test_drop_in_routes_check_quota_in_webhook_and_serve_validate_too() -> None:
    cluster, registry = Cluster().quota(gpumem=100), CollectorRegistry()
    app = new_app(client_max_size=2**20, metrics=RequestMetrics(registry), log=logging.getLogger("tests"))
    add_drop_in_routes(app, cluster.admission, AdmissionMetrics(registry))
    async with TestClient(TestServer(app)) as client:
        answer = await client.post("/webhook", json=review(pod(container(gpu=1, gpumem=500))))
        status = (await answer.json())["response"]["status"]
        assert (status["code"], status["message"][:25]) == (403, "exceeding resource quota:")
        answer = await client.post("/validate", json=review(ours(container(gpu=1, gpumem=500))))
        assert (await answer.json())["response"]["status"]["message"][:25] == "exceeding resource quota:"


async def test_quota_counts_once_where_both_paths_are_asked() -> None:
    cluster, registry = Cluster().quota(gpumem=1000), CollectorRegistry()
    app = new_app(client_max_size=2**20, metrics=RequestMetrics(registry), log=logging.getLogger("tests"))
    add_drop_in_routes(app, cluster.admission, AdmissionMetrics(registry))

    def counted(name: str) -> float:
        return registry.get_sample_value(name, {"namespace": "default", "key": "limits.nvidia.com/gpumem"}) or 0.0

    async with TestClient(TestServer(app)) as client:
        for dry_run in (False, True):
            fits = review(pod(container(gpu=1, gpumem=500)), dryRun=dry_run)
            assert (await (await client.post("/webhook", json=fits)).json())["response"]["allowed"]
        final = review(ours(container(gpu=1, gpumem=500)))
        assert (await (await client.post("/validate", json=final)).json())["response"]["allowed"]
        assert counted("slotwise_quota_admissions_total") == 1
        over = review(pod(container(gpu=1, gpumem=1500)))
        assert not (await (await client.post("/webhook", json=over)).json())["response"]["allowed"]
        assert counted("slotwise_quota_denials_total") == 1
        # What /webhook never saw is refused later, and counts there.
        assert not (await (await client.post("/validate", json=review(ours(container(gpu=1, gpumem=1500))))).json())[
            "response"
        ]["allowed"]
    assert counted("slotwise_quota_denials_total") == 2
    assert counted("slotwise_quota_admissions_total") == 1


async def test_a_refusal_for_quota_in_our_own_mutating_webhook_counts() -> None:
    cluster, registry = Cluster(quota_in_webhook=True).quota(gpumem=1000), CollectorRegistry()
    app = admission_app(cluster.admission, AdmissionMetrics(registry), RequestMetrics(registry))
    key = {"namespace": "default", "key": "limits.nvidia.com/gpumem"}
    async with TestClient(TestServer(app)) as client:
        for path, given in (("/webhook", pod), ("/validate", ours)):
            for memory in (500, 1500):
                await client.post(path, json=review(given(container(gpu=1, gpumem=memory))))
    assert registry.get_sample_value("slotwise_quota_denials_total", key) == 2
    assert registry.get_sample_value("slotwise_quota_admissions_total", key) == 1
