"""`/webhook`: what it changes, what it refuses, what it leaves alone."""

from copy import deepcopy
from dataclasses import dataclass, field

import jsonpatch
import pytest

from tests.webhook.builders import OURS, Cluster, applied, card, container, ours, pod
from webhook.admission import FOREIGN_SCHEDULER, Verdict
from webhook.wire import JsonObject


@dataclass
class Row:
    given: JsonObject
    after: JsonObject
    nvidia: dict[str, object] = field(default_factory=dict)
    settings: dict[str, object] = field(default_factory=dict)
    message: str = ""


def env(**values: str) -> list[JsonObject]:
    return [{"name": name, "value": value} for name, value in values.items()]


def gpu_only_in(kind: str, **values: object) -> JsonObject:
    return {"name": "main", "resources": {kind: {f"nvidia.com/{key}": value for key, value in values.items()}}}


CHANGES = {
    "a whole card becomes exclusive": Row(pod(container(gpu=1)), ours(container(gpu=1, gpucores="100"))),
    "two whole cards": Row(pod(container(gpu=2)), ours(container(gpu=2, gpucores="100"))),
    "a share of memory stays shared": Row(pod(container(gpu=1, gpumem=3000)), ours(container(gpu=1, gpumem=3000))),
    "half of two cards stays shared": Row(
        pod(container(gpu=2, gpumem_percentage=50)), ours(container(gpu=2, gpumem_percentage=50))
    ),
    "all memory by percentage is a whole card": Row(
        pod(container(gpu=1, gpumem_percentage=100)), ours(container(gpu=1, gpumem_percentage=100, gpucores="100"))
    ),
    "memory alone means one card": Row(pod(container(gpumem=3000)), ours(container(gpu="1", gpumem=3000))),
    "compute alone means one card": Row(pod(container(gpucores=30)), ours(container(gpu="1", gpucores=30))),
    "the default count comes from the device config": Row(
        pod(container(gpumem=3000)), ours(container(gpu="2", gpumem=3000)), {"defaultGPUNum": 2}
    ),
    "without a default count memory alone is no device": Row(
        pod(container(gpumem=3000)), pod(container(gpumem=3000)), {"defaultGPUNum": 0}
    ),
    "memory 0 counts as not given": Row(
        pod(container(gpu=1, gpumem=0)), ours(container(gpu=1, gpumem=0, gpucores="100"))
    ),
    "percentage 0 counts as not given": Row(
        pod(container(gpu=1, gpumem_percentage=0)), ours(container(gpu=1, gpumem_percentage=0, gpucores="100"))
    ),
    "a default memory makes a count a share": Row(
        pod(container(gpu=1)), ours(container(gpu=1)), {"defaultMemory": 2000}
    ),
    "default cores do not take whole cards apart": Row(
        pod(container(gpu=1)), ours(container(gpu=1, gpucores="100")), {"defaultCores": 30}
    ),
    "a count in requests alone still gets the compute default": Row(
        pod(gpu_only_in("requests", gpu=1)),
        ours(
            {"name": "main", "resources": {"requests": {"nvidia.com/gpu": 1}, "limits": {"nvidia.com/gpucores": "100"}}}
        ),
    ),
    "count and memory in requests alone are left": Row(
        pod(gpu_only_in("requests", gpu=1, gpumem=10)), pod(gpu_only_in("requests", gpu=1, gpumem=10))
    ),
    "no count is added where requests have one": Row(
        pod({"name": "x", "resources": {"requests": {"nvidia.com/gpu": 2}, "limits": {"nvidia.com/gpucores": 30}}}),
        ours({"name": "x", "resources": {"requests": {"nvidia.com/gpu": 2}, "limits": {"nvidia.com/gpucores": 30}}}),
    ),
    "init containers too": Row(
        pod(container("x"), init=(container("i0", gpu=1),)),
        pod(container("x"), init=(container("i0", gpu=1, gpucores="100"),), schedulerName=OURS),
    ),
    "priority becomes a variable after the user's own": Row(
        pod(container(gpu=1, gpumem=10, priority=0, env=env(CUDA_TASK_PRIORITY="7"))),
        ours(container(gpu=1, gpumem=10, priority=0, env=[*env(CUDA_TASK_PRIORITY="7"), *env(CUDA_TASK_PRIORITY="0")])),
    ),
    "a variable that already says so is not added": Row(
        pod(container(gpu=1, gpumem=10, priority=1, env=env(CUDA_TASK_PRIORITY="1"))),
        ours(container(gpu=1, gpumem=10, priority=1, env=env(CUDA_TASK_PRIORITY="1"))),
    ),
    "the core policy goes to device containers alone": Row(
        pod(container("x", gpu=1, gpumem=10), container("side")),
        ours(container("x", gpu=1, gpumem=10, env=env(GPU_CORE_UTILIZATION_POLICY="force")), container("side")),
        {"gpuCorePolicy": "force"},
    ),
    "cards are hidden from containers that ask for none": Row(
        pod(container("x", gpu=1, gpumem=10), container("side")),
        ours(container("x", gpu=1, gpumem=10), container("side", env=env(NVIDIA_VISIBLE_DEVICES="none"))),
        {"overwriteEnv": True},
    ),
    "cards are hidden in plain pods too, which stay with their scheduler": Row(
        pod(container()), pod(container(env=env(NVIDIA_VISIBLE_DEVICES="none"))), {"overwriteEnv": True}
    ),
    "the runtime class is set": Row(
        pod(container(gpu=1, gpumem=10)),
        ours(container(gpu=1, gpumem=10), runtimeClassName="nvidia"),
        {"runtimeClassName": "nvidia"},
    ),
    "a runtime class of the user's own stays": Row(
        pod(container(gpu=1, gpumem=10), runtimeClassName="kata"),
        ours(container(gpu=1, gpumem=10), runtimeClassName="kata"),
        {"runtimeClassName": "nvidia"},
    ),
    "renamed resources": Row(
        pod(container(resources={"limits": {"example.com/vgpu": 1}})),
        ours(container(resources={"limits": {"example.com/vgpu": 1, "nvidia.com/gpucores": "100"}})),
        {"resourceCountName": "example.com/vgpu"},
    ),
    "default-scheduler is replaced": Row(
        pod(container(gpu=1, gpumem=10), schedulerName="default-scheduler"), ours(container(gpu=1, gpumem=10))
    ),
    "default-scheduler is kept where that is the setting": Row(
        pod(container(gpu=1), schedulerName="default-scheduler"),
        pod(container(gpu=1), schedulerName="default-scheduler"),
        settings={"force_overwrite_default_scheduler": False},
        message=FOREIGN_SCHEDULER,
    ),
    "a plain pod keeps default-scheduler": Row(
        pod(container(), schedulerName="default-scheduler"), pod(container(), schedulerName="default-scheduler")
    ),
    "another scheduler's pod is left alone": Row(
        pod(container(gpu=1), schedulerName="volcano"),
        pod(container(gpu=1), schedulerName="volcano"),
        message=FOREIGN_SCHEDULER,
    ),
    "another scheduler's pod is left alone even with values nobody can use": Row(
        pod(container(gpu=1, gpumem="16Gi"), schedulerName="volcano"),
        pod(container(gpu=1, gpumem="16Gi"), schedulerName="volcano"),
        message=FOREIGN_SCHEDULER,
    ),
    "no scheduler name configured": Row(
        pod(container(gpu=1, gpumem=10), nodeName="n1"),
        pod(container(gpu=1, gpumem=10), nodeName="n1"),
        settings={"scheduler_name": ""},
    ),
    "a labelled pod is left alone": Row(
        pod(container(gpu=1), labels={"hami.io/webhook": "ignore"}),
        pod(container(gpu=1), labels={"hami.io/webhook": "ignore"}),
    ),
    "another value of the label is none": Row(
        pod(container(gpu=1, gpumem=10), labels={"hami.io/webhook": "yes"}),
        ours(container(gpu=1, gpumem=10), labels={"hami.io/webhook": "yes"}),
    ),
    "a privileged plain pod": Row(
        pod(container(securityContext={"privileged": True})), pod(container(securityContext={"privileged": True}))
    ),
    "keys of the system are removed": Row(
        pod(
            container(gpu=1, gpumem=10),
            annotations={
                "keep": "me",
                "hami.io/bind-phase": "success",
                "hami.io/bind-time": "1",
                "hami.io/vgpu-devices-allocated": "GPU-a,NVIDIA,1,0:;",
                "hami.io/vgpu-devices-to-allocate": "GPU-a,NVIDIA,1,0:;",
                "hami.io/vgpu-mig-allocations": "[]",
                "hami.io/vgpu-node": "n9",
                "hami.io/vgpu-time": "1",
            },
            labels={"app": "x", "hami.io/vgpu-node": "n9"},
        ),
        ours(container(gpu=1, gpumem=10), annotations={"keep": "me"}, labels={"app": "x"}),
    ),
    "unknown fields survive": Row(
        pod(container(gpu=1, image="x", notYet=[1]), notYetInvented={"a": [1]}),
        ours(container(gpu=1, gpucores="100", image="x", notYet=[1]), notYetInvented={"a": [1]}),
    ),
    "null is as good as absent": Row(
        {
            "metadata": {"annotations": None},
            "spec": {"containers": [gpu_only_in("limits", gpucores=3) | {"env": None}]},
        },
        {
            "metadata": {"annotations": None},
            "spec": {
                "schedulerName": OURS,
                "containers": [
                    {
                        "name": "main",
                        "resources": {"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpucores": 3}},
                        "env": env(GPU_CORE_UTILIZATION_POLICY="force"),
                    }
                ],
            },
        },
        {"gpuCorePolicy": "force"},
    ),
}


