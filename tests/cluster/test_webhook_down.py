"""The webhook is down altogether: nothing about plain pods waits for it, and no device pod slips through."""

import time
from collections.abc import Callable, Iterator

import pytest

from devices.admission_objects import NAMESPACE, POLICY_PARAMETERS
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

NOT_SEEN = (
    "ValidatingAdmissionPolicy 'slotwise' with binding 'slotwise' denied request:"
    " Slotwise's webhook did not see this pod; see slotwise doctor"
)
SEEN_S = 30.0


@pytest.fixture(scope="module")
def user(control_plane: ControlPlane, slotwise: Slotwise) -> Iterator[Account]:
    """Has every right on the pods of one namespace."""
    with owner_of_pods(control_plane) as user:
        yield user


@pytest.fixture(scope="module")
def admitted(user: Account) -> tuple[str, str]:
    """Two device pods that were created while the webhook ran; no card suits them."""
    names = "first", "second"
    for name in names:
        nowhere = {"annotations": {"nvidia.com/use-gpuuuid": "GPU-nowhere"}}
        assert user.create(pod(name, SHARE, metadata=nowhere)) == (201, "")
    return names


@pytest.fixture(scope="module", autouse=True)
def down(slotwise: Slotwise, admitted: tuple[str, str]) -> Iterator[None]:
    """From here on there is no webhook."""
    slotwise.installation.scale("slotwise-webhook", 0)
    yield
    slotwise.installation.scale("slotwise-webhook", 2)


@pytest.fixture
def scheduler(control_plane: ControlPlane, slotwise: Slotwise, user: Account) -> Account:
    return at_work(control_plane, slotwise.scheduler_user, user.namespace)


def test_plain_pods_are_created_and_bound(control_plane: ControlPlane, user: Account) -> None:
    assert user.create(pod("plain", schedulerName="nobody-s")) == (201, "")
    kube_scheduler = Account(control_plane, user.namespace, control_plane.token("system:kube-scheduler"))
    assert kube_scheduler.post("pods/plain/binding", binding(user.pod("plain"))) == (201, "")
    assert part(user.pod("plain"), "spec")["nodeName"] == "node-1"
    assert user.patch("plain", {"metadata": {"labels": {"a": "b"}}})[0] == 200
    debug = [{"name": "debug", "image": "busybox"}]
    assert user.patch("plain/ephemeralcontainers", {"spec": {"ephemeralContainers": debug}})[0] == 200


def test_device_pods_are_refused_with_the_text_of_the_policy(user: Account) -> None:
    status, message = user.create(pod("late", SHARE))
    assert (status, NOT_SEEN in message) == (403, True), message


def test_nor_do_they_pass_with_our_scheduler_s_name(user: Account) -> None:
    status, message = user.create(pod("late", SHARE, schedulerName="hami-scheduler"))
    assert status == 500
    assert 'failed calling webhook "validate.slotwise.io"' in message


def test_bindings_of_others_are_refused(user: Account, admitted: tuple[str, str]) -> None:
    for path in (f"pods/{admitted[0]}/binding", "bindings"):
        status, message = user.post(path, binding(user.pod(admitted[0])))
        assert status == 500
        assert 'failed calling webhook "bindings.slotwise.io"' in message
    assert "nodeName" not in part(user.pod(admitted[0]), "spec")


def test_device_pods_that_are_there_go_on(user: Account, scheduler: Account, admitted: tuple[str, str]) -> None:
    name = admitted[1]
    assert scheduler.post(f"pods/{name}/binding", binding(user.pod(name), annotations=PLACED)) == (201, "")
    assert user.patch(name, {"metadata": {"labels": {"a": "b"}, "finalizers": None}})[0] == 200
    assert scheduler.patch(name, {"metadata": {"annotations": {"hami.io/bind-phase": "success"}}})[0] == 200
    assert user.patch(f"{name}/status", {"status": {"phase": "Succeeded"}})[0] == 200


def test_an_allocation_still_stays_what_it_is(user: Account, admitted: tuple[str, str]) -> None:
    status, message = user.patch(admitted[0], {"metadata": {"annotations": PLACED}})
    assert (status, "is written by the system alone" in message) == (403, True), message


def test_nothing_unmutated_is_there(control_plane: ControlPlane, user: Account) -> None:
    _, listed = control_plane.request("GET", f"/api/v1/namespaces/{user.namespace}/pods")
    pods = listed["items"]
    assert isinstance(pods, list)
    asking = [found for found in pods if "nvidia.com" in str(found["spec"]["containers"])]
    assert {part(found, "metadata")["name"] for found in asking} == {"first", "second"}
    assert {found["spec"]["schedulerName"] for found in asking} == {"hami-scheduler"}


def test_without_its_parameters_the_policy_lets_nothing_through(control_plane: ControlPlane, user: Account) -> None:
    item = f"/api/v1/namespaces/{NAMESPACE}/configmaps/{POLICY_PARAMETERS}"
    _, held = control_plane.request("GET", item)
    attempt = f"/api/v1/namespaces/{user.namespace}/pods?dryRun=All"

    def tried() -> JsonObject:
        return control_plane.request("POST", attempt, pod("any"), token=user.token)[1]

    # The doctor's tests delete a policy. After its last one kube-apiserver never again sees how the parameters change, until it is started
    # anew (apiserver, policy_source.go: a shared informer that was stopped is not started again).
    control_plane.restart()
    control_plane.request("DELETE", item)
    try:
        until(lambda: "no params found for policy binding" in str(tried().get("message")))
    finally:
        control_plane.create(
            f"/api/v1/namespaces/{NAMESPACE}/configmaps",
            {"metadata": {"name": POLICY_PARAMETERS, "labels": part(held, "metadata")["labels"]}, "data": held["data"]},
        )
    until(lambda: tried()["kind"] == "Pod")


def test_our_own_pods_come_back_by_themselves(slotwise: Slotwise, user: Account) -> None:
    """The last one here: nothing of admission stands between the controllers and the namespace that the webhook runs in."""
    slotwise.installation.scale("slotwise-webhook", 2)
    until(lambda: user.post("pods?dryRun=All", pod("after", SHARE)) == (201, ""))


def until(holds: Callable[[], bool]) -> None:
    """The API server follows changes of its own configuration a moment later."""
    deadline = time.monotonic() + SEEN_S
    while not holds():
        assert time.monotonic() < deadline, "it stays as it was"
        time.sleep(0.05)
