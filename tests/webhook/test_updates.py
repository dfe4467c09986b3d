"""`/validate` on updates: what is changed is judged, by whom it is changed, and nothing else."""

from copy import deepcopy
from dataclasses import dataclass, field

import pytest

from devices.config import default_config, optional_families
from devices.managed import protected_keys
from tests.webhook.builders import Cluster, container, ours, pod
from webhook.requester import NOBODY, Requester
from webhook.wire import JsonObject

GOOD = {"gpu": 1, "gpumem": 500}
MALLORY = Requester("mallory", frozenset({"system:authenticated"}))
SCHEDULER = Requester("system:serviceaccount:slotwise-system:slotwise-scheduler")
PLUGIN = Requester("system:serviceaccount:kube-system:hami-device-plugin")
PLACED = {
    "hami.io/vgpu-node": "n1",
    "hami.io/vgpu-devices-allocated": "GPU-a,NVIDIA,500,0:;",
    "hami.io/bind-phase": "allocating",
}
REPAIR = ": leave it as it is, or have the account listed with --key-writers and in ConfigMap slotwise-policy"


def with_ephemeral(given: JsonObject, *containers: JsonObject) -> JsonObject:
    changed = deepcopy(given)
    spec = changed["spec"]
    assert isinstance(spec, dict)
    spec["ephemeralContainers"] = list(containers)
    return changed


def debug(**fields: object) -> JsonObject:
    return {"name": "debug", "image": "busybox", **fields}


PRIVILEGED: JsonObject = {"securityContext": {"privileged": True}}
DEVICE = ours(container(**GOOD), annotations=PLACED)
PLAIN = pod(container())
FOREIGN = pod(container(**GOOD), schedulerName="volcano")


@dataclass
class Row:
    old: JsonObject
    new: JsonObject
    message: str = ""
    reason: str | None = None
    by: Requester = MALLORY
    resource: str = "pods"
    settings: dict[str, object] = field(default_factory=dict)


def annotated(**changes: str | None) -> JsonObject:
    """The device pod with annotations of `hami.io/` set, or taken off."""
    named = {f"hami.io/{key.replace('_', '-')}": value for key, value in changes.items()}
    kept = {**PLACED, **named}
    return ours(container(**GOOD), annotations={key: value for key, value in kept.items() if value is not None})


def forged(key: str, who: str = "mallory") -> str:
    return f"{key} is written by the system alone, not by {who}{REPAIR}"


KEYS = {
    "nothing changed": Row(DEVICE, DEVICE),
    "a policy of the user's own": Row(DEVICE, annotated(node_scheduler_policy="spread", gpu_scheduler_policy="numa")),
    "the allocation of another card": Row(
        DEVICE,
        annotated(vgpu_devices_allocated="GPU-b,NVIDIA,500,0:;"),
        forged("annotation hami.io/vgpu-devices-allocated"),
        "protected-key",
    ),
    "an allocation taken away": Row(
        DEVICE, annotated(vgpu_node=None), forged("annotation hami.io/vgpu-node"), "protected-key"
    ),
    "an allocation that becomes empty": Row(
        DEVICE, annotated(bind_phase=""), forged("annotation hami.io/bind-phase"), "protected-key"
    ),
    "an empty one added": Row(DEVICE, annotated(bind_time=""), forged("annotation hami.io/bind-time"), "protected-key"),
    "through the status": Row(
        DEVICE,
        annotated(bind_phase="failed"),
        forged("annotation hami.io/bind-phase"),
        "protected-key",
        resource="pods/status",
    ),
    "in a pod without devices": Row(
        PLAIN,
        pod(container(), annotations={"hami.io/vgpu-node": "n1"}),
        forged("annotation hami.io/vgpu-node"),
        "protected-key",
    ),
    "the label": Row(
        PLAIN, pod(container(), labels={"hami.io/vgpu-node": "n1"}), forged("label hami.io/vgpu-node"), "protected-key"
    ),
    "by somebody without a name": Row(
        DEVICE,
        annotated(bind_phase="failed"),
        forged("annotation hami.io/bind-phase", "an unnamed user"),
        "protected-key",
        NOBODY,
    ),
    "by the scheduler": Row(DEVICE, annotated(vgpu_node="n2"), by=SCHEDULER),
    "by the device plugin": Row(DEVICE, annotated(bind_phase="success"), by=PLUGIN),
    "by a listed group": Row(
        DEVICE,
        annotated(bind_phase="success"),
        by=Requester("system:node:n1", frozenset({"system:nodes"})),
        settings={"key_writers": frozenset({"system:nodes"})},
    ),
    "by an account that is not listed any more": Row(
        DEVICE,
        annotated(bind_phase="success"),
        forged("annotation hami.io/bind-phase", PLUGIN.name),
        "protected-key",
        PLUGIN,
        settings={"key_writers": frozenset()},
    ),
    "keys of a new pod's kind that were there before": Row(DEVICE, with_ephemeral(DEVICE, debug())),
}

