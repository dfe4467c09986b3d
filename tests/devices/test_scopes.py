"""Which pods a quota covers, and what that does to limits and usage."""

from typing import Any

import pytest

from devices.ledger import Ledger
from devices.model import Charge
from devices.objects import Pod, Quota, pod_of, quota_of
from devices.quota import Limit, quota_problems
from devices.scopes import ScopeFacts, covers, facts_of, scope_of
from tests.builders import card, container_document, node, nvidia_config

MEMORY = "nvidia.com/gpumem"


def a_pod(name: str = "p", memory: int = 1000, status: Any = None, namespace: str = "default", **spec: Any) -> Pod:
    containers = [container_document(gpu=1, gpumem=memory)]
    return pod_of(
        {
            "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}", "resourceVersion": "5"},
            "spec": {"containers": containers, **spec},
            "status": status or {},
        }
    )


def a_quota(name: str = "q", memory: Any = 3000, scopes: Any = None, *expressions: tuple[str, str, list[str]]) -> Quota:
    spec: dict[str, Any] = {"hard": {f"limits.{MEMORY}": memory}}
    if scopes:
        spec["scopes"] = scopes
    if expressions:
        spec["scopeSelector"] = {
            "matchExpressions": [{"scopeName": s, "operator": o, "values": v} for s, o, v in expressions]
        }
    return quota_of({"metadata": {"name": name, "namespace": "default"}, "spec": spec})


def cpu(kind: str, value: str, **more: Any) -> Any:
    return {"containers": [{"name": "main", "resources": {kind: {"cpu": value}}}], **more}


TERM = {"topologyKey": "zone"}
FACTS: dict[str, tuple[Any, ScopeFacts]] = {
    "nothing set": ({}, ScopeFacts(best_effort=True)),
    "priority class": ({"priorityClassName": "high"}, ScopeFacts("high", best_effort=True)),
    "a deadline, even of 0": ({"activeDeadlineSeconds": 0}, ScopeFacts(terminating=True, best_effort=True)),
    "cpu requested": (cpu("requests", "1m"), ScopeFacts()),
    "cpu limit of 0 is best effort": (cpu("limits", "0"), ScopeFacts(best_effort=True)),
    "an init container's request counts": (
        {"initContainers": [{"name": "i", "resources": {"requests": {"memory": "1Mi"}}}]},
        ScopeFacts(),
    ),
    "resources of the pod": ({"resources": {"requests": {"cpu": "1"}}}, ScopeFacts()),
    "affinity at home": (
        {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [TERM]}}},
        ScopeFacts(best_effort=True),
    ),
    "affinity to a named namespace": (
        {
            "affinity": {
                "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{**TERM, "namespaces": ["b"]}]}
            }
        },
        ScopeFacts(best_effort=True, cross_namespace=True),
    ),
    "preferred anti-affinity to all namespaces": (
        {
            "affinity": {
                "podAntiAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [
                        {"weight": 1, "podAffinityTerm": {**TERM, "namespaceSelector": {}}}
                    ]
                }
            }
        },
        ScopeFacts(best_effort=True, cross_namespace=True),
    ),
}


@pytest.mark.parametrize(("spec", "facts"), FACTS.values(), ids=FACTS)
def test_facts_of_a_pod(spec: Any, facts: ScopeFacts) -> None:
    assert facts_of(a_pod(**spec)) == facts


def test_the_qos_class_that_the_server_has_written_counts() -> None:
    assert not facts_of(a_pod(status={"qosClass": "Burstable"})).best_effort


CLASS = "PriorityClass"
COVERS: dict[str, tuple[Quota, ScopeFacts, bool]] = {
    "no scope": (a_quota(), ScopeFacts(), True),
    "Terminating": (a_quota("q", 1, ["Terminating"]), ScopeFacts(terminating=True), True),
    "Terminating, no deadline": (a_quota("q", 1, ["Terminating"]), ScopeFacts(), False),
    "NotTerminating": (a_quota("q", 1, ["NotTerminating"]), ScopeFacts(), True),
    "BestEffort": (a_quota("q", 1, ["BestEffort"]), ScopeFacts(best_effort=True), True),
    "NotBestEffort": (a_quota("q", 1, ["NotBestEffort"]), ScopeFacts(best_effort=True), False),
    "cross namespace": (a_quota("q", 1, ["CrossNamespacePodAffinity"]), ScopeFacts(cross_namespace=True), True),
    "all must hold": (a_quota("q", 1, ["Terminating", "NotBestEffort"]), ScopeFacts(terminating=True), True),
    "one does not hold": (
        a_quota("q", 1, ["Terminating", "NotBestEffort"]),
        ScopeFacts(terminating=True, best_effort=True),
        False,
    ),
    "the scope PriorityClass: any class": (a_quota("q", 1, [CLASS]), ScopeFacts("x"), True),
    "the scope PriorityClass: none": (a_quota("q", 1, [CLASS]), ScopeFacts(), False),
    "In": (a_quota("q", 1, None, (CLASS, "In", ["a", "b"])), ScopeFacts("b"), True),
    "In, another": (a_quota("q", 1, None, (CLASS, "In", ["a"])), ScopeFacts("b"), False),
    "In, no class": (a_quota("q", 1, None, (CLASS, "In", ["a"])), ScopeFacts(), False),
    "NotIn": (a_quota("q", 1, None, (CLASS, "NotIn", ["a"])), ScopeFacts("b"), True),
    "NotIn, no class": (a_quota("q", 1, None, (CLASS, "NotIn", ["a"])), ScopeFacts(), True),
    "DoesNotExist": (a_quota("q", 1, None, (CLASS, "DoesNotExist", [])), ScopeFacts(), True),
    "of volumes, not of pods": (a_quota("q", 1, ["VolumeAttributesClass"]), ScopeFacts(), False),
    "unknown": (a_quota("q", 1, ["Lunar"]), ScopeFacts(), False),
}


