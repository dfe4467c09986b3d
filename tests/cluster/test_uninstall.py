"""Uninstalling leaves nothing behind that stands in the way of anybody's pods."""

import uuid

import pytest

from lab.control_plane import ControlPlane
from tests.cluster.slotwise import Slotwise

LIMITS = {"plain": {}, "with a device": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000"}}


@pytest.fixture
def namespace(control_plane: ControlPlane) -> str:
    name = f"after-{uuid.uuid4().hex[:8]}"
    control_plane.create_namespace(name)
    return name


def test_pods_are_created_at_once_after_it(control_plane: ControlPlane, slotwise: Slotwise, namespace: str) -> None:
    installation = slotwise.installation
    before = {kind: names_of(control_plane, kind) for kind in CLUSTER_WIDE}
    installation.uninstall()
    try:
        for name, limits in LIMITS.items():
            container = {"name": "main", "image": "registry.k8s.io/pause:3.10", "resources": {"limits": limits}}
            pod = {"metadata": {"name": name.replace(" ", "-")}, "spec": {"containers": [container]}}
            control_plane.create(f"/api/v1/namespaces/{namespace}/pods", pod)
        after = {kind: names_of(control_plane, kind) for kind in CLUSTER_WIDE}
        assert all("slotwise" in " ".join(before[kind]) for kind in CLUSTER_WIDE), before
        assert [name for names in after.values() for name in names if "slotwise" in name] == []
        assert control_plane.request("GET", f"/api/v1/namespaces/{slotwise.namespace}")[0] == 404
    finally:
        control_plane.request("DELETE", f"/api/v1/namespaces/{namespace}")
        installation.apply()
        installation.wait_ready()


ADMISSION = "/apis/admissionregistration.k8s.io/v1"
CLUSTER_WIDE = (
    f"{ADMISSION}/mutatingwebhookconfigurations",
    f"{ADMISSION}/validatingwebhookconfigurations",
    f"{ADMISSION}/validatingadmissionpolicies",
    f"{ADMISSION}/validatingadmissionpolicybindings",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
)


def names_of(plane: ControlPlane, collection: str) -> list[str]:
    _, found = plane.request("GET", collection)
    items = found["items"]
    assert isinstance(items, list)
    return [str(item["metadata"]["name"]) for item in items]
