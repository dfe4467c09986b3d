from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from devices.kube.protocols import JsonObject
from devices.kube.resources import NODES, PODS
from lab.families import every_family
from lab.kubelet import AllocateError, Kubelet, Taken, take_next
from lab.nodes import NodeSpec, node_document
from tests.lab.small_cluster import SmallCluster, container, small_cluster

ONE = "n1-0,NVIDIA,1000,0:;"

TEXTS = {
    "one container": (ONE, Taken(0, ("n1-0",), ";")),
    "an empty place comes first": (";n1-0,NVIDIA,1000,0:;", Taken(1, ("n1-0",), ";;")),
    "the second of two": (f";{ONE}", Taken(1, ("n1-0",), ";;")),
    "two cards": ("n1-0,NVIDIA,1,0:n1-1,NVIDIA,1,0:;;", Taken(0, ("n1-0", "n1-1"), ";;")),
    "more to come": (f"{ONE};{ONE}", Taken(0, ("n1-0",), f";;{ONE}")),
}


@pytest.mark.parametrize(("text", "taken"), TEXTS.values(), ids=TEXTS)
def test_next_container_is_served(text: str, taken: Taken) -> None:
    assert take_next(text) == taken


@pytest.mark.parametrize("text", ["", ";", ";;", "n1-0,NVIDIA:;"])
def test_nothing_to_serve(text: str) -> None:
    with pytest.raises(AllocateError):
        take_next(text)


def allocation(text: str, node: str = "n1", **changes: str) -> dict[str, str]:
    return {
        "hami.io/vgpu-node": node,
        "hami.io/vgpu-devices-to-allocate": text,
        "hami.io/vgpu-devices-allocated": text,
        "hami.io/bind-phase": "allocating",
        "hami.io/bind-time": "1790000000",
        **changes,
    }


@asynccontextmanager
async def kubelet(*nodes: str) -> AsyncIterator[tuple[SmallCluster, Kubelet]]:
    async with small_cluster(*nodes) as cluster:
        fake = Kubelet(cluster.client, cluster.pods, cluster.nodes, every_family().vendors)
        await cluster.nodes.start()
        await cluster.pods.start()
        await fake.start()
        try:
            yield cluster, fake
        finally:
            await fake.stop()


async def test_one_container_takes_one_patch_and_runs() -> None:
    async with kubelet("n1") as (cluster, _):
        await cluster.create_pod("a")
        await cluster.bind("a", "n1", allocation(ONE))
        await cluster.wait(lambda: cluster.phase("a") == "Running")
        annotations = cluster.annotations("a")
        assert annotations["hami.io/vgpu-devices-to-allocate"] == ";"
        assert annotations["hami.io/vgpu-devices-allocated"] == ONE
        assert annotations["hami.io/bind-phase"] == "success"
        patches = [k for k in cluster.api.requests.written.elements() if k.verb == "patch" and not k.subresource]
        assert len(patches) == 1


async def test_containers_are_served_one_by_one_and_leave_their_signs() -> None:
    text = f";{ONE};n1-0,NVIDIA,1,0:n1-1,NVIDIA,1,0:;"
    async with kubelet("n1") as (cluster, _):
        await cluster.create_pod(
            "a",
            init_containers=[container("plain"), container("init", 1)],
            containers=[container("side"), container("pair", 2)],
        )
        await cluster.bind("a", "n1", allocation(text))
        await cluster.wait(lambda: cluster.phase("a") == "Running")
        assert cluster.annotations("a")["hami.io/vgpu-devices-to-allocate"] == ";;;;"
        status = cluster.pods.objects["default/a"].pod.status.init_container_statuses
        assert status is not None
        assert [(s.name, bool(s.state and s.state.terminated)) for s in status] == [("plain", True), ("init", True)]
        patches = [k for k in cluster.api.requests.written.elements() if k.verb == "patch" and not k.subresource]
        assert len(patches) == 2


REFUSED = {
    "a card that is not there": (allocation("n2-0,NVIDIA,1000,0:;"), "node n1 has no card n2-0"),
    "fewer cards than asked for": (allocation(";"), "device request not found"),
    "more cards than asked for": (
        allocation("n1-0,NVIDIA,1,0:n1-1,NVIDIA,1,0:;"),
        "device number not matched: 2 cards",
    ),
    "cards for another container": (allocation(f";{ONE}"), "cards for container position 1, but main at 0"),
    "no bind time": (allocation(ONE, **{"hami.io/bind-time": ""}), "hami.io/bind-time is missing"),
    "another node": (allocation(ONE, node="n2"), "hami.io/vgpu-node is 'n2'"),
    "told to fail": (allocation(ONE, **{"lab.slotwise.io/fail-allocate": "true"}), "told to fail"),
}


