"""What the other tests here rely on: accounts have the rights given to them and no more, controllers work."""

import uuid

import pytest

from lab.control_plane import ControlPlane
from lab.processes import StartError


@pytest.fixture
def namespace(control_plane: ControlPlane) -> str:
    name = f"plane-{uuid.uuid4().hex[:8]}"
    control_plane.create_namespace(name)
    return name


def test_version_is_the_one_that_was_built(control_plane: ControlPlane) -> None:
    assert control_plane.request("GET", "/version")[1]["gitVersion"] == f"v{control_plane.programs.version}"


def test_a_service_account_may_do_what_it_was_granted(control_plane: ControlPlane, namespace: str) -> None:
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]}]
    control_plane.create_service_account(namespace, "reader", rules)
    token = control_plane.service_account_token(namespace, "reader")
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    assert control_plane.request("GET", path, token=token)[0] == 200
    status, refusal = control_plane.request("POST", path, {"metadata": {"name": "x"}}, token=token)
    assert (status, refusal["reason"]) == (403, "Forbidden")
    assert f'User "system:serviceaccount:{namespace}:reader" cannot create' in str(refusal["message"])


def test_every_request_is_in_the_audit_log(control_plane: ControlPlane, namespace: str) -> None:
    control_plane.create(f"/api/v1/namespaces/{namespace}/configmaps", {"metadata": {"name": "noted"}})
    (call,) = [call for call in control_plane.audited() if call.namespace == namespace and call.name == "noted"]
    assert (call.user, call.verb, call.resource, call.code) == ("admin", "create", "configmaps", 201)
    assert call.is_write


def test_a_scheduler_configuration_with_an_unknown_field_is_refused(control_plane: ControlPlane) -> None:
    with pytest.raises(StartError, match="unknown field"):
        control_plane.start_scheduler({"extender": []})
