"""What becomes of pods: those sent with `dryRun=All`, and those that wait."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from cli.doctor.facts import Facts
from cli.doctor.findings import Finding, problem, unknown, warning, well

__all__ = ["device_pod", "forged_pod", "plain_pod", "privileged_pod", "waiting_pods"]

_NOT_SEEN: Final = "webhook did not see this pod"
_SHOWN: Final = 3

_CAUSES: Final = (
    (r"x509|certificate", "the API server does not trust the webhook's certificate", "repair ca-bundle"),
    (r"no endpoints available|connection refused", "no webhook pod answers", "repair webhook-pods and webhook-service"),
    (
        r"service \"?[^ ]*\"? not found|services? .* not found|no such host",
        "the Service of the webhook is not there",
        "repair webhook-service",
    ),
    (
        r"deadline exceeded|timeout|timed out|i/o timeout",
        "the webhook is not reached in time",
        "does a NetworkPolicy or firewall keep the API server from port 8443 of the webhook's pods?",
    ),
    (
        r"exceeding resource quota|exceeded quota",
        "the quota of the probe's namespace is used up",
        "give --probe-namespace one with room",
    ),
    (r"namespaces? .* not found", "the probe's namespace is not there", "give --probe-namespace one that is"),
)


def _cause(message: str) -> tuple[str, str] | None:
    return next(((text, repair) for pattern, text, repair in _CAUSES if re.search(pattern, message)), None)


def plain_pod(facts: Facts) -> Iterator[Finding]:
    """Can a pod without devices be created, and does it stay as it is?"""
    check = "plain-pod"
    probe = facts.probes.get("plain")
    if probe is None:
        yield unknown(check, *_not_sent(facts))
    elif not probe.accepted:
        yield problem(
            check,
            f"a pod without devices is refused: {probe.message}",
            "find whose refusal it is; ours name slotwise or hami",
        )
    elif _scheduler(probe.pod) == _our_scheduler(facts):
        yield problem(check, "a pod without devices is given our scheduler", "repair mutating-webhook")
    else:
        yield well(check, "a pod without devices passes untouched (dry run)")


def device_pod(facts: Facts) -> Iterator[Finding]:
    """Is a device pod filled in and let through?"""
    check = "device-pod"
    probe = facts.probes.get("device")
    if probe is None:
        yield unknown(check, *_not_sent(facts))
    elif probe.accepted and _scheduler(probe.pod) == _our_scheduler(facts):
        yield well(check, "a device pod is filled in and let through (dry run)")
    elif probe.accepted:
        yield problem(
            check,
            f"a device pod is let through unchanged, for {_scheduler(probe.pod)}: it would run without cards of its own",
            "repair mutating-webhook, validating-webhook and admission-policy",
        )
    elif _NOT_SEEN in probe.message:
        yield problem(
            check,
            "a device pod is refused because /webhook was not asked or did not answer; its failurePolicy hides why",
            "repair webhook-pods, webhook-service, mutating-webhook and ca-bundle, whichever is not well",
        )
    else:
        why = _cause(probe.message)
        text, repair = why or ("a device pod is refused", "the text says why; slotwise quota check -f POD tells more")
        yield problem(check, f"{text}: {probe.message}", repair)


def privileged_pod(facts: Facts) -> Iterator[Finding]:
    """Is a privileged device pod refused?"""
    check = "privileged-pod"
    probe = facts.probes.get("privileged")
    if probe is None:
        yield unknown(check, *_not_sent(facts))
    elif probe.accepted:
        yield problem(
            check,
            "a privileged device pod is let through: it could use every card of its node",
            "repair validating-webhook",
        )
    else:
        yield well(check, "a privileged device pod is refused (dry run)")


def forged_pod(facts: Facts) -> Iterator[Finding]:
    """Is a pod refused that brings an allocation of its own making?"""
    check = "forged-pod"
    probe = facts.probes.get("forged")
    if probe is None:
        yield unknown(check, *_not_sent(facts))
    elif probe.accepted and any(vendor.allocated in _annotations(probe.pod) for vendor in facts.ledger.config.vendors):
        yield problem(
            check, "a pod may write its own allocation: cards can be taken past every limit", "repair admission-policy"
        )
    else:
        yield well(check, "a pod that brings its own allocation is refused, or loses it (dry run)")


def _annotations(pod: Mapping[str, object] | None) -> Mapping[str, object]:
    metadata = pod.get("metadata") if pod is not None else None
    found = metadata.get("annotations") if isinstance(metadata, dict) else None
    return found if isinstance(found, dict) else {}


def _not_sent(facts: Facts) -> tuple[str, str]:
    refusal = facts.unread.get("pods/dry-run")
    why = refusal.why if refusal is not None else "it was not sent"
    return f"no pod could be sent: {why}", "run the doctor as somebody who may create pods in --probe-namespace"


def _scheduler(pod: Mapping[str, object] | None) -> str:
    spec = pod.get("spec") if pod is not None else None
    name = spec.get("schedulerName") if isinstance(spec, dict) else None
    return name if isinstance(name, str) else ""


def _our_scheduler(facts: Facts) -> str:
    settings = facts.webhook_settings
    return "hami-scheduler" if isinstance(settings, str) else settings.admission.scheduler_name


def waiting_pods(facts: Facts) -> Iterator[Finding]:
    """Do device pods wait, and for what?"""
    check = "waiting-pods"
    if "pods" in facts.unread:
        yield unknown(check, f"pods cannot be read: {facts.unread['pods'].why}", "run the doctor as somebody who may")
        return
    ours = _our_scheduler(facts)
    foreign = Counter(p.spec.scheduler_name for p in facts.waiting if p.spec.scheduler_name != ours)
    for name, count in sorted(foreign.items(), key=str):
        yield warning(
            check,
            f"{count} waiting device pods name the scheduler {name}: Slotwise does not place them",
            "create them again: their webhook call was missed, or they chose that scheduler themselves",
        )
    reasons: Counter[str] = Counter()
    for pod in facts.waiting:
        if pod.spec.scheduler_name == ours:
            said = [c.message for c in pod.status.conditions or () if c.type == "PodScheduled" and c.message]
            reasons[said[0] if said else ""] += 1
    for text, count in reasons.most_common(_SHOWN):
        if text:
            yield warning(
                check,
                f"{count} device pods wait: {text}",
                "kubectl describe pod tells more; docs/why-does-my-pod-wait.md",
            )
        else:
            yield warning(
                check,
                f"{count} device pods wait and kube-scheduler has said nothing on them",
                "repair leader and scheduler-pods",
            )
    if not foreign and not reasons:
        yield well(check, "no device pod waits")
