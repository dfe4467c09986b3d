"""What the server fills in: on decoding, after mutation, and on creating. Documents are changed in place.

Only for documents nobody else holds: decoded from a request or from stored bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from .documents import JsonObject, mapping, text
from .quantities import canonical
from .resources import Resource


def apply(resource: Resource, obj: JsonObject) -> None:
    """Fill in the defaults of the object's kind. Applying them again changes nothing."""
    fill = _DEFAULTS.get(resource.plural)
    if fill is not None:
        fill(obj)


def prepare_for_create(resource: Resource, obj: JsonObject) -> None:
    """Set the fields a creator may not choose."""
    meta = obj["metadata"]
    match resource.plural:
        case "pods":
            obj["status"] = {"phase": "Pending", "qosClass": _qos_class(mapping(obj.get("spec")))}
            meta["generation"] = 1
        case "namespaces":
            obj["status"] = {"phase": "Active"}
            obj.setdefault("spec", {})["finalizers"] = ["kubernetes"]
            meta["labels"] = {**mapping(meta.get("labels")), "kubernetes.io/metadata.name": meta.get("name", "")}
        case "resourcequotas":
            obj["status"] = {}
        case _ if "webhooks" in obj:
            meta["generation"] = 1


def _pod(pod: JsonObject) -> None:
    spec = pod.get("spec")
    if not isinstance(spec, dict):
        return
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("securityContext", {})
    spec.setdefault("enableServiceLinks", True)
    if not spec.get("schedulerName"):
        spec["schedulerName"] = "default-scheduler"
    for kind in ("initContainers", "containers"):
        for container in spec.get(kind) or ():
            if isinstance(container, dict):
                _container(container)


def _container(container: JsonObject) -> None:
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    if not container.get("imagePullPolicy"):
        container["imagePullPolicy"] = _pull_policy(text(container.get("image")))
    resources = container.setdefault("resources", {})
    if not isinstance(resources, dict):
        return
    _write_canonically(resources, "limits", "requests")
    limits = mapping(resources.get("limits"))
    if limits:
        requests = mapping(resources.get("requests"))
        if any(name not in requests for name in limits):
            resources["requests"] = {**limits, **requests}


def _node(node: JsonObject) -> None:
    _write_canonically(mapping(node.get("status")), "capacity", "allocatable")


def _resource_quota(quota: JsonObject) -> None:
    _write_canonically(mapping(quota.get("spec")), "hard")
    _write_canonically(mapping(quota.get("status")), "hard", "used")


def _write_canonically(holder: JsonObject, *fields: str) -> None:
    """Quantities are read into numbers and written anew, so that nobody sees them as they were sent."""
    for field in fields:
        amounts = holder.get(field)
        if isinstance(amounts, dict):
            holder[field] = {name: canonical(amount) for name, amount in amounts.items()}


def _pull_policy(image: str) -> str:
    """An image without tag or digest means its newest."""
    if "@" in image:
        return "IfNotPresent"
    tag = image.rpartition("/")[2].partition(":")[2]
    return "Always" if tag in ("", "latest") else "IfNotPresent"


def _qos_class(spec: JsonObject) -> str:
    """Guaranteed needs equal requests and limits of cpu and memory everywhere; none at all is BestEffort."""
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    seen = False
    guaranteed = True
    for container in containers:
        resources = mapping(mapping(container).get("resources"))
        limits, requests = mapping(resources.get("limits")), mapping(resources.get("requests"))
        for name in ("cpu", "memory"):
            seen = seen or name in limits or name in requests
            guaranteed = guaranteed and name in limits and limits[name] == requests.get(name)
    if not seen:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"


def _webhooks(configuration: JsonObject) -> None:
    mutating = configuration.get("kind") == "MutatingWebhookConfiguration"
    for hook in configuration.get("webhooks") or ():
        if not isinstance(hook, dict):
            continue
        hook.setdefault("failurePolicy", "Fail")
        hook.setdefault("matchPolicy", "Equivalent")
        hook.setdefault("namespaceSelector", {})
        hook.setdefault("objectSelector", {})
        hook.setdefault("timeoutSeconds", 10)
        if mutating:
            hook.setdefault("reinvocationPolicy", "Never")
        for rule in hook.get("rules") or ():
            if isinstance(rule, dict):
                rule.setdefault("scope", "*")


def _secret(secret: JsonObject) -> None:
    secret.setdefault("type", "Opaque")


_DEFAULTS: Mapping[str, Callable[[JsonObject], None]] = MappingProxyType(
    {
        "nodes": _node,
        "pods": _pod,
        "resourcequotas": _resource_quota,
        "secrets": _secret,
        "mutatingwebhookconfigurations": _webhooks,
        "validatingwebhookconfigurations": _webhooks,
    }
)
