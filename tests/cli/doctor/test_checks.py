"""Each check: quiet on a sound installation, and the right one loud, with a repair, where one link is broken."""

import re
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from certs.pki import create_ca, issue_serving
from cli.doctor.checks import CHECKS, examine
from cli.doctor.facts import Facts, Probe, Unread
from cli.doctor.findings import Finding, Level
from cli.doctor.objects import Lease, Pod, WebhookConfiguration, Workload
from devices.config import default_config
from devices.ledger import Ledger
from manifests.settings import SETTINGS
from tests.builders import card, node
from tests.cli.doctor.installation import HOST, NOW, Document, documents, facts_of, sound

ROOT = Path(__file__).parents[3]


def test_nothing_is_found_wrong_with_a_sound_installation() -> None:
    findings = examine(sound())
    assert [finding for finding in findings if finding.level is not Level.OK] == []
    assert len({finding.check for finding in findings}) == len(CHECKS)


def loud(facts: Facts) -> dict[str, Finding]:
    """What is not well, by check."""
    return {finding.check: finding for finding in examine(facts) if finding.level is not Level.OK}


# --- an object of the manifests changed or gone ---


def changed(kind: str, change: Callable[[Document], object], name: str = "") -> Callable[[], Facts]:
    def facts() -> Facts:
        found = documents()
        hit = [one for one in found if one["kind"] == kind and (not name or one["metadata"]["name"] == name)]
        assert hit, f"no {kind} {name} in the manifests"
        for one in hit:
            change(one)
        return facts_of(found)

    return facts


def gone(kind: str, name: str = "") -> Callable[[], Facts]:
    def facts() -> Facts:
        found = documents()
        left = [one for one in found if one["kind"] != kind or (name and one["metadata"]["name"] != name)]
        assert len(left) < len(found), f"no {kind} {name} in the manifests"
        return facts_of(left)

    return facts


def in_text(old: str, new: str, key: str = "kube-scheduler.yaml") -> Callable[[Document], None]:
    def change(config_map: Document) -> None:
        assert old in config_map["data"][key], f"{old!r} is not in {key}"
        config_map["data"][key] = config_map["data"][key].replace(old, new)

    return change


def in_args(container: str, old: str, new: str) -> Callable[[Document], None]:
    def change(deployment: Document) -> None:
        (found,) = [c for c in deployment["spec"]["template"]["spec"]["containers"] if c["name"] == container]
        text = "\n".join(found["args"])
        assert old in text, f"{old!r} is not in {text}"
        found["args"] = [line for line in text.replace(old, new).split("\n") if line]

    return change


def first_hook(**fields: Any) -> Callable[[Document], None]:
    return lambda configuration: configuration["webhooks"][0].update(fields)


def image(container: str, name: str) -> Callable[[Document], None]:
    def change(deployment: Document) -> None:
        for found in deployment["spec"]["template"]["spec"]["containers"]:
            if found["name"] == container:
                found["image"] = name

    return change


def bundle(configuration: Document) -> None:
    other = create_ca("another CA", now=NOW - timedelta(days=1), days=10)
    for webhook in configuration["webhooks"]:
        webhook["clientConfig"]["caBundle"] = b64encode(other.certificate_pem()).decode()


SCHEDULER_CONFIG = ("ConfigMap", "slotwise-kube-scheduler")

