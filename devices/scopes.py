"""Which pods a ResourceQuota covers: its scopes and scope selector, evaluated as Kubernetes evaluates them for pods."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from devices.objects import Pod, Quota
from devices.quantity import Quantity

__all__ = ["EVERY_POD", "Requirement", "Scope", "ScopeFacts", "covers", "facts_of", "scope_of", "unknown_scopes"]

_BEST_EFFORT_RESOURCES = ("cpu", "memory")
_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")
_PRIORITY_CLASS = "PriorityClass"
_POD_SCOPES = (
    "Terminating",
    "NotTerminating",
    "BestEffort",
    "NotBestEffort",
    _PRIORITY_CLASS,
    "CrossNamespacePodAffinity",
)
_POSITIVE = re.compile(r"\+?[0.]*[1-9]")
_OTHER_SCOPES = ("VolumeAttributesClass",)
"""Scopes of Kubernetes that no pod matches."""


class ScopeFacts(msgspec.Struct, frozen=True, order=True, gc=False):
    """All that scopes ask of a pod."""

    priority_class: str = ""
    terminating: bool = False
    """It has a deadline (`spec.activeDeadlineSeconds`), which is what the scope means; not that it is being deleted."""
    best_effort: bool = False
    cross_namespace: bool = False


@dataclass(frozen=True, slots=True, order=True)
class Requirement:
    """One demand of a quota on the pods it covers."""

    scope: str
    operator: str = "Exists"
    values: tuple[str, ...] = ()


Scope = tuple[Requirement, ...]
"""All demands of a quota, sorted; a pod must meet each."""

EVERY_POD: Scope = ()


def scope_of(quota: Quota) -> Scope:
    """What the quota demands: `spec.scopes` and `spec.scopeSelector` together."""
    selector = quota.spec.scope_selector
    expressions = (selector.match_expressions if selector else None) or ()
    found = {Requirement(name) for name in quota.spec.scopes or ()}
    found.update(Requirement(e.scope_name, e.operator, tuple(sorted(e.values or ()))) for e in expressions)
    return tuple(sorted(found))


def unknown_scopes(scope: Scope) -> tuple[str, ...]:
    """Demands that no pod meets because they are not understood, worded for an administrator."""
    return tuple(
        f"scope {r.scope} {r.operator} is not known: the quota limits no pod"
        for r in scope
        if r.scope not in (*_POD_SCOPES, *_OTHER_SCOPES) or r.operator not in _OPERATORS
    )


def covers(scope: Scope, facts: ScopeFacts) -> bool:
    """Whether a quota of this scope counts and limits a pod like this."""
    return all(_meets(requirement, facts) for requirement in scope)


def _meets(requirement: Requirement, facts: ScopeFacts) -> bool:
    match requirement.scope:
        case "Terminating":
            return facts.terminating
        case "NotTerminating":
            return not facts.terminating
        case "BestEffort":
            return facts.best_effort
        case "NotBestEffort":
            return not facts.best_effort
        case "CrossNamespacePodAffinity":
            return facts.cross_namespace
        case "PriorityClass":
            return _meets_class(requirement, facts.priority_class)
    return False


def _meets_class(requirement: Requirement, name: str) -> bool:
    """As a label selector over one label that a pod without a priority class does not have."""
    match requirement.operator:
        case "In":
            return bool(name) and name in requirement.values
        case "NotIn":
            return not name or name not in requirement.values
        case "Exists":
            return bool(name)
        case "DoesNotExist":
            return not name
    return False


def facts_of(pod: Pod) -> ScopeFacts:
    """What scopes ask, of the final pod: its priority class is what admission has filled in."""
    spec = pod.spec
    affinity = spec.affinity
    kinds = (affinity.pod_affinity, affinity.pod_anti_affinity) if affinity else ()
    return ScopeFacts(
        spec.priority_class_name or "",
        spec.active_deadline_seconds is not None and spec.active_deadline_seconds >= 0,
        _is_best_effort(pod),
        bool(kinds)
        and any(
            term.namespaces or term.namespace_selector is not None for kind in kinds if kind for term in kind.terms
        ),
    )


def _is_best_effort(pod: Pod) -> bool:
    """No container has a cpu or memory request or limit above 0; resources of the whole pod, where given, decide alone."""
    if pod.status.qos_class:
        return pod.status.qos_class == "BestEffort"
    whole = pod.spec.resources
    if whole is not None and (whole.limits or whole.requests):
        return not _any_above_0((whole.limits or {}, whole.requests or {}))
    containers = (*pod.init_containers, *pod.containers)
    return not _any_above_0(values for container in containers for values in (container.limits, container.requests))


def _any_above_0(lists: Iterable[Mapping[str, Quantity]]) -> bool:
    return any(_above_0(values[name]) for values in lists for name in _BEST_EFFORT_RESOURCES if name in values)


def _above_0(value: Quantity) -> bool:
    """Whether a quantity the API server has taken is positive: the first digit that is not 0 stands before any suffix."""
    return bool(_POSITIVE.match(value)) if isinstance(value, str) else value > 0