@pytest.mark.parametrize(("quota", "facts", "covered"), COVERS.values(), ids=COVERS)
def test_what_a_quota_covers(quota: Quota, facts: ScopeFacts, covered: bool) -> None:
    assert covers(scope_of(quota), facts) is covered


def test_a_scoped_quota_limits_and_counts_only_its_own_pods() -> None:
    ledger = Ledger(nvidia_config(), quota_counts="admitted")
    ledger.put_node(node("n", card("GPU-a")))
    ledger.put_quota(a_quota("all", 9000))
    ledger.put_quota(a_quota("high", 3000, None, (CLASS, "In", ["high"])))
    ledger.put_pod(a_pod("plain", 5000), 0)
    ledger.put_pod(a_pod("high", 2000, priorityClassName="high"), 0)
    everyone, high = ledger.standings("default", ScopeFacts("high", best_effort=True))
    assert (everyone.limits, everyone.used) == ({MEMORY: Limit(9000, "all")}, {"NVIDIA": Charge(7000, 0, 2)})
    assert (high.limits, high.used) == ({MEMORY: Limit(3000, "high")}, {"NVIDIA": Charge(2000, 0, 1)})
    (alone,) = ledger.standings("default", ScopeFacts(best_effort=True))
    assert alone.limits == {MEMORY: Limit(9000, "all")}
    assert ledger.limits("default") == {MEMORY: Limit(9000, "all")}


def test_a_deadline_set_later_moves_the_pod_to_another_quota() -> None:
    ledger = Ledger(nvidia_config(), quota_counts="admitted")
    ledger.put_quota(a_quota("q", 9000, ["Terminating"]))
    terminating = scope_of(a_quota("q", 1, ["Terminating"]))
    ledger.put_pod(a_pod(), 0)
    assert ledger.used("default", terminating) == {}
    ledger.put_pod(a_pod(activeDeadlineSeconds=60), 0)
    assert ledger.used("default", terminating) == {"NVIDIA": Charge(1000, 0, 1)}
    ledger.delete_pod("uid-p")
    assert (ledger.used("default", terminating), ledger.used("default")) == ({}, {})


def test_everything_not_understood_is_named() -> None:
    ledger = Ledger(nvidia_config())
    quota = a_quota("q", "1.5", ["Lunar"])
    other = quota_of(
        {"metadata": {"name": "o", "namespace": "default"}, "spec": {"hard": {"limits.nvidia.com/gpumen": 1, "cpu": 2}}}
    )
    assert quota_problems(quota, ledger.quota_names) == (
        "ResourceQuota default/q: limits.nvidia.com/gpumem: '1.5' is not a whole number and limits nothing",
        "ResourceQuota default/q: scope Lunar Exists is not known: the quota limits no pod",
    )
    assert quota_problems(other, ledger.quota_names) == (
        "ResourceQuota default/o: limits.nvidia.com/gpumen is not known and limits nothing; known are"
        " limits.nvidia.com/gpu, limits.nvidia.com/gpucores, limits.nvidia.com/gpumem",
    )


# Counting from creation on


def test_admitted_counts_a_pod_from_its_creation_at_the_smallest_card_and_then_by_its_real_one() -> None:
    ledger = Ledger(nvidia_config(), quota_counts="admitted")
    whole = pod_of(
        {
            "metadata": {"name": "w", "namespace": "default", "uid": "uid-w", "resourceVersion": "5"},
            "spec": {"containers": [container_document(gpu=2, percentage=50)]},
        }
    )
    ledger.put_pod(whole, 0)
    assert ledger.used("default") == {"NVIDIA": Charge(0, 0, 2)}
    ledger.put_node(node("n", card("GPU-a"), card("GPU-b")))
    assert ledger.used("default") == {"NVIDIA": Charge(15360, 0, 2)}
    ledger.put_node(node("m", card("GPU-c", memory_mib=8000)))
    assert ledger.used("default") == {"NVIDIA": Charge(8000, 0, 2)}
    assert ledger.charged("uid-w") is not None
    ledger.delete_node("m")
    assert ledger.used("default") == {"NVIDIA": Charge(15360, 0, 2)}
    ledger.delete_pod("uid-w")
    assert (ledger.used("default"), ledger.charged("uid-w"), ledger.namespaces()) == ({}, None, ())


def test_placed_counts_nothing_before_there_are_cards() -> None:
    ledger = Ledger(nvidia_config())
    ledger.put_pod(a_pod(), 0)
    assert (ledger.used("default"), ledger.charged("uid-p")) == ({}, None)


def test_the_pod_that_is_judged_is_not_another() -> None:
    ledger = Ledger(nvidia_config(), quota_counts="admitted")
    ledger.put_quota(a_quota())
    ledger.put_pod(a_pod("a", 1000), 0)
    ledger.put_pod(a_pod("b", 500), 0)
    (standing,) = ledger.standings("default", ScopeFacts(best_effort=True), without="uid-a")
    assert standing.used == {"NVIDIA": Charge(500, 0, 1)}


def test_shown_pods_are_remembered_after_their_end() -> None:
    ledger = Ledger(nvidia_config(), quota_counts="admitted")
    assert ledger.shown("uid-p") is None
    ledger.put_pod(a_pod(), 0)
    assert ledger.shown("uid-p") == 5
    ledger.delete_pod("uid-p")
    assert ledger.shown("uid-p") == 5
    ledger.put_pod(a_pod("done", status={"phase": "Succeeded"}), 0)
    assert (ledger.shown("uid-done"), ledger.charged("uid-done")) == (5, None)
