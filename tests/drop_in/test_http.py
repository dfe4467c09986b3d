"""What the drop-in answers on HAMi's two ports."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from devices.kube.errors import ApiStatusError
from devices.kube.protocols import JsonObject
from devices.kube.resources import PODS
from lab.apiserver import ApiServer
from lab.nodes import CardSpec, NodeSpec, node_document
from tests.drop_in.chart import CLUSTER_RULES, NAMESPACE_RULES, Values
from tests.drop_in.running import AGENT, ServedDropIn, serve_drop_in
from tests.scheduler.builders import settle
from tests.serving.running import until


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    server = ApiServer()
    await server.start()
    server.put("nodes", node_document(NodeSpec("n1", (CardSpec("GPU-A"), CardSpec("GPU-B")), node_lock=True)))
    yield server
    await server.stop()


@pytest.fixture
async def served(api: ApiServer, tmp_path: Path) -> AsyncIterator[ServedDropIn]:
    async with serve_drop_in(api, tmp_path) as running:
        yield running


def pod(name: str, **limits: int) -> JsonObject:
    resources = {"limits": {f"nvidia.com/{key}": str(amount) for key, amount in limits.items()}}
    spec = {"containers": [{"name": "main", "image": "pause", "resources": resources}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


async def create(served: ServedDropIn, name: str, **limits: int) -> dict[str, Any]:
    return await served.client.create(PODS, pod(name, **limits), "default")


async def place(served: ServedDropIn, created: dict[str, Any]) -> tuple[Any, Any]:
    """What kube-scheduler does, without its watches: filter, then bind to what was answered."""
    meta = created["metadata"]
    _, filtered = await served.post("/filter", {"Pod": created, "Nodes": None, "NodeNames": ["n1"]})
    if not filtered["NodeNames"]:
        return filtered, None
    asked = {
        "PodName": meta["name"],
        "PodNamespace": "default",
        "PodUID": meta["uid"],
        "Node": filtered["NodeNames"][0],
    }
    return filtered, (await served.post("/bind", asked))[1]


async def test_a_pod_goes_from_webhook_to_binding_on_one_port(api: ApiServer, served: ServedDropIn) -> None:
    created = await create(served, "a", gpu=1, gpumem=3000)
    assert created["spec"]["schedulerName"] == "hami-scheduler"
    filtered, bound = await place(served, created)
    assert filtered == {
        "Nodes": None,
        "NodeNames": ["n1"],
        "FailedNodes": None,
        "FailedAndUnresolvableNodes": None,
        "Error": "",
    }
    assert bound == {"Error": ""}
    stored = api.get("pods", "default", "a")
    assert stored is not None
    annotations = stored["metadata"]["annotations"]
    assert stored["spec"]["nodeName"] == annotations["hami.io/vgpu-node"] == "n1"
    assert stored["metadata"]["labels"]["hami.io/vgpu-node"] == "n1"
    assert annotations["hami.io/vgpu-devices-to-allocate"] == annotations["hami.io/vgpu-devices-allocated"]
    assert annotations["hami.io/vgpu-devices-allocated"] in {"GPU-A,NVIDIA,3000,0:;", "GPU-B,NVIDIA,3000,0:;"}
    assert annotations["hami.io/bind-phase"] == "allocating"
    node = api.get("nodes", "", "n1")
    assert node is not None
    assert node["metadata"]["annotations"]["hami.io/mutex.lock"].endswith(",default,a")


async def test_what_bind_has_given_away_webhook_counts_at_once(api: ApiServer, served: ServedDropIn) -> None:
    quota = {"metadata": {"name": "q", "namespace": "default"}, "spec": {"hard": {"limits.nvidia.com/gpumem": "4000"}}}
    api.put("resourcequotas", quota)

    async def known() -> bool:
        return bool(served.ledger.quotas_of("default"))

    await until(known)
    first, second = await create(served, "a", gpu=1, gpumem=3000), await create(served, "b", gpu=1, gpumem=3000)
    # Neither holds cards yet, so both may be there. The first one's reservation counts as soon as filter has answered,
    # long before any watch could show it.
    await served.post("/filter", {"Pod": first, "Nodes": None, "NodeNames": ["n1"]})
    with pytest.raises(
        ApiStatusError, match=r"exceeding resource quota: default/q limits\.nvidia\.com/gpumem: asked 3000, used 3000"
    ):
        await create(served, "c", gpu=1, gpumem=3000)
    refused, _ = await place(served, second)
    assert refused["FailedNodes"] == {"n1": "2/2 ResourceQuotaNotFit"}
    page = (await served.get("/metrics", plain=True))[1]
    key = '{key="limits.nvidia.com/gpumem",namespace="default"}'
    assert f"slotwise_quota_denials_total{key} 1.0" in page
    assert f"slotwise_quota_admissions_total{key} 2.0" in page


ANSWERS = {
    "filter needs a body": ("POST", "/filter", 400),
    "bind needs a body": ("POST", "/bind", 400),
    "filter is POST": ("GET", "/filter", 405),
    "webhook is POST": ("GET", "/webhook", 405),
    "no pprof": ("GET", "/debug/pprof/heap", 404),
    "no metrics on HAMi's port": ("GET", "/metrics", 404),
    "alive": ("GET", "/healthz", 200),
    "ready": ("GET", "/readyz", 200),
}


@pytest.mark.parametrize(("method", "path", "status"), ANSWERS.values(), ids=ANSWERS)
async def test_status(served: ServedDropIn, method: str, path: str, status: int) -> None:
    async with served.session.request(method, served.url + path) as answer:
        assert answer.status == status
        if status == 200:
            assert await answer.read() == b""


async def test_metrics_are_on_the_other_port_alone(served: ServedDropIn) -> None:
    await place(served, await create(served, "a", gpu=1, gpumem=3000))
    status, page = await served.get("/metrics", plain=True)
    assert status == 200
    assert "hami_gpu_memory_allocated_bytes{" in page
    assert 'slotwise_admission_seconds_count{outcome="patched",path="/webhook"} 1.0' in page
    assert 'slotwise_bind_seconds_count{outcome="bound"} 1.0' in page
    assert "GPUDeviceMemoryLimit" not in page
    for path in ("/healthz", "/readyz", "/decisions/default/a", "/quotas"):
        assert (await served.get(path, plain=True))[0] == 200, path
    async with served.session.post(served.server.url("/bind", listener=1), data=b"{}") as answer:
        assert answer.status == 404


async def test_old_metric_names_where_asked_for(api: ApiServer, tmp_path: Path) -> None:
    async with serve_drop_in(api, tmp_path, Values(leader_elect=False, legacy_metrics=True)) as served:
        assert "GPUDeviceMemoryLimit{" in (await served.get("/metrics", plain=True))[1]


async def test_without_the_webhook_the_port_speaks_plain_http(api: ApiServer, tmp_path: Path) -> None:
    async with serve_drop_in(api, tmp_path, Values(leader_elect=False, webhook=False)) as served:
        created = await create(served, "a", gpu=1, gpumem=3000)
        assert "schedulerName" not in created["spec"] or created["spec"]["schedulerName"] == "default-scheduler"
        assert (await place(served, created))[1] == {"Error": ""}


async def test_it_is_not_ready_before_everything_is_listed(api: ApiServer, tmp_path: Path) -> None:
    stored = api.put("pods", pod("a", gpu=1))
    async with serve_drop_in(api, tmp_path, start_feed=False) as served:
        assert await served.get("/healthz") == (200, "")
        assert await served.get("/readyz") == (503, "the nodes are not listed yet\n")
        waiting = asyncio.create_task(served.post("/filter", {"Pod": stored, "NodeNames": ["n1"]}))
        await settle()
        assert not waiting.done()
        await served.feed.start()
        await served.feed.wait_synced()
        assert (await served.get("/readyz"))[0] == 200
        answer = (await waiting)[1]
        assert answer["NodeNames"] == ["n1"], answer


async def test_draining_turns_readiness_false(served: ServedDropIn) -> None:
    served.service.drain.begin()
    assert await served.get("/readyz") == (503, "shutting down\n")


async def test_a_validating_webhook_may_be_registered_later(served: ServedDropIn) -> None:
    forged = {"hami.io/vgpu-devices-allocated": "GPU-A,NVIDIA,1,0:;"}
    asked = {**pod("a", gpu=1), "metadata": {"name": "a", "namespace": "default", "annotations": forged}}
    review = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {"uid": "u", "operation": "CREATE", "namespace": "default", "object": asked},
    }
    status, answer = await served.post("/validate", review)
    assert (status, answer["response"]["allowed"]) == (200, False)
    assert "hami.io/vgpu-devices-allocated is written by the system alone" in answer["response"]["status"]["message"]


def allowed_calls() -> set[tuple[str, str, str]]:
    """(verb, resource, subresource) that HAMi's roles allow."""
    calls = set()
    for rule in (*CLUSTER_RULES, *NAMESPACE_RULES):
        for name in rule["resources"]:
            resource, _, subresource = name.partition("/")
            calls |= {(verb, resource, subresource) for verb in rule["verbs"]}
    return calls