def checked(given: JsonObject, verdict: Verdict) -> JsonObject:
    """The pod after the patch, as the API server makes it; it must be the one that was judged."""
    after = applied(given, verdict.patch)
    assert after == verdict.pod
    return after


@pytest.mark.parametrize("row", CHANGES.values(), ids=CHANGES)
def test_what_is_changed(row: Row) -> None:
    before = deepcopy(row.given)
    admission = Cluster(row.nvidia, **row.settings).admission
    verdict = admission.mutate(row.given, "default")
    assert (verdict.allowed, verdict.message, verdict.code) == (True, row.message, 200)
    assert checked(row.given, verdict) == row.after
    assert row.given == before
    again = admission.mutate(verdict.pod, "default")
    assert (again.allowed, again.patch) == (True, [])
    assert admission.drop_in(row.given, "default") == verdict


@dataclass
class Refused:
    given: JsonObject
    message: str
    code: int = 403
    reason: str = ""


GOOD = {"gpu": 1, "gpumem": 10}
PRIVILEGED = {"securityContext": {"privileged": True}}
BETWEEN = "must be an integer between 0 and"

REFUSALS = {
    "no containers": Refused(pod(), "pod has no containers", reason="no-containers"),
    "no spec at all": Refused({"metadata": {"name": "a"}}, "pod has no containers", reason="no-containers"),
    "privileged": Refused(pod(container("x", **GOOD, **PRIVILEGED)), "container x is privileged", reason="privileged"),
    "privileged beside a device container": Refused(
        pod(container("x", **GOOD), container("side", **PRIVILEGED)),
        "container side is privileged",
        reason="privileged",
    ),
    "privileged init container named first": Refused(
        pod(container("x", **GOOD, **PRIVILEGED), init=(container("i0", **PRIVILEGED),)),
        "container i0 is privileged",
        reason="privileged",
    ),
    "privileged with devices in requests alone": Refused(
        pod(gpu_only_in("requests", gpu=1, gpumem=10) | PRIVILEGED), "container main is privileged", reason="privileged"
    ),
    "privileged before node name": Refused(
        pod(container("x", **GOOD, **PRIVILEGED), nodeName="n1"), "container x is privileged", reason="privileged"
    ),
    "node name": Refused(pod(container(**GOOD), nodeName="n1"), "pod has node assigned", reason="node-name"),
    "percentage above 100": Refused(
        pod(container("trainer", gpu=1, gpumem_percentage=101)),
        f"invalid nvidia.com/gpumem-percentage value 101 in container trainer: {BETWEEN} 100",
        422,
        "malformed",
    ),
    "percentage below 0 in an init container": Refused(
        pod(container("x"), init=(container("i0", gpu=1, gpumem_percentage=-1),)),
        f"invalid nvidia.com/gpumem-percentage value -1 in container i0: {BETWEEN} 100",
        422,
        "malformed",
    ),
    "memory with a suffix that makes it too large": Refused(
        pod(container("x", gpu=1, gpumem="16Gi")),
        f"invalid nvidia.com/gpumem value 16Gi in container x: {BETWEEN} 2147483647",
        422,
        "malformed",
    ),
    "half a MiB": Refused(
        pod(container("x", gpu=1, gpumem="1500m")),
        f"invalid nvidia.com/gpumem value 1500m in container x: {BETWEEN} 2147483647",
        422,
        "malformed",
    ),
    "half a card": Refused(
        pod(container("x", gpu="500m")),
        f"invalid nvidia.com/gpu value 500m in container x: {BETWEEN} 2147483647",
        422,
        "malformed",
    ),
    "negative compute": Refused(
        pod(container("x", gpu=1, gpucores=-1)),
        f"invalid nvidia.com/gpucores value -1 in container x: {BETWEEN} 2147483647",
        422,
        "malformed",
    ),
    "a priority that is no number": Refused(
        pod(container("x", gpu=1, priority="high")),
        f"invalid nvidia.com/priority value high in container x: {BETWEEN} 2147483647",
        422,
        "malformed",
    ),
    "another kind": Refused({"kind": "Service"}, "object is not a Pod: its kind is Service", 400, "not-a-pod"),
    "containers of a wrong shape": Refused(
        {"spec": {"containers": {}}},
        "object is not a Pod: Expected `array | null`, got `object` - at `$.spec.containers`",
        400,
        "not-a-pod",
    ),
    "env of a wrong shape": Refused(
        pod(container(gpu=1, priority=1, env={})),
        "object is not a Pod: env of a container must be a list",
        400,
        "not-a-pod",
    ),
}


