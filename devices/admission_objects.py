"""What the API server is told about admission: webhook configurations, the policy and its parameters, made from the families' data.

`manifests/base/admission` holds exactly these texts. Pure: nothing is read or written here.
"""

import json
from collections.abc import Mapping, Sequence

import yaml

from devices.config import DeviceConfig
from devices.keys import IGNORE_LABEL, VGPU_NODE
from devices.managed import asks_condition, changes_condition, managed_names, mutates_condition, protected_keys

__all__ = [
    "EXEMPT_NAMESPACES",
    "NAME",
    "NAMESPACE",
    "POLICY_PARAMETERS",
    "SCHEDULER_ACCOUNTS",
    "SCHEDULER_NAME",
    "WRITER_ACCOUNTS",
    "Document",
    "admission_documents",
    "admission_files",
]

Document = dict[str, object]
"""A Kubernetes object as YAML has it."""

NAME = "slotwise"
NAMESPACE = "slotwise-system"
POLICY_PARAMETERS = "slotwise-policy"
SCHEDULER_NAME = "hami-scheduler"
EXEMPT_NAMESPACES = ("kube-system", NAMESPACE)
"""What runs there is the cluster itself: it must come up whatever becomes of Slotwise."""

_OUR_SCHEDULER = f"system:serviceaccount:{NAMESPACE}:slotwise-scheduler"
SCHEDULER_ACCOUNTS = ("system:kube-scheduler", _OUR_SCHEDULER)
"""Who binds pods without `/validate` being asked."""
WRITER_ACCOUNTS = (_OUR_SCHEDULER, "system:serviceaccount:kube-system:hami-device-plugin")
"""Who may change protected keys: the extender, and the device plugin of HAMi's chart, which consumes and confirms allocations."""

_SERVICE = "slotwise-webhook"
_ANSWER_S, _SECOND_NET_S = 10, 2


def admission_documents(config: DeviceConfig) -> Mapping[str, Sequence[Document]]:
    """The objects by the file of `manifests/base/admission` that holds them."""
    return {
        "mutating.yaml": (_mutating(config),),
        "validating.yaml": (_validating(config),),
        "policy.yaml": (_parameters(), _policy(config), _binding()),
    }


_HEADS = {
    "mutating.yaml": "Fills in what device pods need. Where it cannot be reached pods pass unchanged, and the policy stops those with devices.",
    "validating.yaml": "Refuses what must not run. Only device pods, and Bindings of others than the schedulers, ever wait for it.",
    "policy.yaml": "Evaluated inside the API server, whether or not a process of Slotwise runs. Who is listed stands in the ConfigMap.",
}


def admission_files(config: DeviceConfig) -> Mapping[str, str]:
    """The texts of the files, by name; with the same configuration always the same."""
    return {
        name: f"# {_HEADS[name]}\n# Generated from the families' data (devices/admission_objects.py): a change here is lost.\n"
        + yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=10**6, explicit_start=len(documents) > 1)
        for name, documents in admission_documents(config).items()
    }


