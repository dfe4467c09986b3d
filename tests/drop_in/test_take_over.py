"""What HAMi left behind is taken over: running pods stay as they are, the books show what they hold, the rest goes its way."""

import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from devices.kube.protocols import JsonObject
from devices.kube.resources import NODES, PODS
from devices.node_lock import rfc3339
from lab.apiserver import ApiServer
from lab.nodes import CardSpec, NodeSpec, node_document
from tests.drop_in.running import AGENT, ServedDropIn, serve_drop_in
from tests.serving.running import until

LOCK = "hami.io/mutex.lock"
NOW = int(time.time())


def share(name: str, text: str, *, phase: str = "", node: str = "", containers: int = 1, **more: str) -> JsonObject:
    """A pod as HAMi's extender and its device plugin leave it; `more` are further annotations below `hami.io/`."""
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"}
    annotations = {
        "hami.io/vgpu-node": "n1",
        "hami.io/vgpu-time": str(NOW),
        "hami.io/vgpu-devices-to-allocate": text,
        "hami.io/vgpu-devices-allocated": text,
        **{f"hami.io/{key.replace('_', '-')}": value for key, value in more.items()},
    }
    spec: dict[str, object] = {
        "schedulerName": "hami-scheduler",
        "containers": [
            {"name": f"c{number}", "image": "pause", "resources": {"limits": limits}} for number in range(containers)
        ],
    }
    if node:
        spec["nodeName"] = node
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "annotations": annotations,
            "labels": {"hami.io/vgpu-node": "n1"},
        },
        "spec": spec,
        "status": {"phase": phase or ("Running" if node else "Pending")},
    }


def running(name: str, text: str, containers: int = 1) -> JsonObject:
    """One that HAMi's plugin has served."""
    done = {"bind_phase": "success", "bind_time": str(NOW), "vgpu_devices_to_allocate": ";" * containers}
    return share(name, text, node="n1", containers=containers, **done)


LEFT_BEHIND: Mapping[str, tuple[JsonObject, Mapping[str, tuple[int, int]]]] = {
    "running": (running("p", "GPU-A,NVIDIA,3000,30:;"), {"GPU-A": (3000, 30)}),
    "being allocated": (
        share("p", "GPU-A,NVIDIA,3000,0:;", node="n1", phase="Pending", bind_phase="allocating", bind_time=str(NOW)),
        {"GPU-A": (3000, 0)},
    ),
    "allocation failed, not ended yet": (
        share("p", "GPU-A,NVIDIA,3000,0:;", node="n1", phase="Pending", bind_phase="failed", bind_time=str(NOW)),
        {"GPU-A": (3000, 0)},
    ),
    "failed": (share("p", "GPU-A,NVIDIA,3000,0:;", node="n1", phase="Failed", bind_phase="failed"), {}),
    "succeeded": (share("p", "GPU-A,NVIDIA,3000,0:;", node="n1", phase="Succeeded", bind_phase="success"), {}),
    "filtered, not bound": (share("p", "GPU-A,NVIDIA,3000,0:;"), {"GPU-A": (3000, 0)}),
    "filtered, bind begun": (share("p", "GPU-A,NVIDIA,3000,0:;", bind_phase="allocating"), {"GPU-A": (3000, 0)}),
    "two containers on two cards": (
        running("p", "GPU-A,NVIDIA,3000,0:;GPU-B,NVIDIA,1000,10:;", containers=2),
        {"GPU-A": (3000, 0), "GPU-B": (1000, 10)},
    ),
    # HAMi loses the `;` of a plain container before the one with the card.
    "shifted": (running("p", "GPU-B,NVIDIA,3000,0:;", containers=2), {"GPU-B": (3000, 0)}),
    "empty position of an old writer": (
        running("p", ",,0,0:;GPU-B,NVIDIA,3000,0:;", containers=2),
        {"GPU-B": (3000, 0)},
    ),
}


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    server = ApiServer()
    await server.start()
    server.put("nodes", node_document(NodeSpec("n1", (CardSpec("GPU-A"), CardSpec("GPU-B")), node_lock=True)))
    yield server
    await server.stop()


def books(served: ServedDropIn) -> dict[str, tuple[int, int]]:
    return {uuid: (h.memory_mib, h.cores) for (_, uuid), h in served.ledger.usage("n1").items() if h.slots}


def pod_writes(api: ApiServer) -> int:
    return sum(
        count
        for key, count in api.requests.received.items()
        if key.user_agent == AGENT and key.verb not in ("get", "list", "watch")
    )