@pytest.mark.parametrize("row", REFUSALS.values(), ids=REFUSALS)
def test_what_is_refused(row: Refused) -> None:
    before = deepcopy(row.given)
    verdict = Cluster().admission.mutate(row.given, "default")
    assert (verdict.allowed, verdict.message, verdict.code, verdict.reason) == (
        False,
        row.message,
        row.code,
        row.reason,
    )
    assert (verdict.patch, row.given) == ([], before)


def test_only_creating_is_mutated() -> None:
    verdict = Cluster().admission.mutate(pod(), "default", operation="UPDATE")
    assert (verdict.allowed, verdict.patch) == (True, [])


def test_quota_waits_for_validate_unless_told_otherwise() -> None:
    given = pod(container(gpu=1, gpumem=500))
    assert Cluster().quota(gpumem=100).admission.mutate(given, "default").allowed
    for verdict in (
        Cluster(quota_in_webhook=True).quota(gpumem=100).admission.mutate(given, "default"),
        Cluster().quota(gpumem=100).admission.drop_in(given, "default"),
    ):
        assert (verdict.allowed, verdict.code, verdict.reason, verdict.patch) == (False, 403, "quota", [])
        assert verdict.message == (
            "exceeding resource quota: default/q limits.nvidia.com/gpumem: asked 500, used 0, limit 100 (400 too many)"
        )


