"""Whatever a pod looks like: the patch leads exactly to the mutated pod, touches our paths only, and leads nowhere twice."""

import re
from copy import deepcopy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devices.objects import Pod
from devices.vendor import Vendor
from tests.webhook.builders import Cluster, applied
from tests.webhook.builders import container as container_of
from tests.webhook.builders import pod as pod_of_one
from webhook.admission import FOREIGN_SCHEDULER, Admission
from webhook.validators import RefusalReason
from webhook.wire import JsonObject

PROTECTED = ("hami.io/vgpu-node", "hami.io/vgpu-time", "hami.io/bind-phase", "hami.io/vgpu-devices-allocated")
RESOURCES = (
    "nvidia.com/gpu",
    "nvidia.com/gpumem",
    "nvidia.com/gpumem-percentage",
    "nvidia.com/gpucores",
    "nvidia.com/priority",
    "cpu",
)
VARIABLES = ("CUDA_TASK_PRIORITY", "GPU_CORE_UTILIZATION_POLICY", "NVIDIA_VISIBLE_DEVICES", "A")

texts = st.text(max_size=5)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
unknown = st.dictionaries(st.sampled_from(["x-new", "~odd/key", "é"]), json_values, max_size=2)


def objects(optional: dict[str, st.SearchStrategy[object]]) -> st.SearchStrategy[JsonObject]:
    """Objects with any of the fields, each possibly null, and fields nobody knows."""
    nullable = {key: st.none() | value for key, value in optional.items()}
    return st.builds(lambda known, more: {**more, **known}, st.fixed_dictionaries({}, optional=nullable), unknown)


amounts = st.sampled_from([0, 1, "1", 2, 30, "50", 100, "100", "1k", 150])
quantities = st.dictionaries(st.sampled_from(RESOURCES), amounts, max_size=4)
containers = st.builds(
    lambda name, rest: {**({} if name is None else {"name": name}), **rest},
    st.none() | st.sampled_from(["main", "a/b", "c~d"]),
    objects(
        {
            "resources": objects({"limits": quantities, "requests": quantities}),
            "env": st.lists(
                st.fixed_dictionaries(
                    {"name": st.sampled_from(VARIABLES)}, optional={"value": st.sampled_from(["0", "none", "force"])}
                ),
                max_size=3,
            ),
            "securityContext": objects({"privileged": st.booleans()}),
        }
    ),
)
annotations = st.dictionaries(st.sampled_from([*PROTECTED, "keep", "nvidia.com/use-gputype"]), texts, max_size=4)
pods = st.builds(
    lambda metadata, spec, listed, more: {**more, "metadata": metadata, "spec": {**spec, "containers": listed}},
    objects({"annotations": annotations, "labels": annotations, "name": texts, "generateName": texts}),
    objects(
        {
            "initContainers": st.lists(containers, max_size=2),
            "schedulerName": st.sampled_from(["", "default-scheduler", "hami-scheduler", "volcano"]),
            "runtimeClassName": st.sampled_from(["", "kata"]),
            "nodeName": st.sampled_from(["", "n1"]),
        }
    ),
    st.lists(containers, min_size=1, max_size=3),
    unknown,
)
configs = st.fixed_dictionaries(
    {},
    optional={
        "overwriteEnv": st.booleans(),
        "gpuCorePolicy": st.sampled_from(["default", "force"]),
        "runtimeClassName": st.sampled_from(["", "nvidia"]),
        "defaultGPUNum": st.integers(0, 2),
        "defaultMemory": st.sampled_from([0, 500]),
        "defaultCores": st.sampled_from([0, 30]),
    },
)

OURS = re.compile(
    r"/metadata/(annotations|labels)/hami\.io~1[a-z-]+"
    r"|/spec/(schedulerName|runtimeClassName)"
    r"|/spec/(initContainers|containers)/\d+/(env(/-)?|resources|resources/limits|resources/limits/nvidia\.com~1(gpu|gpucores))"
)


def without_ours(pod: JsonObject) -> JsonObject:
    """The pod less what we may write: the rest must be as it came."""
    rest = deepcopy(pod)
    for kind in ("annotations", "labels"):
        held = rest["metadata"].get(kind) or {}  # type: ignore[attr-defined] # a JSON object, whose values have no type of their own
        for key in PROTECTED if kind == "annotations" else PROTECTED[:1]:
            held.pop(key, None)
    spec = rest["spec"]
    assert isinstance(spec, dict)
    for key in ("schedulerName", "runtimeClassName"):
        spec.pop(key, None)
    for container in (*(spec.get("initContainers") or ()), *spec["containers"]):
        container.pop("env", None)
        (container.get("resources") or {}).pop("limits", None)
        if not container.get("resources"):
            container.pop("resources", None)
    return rest


def all_containers(pod: JsonObject) -> list[JsonObject]:
    spec = pod["spec"]
    assert isinstance(spec, dict)
    return [*(spec.get("initContainers") or ()), *spec["containers"]]


def limits_of(container: JsonObject) -> JsonObject:
    resources = container.get("resources")
    limits = resources.get("limits") if isinstance(resources, dict) else None
    return limits if isinstance(limits, dict) else {}


