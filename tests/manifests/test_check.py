"""`--check`: whatever an API server, kube-scheduler or our processes would not take is found, and the path to it is right."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import pytest
import yaml

from manifests.check import PARTIAL, problems
from manifests.documents import Document
from manifests.errors import ManifestError
from manifests.kustomize import overlays
from manifests.schemas import load, minors
from manifests.settings import rendered

NEWEST = minors()[0]
Yaml = Any
"""A document to be spoilt: the tests reach deep into it."""


@pytest.fixture(scope="module")
def everything() -> Sequence[Document]:
    return rendered("cert-manager", {"service-monitor": "true"}).documents


def said(documents: Sequence[Document], minor: str = NEWEST, *, partial: bool = False) -> list[str]:
    return [str(problem) for problem in problems(documents, load(minor), partial=partial)]


@pytest.mark.parametrize("minor", minors())
@pytest.mark.parametrize("overlay", sorted(overlays()))
def test_nothing_is_wrong_with_an_overlay(overlay: str, minor: str) -> None:
    assert said(rendered(overlay, {}).documents, minor, partial=overlay in PARTIAL) == []


def test_the_kinds_of_operators_are_checked_too(everything: Sequence[Document]) -> None:
    assert said(everything) == []
    assert {"ServiceMonitor", "Certificate", "Issuer"} <= {str(document["kind"]) for document in everything}


def deployment(found: Yaml) -> Yaml:
    return found["Deployment slotwise-scheduler"]["spec"]["template"]["spec"]


def configuration(found: Yaml, change: Callable[[Yaml], object]) -> None:
    data = found["ConfigMap slotwise-kube-scheduler"]["data"]
    document = yaml.safe_load(data["kube-scheduler.yaml"])
    change(document)
    data["kube-scheduler.yaml"] = yaml.safe_dump(document)


SCHEDULER = "Deployment slotwise-system/slotwise-scheduler: spec.template.spec"
CONFIGURATION = "ConfigMap slotwise-system/slotwise-kube-scheduler: data['kube-scheduler.yaml']"
MUTATIONS: dict[str, tuple[Callable[[Yaml], object], str]] = {
    "an unknown field": (
        lambda f: deployment(f)["containers"][0].update(imagePullPolice="Always"),
        f"{SCHEDULER}.containers[0].imagePullPolice: unknown field (did you mean imagePullPolicy?)",
    ),
    "a wrong type": (
        lambda f: f["Deployment slotwise-webhook"]["spec"].update(replicas="two"),
        "Deployment slotwise-system/slotwise-webhook: spec.replicas: str 'two': expected integer",
    ),
    "a missing field": (
        lambda f: deployment(f)["containers"][1].pop("name"),
        f"{SCHEDULER}.containers[1].name: missing, and required",
    ),
    "a word that is none": (
        lambda f: deployment(f)["containers"][1].update(imagePullPolicy="Sometimes"),
        f"{SCHEDULER}.containers[1].imagePullPolicy: str 'Sometimes' is not accepted: expected Always, IfNotPresent, Never",
    ),
    "a number for a label": (
        lambda f: f["Namespace slotwise-system"]["metadata"]["labels"].update({"a.b/c": 1}),
        "Namespace slotwise-system: metadata.labels['a.b/c']: int '1': expected string",
    ),
    "metadata of a custom resource": (
        lambda f: f["Certificate slotwise-webhook"]["metadata"].update(label={}),
        "Certificate slotwise-system/slotwise-webhook: metadata.label: unknown field (did you mean labels?)",
    ),
    "a custom resource": (
        lambda f: f["ServiceMonitor slotwise-webhook"]["spec"]["endpoints"][0].update(honourLabels=True),
        "ServiceMonitor slotwise-system/slotwise-webhook: spec.endpoints[0].honourLabels: unknown field"
        " (did you mean honorLabels?)",
    ),
    "a webhook": (
        lambda f: f["ValidatingWebhookConfiguration slotwise"]["webhooks"][0].pop("sideEffects"),
        "ValidatingWebhookConfiguration slotwise: webhooks[0].sideEffects: missing, and required",
    ),
    "a policy": (
        lambda f: f["ValidatingAdmissionPolicy slotwise"]["spec"].update(failurePolicies="Fail"),
        "ValidatingAdmissionPolicy slotwise: spec.failurePolicies: unknown field (did you mean failurePolicy?)",
    ),
    "a rule": (
        lambda f: f["ClusterRole slotwise-webhook"]["rules"][0].pop("verbs"),
        "ClusterRole slotwise-webhook: rules[0].verbs: missing, and required",
    ),
    "a number for a quantity's text is fine, a list is not": (
        lambda f: deployment(f)["containers"][0]["resources"]["requests"].update(cpu=["1"]),
        f"{SCHEDULER}.containers[0].resources.requests.cpu: list \"['1']\": expected string or number",
    ),
    "another kind": (
        lambda f: f["Namespace slotwise-system"].update(kind="Namespaces"),
        "Namespaces slotwise-system: no schema of v1 Namespaces is kept for Kubernetes",
    ),
    "a removed version": (
        lambda f: f["PodDisruptionBudget slotwise-webhook"].update(apiVersion="policy/v1beta1"),
        "no schema of policy/v1beta1 PodDisruptionBudget is kept",
    ),
    "a flag": (
        lambda f: deployment(f)["containers"][1]["args"].append("--node-locks=auto"),
        f"{SCHEDULER}.containers[1].args: ",
    ),
    "a flag's value": (
        lambda f: f["Deployment slotwise-webhook"]["spec"]["template"]["spec"]["containers"][0]["args"].append(
            "--quota-counts=all"
        ),
        "slotwise-webhook: spec.template.spec.containers[0].args: --quota-counts: 'all' is not accepted",
    ),
    "a mount of nothing": (
        lambda f: deployment(f)["volumes"].pop(0),
        f"{SCHEDULER}.containers[0].volumeMounts[0].name: no volume 'kube-scheduler-config' in this pod",
    ),
    "labels that the selector does not find": (
        lambda f: f["Deployment slotwise-webhook"]["spec"]["template"]["metadata"]["labels"].pop(
            "app.kubernetes.io/name"
        ),
        "slotwise-webhook: spec.template.metadata.labels['app.kubernetes.io/name']: expected slotwise",
    ),
    "kube-scheduler's unknown field": (
        lambda f: configuration(f, lambda c: c["extenders"][0].update(bindVerbs="bind")),
        f"{CONFIGURATION}: extenders[0].bindVerbs: unknown field (did you mean bindVerb?)",
    ),
    "kube-scheduler's wrong type": (
        lambda f: configuration(f, lambda c: c.update(percentageOfNodesToScore="100")),
        f"{CONFIGURATION}: percentageOfNodesToScore: str '100': expected integer",
    ),
    "kube-scheduler's Lease": (
        lambda f: configuration(f, lambda c: c["leaderElection"].update(leaseDuration="10s")),
        f"{CONFIGURATION}: leaderElection.leaseDuration: 10 s is not above renewDeadline, 10 s",
    ),
    "two that bind": (
        lambda f: configuration(f, lambda c: c["extenders"].append(dict(c["extenders"][0]))),
        f"{CONFIGURATION}: extenders: only one extender may have a bindVerb",
    ),
    "scores without weight": (
        lambda f: configuration(f, lambda c: c["extenders"][0].update(prioritizeVerb="prioritize", weight=0)),
        f"{CONFIGURATION}: extenders[0].weight: expected more than 0 beside prioritizeVerb",
    ),
    "kube-scheduler's file is no YAML": (
        lambda f: f["ConfigMap slotwise-kube-scheduler"]["data"].update({"kube-scheduler.yaml": "a: ["}),
        f"{CONFIGURATION}: kube-scheduler.yaml: not YAML",
    ),
    "an unknown key of a family": (
        lambda f: f["ConfigMap slotwise-device-config"]["data"].update(
            {"device-config.yaml": "nvidia: {memoryFacter: 1}"}
        ),
        "slotwise-device-config: data['device-config.yaml']: line 1: unknown key nvidia.memoryFacter",
    ),
    "a value of a family": (
        lambda f: f["ConfigMap slotwise-device-config"]["data"].update(
            {"device-config.yaml": "nvidia: {memoryFactor: x}"}
        ),
        "slotwise-device-config: data['device-config.yaml']: line 1: nvidia.memoryFactor: Expected `int`, got `str`",
    ),
}


@pytest.mark.parametrize(("change", "expected"), MUTATIONS.values(), ids=MUTATIONS)
def test_one_mistake_is_one_problem_at_its_place(
    everything: Sequence[Document], change: Callable[[Yaml], object], expected: str
) -> None:
    spoilt: Yaml = deepcopy(list(everything))
    change({f"{document['kind']} {document['metadata']['name']}": document for document in spoilt})
    [problem] = said(spoilt)
    assert expected in problem


def test_what_is_null_counts_as_not_given(everything: Sequence[Document]) -> None:
    documents: Yaml = deepcopy(list(everything))
    for document in documents:
        document["metadata"]["annotations"] = None
    assert said(documents) == []


def test_an_object_twice_is_wrong(everything: Sequence[Document]) -> None:
    assert said([*everything, everything[0]]) == ["Namespace slotwise-system: stands twice"]


def test_a_part_of_an_object_may_leave_out_what_is_required_but_has_no_unknown_fields() -> None:
    part: Yaml = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "x"},
        "spec": {"template": {"spec": {"containers": [{"name": "a", "imag": "b"}]}}},
    }
    assert said([part], partial=True) == [
        "Deployment x: spec.template.spec.containers[0].imag: unknown field (did you mean image?)"
    ]
    assert len(said([part])) == 2


def test_what_does_not_say_what_it_is_cannot_be_checked() -> None:
    with pytest.raises(ManifestError, match="document 1: kind: expected a text, got nothing"):
        said([{"apiVersion": "v1", "metadata": {"name": "x"}}])


def test_an_unknown_minor_names_those_there_are() -> None:
    with pytest.raises(ManifestError, match=rf"no schemas of Kubernetes '1\.2' here: there are {NEWEST}"):
        load("1.2")