def test_quota_of_another_scheduler_s_pod_is_not_checked() -> None:
    given = pod(container(gpu=1, gpumem=500), schedulerName="volcano")
    verdict = Cluster().quota(gpumem=100).admission.drop_in(given, "default")
    assert (verdict.allowed, verdict.message) == (True, FOREIGN_SCHEDULER)


def test_a_position_is_tested_before_it_is_changed() -> None:
    """Somebody put a container in front meanwhile: the patch must not land in the wrong one."""
    given = pod(container("x", gpu=1), schedulerName="default-scheduler")
    patch = Cluster().admission.mutate(given, "default").patch
    assert patch == [
        {"op": "test", "path": "/spec/containers/0/name", "value": "x"},
        {"op": "add", "path": "/spec/containers/0/resources/limits/nvidia.com~1gpucores", "value": "100"},
        {"op": "test", "path": "/spec/schedulerName", "value": "default-scheduler"},
        {"op": "replace", "path": "/spec/schedulerName", "value": OURS},
    ]
    with pytest.raises(jsonpatch.JsonPatchTestFailed):
        applied(pod(container("sidecar"), container("x", gpu=1), schedulerName="default-scheduler"), patch)


def test_two_variables_of_one_container_need_one_guard() -> None:
    given = pod(container("x", gpu=1, gpumem=10, priority=1))
    patch = Cluster({"gpuCorePolicy": "disable"}).admission.mutate(given, "default").patch
    assert patch == [
        {"op": "test", "path": "/spec/containers/0/name", "value": "x"},
        {"op": "add", "path": "/spec/containers/0/env", "value": [{"name": "CUDA_TASK_PRIORITY", "value": "1"}]},
        {
            "op": "add",
            "path": "/spec/containers/0/env/-",
            "value": {"name": "GPU_CORE_UTILIZATION_POLICY", "value": "disable"},
        },
        {"op": "add", "path": "/spec/schedulerName", "value": OURS},
    ]