EPHEMERAL = {
    "a plain one": Row(DEVICE, with_ephemeral(DEVICE, debug(env=[{"name": "PATH", "value": "/bin"}]))),
    "privileged": Row(
        DEVICE,
        with_ephemeral(DEVICE, debug(**PRIVILEGED)),
        "ephemeral container debug is privileged, in a pod with nvidia.com/gpu: leave out securityContext.privileged",
        "ephemeral-container",
    ),
    "privileged, in a plain pod": Row(PLAIN, with_ephemeral(PLAIN, debug(**PRIVILEGED))),
    "privileged, in a pod of another scheduler": Row(FOREIGN, with_ephemeral(FOREIGN, debug(**PRIVILEGED))),
    "privileged, in a pod just labelled to be ignored": Row(
        DEVICE,
        with_ephemeral(
            ours(container(**GOOD), annotations=PLACED, labels={"hami.io/webhook": "ignore"}), debug(**PRIVILEGED)
        ),
        "ephemeral container debug is privileged, in a pod with nvidia.com/gpu: leave out securityContext.privileged",
        "ephemeral-container",
        settings={"ignored_device_pods": "allow"},
    ),
    "privileged, but there before": Row(
        with_ephemeral(DEVICE, debug(**PRIVILEGED)),
        with_ephemeral(DEVICE, debug(**PRIVILEGED), {"name": "second"}),
    ),
    "a second one beside it is judged": Row(
        with_ephemeral(DEVICE, debug()),
        with_ephemeral(DEVICE, debug(), {"name": "second", **PRIVILEGED}),
        "ephemeral container second is privileged, in a pod with nvidia.com/gpu: leave out securityContext.privileged",
        "ephemeral-container",
    ),
    "privileged, by the scheduler itself": Row(
        DEVICE,
        with_ephemeral(DEVICE, debug(**PRIVILEGED)),
        "ephemeral container debug is privileged, in a pod with nvidia.com/gpu: leave out securityContext.privileged",
        "ephemeral-container",
        SCHEDULER,
    ),
    "an environment that comes from elsewhere": Row(
        DEVICE,
        with_ephemeral(DEVICE, debug(envFrom=[{"configMapRef": {"name": "x"}}])),
        "ephemeral container debug has envFrom, in a pod with nvidia.com/gpu: name each variable in env instead",
        "ephemeral-container",
    ),
    "an environment that comes from elsewhere, in a plain pod": Row(
        PLAIN, with_ephemeral(PLAIN, debug(envFrom=[{"configMapRef": {"name": "x"}}]))
    ),
    "devices": Row(
        DEVICE,
        with_ephemeral(DEVICE, debug(resources={"limits": {"nvidia.com/gpu": 1}})),
        "ephemeral container debug asks for nvidia.com/gpu: only containers of a new pod can",
        "ephemeral-container",
    ),
    "devices, in a plain pod": Row(
        PLAIN,
        with_ephemeral(PLAIN, debug(resources={"requests": {"nvidia.com/gpumem": 1}})),
        "ephemeral container debug asks for nvidia.com/gpumem: only containers of a new pod can",
        "ephemeral-container",
    ),
}