class _Dumper(yaml.SafeDumper):
    """Expressions of several lines stay readable; equal lists are written out each time."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


# --- webhook configurations ---


def _metadata(name: str, component: str = "webhook", namespace: str = "") -> Document:
    labels = {"app.kubernetes.io/name": "slotwise", "app.kubernetes.io/component": component}
    return {"name": name, **({"namespace": namespace} if namespace else {}), "labels": labels}


def _configuration(kind: str, *hooks: Document) -> Document:
    version = "admissionregistration.k8s.io/v1"
    return {"apiVersion": version, "kind": kind, "metadata": _metadata(NAME), "webhooks": list(hooks)}


def _rule(operation: str, *resources: str) -> Document:
    return {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": [operation],
        "resources": list(resources),
        "scope": "Namespaced",
    }


def _not_exempt() -> Document:
    key = "kubernetes.io/metadata.name"
    return {"matchExpressions": [{"key": key, "operator": "NotIn", "values": list(EXEMPT_NAMESPACES)}]}


def _hook(
    name: str, path: str, rules: Sequence[Document], conditions: Mapping[str, str], policy: str, timeout_s: int
) -> Document:
    service = {"name": _SERVICE, "namespace": NAMESPACE, "path": path, "port": 443}
    listed = [{"name": condition, "expression": expression} for condition, expression in conditions.items()]
    return {
        "name": name,
        "clientConfig": {"service": service},
        "rules": list(rules),
        "namespaceSelector": _not_exempt(),
        **({"matchConditions": listed} if listed else {}),
        "matchPolicy": "Equivalent",
        "failurePolicy": policy,
        "sideEffects": "NoneOnDryRun",
        "timeoutSeconds": timeout_s,
        "admissionReviewVersions": ["v1"],
    }


def _not_by(accounts: Sequence[str]) -> str:
    return f"!(request.userInfo.username in {json.dumps(list(accounts))})"


def _mutating(config: DeviceConfig) -> Document:
    condition = mutates_condition(config)
    conditions = {} if condition is None else {"names-what-slotwise-changes": condition}
    left_alone = {"key": IGNORE_LABEL, "operator": "NotIn", "values": ["ignore"]}
    hook = _hook("vgpu.hami.io", "/webhook", [_rule("CREATE", "pods")], conditions, "Ignore", _ANSWER_S)
    hook["objectSelector"] = {"matchExpressions": [left_alone]}
    # Others may add device requests after us: then the pod comes once more. A second run changes nothing else.
    hook["reinvocationPolicy"] = "IfNeeded"
    return _configuration("MutatingWebhookConfiguration", hook)


def _validating(config: DeviceConfig) -> Document:
    asks = asks_condition(config)
    pods = _hook(
        "validate.slotwise.io",
        "/validate",
        [_rule("CREATE", "pods"), _rule("UPDATE", "pods/ephemeralcontainers")],
        {"asks-for-a-managed-resource": asks},
        "Fail",
        _ANSWER_S,
    )
    # A second net: the policy has refused such changes before, so nothing waits for this one to come back.
    changes = _hook(
        "changes.slotwise.io",
        "/validate",
        [_rule("UPDATE", "pods", "pods/status", "pods/resize")],
        {
            "not-by-a-listed-account": _not_by(WRITER_ACCOUNTS),
            "changes-what-is-protected": f"(has(request.subResource) && request.subResource == 'resize' && ({asks}))"
            f" || {changes_condition(config)}",
        },
        "Ignore",
        _SECOND_NET_S,
    )
    binding = _hook(
        "bindings.slotwise.io",
        "/validate",
        [_rule("CREATE", "pods/binding", "bindings")],
        {"not-by-a-scheduler": _not_by(SCHEDULER_ACCOUNTS)},
        "Fail",
        _ANSWER_S,
    )
    return _configuration("ValidatingWebhookConfiguration", pods, changes, binding)


# --- the policy ---


def _parameters() -> Document:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(POLICY_PARAMETERS, "policy", NAMESPACE),
        # Lists joined by commas. `slotwise-webhook` takes the same values as flags.
        "data": {
            "schedulerNames": SCHEDULER_NAME,
            "foreignSchedulers": "",
            "ignoredDevicePods": "deny",
            "keyWriters": ",".join(WRITER_ACCOUNTS),
            "schedulerAccounts": ",".join(SCHEDULER_ACCOUNTS),
        },
    }


def _listed(key: str) -> str:
    return f"params.data[?'{key}'].orValue('').split(',').map(name, name.trim())"


_OBJECT, _STORED = "dyn(object)", "dyn(oldObject)"
"""Of any kind: the API server checks expressions against every kind that the rules cover, and a Binding has no spec."""


def _or_empty(of: str, field: str) -> str:
    return f"(has({of}.metadata.{field}) ? {of}.metadata.{field} : {{}})"


def _changed(field: str, keys: str) -> str:
    """Keys whose value differs from the stored object's; of a new object, and of a Binding, all that are there."""
    stored = f"(oldObject == null ? {{}} : {_or_empty(_STORED, field)})"
    return f"{keys}.filter(k, {_or_empty(_OBJECT, field)}[?k] != {stored}[?k])"


def _asks(values: str) -> str:
    return f"has(c.resources.{values}) && c.resources.{values}.exists(k, k in variables.names)"


