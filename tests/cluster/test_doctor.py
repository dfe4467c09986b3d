"""`slotwise doctor` on the installed system: all well, then one link broken at a time: the right check says so, and its repair helps."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from cli.doctor.checks import examine
from cli.doctor.collect import Collected, collect
from cli.doctor.findings import Finding, Level
from devices.kube.client import ClientSettings, KubeClient
from devices.kube.config import load_access
from lab.control_plane import ControlPlane
from lab.nodes import CardSpec, NodeSpec, node_document
from tests.cluster.installation import NAMESPACE, Installation
from tests.cluster.slotwise import Slotwise

NODE: Final = "doctored"
_HEALS_S: Final = 40.0


@pytest.fixture(scope="module")
def patient(control_plane: ControlPlane, slotwise: Slotwise) -> Iterator[Installation]:
    """The installation, in a cluster with one node that has a card."""
    # Closed to pods: no kubelet runs there, and the installation's own pods may be made anew meanwhile.
    closed = {"taints": [{"key": "tests.slotwise.io/closed", "effect": "NoSchedule"}]}
    document = node_document(NodeSpec(NODE, (CardSpec("GPU-doctored"),)))
    control_plane.create("/api/v1/nodes", {**document, "spec": closed})
    yield slotwise.installation
    control_plane.request("DELETE", f"/api/v1/nodes/{NODE}")


@pytest.fixture(scope="module")
def kubeconfig(control_plane: ControlPlane, patient: Installation) -> Iterator[Path]:
    """Of an administrator whose account is not among those that may write allocations."""
    control_plane.create_service_account("kube-system", "doctor")
    binding = {
        "metadata": {"name": "doctor"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "namespace": "kube-system", "name": "doctor"}],
    }
    path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
    control_plane.create(path, binding)
    yield control_plane.kubeconfig_with(control_plane.service_account_token("kube-system", "doctor"), "doctor")
    control_plane.request("DELETE", f"{path}/doctor")


def findings(kubeconfig: Path) -> dict[str, Finding]:
    """What is not well, by check."""

    async def read() -> Collected:
        settings = ClientSettings(user_agent="slotwise-doctor", timeout_s=30)
        async with KubeClient(await load_access(str(kubeconfig)), settings) as client:
            return await collect(client, NAMESPACE, "default")

    # Other tests leave pods behind that wait, which is theirs to do.
    found = [one for one in examine(asyncio.run(read()).facts) if one.check != "waiting-pods"]
    return {one.check: one for one in found if one.level is not Level.OK}


def until_well(kubeconfig: Path) -> dict[str, Finding]:
    """What is still not well after the time that a repair may take to have its effect."""
    deadline = time.monotonic() + _HEALS_S
    while (left := findings(kubeconfig)) and time.monotonic() < deadline:
        time.sleep(0.5)  # pods come up, the API server's own informers follow
    return left


def test_all_is_well_on_the_installed_system(kubeconfig: Path) -> None:
    assert until_well(kubeconfig) == {}
    command = [sys.executable, "-m", "cli", "doctor", f"--kubeconfig={kubeconfig}", "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    document = json.loads(ended.stdout)
    assert (ended.returncode, document["healthy"]) == (0, True), document
    assert {one["level"] for one in document["findings"] if one["check"] != "waiting-pods"} == {"ok"}


# --- one link broken at a time ---

Act = Callable[[Installation], object]


def patched(kind: str, name: str, change: Mapping[str, Any] | list[Any], *where: str) -> Act:
    form = "merge" if isinstance(change, Mapping) else "json"
    return lambda on: on.kubectl.run("patch", kind, name, f"--type={form}", f"--patch={json.dumps(change)}", *where)


def deleted(kind: str, name: str, *where: str) -> Act:
    return lambda on: on.kubectl.run("delete", kind, name, *where)


def applied(document: Mapping[str, Any]) -> Act:
    return lambda on: on.kubectl.run("apply", "-f", "-", text=json.dumps(document))


def manifests_applied(on: Installation) -> None:
    """`slotwise manifests ha | kubectl apply -f -`."""
    on.apply()


def scaled(deployment: str, replicas: int) -> Act:
    return lambda on: on.kubectl.run("scale", "deployment", deployment, f"--replicas={replicas}", OURS)


def annotated(**values: str | None) -> Act:
    keys = {"lock": "hami.io/mutex.lock", "register": "hami.io/node-nvidia-register"}
    return patched("node", NODE, {"metadata": {"annotations": {keys[key]: text for key, text in values.items()}}})


OURS: Final = f"--namespace={NAMESPACE}"
REGISTERED: Final = node_document(NodeSpec(NODE, (CardSpec("GPU-doctored"),)))["metadata"]
assert isinstance(REGISTERED, dict)

RIVAL: Final = {
    "apiVersion": "apps/v1",
    "kind": "DaemonSet",
    "metadata": {"name": "rival", "namespace": "kube-system"},
    "spec": {
        "selector": {"matchLabels": {"app": "rival"}},
        "template": {
            "metadata": {"labels": {"app": "rival"}},
            "spec": {
                "containers": [{"name": "main", "image": "nvcr.io/nvidia/k8s-device-plugin:v0.17.0"}],
                "tolerations": [{"operator": "Exists"}],
            },
        },
    },
}


def hook(name: str, **fields: object) -> dict[str, Any]:
    """Somebody else's validating webhook, for pods, that nobody answers."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": [
            {
                "name": f"{name}.example.com",
                "clientConfig": {"url": "https://127.0.0.1:1/none"},
                "rules": [rule],
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "timeoutSeconds": 1,
                **fields,
            }
        ],
    }


