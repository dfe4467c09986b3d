"""Who tries things on the control plane, each with credentials of their own, and the pods they try them with."""

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from devices.kube.protocols import JsonObject
from lab.control_plane import ControlPlane

__all__ = ["PLACED", "SHARE", "Account", "at_work", "binding", "owner_of_pods", "part", "pod"]

SHARE: Final = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000"}
PLACED: Final = {
    "hami.io/vgpu-node": "node-1",
    "hami.io/vgpu-devices-allocated": "GPU-a,NVIDIA,1000,0:;",
    "hami.io/vgpu-devices-to-allocate": "GPU-a,NVIDIA,1000,0:;",
    "hami.io/bind-phase": "allocating",
}
"""What our extender's Binding carries."""
_RIGHTS: Final = ["pods", "pods/status", "pods/ephemeralcontainers", "pods/resize", "pods/binding", "bindings"]


@dataclass(frozen=True)
class Account:
    """A service account, and what it does in one namespace."""

    plane: ControlPlane
    namespace: str
    token: str

    def create(self, pod: JsonObject) -> tuple[int, str]:
        return self._answer("POST", "pods", pod)

    def post(self, path: str, body: JsonObject) -> tuple[int, str]:
        return self._answer("POST", path, body)

    def patch(self, path: str, body: JsonObject) -> tuple[int, str]:
        return self._answer("PATCH", f"pods/{path}", body)

    def pod(self, name: str) -> JsonObject:
        status, pod = self.plane.request("GET", self._path(f"pods/{name}"), token=self.token)
        assert status == 200, pod
        return pod

    def _path(self, path: str) -> str:
        return f"/api/v1/namespaces/{self.namespace}/{path}"

    def _answer(self, method: str, path: str, body: JsonObject) -> tuple[int, str]:
        status, answer = self.plane.request(method, self._path(path), body, token=self.token)
        return status, str(answer.get("message", ""))


def pod(name: str, limits: Mapping[str, str] | None = None, /, **fields: object) -> JsonObject:
    """`metadata` in `fields` is added to the name, everything else to the spec."""
    metadata = fields.pop("metadata", {})
    assert isinstance(metadata, dict)
    resources = {"resources": {"limits": dict(limits)}} if limits else {}
    containers = [{"name": "main", "image": "registry.k8s.io/pause:3.10", **resources}]
    return {"metadata": {"name": name, **metadata}, "spec": {"containers": containers, **fields}}


def binding(target: JsonObject, **fields: object) -> JsonObject:
    """Of a pod as it is stored, to a node."""
    metadata = part(target, "metadata")
    named = {"name": metadata["name"], "uid": metadata["uid"], **fields}
    return {"metadata": named, "target": {"kind": "Node", "name": "node-1"}}


def part(document: JsonObject, key: str) -> JsonObject:
    found = document.get(key, {})
    assert isinstance(found, dict)
    return found


@contextmanager
def owner_of_pods(plane: ControlPlane) -> Iterator[Account]:
    """A service account in a new namespace, with every right on the pods there and no other; all of it is gone afterwards."""
    namespace = f"team-{uuid.uuid4().hex[:8]}"
    plane.create_namespace(namespace)
    plane.create_service_account(namespace, "user")
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    rules = [{"apiGroups": [""], "resources": _RIGHTS, "verbs": ["*"]}]
    plane.create(f"{rbac}/roles", {"metadata": {"name": "pods"}, "rules": rules})
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "pods"}
    subject = {"kind": "ServiceAccount", "namespace": namespace, "name": "user"}
    plane.create(f"{rbac}/rolebindings", {"metadata": {"name": "pods"}, "roleRef": reference, "subjects": [subject]})
    yield Account(plane, namespace, plane.service_account_token(namespace, "user"))
    # First the pods, whose end the API server waits for: whoever comes next would count them.
    for path in (f"{namespace}/pods", namespace):
        status, answer = plane.request("DELETE", f"/api/v1/namespaces/{path}", {"gracePeriodSeconds": 0})
        assert status == 200, answer


def at_work(plane: ControlPlane, user: str, namespace: str) -> Account:
    """The service account that the API server calls `user`, at work in a namespace."""
    _, _, home, name = user.split(":")
    return Account(plane, namespace, plane.service_account_token(home, name))