def _variables(config: DeviceConfig) -> Sequence[Document]:
    names, keys = json.dumps(managed_names(config)), json.dumps(protected_keys(config))
    spec = f"{_OBJECT}.spec"
    expressions = {
        "names": names,
        "isNewPod": "request.operation == 'CREATE' && request.kind.kind == 'Pod'",
        "containers": f"{spec}.containers + (has({spec}.initContainers) ? {spec}.initContainers : [])",
        "asks": f"variables.containers.exists(c, has(c.resources) && (({_asks('limits')}) || ({_asks('requests')})))",
        "isIgnored": f"{_or_empty(_OBJECT, 'labels')}[?'{IGNORE_LABEL}'].orValue('') == 'ignore'",
        "scheduler": f"has({spec}.schedulerName) ? {spec}.schedulerName : ''",
        "ours": _listed("schedulerNames"),
        "foreign": _listed("foreignSchedulers"),
        "changed": _changed("annotations", keys),
        "changedLabels": _changed("labels", json.dumps([VGPU_NODE])),
        "writers": _listed("keyWriters"),
        "isWriter": "request.userInfo.username in variables.writers ||"
        " (has(request.userInfo.groups) && request.userInfo.groups.exists(group, group in variables.writers))",
    }
    return [{"name": name, "expression": expression} for name, expression in expressions.items()]


def _validations() -> Sequence[Document]:
    only_device_pods = "!variables.isNewPod || !variables.asks"
    unlisted = (
        " + ' is written by the system alone, not by ' + request.userInfo.username"
        f" + ': leave it as it is, or have the account listed in ConfigMap {NAMESPACE}/{POLICY_PARAMETERS}, keyWriters'"
    )
    return [
        {
            "expression": f"{only_device_pods} || !variables.isIgnored ||\n"
            "params.data[?'ignoredDevicePods'].orValue('deny') in ['warn', 'allow']",
            "message": f"pod asks for a device but its label {IGNORE_LABEL}: ignore keeps it from being placed:"
            " remove the label or the resource",
            "reason": "Forbidden",
        },
        {
            "expression": f"{only_device_pods} || variables.isIgnored || variables.scheduler in variables.ours ||\n"
            "variables.scheduler in variables.foreign || '*' in variables.foreign",
            "message": "Slotwise's webhook did not see this pod; see slotwise doctor",
            "messageExpression": "variables.scheduler in ['', 'default-scheduler']"
            ' ? "Slotwise\'s webhook did not see this pod; see slotwise doctor"'
            " : 'pod asks for a device but its scheduler is ' + variables.scheduler + ', not ' + variables.ours[0]"
            f" + ': leave schedulerName out, or have it listed in ConfigMap {NAMESPACE}/{POLICY_PARAMETERS}, foreignSchedulers'",
            "reason": "Forbidden",
        },
        {
            "expression": f"{only_device_pods} || !(variables.scheduler in variables.ours) ||\n"
            f"!has({_OBJECT}.spec.nodeName) || {_OBJECT}.spec.nodeName == ''",
            "message": "pod has node assigned: leave spec.nodeName out, node and cards are chosen together",
            "reason": "Forbidden",
        },
        {
            "expression": "size(variables.changed) == 0 || variables.isWriter",
            "message": "an annotation that is written by the system alone may not be changed",
            "messageExpression": "'annotation ' + variables.changed[0]" + unlisted,
            "reason": "Forbidden",
        },
        {
            "expression": "size(variables.changedLabels) == 0 || variables.isWriter",
            "message": f"label {VGPU_NODE} is written by the system alone",
            "messageExpression": "'label ' + variables.changedLabels[0]" + unlisted,
            "reason": "Forbidden",
        },
    ]


def _policy(config: DeviceConfig) -> Document:
    rules = [
        _rule("CREATE", "pods", "pods/binding", "bindings"),
        _rule("UPDATE", "pods", "pods/status", "pods/ephemeralcontainers", "pods/resize"),
    ]
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": _metadata(NAME, "policy"),
        "spec": {
            "failurePolicy": "Fail",
            "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
            "matchConstraints": {
                "matchPolicy": "Equivalent",
                "namespaceSelector": _not_exempt(),
                "resourceRules": rules,
            },
            "variables": list(_variables(config)),
            "validations": list(_validations()),
        },
    }


def _binding() -> Document:
    reference = {"name": POLICY_PARAMETERS, "namespace": NAMESPACE, "parameterNotFoundAction": "Deny"}
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": _metadata(NAME, "policy"),
        "spec": {"policyName": NAME, "paramRef": reference, "validationActions": ["Deny"]},
    }
