"""What the API server was told to ask before a pod is stored: both webhooks, the policy, and others in their way."""

from collections.abc import Iterator, Sequence
from typing import Final

import orjson

from cli.doctor.facts import INSTALLATION, POLICY_PARAMETERS, SCHEDULER, Facts
from cli.doctor.findings import Finding, problem, unknown, warning, well
from cli.doctor.objects import WebhookConfiguration
from devices.managed import protected_keys

__all__ = ["admission_policy", "mutating_webhook", "other_admission", "validating_webhook"]

_APPLY: Final = "slotwise manifests ha | kubectl apply -f -"
_MAY_READ: Final = "run the doctor as somebody who may read webhook configurations and admission policies"


def _configuration(
    facts: Facts, check: str, kind: str, found: Sequence[WebhookConfiguration], path: str, policy: str
) -> Iterator[Finding]:
    if kind in facts.unread:
        yield unknown(check, f"the configurations cannot be read: {facts.unread[kind].why}", _MAY_READ)
        return
    ours = next((c for c in found if c.name == INSTALLATION), None)
    if ours is None or not ours.webhooks:
        yield problem(check, f"there is no {kind} {INSTALLATION!r} with a webhook in it", _APPLY)
        return
    sound = True
    for webhook in ours.webhooks:
        if webhook.client_config.path != path:
            sound = False
            yield problem(check, f"{webhook.name} calls {webhook.client_config.path or '/'} and not {path}", _APPLY)
        if webhook.covers("CREATE", "pods") and (webhook.failure_policy or "Fail") != policy:
            sound = False
            yield problem(
                check,
                f"{webhook.name} has failurePolicy {webhook.failure_policy} and not {policy}: {_POLICY[policy]}",
                _APPLY,
            )
    if not any(webhook.covers("CREATE", "pods") for webhook in ours.webhooks):
        sound = False
        yield problem(check, f"no rule of {INSTALLATION} covers the creation of pods", _APPLY)
    if sound:
        yield well(check, f"pods are sent to {path} (failurePolicy {policy})")


_POLICY: Final = {
    "Ignore": "while the webhook is down no pod of the cluster can be created",
    "Fail": "while the webhook is down device pods pass unchecked, quota too",
}


def mutating_webhook(facts: Facts) -> Iterator[Finding]:
    """Is `/webhook` asked, and does nothing hang on its being up?"""
    yield from _configuration(
        facts, "mutating-webhook", "MutatingWebhookConfiguration", facts.mutating, "/webhook", "Ignore"
    )


def validating_webhook(facts: Facts) -> Iterator[Finding]:
    """Is `/validate` asked, and can no device pod pass without it?"""
    yield from _configuration(
        facts, "validating-webhook", "ValidatingWebhookConfiguration", facts.validating, "/validate", "Fail"
    )


def admission_policy(facts: Facts) -> Iterator[Finding]:
    """Is the policy in force that needs no process of ours?"""
    check = "admission-policy"
    for kind in ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"):
        if kind in facts.unread:
            yield unknown(check, f"policies cannot be read: {facts.unread[kind].why}", _MAY_READ)
            return
    policy = facts.policies.get(INSTALLATION)
    if policy is None:
        yield problem(
            check, f"there is no ValidatingAdmissionPolicy {INSTALLATION!r}: keys of allocations can be forged", _APPLY
        )
        return
    sound = True
    if (policy.spec.failure_policy or "Fail") != "Fail":
        sound = False
        yield problem(check, "the policy has failurePolicy Ignore: an error in it lets everything pass", _APPLY)
    bindings = [b for b in facts.policy_bindings if b.spec.policy_name == INSTALLATION]
    if not any("Deny" in (b.spec.validation_actions or ()) for b in bindings):
        sound = False
        yield problem(
            check, "no ValidatingAdmissionPolicyBinding with action Deny binds the policy: it does nothing", _APPLY
        )
    if "configmaps" not in facts.unread and facts.config_maps.get(POLICY_PARAMETERS) is None:
        sound = False
        yield problem(
            check,
            f"its parameters, ConfigMap {facts.namespace}/{POLICY_PARAMETERS}, are not there: every pod it looks at is refused",
            _APPLY,
        )
    parameters = facts.config_maps.get(POLICY_PARAMETERS)
    account = f"system:serviceaccount:{facts.namespace}:{SCHEDULER}"
    if parameters is not None and not any(account in text for text in (parameters.data or {}).values()):
        sound = False
        yield problem(
            check,
            f"its parameters do not list {account}: no pod can be bound with its cards",
            f"add it to ConfigMap {facts.namespace}/{POLICY_PARAMETERS}, or {_APPLY}",
        )
    config = facts.device_config
    text = orjson.dumps(facts.policy_texts.get(INSTALLATION)).decode()
    missing = [] if isinstance(config, str) else [key for key in protected_keys(config) if key not in text]
    if missing:
        sound = False
        yield problem(
            check,
            f"the policy does not protect {', '.join(missing[:3])}{' …' if len(missing) > 3 else ''}: it is of another version or device configuration",
            f"{_APPLY} with this version of slotwise",
        )
    if sound:
        yield well(check, "allocations can be written by listed accounts only")


def other_admission(facts: Facts) -> Iterator[Finding]:
    """Does another installation's webhook change the same pods?"""
    check = "other-admission"
    others = [
        f"{configuration.name} ({webhook.name})"
        for configuration in (*facts.mutating, *facts.validating)
        for webhook in configuration.webhooks or ()
        if configuration.name != INSTALLATION and "hami" in f"{configuration.name} {webhook.name}".lower()
    ]
    if others:
        yield warning(
            check,
            f"HAMi's own admission is installed as well: {', '.join(others)}; pods are changed by both",
            "remove it once Slotwise serves: kubectl delete mutatingwebhookconfiguration NAME (docs/from-hami.md)",
        )
    else:
        yield well(check, "no other webhook for device pods")
