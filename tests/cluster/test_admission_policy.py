"""Somebody with every right on the pods of a namespace cannot place a device pod past Slotwise; all else of theirs goes on.

Each attempt is made with that user's own credentials. `slotwise` is the installed system; a pod is placed here the way our extender
places one, by a Binding with its account's credentials.
"""

import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

import pytest

from devices.kube.protocols import JsonObject
from lab.control_plane import ControlPlane
from tests.cluster.accounts import (
    PLACED,
    SHARE,
    Account,
    at_work,
    binding,
    owner_of_pods,
    part,
    pod,
)
from tests.cluster.slotwise import Slotwise

POLICY = "ValidatingAdmissionPolicy 'slotwise' with binding 'slotwise' denied request: "
PRIVILEGED: JsonObject = {"securityContext": {"privileged": True}}
CHECKED_S = 60.0


@pytest.fixture(scope="module")
def user(control_plane: ControlPlane, slotwise: Slotwise) -> Iterator[Account]:
    """Has every right on the pods of one namespace, and no other."""
    with owner_of_pods(control_plane) as user:
        yield user


@pytest.fixture(scope="module")
def scheduler(control_plane: ControlPlane, slotwise: Slotwise, user: Account) -> Account:
    """Our extender's account, at work in the user's namespace."""
    return at_work(control_plane, slotwise.scheduler_user, user.namespace)


@pytest.fixture
def waiting(user: Account) -> str:
    """A device pod of the user's that no card suits."""
    name = f"waiting-{uuid.uuid4().hex[:8]}"
    nowhere = {"nvidia.com/use-gpuuuid": "GPU-nowhere"}
    assert user.create(pod(name, SHARE, metadata={"annotations": nowhere})) == (201, "")
    return name


@pytest.fixture
def placed(user: Account, scheduler: Account, waiting: str) -> str:
    """A device pod of the user's with its cards."""
    bound = binding(user.pod(waiting), annotations=PLACED, labels={"hami.io/vgpu-node": "node-1"})
    assert scheduler.post(f"pods/{waiting}/binding", bound) == (201, "")
    return waiting


# --- what goes on ---


def test_a_device_pod_becomes_ours(user: Account, waiting: str) -> None:
    assert part(user.pod(waiting), "spec")["schedulerName"] == "hami-scheduler"


def test_the_binding_of_our_extender_carries_the_allocation(user: Account, placed: str) -> None:
    metadata, spec = part(user.pod(placed), "metadata"), part(user.pod(placed), "spec")
    assert spec["nodeName"] == "node-1"
    assert PLACED.items() <= part(metadata, "annotations").items()


def test_plain_pods_are_the_users_own_affair(user: Account) -> None:
    assert user.create(pod("plain", nodeName="node-1", metadata={"labels": {"hami.io/webhook": "ignore"}})) == (201, "")
    debug = [{"name": "debug", "image": "busybox", **PRIVILEGED}]
    assert user.patch("plain/ephemeralcontainers", {"spec": {"ephemeralContainers": debug}})[0] == 200
    assert user.create(pod("to-bind", schedulerName="my-own")) == (201, "")
    assert user.post("pods/to-bind/binding", binding(user.pod("to-bind"))) == (201, "")


POLICIES = {
    "hami.io/node-scheduler-policy": "spread",
    "hami.io/gpu-scheduler-policy": "binpack",
    "nvidia.com/use-gpuuuid": "GPU-nowhere",
    "nvidia.com/nouse-gputype": "A100",
    "nvidia.com/numa-bind": "true",
}


def test_policies_of_the_users_own_are_free_in_new_pods(user: Account) -> None:
    assert user.create(pod("chosen", SHARE, metadata={"annotations": POLICIES})) == (201, "")
    assert part(part(user.pod("chosen"), "metadata"), "annotations") == POLICIES


def test_policies_of_the_users_own_are_free_in_pods_that_are_there(user: Account, placed: str) -> None:
    status, _ = user.patch(placed, {"metadata": {"annotations": POLICIES, "labels": {"team": "a"}}})
    assert status == 200
    assert POLICIES.items() <= part(part(user.pod(placed), "metadata"), "annotations").items()


def test_an_allocation_copied_into_a_new_pod_is_taken_off(user: Account) -> None:
    forged = {"annotations": PLACED, "labels": {"hami.io/vgpu-node": "node-1"}}
    assert user.create(pod("copied", SHARE, metadata=forged)) == (201, "")
    metadata = part(user.pod("copied"), "metadata")
    assert (part(metadata, "annotations"), part(metadata, "labels")) == ({}, {})


