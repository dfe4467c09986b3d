"""How the API server is told to call Slotwise's webhook by its address."""

from base64 import b64encode

from devices.kube.protocols import JsonObject
from devices.kube.resources import MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS, Resource

__all__ = ["webhook_configurations"]


def webhook_configurations(url: str, ca_pem: bytes, only_pods: str = "") -> tuple[tuple[Resource, JsonObject], ...]:
    """Both configurations for a webhook at `url` (without a trailing slash) whose certificate that CA has signed.

    `only_pods`: a CEL expression; only pods for which it is true are validated. The embedded API server evaluates none.
    """
    return (
        (MUTATING_WEBHOOKS, _configuration("MutatingWebhookConfiguration", _mutating(url, ca_pem))),
        (VALIDATING_WEBHOOKS, _configuration("ValidatingWebhookConfiguration", _validating(url, ca_pem, only_pods))),
    )


def _mutating(url: str, ca_pem: bytes) -> JsonObject:
    left_alone = {"key": "hami.io/webhook", "operator": "NotIn", "values": ["ignore"]}
    return {
        **_hook("vgpu.hami.io", f"{url}/webhook", ca_pem, "Ignore"),
        "objectSelector": {"matchExpressions": [left_alone]},
    }


def _validating(url: str, ca_pem: bytes, only_pods: str) -> JsonObject:
    hook = _hook("validate.slotwise.io", f"{url}/validate", ca_pem, "Fail")
    if only_pods:
        hook["matchConditions"] = [{"name": "asks-for-a-managed-resource", "expression": only_pods}]
    return hook


def _hook(name: str, url: str, ca_pem: bytes, failure_policy: str) -> JsonObject:
    return {
        "name": name,
        "clientConfig": {"url": url, "caBundle": b64encode(ca_pem).decode()},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
        "admissionReviewVersions": ["v1"],
        "sideEffects": "NoneOnDryRun",
        "failurePolicy": failure_policy,
        "timeoutSeconds": 10,
    }


def _configuration(kind: str, hook: JsonObject) -> JsonObject:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": "slotwise"},
        "webhooks": [hook],
    }
