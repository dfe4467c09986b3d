"""What exists before the first request."""

from __future__ import annotations

from .documents import JsonObject

SYSTEM_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")


def namespace(name: str, uid: str, created: str) -> JsonObject:
    """Return a namespace as the server stores it."""
    return {
        "kind": "Namespace",
        "apiVersion": "v1",
        "metadata": {
            "name": name,
            "uid": uid,
            "creationTimestamp": created,
            "labels": {"kubernetes.io/metadata.name": name},
        },
        "spec": {"finalizers": ["kubernetes"]},
        "status": {"phase": "Active"},
    }