@pytest.mark.parametrize(("annotations", "text"), REFUSED.values(), ids=REFUSED)
async def test_failed_allocate_fails_the_pod(annotations: dict[str, str], text: str) -> None:
    async with kubelet("n1") as (cluster, _):
        await cluster.create_pod("a")
        await cluster.bind("a", "n1", annotations)
        await cluster.wait(lambda: cluster.phase("a") == "Failed")
        status = cluster.stored("a")["status"]
        assert isinstance(status, dict)
        assert status["reason"] == "UnexpectedAdmissionError"
        assert text in status["message"]
        found_its_pod = annotations.get("hami.io/bind-time") and annotations["hami.io/vgpu-node"] == "n1"
        assert cluster.annotations("a")["hami.io/bind-phase"] == ("failed" if found_its_pod else "allocating")


async def test_pod_without_cards_needs_no_annotations() -> None:
    async with kubelet("n1") as (cluster, _):
        await cluster.create_pod("a", containers=[container("main")])
        await cluster.bind("a", "n1", {})
        await cluster.wait(lambda: cluster.phase("a") == "Running")


async def test_held_init_containers_end_when_told() -> None:
    async with kubelet("n1") as (cluster, fake):
        await cluster.create_pod(
            "a",
            annotations={"lab.slotwise.io/hold-init": "true"},
            init_containers=[container("side", restartPolicy="Always"), container("init", 1)],
        )
        await cluster.bind("a", "n1", allocation(f";{ONE}{ONE}"))
        await cluster.wait(lambda: bool(cluster.pods.objects["default/a"].pod.status.init_container_statuses))
        assert cluster.phase("a") == "Pending"
        await fake.finish_init("default", "a")
        await cluster.wait(lambda: cluster.phase("a") == "Running")
        ended = {
            status.name: bool(status.state and status.state.terminated)
            for status in cluster.pods.objects["default/a"].pod.status.init_container_statuses or ()
        }
        assert ended == {"side": False, "init": True}


async def test_pod_ends_when_told_or_after_its_time() -> None:
    async with kubelet("n1") as (cluster, fake):
        for name, annotations in (("told", {}), ("timed", {"lab.slotwise.io/run-seconds": "0.01"})):
            await cluster.create_pod(name, annotations=annotations)
            await cluster.bind(name, "n1", allocation(ONE))
        await cluster.wait(lambda: cluster.phase("timed") == "Succeeded" and cluster.phase("told") == "Running")
        await fake.finish("default", "told", "Failed")
        await cluster.wait(lambda: cluster.phase("told") == "Failed")


async def test_deleted_pod_goes_at_once() -> None:
    async with kubelet("n1") as (cluster, _):
        await cluster.create_pod("a")
        await cluster.bind("a", "n1", allocation(ONE))
        await cluster.wait(lambda: cluster.phase("a") == "Running")
        await cluster.client.delete(PODS, "a", "default")
        await cluster.wait(lambda: "default/a" not in cluster.pods.objects)


LOCKS = {"own": ("2026-08-01T06:00:00Z,default,a", None), "legacy": ("2026-08-01T06:00:00Z", "2026-08-01T06:00:00Z")}


@pytest.mark.parametrize(("lock", "left"), LOCKS.values(), ids=LOCKS)
async def test_own_node_lock_is_released(lock: str, left: str | None) -> None:
    async with kubelet("n1") as (cluster, _):
        await cluster.client.patch_node("n1", {"metadata": {"annotations": {"hami.io/mutex.lock": lock}}})
        await cluster.nodes.wait_for(lambda: "hami.io/mutex.lock" in cluster.nodes.objects["n1"].node.annotations, 5)
        await cluster.create_pod("a")
        await cluster.bind("a", "n1", allocation(ONE))
        await cluster.wait(lambda: cluster.phase("a") == "Running")
        node = cluster.api.get("nodes", "", "n1")
        assert node is not None
        assert node["metadata"]["annotations"].get("hami.io/mutex.lock") == left


async def test_lock_of_another_pod_means_it_is_not_ours() -> None:
    lock = "2026-08-01T06:00:00Z,default,other"
    async with kubelet("n1") as (cluster, _):
        await cluster.client.patch_node("n1", {"metadata": {"annotations": {"hami.io/mutex.lock": lock}}})
        await cluster.nodes.wait_for(lambda: "hami.io/mutex.lock" in cluster.nodes.objects["n1"].node.annotations, 5)
        await cluster.create_pod("a")
        await cluster.bind("a", "n1", allocation(ONE))
        await cluster.wait(lambda: cluster.phase("a") == "Failed")
        node = cluster.api.get("nodes", "", "n1")
        assert node is not None
        assert node["metadata"]["annotations"]["hami.io/mutex.lock"] == lock


DCU = "DCU-0,DCU,1000,10:;"
MLU = "n1-cambricon-mlu-0,MLU,1024,5:;"
PROFILE = {"CAMBRICON_DSMLU_ASSIGNED": "false", "CAMBRICON_DSMLU_PROFILE": "0_5_4"}
DCU_KEYS = ("hami.io/dcu-devices-to-allocate", "hami.io/dcu-devices-allocated")
MLU_KEYS = ("hami.io/cambricon-mlu-devices-to-allocate", "hami.io/cambricon-mlu-devices-allocated")
REGISTER = {"hami.io/node-dcu-register": "DCU-0,4,32768,100,DCU-K100,0,true,0,hami-core:"}
MLU_CAPACITY = {
    "cambricon.com/vmlu": "100",
    "cambricon.com/mlu.smlu.vcore": "100",
    "cambricon.com/mlu.smlu.vmemory": "96",
}