@given(pod=pods, nvidia=configs)
@settings(max_examples=300, deadline=None)
def test_the_patch_is_the_mutation(pod: JsonObject, nvidia: dict[str, object]) -> None:
    admission = Cluster(nvidia).admission
    before = deepcopy(pod)
    verdict = admission.mutate(pod, "default")
    assert pod == before
    assert applied(pod, verdict.patch) == verdict.pod
    for operation in verdict.patch:
        if operation["op"] != "test":
            assert OURS.fullmatch(operation["path"]), operation
    assert any(operation["op"] != "test" for operation in verdict.patch) is (verdict.pod != pod)

    assert without_ours(verdict.pod) == without_ours(pod)
    for old, new in zip(all_containers(pod), all_containers(verdict.pod), strict=True):
        env_before, env_after = old.get("env") or [], new.get("env") or []
        assert env_after[: len(env_before)] == env_before  # type: ignore[index, arg-type]  # raw JSON of pods
        assert limits_of(old).items() <= limits_of(new).items()

    again = admission.mutate(verdict.pod, "default")
    assert (again.allowed, again.message, again.patch) == (verdict.allowed, verdict.message, [])


@given(pod=pods, nvidia=configs)
@settings(max_examples=200, deadline=None)
def test_what_webhook_let_through_validate_lets_through(pod: JsonObject, nvidia: dict[str, object]) -> None:
    """Except device pods that `/webhook` does not take over: those stay with another scheduler, and never become ours."""
    admission = Cluster(nvidia).admission
    mutated = admission.mutate(pod, "default")
    final = admission.validate(mutated.pod, "default")
    if not mutated.allowed:
        assert not final.allowed
    elif mutated.message == FOREIGN_SCHEDULER:
        assert final.reason in (None, RefusalReason.SCHEDULER, RefusalReason.FORGED)
    else:
        spec = mutated.pod["spec"]
        assert isinstance(spec, dict)
        takes_over = spec.get("schedulerName") == "hami-scheduler"
        # `/webhook` does not take over pods that ask in requests only; `/validate` minds where those go, too.
        stricter = (RefusalReason.NODE_NAME,) if takes_over else (RefusalReason.NODE_NAME, RefusalReason.SCHEDULER)
        assert final.reason in (None, *stricter)


class Thorough(Admission):
    """Takes no pod for plain."""

    def _is_plain(self, pod: Pod, managed: tuple[str, ...]) -> bool:
        return False


plain_names = st.sampled_from(["cpu", "memory", "example.com/gpu", "nvidia.com/gpu.product", "nvidia.com/gpu"])
plain_keys = st.sampled_from(
    ["app", "example.org/owner", "nvidia.com/note", "hami.io/webhook", "hami.io/vgpu-nod", "hami.io/vgpu-node"]
)
plain_words = st.dictionaries(plain_keys, st.sampled_from(["", "ignore", "x"]), max_size=2)
plain_containers = st.builds(
    lambda limits, requests, rest: {"name": "main", "resources": {"limits": limits, "requests": requests}, **rest},
    st.dictionaries(plain_names, amounts, max_size=2),
    st.dictionaries(plain_names, amounts, max_size=2),
    objects({"securityContext": objects({"privileged": st.booleans()}), "env": st.just("no list")}),
)
hardly_ours = st.builds(
    lambda annotations, labels, spec, listed: {
        "metadata": {"annotations": annotations, "labels": labels},
        "spec": {**spec, "containers": listed},
    },
    plain_words,
    plain_words,
    objects(
        {
            "initContainers": st.lists(plain_containers, max_size=1),
            "schedulerName": st.sampled_from(["", "default-scheduler", "hami-scheduler", "volcano", 7]),
            "nodeName": st.sampled_from(["", "n1"]),
        }
    ),
    st.lists(plain_containers | st.just({"name": 7}), max_size=2),
)


@given(
    pod=hardly_ours | pods,
    overwrite=st.booleans(),
    counts=st.sampled_from(["placed", "admitted"]),
    ours=st.sampled_from(["hami-scheduler", ""]),
    limited=st.booleans(),
)
@settings(max_examples=600, deadline=None)
def test_what_passes_for_plain_is_answered_as_if_judged_in_full(
    pod: JsonObject, overwrite: bool, counts: str, ours: str, limited: bool
) -> None:
    cluster = Cluster({"overwriteEnv": overwrite}, quota_counts=counts, scheduler_name=ours, quota_in_webhook=True)
    if limited:
        cluster.quota(gpu=0)
    thorough = Thorough(cluster.settings, cluster.config, cluster.ledger)
    for quick, full in (
        (cluster.admission.mutate, thorough.mutate),
        (cluster.admission.drop_in, thorough.drop_in),
        (cluster.admission.validate, thorough.validate),
    ):
        assert quick(pod, "default") == full(pod, "default")


def test_most_pods_are_plain_and_ask_no_family(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cost each of them a look by every family at every container."""
    asked: list[str] = []
    monkeypatch.setattr(Vendor, "admit", lambda vendor, container: asked.append(vendor.key))
    admission = Cluster().admission
    assert admission.mutate(pod_of_one(container_of()), "default").allowed
    assert asked == []
    admission.mutate(pod_of_one(container_of(gpu=1)), "default")
    assert asked == ["NVIDIA"]
