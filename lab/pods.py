"""Pod objects from the short form that scenarios use."""

from collections.abc import Mapping

from devices.kube.protocols import JsonObject
from lab.names import FAIL_ALLOCATE, HOLD_INIT, RUN_SECONDS
from lab.scenario import ContainerForm, PodForm, Quantity

__all__ = ["pod_document", "pod_key"]

_IMAGE = "registry.k8s.io/pause:3.10"


def pod_key(name: str, default: PodForm) -> tuple[str, str]:
    """(namespace, name) of a pod that a step names as `name` or `namespace/name`."""
    namespace, _, short = name.rpartition("/")
    return namespace or default.namespace or "default", short


def pod_document(form: PodForm, default: PodForm) -> JsonObject:
    """The Pod to create: what `form` leaves open comes from the scenario's `default`."""
    if form.containers is None:
        limits = form.limits if form.limits is not None else default.limits
        requests = form.requests if form.requests is not None else default.requests
        main = ContainerForm(name="main", limits=limits or {}, requests=requests or {}, privileged=form.privileged)
        containers = [main]
    else:
        containers = form.containers
    annotations = {**default.annotations, **form.annotations}
    if form.hold_init:
        annotations[HOLD_INIT] = "true"
    if form.run_seconds is not None:
        annotations[RUN_SECONDS] = str(form.run_seconds)
    if form.fail_allocate:
        annotations[FAIL_ALLOCATE] = "true"
    metadata: JsonObject = {"name": form.name, "namespace": form.namespace or default.namespace or "default"}
    if annotations:
        metadata["annotations"] = annotations
    labels = {**default.labels, **form.labels}
    if labels:
        metadata["labels"] = labels
    spec: JsonObject = {"restartPolicy": "Never", "containers": [_container(c) for c in containers]}
    if form.init_containers:
        spec["initContainers"] = [_container(c) for c in form.init_containers]
    if form.scheduler is not None:
        spec["schedulerName"] = form.scheduler
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _container(form: ContainerForm) -> JsonObject:
    container: JsonObject = {"name": form.name, "image": _IMAGE}
    resources: JsonObject = {}
    if form.limits:
        resources["limits"] = _quantities(form.limits)
    if form.requests:
        resources["requests"] = _quantities(form.requests)
    if resources:
        container["resources"] = resources
    if form.privileged:
        container["securityContext"] = {"privileged": True}
    if form.sidecar:
        container["restartPolicy"] = "Always"
    return container


def _quantities(given: Mapping[str, Quantity]) -> dict[str, str]:
    return {name: str(value) for name, value in given.items()}