def without_gpumem(on: Installation) -> None:
    config = on.kubectl.get("configmap", "slotwise-kube-scheduler", OURS)
    data = config["data"]
    assert isinstance(data, dict)
    text = str(data["kube-scheduler.yaml"])
    assert "nvidia.com/gpumem\n" in text
    changed = text.replace("nvidia.com/gpumem\n", "example.com/other\n")
    patched("configmap", "slotwise-kube-scheduler", {"data": {"kube-scheduler.yaml": changed}}, OURS)(on)


BROKEN: dict[str, tuple[Act, str, Act]] = {
    "no mutating configuration": (
        deleted("mutatingwebhookconfiguration", "slotwise"),
        "mutating-webhook",
        manifests_applied,
    ),
    "no validating configuration": (
        deleted("validatingwebhookconfiguration", "slotwise"),
        "validating-webhook",
        manifests_applied,
    ),
    "validating fails open": (
        patched(
            "validatingwebhookconfiguration",
            "slotwise",
            [{"op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Ignore"}],
        ),
        "validating-webhook",
        manifests_applied,
    ),
    "webhook scaled to 0": (scaled("slotwise-webhook", 0), "webhook-pods", scaled("slotwise-webhook", 2)),
    "no webhook Deployment": (deleted("deployment", "slotwise-webhook", OURS), "webhook-pods", manifests_applied),
    "no Service": (deleted("service", "slotwise-webhook", OURS), "webhook-service", manifests_applied),
    "no policy": (deleted("validatingadmissionpolicy", "slotwise"), "admission-policy", manifests_applied),
    "policy that only warns": (
        patched("validatingadmissionpolicybinding", "slotwise", {"spec": {"validationActions": ["Warn"]}}),
        "admission-policy",
        manifests_applied,
    ),
    "policy without its parameters": (
        deleted("configmap", "slotwise-policy", OURS),
        "admission-policy",
        manifests_applied,
    ),
    "scheduler scaled to 0": (scaled("slotwise-scheduler", 0), "scheduler-pods", scaled("slotwise-scheduler", 2)),
    "a resource that kube-scheduler does not know": (without_gpumem, "scheduler-configuration", manifests_applied),
    "device configuration that cannot be used": (
        patched("configmap", "slotwise-device-config", {"data": {"device-config.yaml": "nvidia: 1"}}, OURS),
        "scheduler-configuration",
        manifests_applied,
    ),
    "a right taken away": (deleted("clusterrolebinding", "slotwise-scheduler"), "rights", manifests_applied),
    "an old lock": (
        annotated(lock="2026-08-01T06:00:00Z,team-a,trainer"),
        "node-locks",
        lambda on: on.kubectl.run("annotate", "node", NODE, "hami.io/mutex.lock-"),
    ),
    "a registration that cannot be read": (
        annotated(register="[{"),
        "registrations",
        patched("node", NODE, {"metadata": {"annotations": REGISTERED["annotations"]}}),
    ),
    "another device plugin": (
        applied(RIVAL),
        "device-plugins",
        deleted("daemonset", "rival", "--namespace=kube-system"),
    ),
    "HAMi's webhook too": (
        applied(hook("hami-webhook", failurePolicy="Ignore")),
        "other-admission",
        deleted("validatingwebhookconfiguration", "hami-webhook"),
    ),
    "somebody else's webhook that fails closed": (
        applied(hook("theirs", failurePolicy="Fail")),
        "plain-pod",
        deleted("validatingwebhookconfiguration", "theirs"),
    ),
}


@pytest.mark.parametrize(("broken", "check", "repair"), BROKEN.values(), ids=BROKEN)
def test_a_broken_link_is_named_and_its_repair_helps(
    patient: Installation, kubeconfig: Path, broken: Act, check: str, repair: Act
) -> None:
    broken(patient)
    try:
        deadline = time.monotonic() + _HEALS_S
        while check not in (found := findings(kubeconfig)) and time.monotonic() < deadline:
            time.sleep(0.5)  # pods end, the API server's own informers follow
        assert check in found, f"{check} says nothing: {found}"
        assert found[check].repair
    finally:
        repair(patient)
    assert until_well(kubeconfig) == {}
