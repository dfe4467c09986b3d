"""Documents that tell clients what the server is and serves."""

from __future__ import annotations

from .documents import JsonObject
from .resources import RESOURCES, Resource, group_versions

HEALTH_PATHS = frozenset({"/healthz", "/readyz", "/livez"})


def release(git_version: str) -> tuple[int, int]:
    """Return major and minor of a version such as `v1.37.2`."""
    major, minor = git_version.lstrip("v").split(".")[:2]
    return int(major), int(minor)


def document(path: str, git_version: str) -> JsonObject | None:
    """Return the discovery document at a path, or None.

    Args:
        path: without a trailing slash.
        git_version: such as `v1.37.2`.
    """
    if path == "/version":
        major, minor = release(git_version)
        return {"major": str(major), "minor": str(minor), "gitVersion": git_version, "platform": "lab"}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
    if path == "/apis":
        groups = [_group(group, version) for group, version in group_versions()]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    if path == "/api/v1":
        return _resources("", "v1")
    for group, version in group_versions():
        if path == f"/apis/{group}":
            return {"kind": "APIGroup", "apiVersion": "v1", **_group(group, version)}
        if path == f"/apis/{group}/{version}":
            return _resources(group, version)
    return None


def _group(group: str, version: str) -> JsonObject:
    served = {"groupVersion": f"{group}/{version}", "version": version}
    return {"name": group, "versions": [served], "preferredVersion": served}


def _resources(group: str, version: str) -> JsonObject:
    listed = []
    for resource in RESOURCES:
        if (resource.group, resource.version) == (group, version):
            listed.append(_entry(resource, resource.plural, resource.kind, resource.verbs))
            for subresource in sorted(resource.subresources):
                verbs = resource.subresource_verbs(subresource)
                kind = "Binding" if subresource == "binding" else resource.kind
                listed.append(_entry(resource, f"{resource.plural}/{subresource}", kind, verbs))
    group_version = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": listed}


def _entry(resource: Resource, name: str, kind: str, verbs: tuple[str, ...]) -> JsonObject:
    return {
        "name": name,
        "singularName": resource.kind.lower() if name == resource.plural else "",
        "namespaced": resource.namespaced,
        "kind": kind,
        "verbs": list(verbs),
    }
