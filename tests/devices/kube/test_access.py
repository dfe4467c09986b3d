"""The table of rights is true: each call by name is made, and the API server sees just what the table says."""

from collections.abc import Mapping

import pytest

from devices.kube.access import CERTIFICATES, FEED, METHODS, Access
from devices.kube.client import KubeClient
from tests.devices.kube.fake_api import FakeApi, ok

ARGUMENTS: Mapping[str, tuple[object, ...]] = {
    "bind": ("ns", "p", {}, 5.0),
    "create_config_map": ("ns", {}),
    "create_event": ("ns", {}),
    "create_lease": ("ns", {}),
    "create_secret": ("ns", {}),
    "get_config_map": ("ns", "c"),
    "get_lease": ("ns", "l"),
    "get_node": ("n1",),
    "get_pod": ("ns", "p"),
    "get_secret": ("ns", "s"),
    "list_config_maps": ("ns", "a=b"),
    "list_pods": ("ns",),
    "patch_config_map": ("ns", "c", {}),
    "patch_mutating_webhooks": ("w", []),
    "patch_node": ("n1", {}),
    "patch_pod": ("ns", "p", {}),
    "patch_quota": ("ns", "q", {}),
    "patch_validating_webhooks": ("w", []),
    "replace_lease": ("ns", "l", {}),
    "replace_secret": ("ns", "s", {}),
}
VERBS = {"GET": "get", "POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}


def seen(method: str, path: str) -> Access:
    """The right that RBAC asks for such a request."""
    _, root, *rest = path.split("/")
    group = rest.pop(0) if root == "apis" else ""
    rest.pop(0)  # the version
    if rest[0] == "namespaces":
        rest = rest[2:]
    resource, *named = rest
    verb = "list" if method == "GET" and not named else VERBS[method]
    return Access(verb, "/".join((resource, *named[1:])), group)


@pytest.mark.parametrize("name", sorted(METHODS))
async def test_each_call_needs_the_rights_of_the_table(api: FakeApi, client: KubeClient, name: str) -> None:
    api.script.append(ok({"kind": "Any", "metadata": {}, "items": []}))
    await getattr(client, name)(*ARGUMENTS[name])
    assert {seen(request.method, request.path) for request in api.requests} == set(METHODS[name])


@pytest.mark.parametrize(
    ("access", "text"),
    {
        "anywhere": (Access("list", "pods"), "list pods"),
        "a group": (Access("get", "leases", "coordination.k8s.io"), "get leases.coordination.k8s.io"),
        "one object": (Access("get", "secrets").within("ns").on("tls"), "get secrets tls in namespace ns"),
    }.values(),
)
def test_a_right_in_words(access: Access, text: str) -> None:
    assert str(access) == text


def test_following_the_cluster_lists_and_watches() -> None:
    assert {access.verb for access in FEED} == {"list", "watch"}
    assert {access.resource for access in FEED} == {"pods", "nodes", "resourcequotas"}


def test_following_certificates_lists_and_watches() -> None:
    assert {access.verb for access in CERTIFICATES} == {"list", "watch"}
    configurations = {"mutatingwebhookconfigurations", "validatingwebhookconfigurations"}
    assert {access.resource for access in CERTIFICATES} == {"secrets", *configurations}
