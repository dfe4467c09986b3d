"""Webhook configurations as the server acts on them: which webhook wants to see which request."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field

from .documents import JsonObject, labels, mapping, metadata, text
from .resources import NAMESPACES, Resource
from .selectors import LabelTest, from_document

MUTATING = "mutatingwebhookconfigurations"
VALIDATING = "validatingwebhookconfigurations"

_KNOWN_REVIEW_VERSIONS = ("v1", "v1beta1")


@dataclass(frozen=True, slots=True)
class User:
    """Who sent a request."""

    name: str
    groups: tuple[str, ...]


@dataclass(slots=True)
class Attributes:
    """One request as admission sees it."""

    operation: str
    """CREATE, UPDATE, DELETE or CONNECT."""
    resource: Resource
    kind: str
    """Kind of the object in the request; Binding for pods/binding."""
    subresource: str
    namespace: str
    name: str
    """Empty while a name is still to be generated."""
    user: User
    dry_run: bool
    options: JsonObject
    old: JsonObject | None = None
    namespace_labels: Mapping[str, object] | None = None
    """Labels of the request's namespace; None for requests outside namespaces."""
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry of a webhook's rules; `*` in a set stands for all."""

    operations: frozenset[str]
    groups: frozenset[str]
    versions: frozenset[str]
    resources: frozenset[tuple[str, str]]
    """Resource and subresource."""
    scope: str

    def matches(self, attributes: Attributes) -> bool:
        """Return whether the rule covers the request."""
        resource = attributes.resource
        in_namespace = resource is not NAMESPACES and bool(attributes.namespace)
        return (
            (self.scope == "*" or (self.scope == "Namespaced") is in_namespace)
            and _covers(self.operations, attributes.operation)
            and _covers(self.groups, resource.group)
            and _covers(self.versions, resource.version)
            and any(
                main in ("*", resource.plural) and sub in ("*", attributes.subresource) for main, sub in self.resources
            )
        )


@dataclass(frozen=True, slots=True)
class Webhook:
    """One webhook of a configuration."""

    name: str
    mutating: bool
    url: str | None
    """None for a webhook behind a Service, which the lab cannot reach."""
    service: str
    ca_bundle: bytes | None
    """Certificates in PEM, or None for the system's."""
    rules: tuple[Rule, ...]
    namespace_tests: tuple[LabelTest, ...]
    object_tests: tuple[LabelTest, ...]
    reinvoked_if_needed: bool
    """The lab never reinvokes."""
    match_conditions: int
    """How many; the lab evaluates none of them."""
    fails_closed: bool
    timeout_s: int
    side_effects_on_dry_run: bool
    review_version: str | None
    """`v1` or `v1beta1`: the first of the listed ones the server knows."""

    def wants(self, attributes: Attributes, obj: JsonObject | None) -> bool:
        """Return whether rules and selectors cover the request."""
        if not any(rule.matches(attributes) for rule in self.rules):
            return False
        if self.namespace_tests:
            of_the_object = attributes.resource is NAMESPACES and obj is not None
            own = labels(obj or {}) if of_the_object else attributes.namespace_labels
            if own is not None and not all(test(own) for test in self.namespace_tests):
                return False
        if not self.object_tests:
            return True
        candidates = (obj, attributes.old)
        return any(
            candidate is not None and all(test(labels(candidate)) for test in self.object_tests)
            for candidate in candidates
        )


def webhooks_of(configurations: list[JsonObject]) -> tuple[Webhook, ...]:
    """Return the webhooks of all configurations of one sort, ordered by configuration name, then as listed."""
    ordered = sorted(configurations, key=lambda configuration: text(metadata(configuration).get("name")))
    return tuple(
        _webhook(mapping(hook), configuration.get("kind") == "MutatingWebhookConfiguration")
        for configuration in ordered
        for hook in configuration.get("webhooks") or ()
    )


def _covers(accepted: frozenset[str], asked: str) -> bool:
    return "*" in accepted or asked in accepted


def _webhook(hook: JsonObject, mutating: bool) -> Webhook:
    client = mapping(hook.get("clientConfig"))
    bundle = client.get("caBundle")
    service = mapping(client.get("service"))
    versions = [version for version in hook.get("admissionReviewVersions") or () if version in _KNOWN_REVIEW_VERSIONS]
    return Webhook(
        name=text(hook.get("name")),
        mutating=mutating,
        url=text(client.get("url")) or None,
        service=f"{text(service.get('name'))}.{text(service.get('namespace'))}.svc" if service else "",
        ca_bundle=base64.b64decode(bundle) if bundle else None,
        rules=tuple(_rule(mapping(rule)) for rule in hook.get("rules") or ()),
        namespace_tests=from_document(hook.get("namespaceSelector")),
        object_tests=from_document(hook.get("objectSelector")),
        reinvoked_if_needed=hook.get("reinvocationPolicy") == "IfNeeded",
        match_conditions=len(hook.get("matchConditions") or ()),
        fails_closed=hook.get("failurePolicy") != "Ignore",
        timeout_s=hook.get("timeoutSeconds") or 10,
        side_effects_on_dry_run=hook.get("sideEffects") not in ("None", "NoneOnDryRun"),
        review_version=versions[0] if versions else None,
    )


def _rule(rule: JsonObject) -> Rule:
    resources = (text(name).partition("/") for name in rule.get("resources") or ())
    return Rule(
        operations=frozenset(rule.get("operations") or ()),
        groups=frozenset(rule.get("apiGroups") or ()),
        versions=frozenset(rule.get("apiVersions") or ()),
        resources=frozenset((main, sub) for main, _, sub in resources),
        scope=text(rule.get("scope")) or "*",
    )