def test_a_running_pod_can_be_finished_and_cleaned_up(user: Account, placed: str) -> None:
    assert user.patch(f"{placed}/status", {"status": {"phase": "Succeeded"}})[0] == 200
    assert user.patch(placed, {"metadata": {"finalizers": None}})[0] == 200


# --- new pods ---


@dataclass
class Attempt:
    limits: Mapping[str, str]
    spec: dict[str, object]
    text: str


NEW = {
    "a node of one's own": Attempt(SHARE, {"nodeName": "node-1"}, "pod has node assigned"),
    "a node, and our scheduler's name": Attempt(
        SHARE, {"nodeName": "node-1", "schedulerName": "hami-scheduler"}, "pod has node assigned"
    ),
    "another scheduler": Attempt(
        SHARE, {"schedulerName": "my-own"}, POLICY + "pod asks for a device but its scheduler is my-own"
    ),
    "the label": Attempt(
        SHARE,
        {"metadata": {"labels": {"hami.io/webhook": "ignore"}}},
        POLICY + "pod asks for a device but its label hami.io/webhook: ignore keeps it from being placed",
    ),
    "the label, and our scheduler's name": Attempt(
        SHARE,
        {"schedulerName": "hami-scheduler", "metadata": {"labels": {"hami.io/webhook": "ignore"}}},
        POLICY + "pod asks for a device but its label hami.io/webhook: ignore keeps it from being placed",
    ),
    "the label, and an allocation": Attempt(
        {},
        {"metadata": {"labels": {"hami.io/webhook": "ignore"}, "annotations": PLACED}},
        POLICY + "annotation hami.io/vgpu-node is written by the system alone, not by system:serviceaccount:",
    ),
    "the label, and the label of a placed pod": Attempt(
        {},
        {"metadata": {"labels": {"hami.io/webhook": "ignore", "hami.io/vgpu-node": "node-1"}}},
        POLICY + "label hami.io/vgpu-node is written by the system alone",
    ),
}


@pytest.mark.parametrize("attempt", NEW.values(), ids=NEW)
def test_no_new_pod_passes_by(user: Account, attempt: Attempt) -> None:
    status, message = user.create(pod("new", attempt.limits, **attempt.spec))
    assert status == 403
    assert attempt.text in message


def test_a_privileged_container_is_refused(user: Account) -> None:
    given = pod("new", SHARE)
    containers = part(given, "spec")["containers"]
    assert isinstance(containers, list)
    containers[0].update(PRIVILEGED)
    status, message = user.create(given)
    assert (status, "container main is privileged" in message) == (403, True)


# --- protected keys ---

KEYS: dict[str, JsonObject] = {
    "another allocation": {"annotations": {"hami.io/vgpu-devices-allocated": "GPU-b,NVIDIA,1,0:;"}},
    "no allocation any more": {"annotations": {"hami.io/vgpu-devices-allocated": None}},
    "no annotation any more": {"annotations": None},
    "another phase": {"annotations": {"hami.io/bind-phase": "success"}},
    "another node": {"labels": {"hami.io/vgpu-node": "node-2"}},
    "a key of another family": {"annotations": {"hami.io/dcu-devices-allocated": "DCU-a,DCU,1,0:;"}},
}


@pytest.mark.parametrize(
    "door", ["", "/status", "/ephemeralcontainers", "/resize"], ids=["pods", "status", "ephemeral", "resize"]
)
@pytest.mark.parametrize("change", KEYS.values(), ids=KEYS)
def test_an_allocation_stays_what_it_is(user: Account, placed: str, change: JsonObject, door: str) -> None:
    before = part(user.pod(placed), "metadata")
    status, message = user.patch(f"{placed}{door}", {"metadata": change})
    after = part(user.pod(placed), "metadata")
    assert (after["annotations"], after.get("labels")) == (before["annotations"], before.get("labels"))
    if door in ("", "/status"):  # the API server itself keeps metadata as it is through the others
        assert status == 403
        assert f"{POLICY}" in message
        assert "is written by the system alone, not by system:serviceaccount:" in message


def test_a_pod_that_waits_gets_no_allocation(user: Account, waiting: str) -> None:
    status, message = user.patch(waiting, {"metadata": {"annotations": PLACED}})
    assert (status, POLICY in message) == (403, True)