BROKEN: dict[str, tuple[Callable[[], Facts], str, str]] = {
    "no webhook Deployment": (gone("Deployment", "slotwise-webhook"), "webhook-pods", "there is no Deployment"),
    "webhook scaled to 0": (
        changed("Deployment", lambda one: one["spec"].update(replicas=0), "slotwise-webhook"),
        "webhook-pods",
        "scaled to 0",
    ),
    "no Service": (gone("Service", "slotwise-webhook"), "webhook-service", "there is no Service"),
    "Service without the port that is called": (
        changed("Service", lambda one: one["spec"].update(ports=[{"port": 8443}]), "slotwise-webhook"),
        "webhook-service",
        "name port 443",
    ),
    "no endpoint": (lambda: facts_of(documents(), slices=()), "webhook-service", "no ready endpoint"),
    "no mutating configuration": (gone("MutatingWebhookConfiguration"), "mutating-webhook", "there is no Mutating"),
    "mutating fails closed": (
        changed("MutatingWebhookConfiguration", first_hook(failurePolicy="Fail")),
        "mutating-webhook",
        "no pod of the cluster can be created",
    ),
    "no validating configuration": (gone("ValidatingWebhookConfiguration"), "validating-webhook", "there is no Valid"),
    "validating fails open": (
        changed("ValidatingWebhookConfiguration", first_hook(failurePolicy="Ignore")),
        "validating-webhook",
        "device pods pass unchecked",
    ),
    "validating does not cover pods": (
        changed("ValidatingWebhookConfiguration", lambda one: [hook.update(rules=[]) for hook in one["webhooks"]]),
        "validating-webhook",
        "no rule of slotwise covers",
    ),
    "another path": (
        changed(
            "MutatingWebhookConfiguration",
            lambda one: one["webhooks"][0]["clientConfig"]["service"].update(path="/mutate"),
        ),
        "mutating-webhook",
        "calls /mutate",
    ),
    "caBundle of another CA": (
        changed("MutatingWebhookConfiguration", bundle),
        "ca-bundle",
        "not signed by any CA in the caBundle of vgpu.hami.io",
    ),
    "no caBundle": (
        changed(
            "ValidatingWebhookConfiguration",
            lambda one: [hook["clientConfig"].pop("caBundle") for hook in one["webhooks"]],
        ),
        "ca-bundle",
        "has no caBundle",
    ),
    "unreadable caBundle": (
        changed(
            "MutatingWebhookConfiguration",
            lambda one: [hook["clientConfig"].update(caBundle="AAAA") for hook in one["webhooks"]],
        ),
        "ca-bundle",
        "cannot be read",
    ),
    "no policy": (gone("ValidatingAdmissionPolicy"), "admission-policy", "there is no ValidatingAdmissionPolicy"),
    "no binding": (gone("ValidatingAdmissionPolicyBinding"), "admission-policy", "it does nothing"),
    "binding that only warns": (
        changed("ValidatingAdmissionPolicyBinding", lambda one: one["spec"].update(validationActions=["Warn"])),
        "admission-policy",
        "it does nothing",
    ),
    "no parameters": (gone("ConfigMap", "slotwise-policy"), "admission-policy", "are not there"),
    "scheduler not listed": (
        changed("ConfigMap", lambda one: one.update(data={"keyWriters": "nobody"}), "slotwise-policy"),
        "admission-policy",
        "do not list system:serviceaccount:slotwise-system:slotwise-scheduler",
    ),
    "policy of another version": (
        changed("ValidatingAdmissionPolicy", lambda one: one["spec"].update(validations=[], variables=[])),
        "admission-policy",
        "does not protect",
    ),
    "no kube-scheduler configuration": (gone(*SCHEDULER_CONFIG), "scheduler-configuration", "there is no ConfigMap"),
    "unreadable kube-scheduler configuration": (
        changed("ConfigMap", lambda one: one["data"].update({"kube-scheduler.yaml": "a: [b"}), SCHEDULER_CONFIG[1]),
        "scheduler-configuration",
        "cannot be read",
    ),
    "a managed resource missing": (
        changed("ConfigMap", in_text("name: nvidia.com/gpumem,", "name: example.com/other,"), SCHEDULER_CONFIG[1]),
        "scheduler-configuration",
        "managedResources lack nvidia.com/gpumem",
    ),
    "extender at another port": (
        changed("ConfigMap", in_text(":8888", ":9999"), SCHEDULER_CONFIG[1]),
        "scheduler-configuration",
        "is not where the extender listens",
    ),
    "no bind verb": (
        changed("ConfigMap", in_text("bindVerb: bind", "bindVerb: ''"), SCHEDULER_CONFIG[1]),
        "scheduler-configuration",
        "no extender with filterVerb",
    ),
    "another scheduler name": (
        changed("ConfigMap", in_text("schedulerName: hami-scheduler", "schedulerName: other"), SCHEDULER_CONFIG[1]),
        "scheduler-configuration",
        "gives pods the scheduler hami-scheduler",
    ),
    "another Lease": (
        changed("ConfigMap", in_text("resourceName: slotwise-scheduler", "resourceName: other"), SCHEDULER_CONFIG[1]),
        "scheduler-configuration",
        "it never leads",
    ),
    "two replicas, no election": (
        changed("Deployment", in_args("extender", "--leader-elect=true", ""), "slotwise-scheduler"),
        "scheduler-configuration",
        "cards can be given twice",
    ),
    "some nodes only": (
        changed(
            "ConfigMap", in_text("percentageOfNodesToScore: 100", "percentageOfNodesToScore: 50"), SCHEDULER_CONFIG[1]
        ),
        "scheduler-configuration",
        "percentageOfNodesToScore is 50",
    ),
    "an unknown flag": (
        changed("Deployment", in_args("extender", "--node-lock=auto", "--nodelock=auto"), "slotwise-scheduler"),
        "scheduler-configuration",
        "--nodelock=auto",
    ),
    "device configuration that cannot be used": (
        changed(
            "ConfigMap", lambda one: one["data"].update({"device-config.yaml": "nvidia: 1"}), "slotwise-device-config"
        ),
        "scheduler-configuration",
        "the device configuration cannot be used",
    ),
    "kube-scheduler newer than the API server": (
        changed("Deployment", image("kube-scheduler", "registry.k8s.io/kube-scheduler:v1.38.0"), "slotwise-scheduler"),
        "scheduler-version",
        "does not go with",
    ),
    "kube-scheduler two minors older": (
        changed("Deployment", image("kube-scheduler", "registry.k8s.io/kube-scheduler:v1.35.1"), "slotwise-scheduler"),
        "scheduler-version",
        "does not go with",
    ),
    "an image without a version": (
        changed("Deployment", image("kube-scheduler", "ours/kube-scheduler:stable"), "slotwise-scheduler"),
        "scheduler-version",
        "tells no version",
    ),
}


