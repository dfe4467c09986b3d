"""A sound installation as the doctor reads it: the shipped manifests, their pods ready, certificates that match, two nodes with cards."""

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import msgspec

from certs.pki import Pair, create_ca, issue_serving
from cli.doctor.facts import Facts, Probe
from cli.doctor.objects import (
    ConfigMap,
    EndpointSlice,
    Lease,
    Pod,
    Policy,
    PolicyBinding,
    Service,
    WebhookConfiguration,
    Workload,
)
from devices.config import default_config
from devices.ledger import Ledger
from devices.objects import node_of
from manifests.families import Families
from manifests.kustomize import render
from tests.builders import REGISTER, card, registration

NOW = datetime(2026, 8, 1, 6, 0, tzinfo=UTC)
NAMESPACE = "slotwise-system"
HOST = f"slotwise-webhook.{NAMESPACE}.svc"

Document = dict[str, Any]


@cache
def pairs() -> tuple[Pair, Pair]:
    """The CA and the serving certificate it signed."""
    authority = create_ca("a CA", now=NOW - timedelta(days=1), days=3650)
    return authority, issue_serving(authority, [HOST], now=NOW - timedelta(days=1), days=90)


@cache
def _rendered() -> bytes:
    return msgspec.json.encode(render("ha", Families()))


def documents() -> list[Document]:
    """What `slotwise manifests ha` installs, with the caBundle that the keeper writes."""
    authority, _ = pairs()
    found: list[Document] = msgspec.json.decode(_rendered())
    for one in found:
        for webhook in one.get("webhooks", ()):
            webhook["clientConfig"]["caBundle"] = b64encode(authority.certificate_pem()).decode()
    return found


def _pods(deployment: Document) -> Iterator[Document]:
    template, name = deployment["spec"]["template"], deployment["metadata"]["name"]
    for number in range(deployment["spec"]["replicas"]):
        labels = {**template["metadata"]["labels"]}
        if name == "slotwise-scheduler":
            labels["hami.io/scheduler-role"] = "follower" if number else "leader"
        yield {
            "metadata": {"name": f"{name}-{number}", "namespace": NAMESPACE, "labels": labels},
            "spec": template["spec"],
            "status": {
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": [{"name": c["name"], "ready": True} for c in template["spec"]["containers"]],
            },
        }


def _of(found: Sequence[Document], kind: str) -> dict[str, Document]:
    return {one["metadata"]["name"]: one for one in found if one["kind"] == kind}


def live_objects() -> list[Document]:
    """What others make of the manifests: pods, endpoints, the Lease, nodes with cards."""
    deployments = _of(documents(), "Deployment").values()
    pods: list[Document] = [{"kind": "Pod", **pod} for deployment in deployments for pod in _pods(deployment)]
    return [*pods, {"kind": "EndpointSlice", **_slice()}, {"kind": "Lease", **_lease()}, *_nodes()]


def _slice() -> Document:
    labels = {"kubernetes.io/service-name": "slotwise-webhook"}
    endpoints = [{"addresses": ["10.0.0.1"], "conditions": {"ready": True}}]
    return {"metadata": {"name": "s", "namespace": NAMESPACE, "labels": labels}, "endpoints": endpoints}


def _lease() -> Document:
    return {
        "metadata": {"name": "slotwise-scheduler", "namespace": NAMESPACE},
        "spec": {
            "holderIdentity": "slotwise-scheduler-0_8f14e45f",
            "renewTime": "2026-08-01T05:59:58.000000Z",
            "leaseDurationSeconds": 15,
        },
    }


def _nodes() -> Iterator[Document]:
    for name in ("n1", "n2"):
        annotations = {REGISTER: registration(card(f"GPU-{name}"))}
        yield {
            "kind": "Node",
            "metadata": {"name": name, "uid": f"uid-{name}", "annotations": annotations},
            "status": {"allocatable": {"nvidia.com/gpu": "10"}},
        }


def sound() -> Facts:
    """Facts in which every check finds all well."""
    return facts_of(documents())


def facts_of(found: Sequence[Document], **changes: Any) -> Facts:
    """The facts of an installation of these objects; `changes` replace what is not in manifests."""
    deployments = _of(found, "Deployment")
    policies = _of(found, "ValidatingAdmissionPolicy")
    pods = [pod for deployment in deployments.values() for pod in _pods(deployment)]
    ledger = Ledger(default_config())
    for one in _nodes():
        ledger.put_node(node_of(one))
    authority, serving = pairs()
    facts = Facts(
        namespace=NAMESPACE,
        now=NOW,
        server_time=NOW,
        version="v1.37.2",
        deployments=_into(deployments, Workload),
        pods=[msgspec.convert(pod, Pod) for pod in pods],
        services=_into(_of(found, "Service"), Service),
        slices=[msgspec.convert(_slice(), EndpointSlice)],
        config_maps=_into(_of(found, "ConfigMap"), ConfigMap),
        leases={"slotwise-scheduler": msgspec.convert(_lease(), Lease)},
        certificates_pem={"ca.crt": authority.certificate_pem(), "tls.crt": serving.certificate_pem()},
        mutating=list(_into(_of(found, "MutatingWebhookConfiguration"), WebhookConfiguration).values()),
        validating=list(_into(_of(found, "ValidatingWebhookConfiguration"), WebhookConfiguration).values()),
        policies=_into(policies, Policy),
        policy_texts=policies,
        policy_bindings=list(_into(_of(found, "ValidatingAdmissionPolicyBinding"), PolicyBinding).values()),
        ledger=ledger,
        probes={
            "plain": Probe({"spec": {"schedulerName": "default-scheduler"}}),
            "device": Probe({"spec": {"schedulerName": "hami-scheduler"}}),
            "privileged": Probe(None, 403, "privileged"),
            "forged": Probe(None, 422, "not yours"),
        },
        reviews={"slotwise-webhook": {"list pods": True}, "slotwise-scheduler": {"patch nodes": True}},
    )
    return replace(facts, **changes)


def _into(found: Mapping[str, Document], kind: type[Any]) -> dict[str, Any]:
    return {name: msgspec.convert(one, kind) for name, one in found.items()}
