"""Settings of the pods themselves: images, replicas, where they run and with how much."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from manifests.errors import ManifestError
from manifests.objects import EXTENDER, KUBE_SCHEDULER, OUR_IMAGE, SCHEDULER, WEBHOOK, Objects, inside, without_empty
from manifests.plan import Setting, planned
from manifests.readers import (
    at_least,
    choice,
    duration,
    image,
    labels,
    names,
    quantities,
    some_text,
    tolerations,
    version,
)

__all__ = ["PODS", "PRE_STOP_S", "SPARE_S"]

PRE_STOP_S: Final = 5
"""The files let a pod sleep so long before SIGTERM."""
SPARE_S: Final = 10
"""Between the end of draining and SIGKILL."""
_QUANTITIES: Final = "requests.NAME=QUANTITY,limits.NAME=QUANTITY"
_PAIRS: Final = "key=value,key=value"
_TOLERATIONS: Final = "key:Effect, key=value:Effect or key, joined by commas"


def _image(objects: Objects, reference: str) -> None:
    for container in objects.containers():
        if str(container.get("image")).partition(":")[0] == OUR_IMAGE:
            container["image"] = reference


def _pull_policy(objects: Objects, policy: str) -> None:
    for container in objects.containers():
        container["imagePullPolicy"] = policy


def _pull_secrets(objects: Objects, secrets: Sequence[str]) -> None:
    for spec in objects.pod_specs():
        without_empty(spec, "imagePullSecrets", [{"name": name} for name in secrets])


def _repository(reference: str) -> tuple[str, str]:
    """An image without its tag or digest, and that with what separates it."""
    if "@" in reference:
        name, _, digest = reference.partition("@")
        return name, f"@{digest}"
    head, slash, last = reference.rpartition("/")
    name, colon, tag = last.partition(":")
    return f"{head}{slash}{name}", f"{colon}{tag}"


def _kube_scheduler_image(objects: Objects, reference: str) -> None:
    container = objects.container(KUBE_SCHEDULER)
    name, tag = _repository(reference)
    container["image"] = f"{name}{tag or _repository(str(container['image']))[1]}"


def _kube_version(objects: Objects, number: str) -> None:
    container = objects.container(KUBE_SCHEDULER)
    name, tag = _repository(str(container["image"]))
    if tag.startswith("@"):
        raise ManifestError("--set kube-version and a digest in kube-scheduler-image exclude each other")
    container["image"] = f"{name}:v{number}"


def _replicas(component: str, default: str, example: str, about: str) -> Setting:
    def edit(objects: Objects, count: int) -> None:
        objects.deployment(component)["replicas"] = count

    return Setting(
        f"{component}-replicas", default, "a whole number of 1 or more", about, example, planned(at_least(1), edit)
    )


def _resources(container: str, default: str, about: str) -> Setting:
    def edit(objects: Objects, found: Mapping[str, Mapping[str, str]]) -> None:
        resources = inside(objects.container(container), "resources")
        for kind, values in found.items():
            inside(resources, kind).update(values)

    example = "requests.cpu=1,limits.memory=4Gi"
    return Setting(f"{container}-resources", default, _QUANTITIES, about, example, planned(quantities, edit))


def _node_selector(objects: Objects, found: Mapping[str, str]) -> None:
    for spec in objects.pod_specs():
        without_empty(spec, "nodeSelector", dict(found))


def _tolerations(objects: Objects, found: Sequence[Mapping[str, str]]) -> None:
    for spec in objects.pod_specs():
        without_empty(spec, "tolerations", [dict(toleration) for toleration in found])


def _priority(objects: Objects, name: str) -> None:
    for spec in objects.pod_specs():
        spec["priorityClassName"] = name


def _user(objects: Objects, number: int) -> None:
    for spec in objects.pod_specs():
        inside(spec, "securityContext").update(runAsUser=number, runAsGroup=number, fsGroup=number)


def _on_templates(field: str) -> Callable[[Objects, Mapping[str, str]], None]:
    def edit(objects: Objects, found: Mapping[str, str]) -> None:
        for template in objects.pod_templates() if found else ():
            inside(template, "metadata", field).update(found)

    return edit


def _on_all(field: str) -> Callable[[Objects, Mapping[str, str]], None]:
    def edit(objects: Objects, found: Mapping[str, str]) -> None:
        for document in objects.documents if found else ():
            inside(document, "metadata", field).update(found)

    return edit


def _drain(container: str, component: str, default: str) -> Setting:
    def edit(objects: Objects, text: str) -> None:
        objects.put_flag(container, "--drain-timeout", text)
        pod = inside(objects.deployment(component), "template", "spec")
        pod["terminationGracePeriodSeconds"] = PRE_STOP_S + round(duration(text)) + SPARE_S

    def read(text: str) -> str:
        if not 1 <= duration(text) <= 3600:
            raise ValueError("expected a duration from 1s to 1h")
        return text

    about = "what requests under way have to end; the pod's grace period follows"
    return Setting(f"{component}-drain-timeout", default, "a duration from 1s to 1h", about, "20s", planned(read, edit))


PODS: Final = (
    Setting(
        "image",
        "slotwise:0.1.0",
        "an image",
        "of webhook and extender",
        "registry.example.com/slotwise:0.1.0",
        planned(image, _image),
    ),
    Setting(
        "image-pull-policy",
        "IfNotPresent",
        "Always, IfNotPresent or Never",
        "of every container",
        "Always",
        planned(choice("Always", "IfNotPresent", "Never"), _pull_policy),
    ),
    Setting(
        "image-pull-secrets",
        "",
        "names joined by commas",
        "Secrets in Slotwise's namespace",
        "regcred",
        planned(names, _pull_secrets),
    ),
    Setting(
        "kube-scheduler-image",
        "registry.k8s.io/kube-scheduler",
        "an image; without a tag the version stays",
        "of kube-scheduler",
        "registry.example.com/kube-scheduler",
        planned(image, _kube_scheduler_image),
    ),
    Setting(
        "kube-version",
        "1.37.2",
        "a version with its patch level",
        "tag of kube-scheduler's image: the cluster's minor, or one older",
        "1.36.3",
        planned(version, _kube_version),
    ),
    _replicas(WEBHOOK, "2", "3", "webhooks; all of them serve"),
    _replicas(SCHEDULER, "1", "3", "schedulers, 2 in ha; one of them places"),
    _resources(
        WEBHOOK,
        "requests.cpu=100m,requests.memory=256Mi,limits.memory=1Gi",
        "of the webhook's container; what is not named stays",
    ),
    _resources(EXTENDER, "requests.cpu=250m,requests.memory=256Mi,limits.memory=2Gi", "of the extender's container"),
    _resources(
        KUBE_SCHEDULER, "requests.cpu=100m,requests.memory=256Mi,limits.memory=2Gi", "of kube-scheduler's container"
    ),
    Setting(
        "node-selector",
        "",
        _PAIRS,
        "where the pods may run",
        "node-role.kubernetes.io/control-plane=",
        planned(labels, _node_selector),
    ),
    Setting(
        "tolerations",
        "node-role.kubernetes.io/control-plane:NoSchedule",
        _TOLERATIONS,
        "taints that the pods tolerate",
        "dedicated=infra:NoSchedule",
        planned(tolerations, _tolerations),
    ),
    Setting(
        "priority-class",
        "system-cluster-critical",
        "a name",
        "of the pods",
        "infrastructure",
        planned(some_text, _priority),
    ),
    Setting(
        "run-as-user",
        "65532",
        "a number from 1",
        "user and group of every process",
        "2000",
        planned(at_least(1), _user),
    ),
    Setting("pod-labels", "", _PAIRS, "also on every pod", "team=platform", planned(labels, _on_templates("labels"))),
    Setting(
        "pod-annotations",
        "",
        _PAIRS,
        "also on every pod",
        "example.com/scrape=true",
        planned(labels, _on_templates("annotations")),
    ),
    Setting("labels", "", _PAIRS, "also on every object", "team=platform", planned(labels, _on_all("labels"))),
    Setting(
        "annotations",
        "",
        _PAIRS,
        "also on every object",
        "example.com/owner=platform",
        planned(labels, _on_all("annotations")),
    ),
    _drain(WEBHOOK, WEBHOOK, "25s"),
    _drain(EXTENDER, SCHEDULER, "30s"),
)
