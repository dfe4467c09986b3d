"""Leadership as HAMi's chart has it on by default: the Lease of the kube-scheduler beside us, and the label the Service selects by."""

import socket
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from devices.kube.client import ClientSettings, KubeClient
from devices.kube.config import explicit_access
from devices.kube.protocols import JsonObject
from devices.kube.resources import PODS
from lab.apiserver import ApiServer
from lab.nodes import CardSpec, NodeSpec, node_document
from tests.drop_in.chart import NAMESPACE, SCHEDULER_NAME, Values, pod_labels
from tests.drop_in.running import ServedDropIn, serve_drop_in
from tests.serving.running import until

POD = "hami-scheduler-0"
OWN = {"POD_NAME": POD, "POD_NAMESPACE": NAMESPACE}
# A new leader waits as long as the last one's Bindings may take.
QUICK = ("--bind-timeout=500ms", "--leader-elect-margin=100ms")


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    server = ApiServer()
    await server.start()
    server.put("nodes", node_document(NodeSpec("n1", (CardSpec("GPU-A"),))))
    async with KubeClient(explicit_access(server.url), ClientSettings(user_agent="installer")) as client:
        spec = {"containers": [{"name": "extender", "image": "slotwise"}]}
        own: JsonObject = {"metadata": {"name": POD, "labels": pod_labels()}, "spec": spec}
        await client.create(PODS, own, NAMESPACE)
    yield server
    await server.stop()


def held_by(api: ApiServer, holder: str, term: int) -> None:
    """The Lease is renewed now, in that term."""
    stamp = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    spec = {
        "holderIdentity": holder,
        "leaseDurationSeconds": 15,
        "acquireTime": f"2026-08-01T06:00:{term:02}.000000Z",
        "renewTime": stamp,
        "leaseTransitions": term,
    }
    api.put("leases", {"metadata": {"name": SCHEDULER_NAME, "namespace": NAMESPACE, "uid": "lease"}, "spec": spec})


def role(api: ApiServer) -> str:
    pod = api.get("pods", NAMESPACE, POD)
    assert pod is not None
    return str(pod["metadata"]["labels"].get("hami.io/scheduler-role", ""))


async def until_role(api: ApiServer, wanted: str) -> None:
    async def labelled() -> bool:
        return role(api) == wanted

    await until(labelled)


async def created(served: ServedDropIn, name: str) -> JsonObject:
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"}
    spec = {"containers": [{"name": "main", "image": "pause", "resources": {"limits": limits}}]}
    body: JsonObject = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": spec,
    }
    return await served.client.create(PODS, body, "default")


async def filtered(served: ServedDropIn, pod: JsonObject) -> Any:
    return (await served.post("/filter", {"Pod": pod, "Nodes": None, "NodeNames": ["n1"]}))[1]


async def test_a_follower_admits_pods_and_leaves_placing_to_the_leader(api: ApiServer, tmp_path: Path) -> None:
    held_by(api, "hami-scheduler-1_uid", 1)
    async with serve_drop_in(api, tmp_path, Values(), QUICK, environment=OWN) as served:
        await until_role(api, "follower")

        async def ready() -> bool:
            return (await served.get("/readyz"))[0] == 200

        await until(ready)
        pod = await created(served, "a")
        assert isinstance(pod["spec"], dict)
        assert pod["spec"]["schedulerName"] == "hami-scheduler"
        refused = "this replica does not lead: Lease kube-system/hami-scheduler is held by hami-scheduler-1_uid"
        assert (await filtered(served, pod))["Error"].endswith(refused)


async def test_who_gets_the_lease_places_and_is_found_by_the_service(api: ApiServer, tmp_path: Path) -> None:
    async with serve_drop_in(api, tmp_path, Values(), QUICK, environment=OWN) as served:
        await until_role(api, "follower")
        pod = await created(served, "a")
        held_by(api, f"{socket.gethostname()}_uid", 1)
        await until_role(api, "leader")
        held_by(api, f"{socket.gethostname()}_uid", 1)  # renewed: it is no leftover of an earlier process
        answer = await filtered(served, pod)
        assert answer["NodeNames"] == ["n1"], answer
        held_by(api, f"{socket.gethostname()}0_uid", 2)  # another host, whose name only begins like ours
        await until_role(api, "follower")
        assert "does not lead" in (await filtered(served, pod))["Error"]