WARNED = {
    "compute above a card": (
        pod(container(gpu=1, gpumem=5, gpucores=150)),
        "container main: nvidia.com/gpucores 150 counts as 100, one whole card",
    ),
    "memory 0": (pod(container(gpu=1, gpumem=0)), "container main: nvidia.com/gpumem 0 counts as not given"),
    "percentage 0": (
        pod(container(gpu=1, gpumem_percentage=0)),
        "container main: nvidia.com/gpumem-percentage 0 counts as not given",
    ),
    "more cards than any node has": (
        pod(container(gpu=3, gpumem=5)),
        "container main asks for 3 NVIDIA cards, the largest node has 2",
    ),
    "a key that is nearly ours": (
        pod(container(gpu=1, gpumem=5), annotations={"hami.io/gpu-schedular-policy": "binpack"}),
        "annotation hami.io/gpu-schedular-policy has no effect, did you mean hami.io/gpu-scheduler-policy?",
    ),
    "a key of the family's that nobody reads": (
        pod(container(gpu=1, gpumem=5), annotations={"nvidia.com/colour": "red"}),
        "annotation nvidia.com/colour has no effect",
    ),
    "our prefix in a plain pod": (
        pod(container(), annotations={"hami.io/what": "x"}),
        "annotation hami.io/what has no effect",
    ),
    "the label as an annotation": (
        pod(container(gpu=1, gpumem=5), annotations={"hami.io/webhook": "ignore"}),
        "annotation hami.io/webhook has no effect: it is a label",
    ),
    "an unknown node policy": (
        pod(container(gpu=1, gpumem=5), annotations={"hami.io/node-scheduler-policy": "Spread"}),
        "hami.io/node-scheduler-policy: Spread is unknown and acts as binpack; known are binpack, spread",
    ),
    "an unknown word in a chain of card policies": (
        pod(container(gpu=1, gpumem=5), annotations={"hami.io/gpu-scheduler-policy": "numa, numa-first"}),
        "hami.io/gpu-scheduler-policy: numa-first is unknown and ignored;"
        " known are binpack, spread, numa, mutex, topology-aware",
    ),
    "weights that cannot be used": (
        pod(container(gpu=1, gpumem=5), annotations={"hami.io/device-scoring-weights": "slot=1"}),
        "the pod will not be placed: invalid hami.io/device-scoring-weights annotation"
        ' "slot=1": expected slot, core, and memory weights',
    ),
}


@pytest.mark.parametrize(("given", "warning"), WARNED.values(), ids=WARNED)
def test_warnings(given: JsonObject, warning: str) -> None:
    cluster = Cluster().node("n1", card("GPU-a")).node("n2", card("GPU-b"), card("GPU-c", index=1))
    verdict = cluster.admission.mutate(given, "default")
    assert (verdict.allowed, verdict.warnings) == (True, (warning,))
    if verdict.patch:
        assert cluster.admission.validate(verdict.pod, "default").warnings == (warning,)


SILENT = {
    "good values": {"hami.io/gpu-scheduler-policy": " numa , binpack ", "hami.io/node-scheduler-policy": "spread"},
    "blank policies": {"hami.io/gpu-scheduler-policy": "", "hami.io/node-scheduler-policy": " "},
    "the family's own": {"nvidia.com/use-gputype": "T4", "nvidia.com/vgpu-mode": "mig"},
    "others' annotations": {"example.com/hami.io": "x", "hami.example/x": "y"},
}


@pytest.mark.parametrize("annotations", SILENT.values(), ids=SILENT)
def test_no_warning(annotations: dict[str, str]) -> None:
    assert (
        Cluster().admission.mutate(pod(container(gpu=9, gpumem=5), annotations=annotations), "default").warnings == ()
    )


def test_foreign_prefix_in_a_plain_pod_is_no_business_of_ours() -> None:
    assert Cluster().admission.mutate(pod(container(), annotations={"nvidia.com/x": "y"}), "default").warnings == ()
