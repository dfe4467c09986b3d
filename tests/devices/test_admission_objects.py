"""What the API server is told about admission: nothing forgotten, nothing too much, and the manifests say the same."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from devices.admission_objects import (
    EXEMPT_NAMESPACES,
    SCHEDULER_ACCOUNTS,
    WRITER_ACCOUNTS,
    Document,
    admission_documents,
    admission_files,
)
from devices.config import DeviceConfig, default_config, optional_families, read
from devices.managed import asks_condition, device_variables, is_device_variable, protected_keys

MANIFESTS = Path(__file__).parents[2] / "manifests" / "base" / "admission"
EVERY = default_config(optional_families())


def hooks(name: str, config: DeviceConfig = EVERY) -> Mapping[str, Document]:
    (document,) = admission_documents(config)[name]
    listed = document["webhooks"]
    assert isinstance(listed, list)
    return {str(hook["name"]): hook for hook in listed}


def conditions(hook: Document) -> Mapping[str, str]:
    listed = hook.get("matchConditions", [])
    assert isinstance(listed, list)
    return {row["name"]: row["expression"] for row in listed}


def test_manifests_are_what_is_generated() -> None:
    generated = admission_files(default_config())
    assert {name: (MANIFESTS / name).read_text() for name in generated} == generated


def test_the_kustomization_names_every_file() -> None:
    listed = yaml.safe_load((MANIFESTS / "kustomization.yaml").read_text())["resources"]
    assert sorted(listed) == sorted(admission_files(default_config()))
    assert sorted(path.name for path in MANIFESTS.iterdir()) == sorted([*listed, "kustomization.yaml"])


def test_the_texts_are_the_documents() -> None:
    for name, text in admission_files(EVERY).items():
        assert list(yaml.safe_load_all(text)) == list(admission_documents(EVERY)[name])


def test_mutating_fails_open_and_leaves_labelled_pods_alone() -> None:
    (hook,) = hooks("mutating.yaml").values()
    assert (hook["failurePolicy"], hook["reinvocationPolicy"]) == ("Ignore", "IfNeeded")
    assert hook["objectSelector"] == {
        "matchExpressions": [{"key": "hami.io/webhook", "operator": "NotIn", "values": ["ignore"]}]
    }
    assert asks_condition(EVERY) in conditions(hook)["names-what-slotwise-changes"]
    assert '"hami.io/vgpu-node" in object.metadata.labels' in conditions(hook)["names-what-slotwise-changes"]


@pytest.mark.parametrize(
    ("section", "sees_every_pod"),
    [
        ("nvidia: {overwriteEnv: true}", True),
        (
            "vnpus: {configs: [{commonWord: A, resourceName: huawei.com/x, memoryAllocatable: 1, memoryCapacity: 1, overwriteEnv: true}]}",
            True,
        ),
        ("nvidia: {overwriteEnv: false}", False),
    ],
)
def test_where_env_is_overwritten_every_pod_is_mutated(section: str, sees_every_pod: bool) -> None:
    (hook,) = hooks("mutating.yaml", read(section, optional_families())).values()
    assert ("matchConditions" not in hook) is sees_every_pod


def test_only_what_must_not_pass_fails_closed() -> None:
    found = hooks("validating.yaml")
    closed = {name: (hook["failurePolicy"], "objectSelector" in hook) for name, hook in found.items()}
    assert closed == {
        "validate.slotwise.io": ("Fail", False),
        "changes.slotwise.io": ("Ignore", False),
        "bindings.slotwise.io": ("Fail", False),
    }
    assert conditions(found["validate.slotwise.io"]) == {"asks-for-a-managed-resource": asks_condition(EVERY)}


def test_schedulers_never_wait_for_us() -> None:
    (expression,) = conditions(hooks("validating.yaml")["bindings.slotwise.io"]).values()
    assert all(f'"{account}"' in expression for account in SCHEDULER_ACCOUNTS)
    assert re.fullmatch(r"!\(request\.userInfo\.username in \[.*\]\)", expression)


def test_the_same_namespaces_are_exempt_everywhere() -> None:
    text = {
        "matchExpressions": [
            {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": [*EXEMPT_NAMESPACES]}
        ]
    }
    for hook in (*hooks("mutating.yaml").values(), *hooks("validating.yaml").values()):
        assert hook["namespaceSelector"] == text
    _, policy, _ = admission_documents(EVERY)["policy.yaml"]
    assert isinstance(policy["spec"], dict)
    assert policy["spec"]["matchConstraints"]["namespaceSelector"] == text


def test_every_protected_key_is_in_policy_and_second_net() -> None:
    _, policy, _ = admission_documents(EVERY)["policy.yaml"]
    assert isinstance(policy["spec"], dict)
    variables = {row["name"]: row["expression"] for row in policy["spec"]["variables"]}
    second = conditions(hooks("validating.yaml")["changes.slotwise.io"])["changes-what-is-protected"]
    for key in protected_keys(EVERY):
        assert f'"{key}"' in variables["changed"]
        assert f'"{key}"' in second


def test_policy_covers_every_door() -> None:
    _, policy, binding = admission_documents(EVERY)["policy.yaml"]
    assert isinstance(policy["spec"], dict)
    assert isinstance(binding["spec"], dict)
    doors = {
        (operation, resource)
        for rule in policy["spec"]["matchConstraints"]["resourceRules"]
        for operation in rule["operations"]
        for resource in rule["resources"]
    }
    assert doors == {
        *(("CREATE", resource) for resource in ("pods", "pods/binding", "bindings")),
        *(("UPDATE", resource) for resource in ("pods", "pods/status", "pods/ephemeralcontainers", "pods/resize")),
    }
    assert (policy["spec"]["failurePolicy"], binding["spec"]["validationActions"]) == ("Fail", ["Deny"])
    assert binding["spec"]["paramRef"]["parameterNotFoundAction"] == "Deny"


def test_parameters_list_who_writes() -> None:
    parameters, *_ = admission_documents(EVERY)["policy.yaml"]
    data = parameters["data"]
    assert isinstance(data, dict)
    assert data["keyWriters"].split(",") == list(WRITER_ACCOUNTS)
    assert data["schedulerAccounts"].split(",") == list(SCHEDULER_ACCOUNTS)
    assert all(isinstance(value, str) for value in data.values())


@pytest.mark.parametrize(
    ("name", "opens"),
    [
        ("NVIDIA_VISIBLE_DEVICES", True),
        ("ASCEND_VISIBLE_DEVICES", True),
        ("MTHREADS_VISIBLE_DEVICES", True),
        ("IX_VISIBLE_DEVICES", True),
        ("NVIDIA_MIG_CONFIG_DEVICES", True),
        ("ASCEND_VNPU_SPECS", True),
        ("VISIBLE_DEVICES_NOTE", False),
        ("PATH", False),
    ],
)
def test_variables_that_open_cards(name: str, opens: bool) -> None:
    assert is_device_variable(name, EVERY.vendors) is opens


def test_families_name_only_variables_that_do_not_follow_the_rule() -> None:
    assert device_variables(EVERY.vendors)
    assert not [name for name in device_variables(EVERY.vendors) if name.endswith("_VISIBLE_DEVICES")]
