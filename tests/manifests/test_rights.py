"""Manifests against the code, both ways: the shipped ones fit exactly, and every right taken away or added is named."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from manifests.families import Families
from manifests.kustomize import overlays, render
from manifests.rights import AccountRights, compare

Document = dict[str, Any]
RENDERED = render("ha", Families())


def rights(change: Callable[[list[Document]], object]) -> dict[str, AccountRights]:
    documents: list[Document] = copy.deepcopy(RENDERED)
    change(documents)
    return {account.name: account for account in compare(documents)}


@pytest.mark.parametrize("overlay", sorted(set(overlays()) - {"hami-drop-in"}))
def test_shipped_manifests_give_what_is_needed_and_nothing_else(overlay: str) -> None:
    accounts = compare(render(overlay, Families()))
    assert {account.name for account in accounts} == {"slotwise-scheduler", "slotwise-webhook"}
    for account in accounts:
        assert (account.missing, account.too_much) == ((), ()), account.name
        assert account.needed


def role(documents: list[Document], kind: str, name: str) -> list[Document]:
    (found,) = [one for one in documents if one["kind"] == kind and one["metadata"]["name"] == name]
    rules: list[Document] = found["rules"]
    return rules


def without(kind: str, name: str, resource: str, verb: str) -> Callable[[list[Document]], None]:
    def change(documents: list[Document]) -> None:
        for rule in role(documents, kind, name):
            if resource in rule["resources"] and verb in rule["verbs"]:
                rule["verbs"] = [one for one in rule["verbs"] if one != verb]
                return
        raise AssertionError(f"no rule has {verb} {resource}")

    return change


MISSING = {
    "no Binding": (
        without("ClusterRole", "slotwise-scheduler", "pods/binding", "create"),
        "slotwise-scheduler",
        "create pods/binding",
    ),
    "no watch on nodes": (
        without("ClusterRole", "slotwise-webhook", "nodes", "watch"),
        "slotwise-webhook",
        "watch nodes",
    ),
    "no record of admissions": (
        without("Role", "slotwise-webhook", "configmaps", "patch"),
        "slotwise-webhook",
        "patch configmaps in namespace slotwise-system",
    ),
    "no caBundle": (
        without("ClusterRole", "slotwise-webhook", "mutatingwebhookconfigurations", "patch"),
        "slotwise-webhook",
        "patch mutatingwebhookconfigurations.admissionregistration.k8s.io slotwise",
    ),
    "no Lease for kube-scheduler": (
        without("Role", "slotwise-scheduler", "leases", "update"),
        "slotwise-scheduler",
        "update leases.coordination.k8s.io slotwise-scheduler in namespace slotwise-system",
    ),
}


@pytest.mark.parametrize(("change", "account", "text"), MISSING.values(), ids=MISSING)
def test_a_right_that_is_missing_is_named(change: Callable[[list[Document]], None], account: str, text: str) -> None:
    assert text in [str(one) for one in rights(change)[account].missing]


def adding(kind: str, name: str, **rule: list[str]) -> Callable[[list[Document]], None]:
    return lambda documents: role(documents, kind, name).append({"apiGroups": [""], **rule})


def bound_to(name: str) -> Callable[[list[Document]], None]:
    subject = {"kind": "ServiceAccount", "name": "slotwise-webhook", "namespace": "slotwise-system"}
    binding = {
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "more"},
        "roleRef": {"kind": "ClusterRole", "name": name},
        "subjects": [subject],
    }
    return lambda documents: documents.append(binding)


TOO_MUCH = {
    "reading every Secret": (
        adding("ClusterRole", "slotwise-webhook", resources=["secrets"], verbs=["get"]),
        "get secrets",
    ),
    "deleting pods": (
        adding("ClusterRole", "slotwise-webhook", resources=["pods"], verbs=["delete"]),
        "delete pods",
    ),
    "a wildcard": (
        adding("Role", "slotwise-webhook", resources=["*"], verbs=["*"]),
        "* * in namespace slotwise-system",
    ),
    "everywhere what is needed in one namespace": (
        adding("ClusterRole", "slotwise-webhook", resources=["configmaps"], verbs=["patch"]),
        "patch configmaps",
    ),
    "all Secrets of the namespace": (
        adding("Role", "slotwise-webhook", resources=["secrets"], verbs=["update"]),
        "update secrets in namespace slotwise-system",
    ),
    "a role from elsewhere": (
        bound_to("cluster-admin"),
        "everything that the role cluster-admin allows, whose rules are not in these manifests",
    ),
    "kube-scheduler's role for who runs none": (
        bound_to("system:kube-scheduler"),
        "everything that the role system:kube-scheduler allows, whose rules are not in these manifests",
    ),
}


@pytest.mark.parametrize(("change", "text"), TOO_MUCH.values(), ids=TOO_MUCH)
def test_a_right_too_much_is_named(change: Callable[[list[Document]], None], text: str) -> None:
    found = rights(change)
    assert text in found["slotwise-webhook"].too_much
    assert found["slotwise-scheduler"].is_right


def test_flags_decide_what_is_needed() -> None:
    def annotate(documents: list[Document]) -> None:
        for one in documents:
            if one["kind"] == "Deployment" and one["metadata"]["name"] == "slotwise-webhook":
                one["spec"]["template"]["spec"]["containers"][0]["args"].append("--quota-annotation=true")

    assert [str(one) for one in rights(annotate)["slotwise-webhook"].missing] == ["patch resourcequotas"]