RESIZE = {
    "compute of the processor": Row(
        ours(container(**GOOD)),
        ours({"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": 500, "cpu": "2"}}}),
    ),
    "more memory of the card": Row(
        ours(container(**GOOD)),
        ours(container(gpu=1, gpumem=501)),
        "container main: nvidia.com/gpumem of a pod that is there already cannot be changed: create a new pod",
        "resize",
    ),
    "another resource": Row(
        ours(container(gpu=1)),
        ours(container(gpu=1, gpucores=5)),
        "container main: nvidia.com/gpucores of a pod that is there already cannot be changed: create a new pod",
        "resize",
    ),
    "one resource less": Row(
        ours(container(gpu=1, gpucores=5)),
        ours(container(gpu=1)),
        "container main: nvidia.com/gpucores of a pod that is there already cannot be changed: create a new pod",
        "resize",
    ),
}
for row in EPHEMERAL.values():
    row.resource = "pods/ephemeralcontainers"
for row in RESIZE.values():
    row.resource = "pods/resize"
ROWS = {
    f"{title}: {name}": row
    for title, rows in {"keys": KEYS, "ephemeral": EPHEMERAL, "resize": RESIZE}.items()
    for name, row in rows.items()
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_update(row: Row) -> None:
    old, new = deepcopy(row.old), deepcopy(row.new)
    verdict = Cluster(**row.settings).admission.validate_update(row.new, row.old, row.resource, row.by)
    assert (verdict.message, verdict.reason, verdict.code) == (row.message, row.reason, 403 if row.reason else 200)
    assert verdict.allowed is (row.reason is None)
    assert (verdict.patch, row.old, row.new) == ([], old, new)


@pytest.mark.parametrize("variable", ["NVIDIA_VISIBLE_DEVICES", "ASCEND_VISIBLE_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES"])
def test_variables_that_open_cards_are_refused(variable: str) -> None:
    new = with_ephemeral(DEVICE, debug(env=[{"name": "A"}, {"name": variable, "valueFrom": {"fieldRef": {}}}]))
    verdict = Cluster().admission.validate_update(new, DEVICE, "pods/ephemeralcontainers", MALLORY)
    assert (verdict.allowed, verdict.message) == (
        False,
        f"ephemeral container debug sets {variable}, in a pod with nvidia.com/gpu: leave the variable out",
    )


@pytest.mark.parametrize("key", sorted(protected_keys(default_config())))
def test_every_protected_key_of_every_family(key: str) -> None:
    new = pod(container(), annotations={key: "x"})
    verdict = Cluster().admission.validate_update(new, PLAIN, "pods", MALLORY)
    assert verdict.message == forged(f"annotation {key}")


def test_an_update_is_never_charged() -> None:
    """A pod over its namespace's quota, admitted before there was one, can still be written."""
    cluster = Cluster().quota(gpumem=100)
    labelled = ours(container(**GOOD), annotations=PLACED, labels={"a": "b"})
    verdict = cluster.admission.validate_update(labelled, DEVICE, "pods", MALLORY)
    assert (verdict.allowed, verdict.ask) == (True, None)


def test_optional_families_are_judged_once_they_are_on() -> None:
    assert set(protected_keys(default_config())) < set(protected_keys(default_config(optional_families())))


WRONG: dict[str, tuple[JsonObject, JsonObject | None, str]] = {
    "no old object": (PLAIN, None, "oldObject is not a Pod: there is none"),
    "containers of a wrong type": (
        {"spec": {"containers": 7}},
        PLAIN,
        "object is not a Pod: Expected `array | null`, got `int` - at `$.spec.containers`",
    ),
    "ephemeral containers of a wrong type": (
        with_ephemeral(PLAIN) | {"spec": {"ephemeralContainers": {}}},
        PLAIN,
        "object is not a Pod: Expected `array | null`, got `object` - at `$.spec.ephemeralContainers`",
    ),
}


@pytest.mark.parametrize(("new", "old", "text"), WRONG.values(), ids=WRONG)
def test_what_is_no_pod(new: JsonObject, old: JsonObject | None, text: str) -> None:
    verdict = Cluster().admission.validate_update(new, old, "pods", SCHEDULER)
    assert (verdict.allowed, verdict.code, verdict.message, verdict.reason) == (False, 400, text, "not-a-pod")