async def test_the_rights_of_hami_s_account_are_enough(api: ApiServer, tmp_path: Path) -> None:
    """Everything that writes has been at work: events of pods and quotas, lock, binding, handshake, heartbeat, sweep."""
    own = {"POD_NAME": "hami-scheduler-0", "POD_NAMESPACE": "kube-system"}
    api.put("pods", {"metadata": {"name": own["POD_NAME"], "namespace": own["POD_NAMESPACE"]}, "spec": {}})
    old_plugin = node_document(NodeSpec("n2", (CardSpec("GPU-C"),), {"hami.io/node-handshake": "Reported 1"}))
    api.put("nodes", old_plugin)
    odd = {
        "metadata": {"name": "q", "namespace": "default"},
        "spec": {"hard": {"limits.nvidia.com/gpumem": "1k"}, "scopes": ["Odd"]},
    }
    api.put("resourcequotas", odd)
    async with serve_drop_in(api, tmp_path, environment=own) as served:

        async def ready() -> bool:
            return (await served.get("/readyz"))[0] == 200

        await until(ready)
        await place(served, await create(served, "a", gpu=1, gpumem=3000))
        await place(served, await create(served, "large", gpu=1, gpumem=300000))

        async def done() -> bool:
            node = api.get("nodes", "", "n2")
            assert node is not None
            said = {str(event["reason"]) for event in api.objects("events")}
            answered = node["metadata"]["annotations"]["hami.io/node-handshake"].startswith("Requesting_")
            return answered and said >= {"FilteringSucceed", "BindingSucceed", "FilteringFailed"}

        await until(done)
    calls = {(key.verb, key.resource, key.subresource) for key in api.requests.received if key.user_agent == AGENT}
    assert calls >= {
        ("create", "pods", "binding"),
        ("patch", "nodes", ""),
        ("patch", "pods", ""),
        ("create", "events", ""),
    }
    assert calls - allowed_calls() == set()