@pytest.mark.parametrize(("facts", "check", "text"), BROKEN.values(), ids=BROKEN)
def test_a_broken_object_is_named_with_its_repair(facts: Callable[[], Facts], check: str, text: str) -> None:
    found = loud(facts())
    assert check in found, found
    assert text in found[check].text
    assert found[check].repair


# --- what is not in manifests ---


def having(**changes: Any) -> Callable[[], Facts]:
    return lambda: replace(sound(), **changes)


def pods(change: Callable[[Document], None], component: str) -> Callable[[], Facts]:
    def facts() -> Facts:
        found = [msgspec.to_builtins(pod) for pod in sound().pods]
        for pod in found:
            if pod["metadata"]["labels"]["app.kubernetes.io/component"] == component:
                change(pod)
        return replace(sound(), pods=[msgspec.convert(pod, Pod) for pod in found])

    return facts


def crashing(container: str) -> Callable[[Document], None]:
    def change(pod: Document) -> None:
        pod["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
        for status in pod["status"]["containerStatuses"]:
            if status["name"] == container:
                status["ready"] = False
                status["state"] = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off restarting"}}

    return change


def lease(**spec: object) -> Callable[[], Facts]:
    def facts() -> Facts:
        before = sound().leases["slotwise-scheduler"]
        whole = {**msgspec.to_builtins(before.spec), **spec}
        after = msgspec.convert({"metadata": {"name": before.name}, "spec": whole}, Lease)
        return replace(sound(), leases={before.name: after})

    return facts


def nodes(*found: Any) -> Callable[[], Facts]:
    def facts() -> Facts:
        ledger = Ledger(default_config())
        for one in found:
            ledger.put_node(one)
        return replace(sound(), ledger=ledger)

    return facts


def probe(name: str, answer: Probe) -> Callable[[], Facts]:
    return lambda: replace(sound(), probes={**sound().probes, name: answer})


def refused(message: str) -> Callable[[], Facts]:
    return probe("device", Probe(None, 500, message))


def workload(name: str, container_image: str, **status: int) -> Workload:
    template = {"spec": {"containers": [{"name": "main", "image": container_image}]}}
    metadata = {"name": name, "namespace": "elsewhere"}
    return msgspec.convert({"metadata": metadata, "spec": {"template": template}, "status": status}, Workload)


def waiting(scheduler: str, message: str = "") -> Pod:
    conditions = [{"type": "PodScheduled", "status": "False", "message": message}] if message else []
    document = {"metadata": {"name": "w"}, "spec": {"schedulerName": scheduler}, "status": {"conditions": conditions}}
    return msgspec.convert(document, Pod)


def certificate(days: int, started_days_ago: int = 1, host: str = HOST) -> Callable[[], Facts]:
    def facts() -> Facts:
        now = NOW - timedelta(days=started_days_ago)
        authority = create_ca("a CA", now=now, days=3650)
        found = documents()
        for webhook in (hook for one in found for hook in one.get("webhooks", ())):
            webhook["clientConfig"]["caBundle"] = b64encode(authority.certificate_pem()).decode()
        serving = issue_serving(authority, [host], now=now, days=days)
        return facts_of(found, certificates_pem={"tls.crt": serving.certificate_pem()})

    return facts


def hami(name: str) -> Sequence[WebhookConfiguration]:
    document = {"metadata": {"name": name}, "webhooks": [{"name": "vgpu.hami.io"}]}
    return (*sound().mutating, msgspec.convert(document, WebhookConfiguration))


FORGED = Probe({"metadata": {"annotations": {"hami.io/vgpu-devices-allocated": "GPU-a,NVIDIA,1,1:;"}}})
OLD_LOCK = {"hami.io/mutex.lock": "2026-08-01T05:00:00Z,team-a,trainer"}

SEEN: dict[str, tuple[Callable[[], Facts], str, Level, str]] = {
    "an old Kubernetes": (having(version="v1.33.4"), "api-server", Level.PROBLEM, "older than 1.34"),
    "a Kubernetes not tried yet": (having(version="v1.38.0"), "api-server", Level.WARNING, "newer than 1.37"),
    "no version": (having(version="main"), "api-server", Level.UNKNOWN, "cannot be read"),
    "our clock ahead": (having(now=NOW + timedelta(seconds=90)), "clock", Level.PROBLEM, "90 s ahead"),
    "our clock behind": (having(now=NOW - timedelta(seconds=90)), "clock", Level.PROBLEM, "90 s behind"),
    "no server time": (having(server_time=None), "clock", Level.UNKNOWN, "no answer"),
    "webhook crashing": (pods(crashing("webhook"), "webhook"), "webhook-pods", Level.PROBLEM, "CrashLoopBackOff"),
    "extender crashing": (pods(crashing("extender"), "scheduler"), "extender", Level.PROBLEM, "back-off restarting"),
    "kube-scheduler crashing": (
        pods(crashing("kube-scheduler"), "scheduler"),
        "scheduler-pods",
        Level.PROBLEM,
        "container kube-scheduler",
    ),
    "leader not labelled": (
        pods(lambda pod: pod["metadata"]["labels"].pop("hami.io/scheduler-role"), "scheduler"),
        "leader",
        Level.WARNING,
        "has not taken over",
    ),
    "nobody holds the Lease": (lease(holderIdentity=""), "leader", Level.PROBLEM, "nobody holds"),
    "a Lease not renewed": (lease(renewTime="2026-08-01T05:00:00Z"), "leader", Level.PROBLEM, "was last renewed"),
    "a stranger holds the Lease": (
        lease(holderIdentity="slotwise-scheduler-01_x"),
        "leader",
        Level.PROBLEM,
        "none of our pods",
    ),
    "no Lease": (having(leases={}), "leader", Level.PROBLEM, "nobody holds"),
    "certificate expired": (certificate(5, 20), "expiry", Level.PROBLEM, "expired at"),
    "certificate about to expire": (certificate(90, 88), "expiry", Level.WARNING, "has not been renewed"),
    "certificate for another host": (
        certificate(90, host="webhook.elsewhere.svc"),
        "ca-bundle",
        Level.PROBLEM,
        f"and not {HOST}",
    ),
    "no certificate yet": (having(certificates_pem={}), "ca-bundle", Level.UNKNOWN, "has no tls.crt yet"),
    "HAMi's webhook too": (having(mutating=hami("hami-webhook")), "other-admission", Level.WARNING, "hami-webhook"),
    "plain pods refused": (probe("plain", Probe(None, 500, "no")), "plain-pod", Level.PROBLEM, "refused: no"),
    "plain pods taken over": (
        probe("plain", Probe({"spec": {"schedulerName": "hami-scheduler"}})),
        "plain-pod",
        Level.PROBLEM,
        "given our scheduler",
    ),
    "device pods unchanged": (
        probe("device", Probe({"spec": {"schedulerName": "default-scheduler"}})),
        "device-pod",
        Level.PROBLEM,
        "let through unchanged",
    ),
    "device pods not seen": (
        refused("Slotwise's webhook did not see this pod; see slotwise doctor"),
        "device-pod",
        Level.PROBLEM,
        "/webhook was not asked",
    ),
    "certificate not trusted": (
        refused('failed calling webhook "validate.slotwise.io": x509: certificate signed by unknown authority'),
        "device-pod",
        Level.PROBLEM,
        "does not trust",
    ),
    "nobody answers": (refused("no endpoints available for service"), "device-pod", Level.PROBLEM, "no webhook pod"),
    "no such Service": (refused('service "slotwise-webhook" not found'), "device-pod", Level.PROBLEM, "Service"),
    "too slow": (refused("context deadline exceeded"), "device-pod", Level.PROBLEM, "not reached in time"),
    "quota used up": (refused("exceeding resource quota: a/b"), "device-pod", Level.PROBLEM, "quota"),
    "refused for another reason": (refused("policy of the house"), "device-pod", Level.PROBLEM, "policy of the house"),
    "privileged let through": (probe("privileged", Probe({})), "privileged-pod", Level.PROBLEM, "let through"),
    "forged let through": (probe("forged", FORGED), "forged-pod", Level.PROBLEM, "write its own allocation"),
    "no probe": (
        having(probes={}, unread={"pods/dry-run": Unread("pods", "you may not")}),
        "device-pod",
        Level.UNKNOWN,
        "you may not",
    ),
    "a right missing": (
        having(reviews={"slotwise-scheduler": {"create pods/binding": False, "list pods": True}}),
        "rights",
        Level.PROBLEM,
        "slotwise-scheduler may not create pods/binding",
    ),
    "rights not known": (having(reviews={}), "rights", Level.UNKNOWN, "cannot be asked for"),
    "no cards": (nodes(node("n1")), "registrations", Level.PROBLEM, "no node offers a card"),
    "unreadable registration": (
        nodes(node("n1", annotations={"hami.io/node-nvidia-register": "[{"}), node("n2", card("GPU-b"))),
        "registrations",
        Level.PROBLEM,
        "node n1",
    ),
    "devices without registration": (
        nodes(node("n1", allocatable={"nvidia.com/gpu": "8"}), node("n2", card("GPU-b"))),
        "registrations",
        Level.PROBLEM,
        "n1 offers devices to the kubelet",
    ),
    "an unhealthy card": (
        nodes(node("n1", card("GPU-a", healthy=False), card("GPU-b", index=1))),
        "registrations",
        Level.WARNING,
        "n1/GPU-a",
    ),
    "another plugin": (
        having(daemon_sets=[workload("nvdp", "nvcr.io/nvidia/k8s-device-plugin:v0.17.0", desiredNumberScheduled=2)]),
        "device-plugins",
        Level.PROBLEM,
        "elsewhere/nvdp",
    ),
    "HAMi's scheduler too": (
        having(other_deployments=[workload("hami-scheduler", "projecthami/hami:v2.10.0")]),
        "device-plugins",
        Level.WARNING,
        "elsewhere/hami-scheduler",
    ),
    "an old lock": (
        nodes(node("n1", card(), annotations=OLD_LOCK)),
        "node-locks",
        Level.PROBLEM,
        "n1 has been locked by team-a/trainer for 3600 s",
    ),
    "a lock that is none": (
        nodes(node("n1", card(), annotations={"hami.io/mutex.lock": "yesterday"})),
        "node-locks",
        Level.PROBLEM,
        "malformed",
    ),
    "a lock from the future": (
        nodes(node("n1", card(), annotations={"hami.io/mutex.lock": "2026-08-01T07:00:00Z,a,b"})),
        "node-locks",
        Level.WARNING,
        "in the future",
    ),
    "pods wait": (
        having(waiting=[waiting("hami-scheduler", "0/2 nodes are available: 2 CardInsufficientMemory.")]),
        "waiting-pods",
        Level.WARNING,
        "CardInsufficientMemory",
    ),
    "pods wait unheard": (having(waiting=[waiting("hami-scheduler")]), "waiting-pods", Level.WARNING, "said nothing"),
    "pods of another scheduler": (having(waiting=[waiting("volcano")]), "waiting-pods", Level.WARNING, "volcano"),
}


@pytest.mark.parametrize(("facts", "check", "level", "text"), SEEN.values(), ids=SEEN)
def test_a_broken_state_is_named_with_its_repair(
    facts: Callable[[], Facts], check: str, level: Level, text: str
) -> None:
    found = [one for one in examine(facts()) if one.check == check and one.level is not Level.OK]
    assert [one for one in found if one.level is level and text in one.text], found
    assert all(one.repair for one in found)


UNREADABLE = {
    "deployments": "webhook-pods",
    "MutatingWebhookConfiguration": "mutating-webhook",
    "ValidatingWebhookConfiguration": "validating-webhook",
    "ValidatingAdmissionPolicy": "admission-policy",
    "leases": "leader",
    "nodes": "registrations",
    "daemonsets": "device-plugins",
    "pods": "waiting-pods",
}


@pytest.mark.parametrize(("what", "check"), UNREADABLE.items(), ids=UNREADABLE)
def test_what_may_not_be_read_is_said_and_not_guessed(what: str, check: str) -> None:
    found = loud(replace(sound(), unread={what: Unread(what, "nodes is forbidden")}))
    assert (found[check].level, "nodes is forbidden" in found[check].text) == (Level.UNKNOWN, True)
    assert found[check].repair


def test_a_webhook_called_by_its_address_needs_no_service() -> None:
    found = documents()
    for webhook in (hook for one in found for hook in one.get("webhooks", ())):
        webhook["clientConfig"] = {**webhook["clientConfig"], "url": f"https://{HOST}:8443/x"}
        del webhook["clientConfig"]["service"]
    facts = replace(facts_of(found), services={}, slices=())
    assert "webhook-service" not in loud(facts)
    assert "ca-bundle" not in loud(facts)


def test_repairs_name_settings_and_metrics_that_exist() -> None:
    broken = [row[0] for row in BROKEN.values()] + [row[0] for row in SEEN.values()]
    repairs = [one.repair for facts in broken for one in examine(facts())]
    text = "\n".join(repairs)
    settings = set(re.findall(r"--set ([a-z-]+)=", text))
    assert settings
    assert settings <= set(SETTINGS)
    metrics = set(re.findall(r"slotwise_[a-z_]+", text))
    assert metrics
    assert metrics <= set(re.findall(r"slotwise_[a-z_]+", (ROOT / "docs" / "run-the-services.md").read_text()))


def test_a_forged_allocation_that_admission_takes_away_does_no_harm() -> None:
    assert "forged-pod" not in loud(probe("forged", Probe({"metadata": {"annotations": {"mine": "kept"}}}))())


def test_every_check_is_in_the_documentation() -> None:
    page = (ROOT / "docs" / "doctor.md").read_text()
    known = {
        name
        for row in page.splitlines()
        if row.startswith("| `")
        for name in re.findall(r"`([a-z-]+)`", row.split("|")[1])
    }
    assert known == {finding.check for finding in examine(sound())}