def several(name: str) -> JsonObject:
    """A container that asks for one card of two families."""
    return {
        "name": name,
        "image": "pause",
        "resources": {"limits": {"hygon.com/dcunum": "1", "cambricon.com/vmlu": "1"}},
    }


def for_both(**changes: str) -> dict[str, str]:
    texts = dict.fromkeys(DCU_KEYS, DCU) | dict.fromkeys(MLU_KEYS, MLU)
    bound = {key: value for key, value in allocation("").items() if "vgpu-devices" not in key}
    return {**bound, **texts, **PROFILE, **changes}


@asynccontextmanager
async def with_both() -> AsyncIterator[SmallCluster]:
    async with kubelet() as (cluster, _):
        await cluster.client.create(NODES, node_document(NodeSpec("n1", (), REGISTER, capacity=MLU_CAPACITY)))
        assert await cluster.nodes.wait_for(lambda: "n1" in cluster.nodes.objects, 5)
        yield cluster


async def test_plugins_of_two_families_serve_one_container() -> None:
    async with with_both() as cluster:
        lock = {"cambricon.com/dsmlu.lock": "2026-08-01T06:00:00Z"}
        await cluster.client.patch_node("n1", {"metadata": {"annotations": lock}})
        assert await cluster.nodes.wait_for(
            lambda: lock.items() <= cluster.nodes.objects["n1"].node.annotations.items(), 5
        )
        await cluster.create_pod("a", containers=[several("main")])
        await cluster.bind("a", "n1", for_both())
        await cluster.wait(lambda: cluster.phase("a") == "Running")
        annotations = cluster.annotations("a")
        assert (annotations[DCU_KEYS[0]], annotations[MLU_KEYS[0]]) == (";", ";")
        assert (annotations["CAMBRICON_DSMLU_ASSIGNED"], annotations["hami.io/bind-phase"]) == ("true", "success")
        node = cluster.api.get("nodes", "", "n1")
        assert node is not None
        assert "cambricon.com/dsmlu.lock" not in node["metadata"]["annotations"]


OF_ONE = {
    "an annotation that a plugin reads": ({"CAMBRICON_DSMLU_PROFILE": ""}, "no annotation CAMBRICON_DSMLU_PROFILE"),
    "a card that is not there": ({DCU_KEYS[0]: "DCU-9,DCU,1000,10:;"}, "node n1 has no card DCU-9"),
    "no cards of one family": ({MLU_KEYS[0]: ";"}, "device request not found"),
}


@pytest.mark.parametrize(("changes", "text"), OF_ONE.values(), ids=OF_ONE)
async def test_what_one_plugin_misses_fails_the_pod(changes: dict[str, str], text: str) -> None:
    async with with_both() as cluster:
        await cluster.create_pod("a", containers=[several("main")])
        await cluster.bind("a", "n1", for_both(**changes))
        await cluster.wait(lambda: cluster.phase("a") == "Failed")
        status = cluster.stored("a")["status"]
        assert isinstance(status, dict)
        assert text in status["message"]
        assert cluster.annotations("a")["hami.io/bind-phase"] == "failed"


KUNLUN = {"hami.io/kunlun-allocated": "n1-kunlun-0,kunlun,98304,100:;", "BAIDU_COM_DEVICE_IDX": "0"}
OF_THE_DURABLE_TEXT = {
    "served": ({}, "Running"),
    "no card": ({"hami.io/kunlun-allocated": ";"}, "Failed"),
    "another node's card": ({"hami.io/kunlun-allocated": "n2-kunlun-0,kunlun,98304,100:;"}, "Failed"),
    "no index": ({"BAIDU_COM_DEVICE_IDX": ""}, "Failed"),
}


@pytest.mark.parametrize(("changes", "phase"), OF_THE_DURABLE_TEXT.values(), ids=OF_THE_DURABLE_TEXT)
async def test_plugin_without_a_text_to_consume(changes: dict[str, str], phase: str) -> None:
    async with kubelet() as (cluster, _):
        await cluster.client.create(NODES, node_document(NodeSpec("n1", (), capacity={"kunlunxin.com/xpu": "1"})))
        assert await cluster.nodes.wait_for(lambda: "n1" in cluster.nodes.objects, 5)
        asks = {"name": "main", "image": "pause", "resources": {"limits": {"kunlunxin.com/xpu": "1"}}}
        await cluster.create_pod("a", containers=[asks])
        bound = {key: value for key, value in allocation("").items() if "vgpu-devices" not in key}
        await cluster.bind("a", "n1", {**bound, **KUNLUN, **changes})
        await cluster.wait(lambda: cluster.phase("a") == phase)