@pytest.mark.parametrize(("left", "holds"), LEFT_BEHIND.values(), ids=LEFT_BEHIND)
async def test_the_books_show_what_hami_gave_away_and_nothing_is_written(
    api: ApiServer, tmp_path: Path, left: JsonObject, holds: Mapping[str, tuple[int, int]]
) -> None:
    stored = api.put("pods", left)
    async with serve_drop_in(api, tmp_path) as served:
        assert books(served) == holds
    assert pod_writes(api) == 0
    assert api.get("pods", "default", "p") == stored


async def filtered(served: ServedDropIn, pod: dict[str, Any]) -> dict[str, Any]:
    _, answer = await served.post("/filter", {"Pod": pod, "Nodes": None, "NodeNames": ["n1"]})
    found: dict[str, Any] = answer
    return found


async def bound(served: ServedDropIn, pod: dict[str, Any]) -> str:
    meta = pod["metadata"]
    asked = {"PodName": meta["name"], "PodNamespace": "default", "PodUID": meta["uid"], "Node": "n1"}
    return str((await served.post("/bind", asked))[1]["Error"])


async def test_new_pods_fit_around_those_of_hami(api: ApiServer, tmp_path: Path) -> None:
    api.put("pods", running("mine", "GPU-A,NVIDIA,14000,0:;"))
    api.put("pods", running("other", "GPU-B,NVIDIA,13000,0:;"))
    async with serve_drop_in(api, tmp_path) as served:
        first, second = await create(served, "new"), await create(served, "next")
        assert (await filtered(served, first))["NodeNames"] is None
        await served.client.delete(PODS, "mine", "default", grace_s=0)

        async def free() -> bool:
            return books(served).get("GPU-A") is None

        await until(free)
        assert (await filtered(served, first))["NodeNames"] == ["n1"]
        assert await bound(served, first) == ""
        assert (await filtered(served, second))["NodeNames"] == ["n1"]
        assert books(served) == {"GPU-A": (6000, 0), "GPU-B": (13000, 0)}


async def test_a_pod_that_hami_had_only_filtered_is_placed_anew(api: ApiServer, tmp_path: Path) -> None:
    """Its old choice counts until we answer a filter for it, and never again after that."""
    api.put("pods", running("full", "GPU-B,NVIDIA,14000,0:;"))
    half = api.put("pods", share("half", "GPU-B,NVIDIA,1000,0:;", bind_phase="allocating"))
    async with serve_drop_in(api, tmp_path) as served:
        assert books(served) == {"GPU-B": (15000, 0)}
        assert (await filtered(served, half))["NodeNames"] == ["n1"]
        assert books(served) == {"GPU-A": (3000, 0), "GPU-B": (14000, 0)}
        assert await bound(served, half) == ""
        stored = api.get("pods", "default", "half")
        assert stored is not None
        annotations = stored["metadata"]["annotations"]
        assert annotations["hami.io/vgpu-devices-allocated"] == "GPU-A,NVIDIA,3000,0:;"
        assert annotations["hami.io/vgpu-devices-to-allocate"] == "GPU-A,NVIDIA,3000,0:;"


async def test_a_lock_that_hami_took_is_respected_until_its_plugin_lets_go(api: ApiServer, tmp_path: Path) -> None:
    first = share("first", "GPU-A,NVIDIA,3000,0:;", node="n1", phase="Pending", bind_phase="allocating")
    api.put("pods", first)
    node = node_document(NodeSpec("n1", (CardSpec("GPU-A"), CardSpec("GPU-B")), node_lock=True))
    # Not before the pod was made: it would be the lock of an earlier pod of that name.
    api.put("nodes", annotated(node, {LOCK: f"{rfc3339(time.time())},default,first"}))
    async with serve_drop_in(api, tmp_path, more=("--node-lock-wait=20ms",)) as served:
        pod = await create(served, "next")
        assert (await filtered(served, pod))["NodeNames"] == ["n1"]
        assert await bound(served, pod) == "node n1 has been locked within 5m0s: node lock contention"
        # What HAMi's plugin does once it has served the first pod.
        api.put("pods", annotated(first, {"hami.io/bind-phase": "success"}))
        await served.client.merge_patch(NODES, "n1", {"metadata": {"annotations": {LOCK: None}}})
        assert (await filtered(served, pod))["NodeNames"] == ["n1"]
        assert await bound(served, pod) == ""


async def create(served: ServedDropIn, name: str) -> JsonObject:
    """A pod that nobody has placed yet, as a user makes it."""
    plain = {**share(name, ""), "metadata": {"name": name, "namespace": "default"}}
    return await served.client.create(PODS, plain, "default")


def annotated(document: JsonObject, annotations: Mapping[str, str]) -> JsonObject:
    metadata = document["metadata"]
    assert isinstance(metadata, dict)
    return {**document, "metadata": {**metadata, "annotations": {**metadata["annotations"], **annotations}}}