# --- Bindings ---


def test_a_binding_of_ones_own_is_refused(user: Account, waiting: str) -> None:
    status, message = user.post(f"pods/{waiting}/binding", binding(user.pod(waiting)))
    assert status == 403
    assert f"asks for NVIDIA cards, so system:serviceaccount:{user.namespace}:user may not bind it" in message
    assert "nodeName" not in part(user.pod(waiting), "spec")


def test_nor_by_the_other_path(user: Account, waiting: str) -> None:
    status, message = user.post("bindings", binding(user.pod(waiting)))
    assert status == 403
    assert f"may bind through pods/{waiting}/binding only" in message
    assert "nodeName" not in part(user.pod(waiting), "spec")


def test_a_binding_without_a_uid_could_meet_another_pod(user: Account) -> None:
    assert user.create(pod("plain-to-bind", schedulerName="my-own")) == (201, "")
    nobody: JsonObject = {"metadata": {"name": "plain-to-bind"}, "target": {"kind": "Node", "name": "node-1"}}
    status, message = user.post("pods/plain-to-bind/binding", nobody)
    assert (status, "must carry metadata.uid" in message) == (403, True)


@pytest.mark.parametrize("path", ["pods/{}/binding", "bindings"])
@pytest.mark.parametrize(
    "carried", [{"annotations": PLACED}, {"labels": {"hami.io/vgpu-node": "node-1"}}], ids=["annotations", "label"]
)
def test_a_binding_brings_no_allocation(user: Account, waiting: str, path: str, carried: dict[str, object]) -> None:
    status, message = user.post(path.format(waiting), binding(user.pod(waiting), **carried))
    assert status == 403
    assert f"{POLICY}" in message


# --- ephemeral containers, resize ---


@dataclass
class Debug:
    container: dict[str, object]
    status: int
    text: str
    others: dict[str, object] = field(default_factory=dict)


DEBUG = {
    "privileged": Debug(PRIVILEGED, 403, "ephemeral container debug is privileged, in a pod with nvidia.com/gpu"),
    "a variable that opens cards": Debug(
        {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}, 403, "sets NVIDIA_VISIBLE_DEVICES"
    ),
    "that of another family": Debug(
        {"env": [{"name": "ASCEND_VISIBLE_DEVICES", "value": "0"}]}, 403, "sets ASCEND_VISIBLE_DEVICES"
    ),
    "variables from elsewhere": Debug({"envFrom": [{"configMapRef": {"name": "any"}}]}, 403, "has envFrom"),
    # The API server's own words.
    "devices": Debug({"resources": {"limits": SHARE}}, 422, "cannot be set for an Ephemeral Container"),
}


@pytest.mark.parametrize("attempt", DEBUG.values(), ids=DEBUG)
def test_an_ephemeral_container_reaches_no_cards(user: Account, placed: str, attempt: Debug) -> None:
    add = partial(user.patch, f"{placed}/ephemeralcontainers")
    made = {"name": "debug", "image": "busybox", **attempt.container}
    status, message = add({"spec": {"ephemeralContainers": [made]}})
    assert (status, attempt.text in message) == (attempt.status, True), message
    assert add({"spec": {"ephemeralContainers": [{"name": "debug", "image": "busybox"}]}})[0] == 200


def test_a_pod_does_not_grow_cards(user: Account, placed: str) -> None:
    grown = {**SHARE, "nvidia.com/gpumem": "2000"}
    containers = part(pod(placed, grown), "spec")["containers"]
    status, message = user.patch(f"{placed}/resize", {"spec": {"containers": containers}})
    assert (status, "only cpu and memory resources are mutable" in message) == (422, True), message


# --- the objects themselves ---


def test_the_api_server_has_nothing_to_say_about_the_policy(control_plane: ControlPlane, slotwise: Slotwise) -> None:
    """Its controller checks the types of every expression, and lists what it is not sure of."""
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/slotwise"
    deadline = time.monotonic() + CHECKED_S
    while True:
        _, policy = control_plane.request("GET", path)
        status = part(policy, "status")
        if status.get("observedGeneration") == part(policy, "metadata")["generation"]:
            break
        assert time.monotonic() < deadline, "it was never checked"
        time.sleep(0.1)  # there is nothing to wait for but the next look
    assert status.get("typeChecking") in (None, {})
