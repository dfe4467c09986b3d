"""Assigning a pod to a node."""

from __future__ import annotations

from . import errors, validation
from .documents import JsonObject, mapping, metadata, text, with_metadata
from .errors import FieldError
from .resources import PODS
from .store import Version


def binding_errors(binding: JsonObject) -> list[FieldError]:
    """Return what is wrong with a Binding. Its metadata is not looked at, as in the real server."""
    node = mapping(binding.get("target"))
    found = []
    if node.get("kind") not in (None, "", "Node"):
        found.append(FieldError.unsupported("target.kind", node["kind"], ("Node", "<empty>")))
    name = text(node.get("name"))
    if not name:
        found.append(FieldError.required("target.name"))
    else:
        found += [FieldError.invalid("target.name", name, why) for why in validation.subdomain_errors(name)]
    return found


def require_bindable(namespace: str, pod: Version, binding_meta: JsonObject) -> None:
    """Refuse a Binding whose preconditions do not hold or whose pod cannot be assigned.

    Raises:
        ApiError: 409.
    """
    meta = metadata(pod.obj)
    for what, wanted, stored in (
        ("UID", binding_meta.get("uid"), meta["uid"]),
        ("ResourceVersion", binding_meta.get("resourceVersion"), meta["resourceVersion"]),
    ):
        if wanted and wanted != stored:
            raise errors.precondition_failed(PODS, namespace, meta["name"], what, wanted, stored)
    spec = mapping(pod.obj.get("spec"))
    why = ""
    if meta.get("deletionTimestamp"):
        why = f"pod {meta['name']} is being deleted, cannot be assigned to a host"
    elif spec.get("nodeName"):
        why = f'pod {meta["name"]} is already assigned to node "{spec["nodeName"]}"'
    elif spec.get("schedulingGates"):
        why = f"pod {meta['name']} has non-empty .spec.schedulingGates"
    if why:
        raise errors.conflict(PODS, meta["name"], why, subresource="binding")


def bound_pod(pod: JsonObject, binding: JsonObject, now: str, *, with_labels: bool) -> JsonObject:
    """Return the pod on its node, with the Binding's annotations (and labels: from Kubernetes 1.35 on) and the condition PodScheduled."""
    brought, meta = metadata(binding), metadata(pod)
    merged = {
        sort: {**mapping(meta.get(sort)), **mapping(brought.get(sort))} or None
        for sort in ("annotations", *(("labels",) if with_labels else ()))
    }
    status = {key: value for key, value in mapping(pod.get("status")).items() if key != "nominatedNodeName"}
    scheduled = {
        "type": "PodScheduled",
        "status": "True",
        "lastProbeTime": None,
        "lastTransitionTime": now,
    }
    others = [condition for condition in status.get("conditions") or () if condition.get("type") != "PodScheduled"]
    status["conditions"] = [*others, scheduled]
    spec = {**mapping(pod.get("spec")), "nodeName": binding["target"]["name"]}
    return {**with_metadata(pod, **merged), "spec": spec, "status": status}
