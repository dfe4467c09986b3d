"""Admission: the stored webhooks are asked, their patches applied and their refusals worded.

Mutating webhooks are called one after the other, each with what the one before left; validating webhooks all at once
with the final object.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import orjson

from .calls import WebhookCaller, WebhookCallError
from .documents import JsonObject, mapping, text
from .errors import ApiError, bad_request, internal
from .hooks import MUTATING, VALIDATING, Attributes, Webhook, webhooks_of
from .patching import json_patch
from .resources import NAMESPACES, Resource, find
from .store import Store

log = logging.getLogger(__name__)

_CONFIGURATIONS = frozenset({MUTATING, VALIDATING})


@dataclass(slots=True)
class AdmissionCounts:
    """What admission has done since the start."""

    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By webhook name and outcome: allowed, denied, failed (request refused), ignored (failed open)."""
    match_conditions_ignored: int = 0
    """Calls made although a matchCondition, which the lab cannot evaluate, might have left them out."""


class Admission:
    """Asks the webhooks configured in the store."""

    def __init__(self, store: Store, caller: WebhookCaller) -> None:
        self._store = store
        self._caller = caller
        self._plans: dict[str, tuple[Webhook, ...]] = {}
        self.counts = AdmissionCounts()

    def configuration_changed(self, resource: Resource) -> None:
        """Take note of a write to a kind; webhooks are read anew when it was a configuration."""
        self._plans.pop(resource.plural, None)

    async def mutate(
        self, attributes: Attributes, obj: JsonObject | None, redefault: Callable[[JsonObject], None]
    ) -> JsonObject | None:
        """Return the object after all mutating webhooks.

        Args:
            attributes: the request; warnings are collected in it.
            obj: the object of the request; None for DELETE. It is not changed.
            redefault: fills in the defaults of a patched object.

        Raises:
            ApiError: a webhook refused, could not be asked and fails closed, or sent a patch that does not apply.
        """
        for hook in self._wanted(MUTATING, attributes, obj):
            if not hook.wants(attributes, obj):
                continue  # an earlier patch took the object out of its selector
            raw = None if obj is None else orjson.dumps(obj)
            operations = await self._ask(hook, attributes, raw)
            if not operations:
                continue
            if raw is None:
                raise internal(
                    f'admission webhook "{hook.name}" attempted to modify the object, '
                    "which is not supported for this operation"
                )
            try:
                obj = json_patch(orjson.loads(raw), operations)
            except ValueError as error:
                raise internal(str(error)) from error
            redefault(obj)
        return obj

    async def validate(self, attributes: Attributes, obj: JsonObject | None) -> None:
        """Ask all validating webhooks about the final object.

        Raises:
            ApiError: a webhook refused, or could not be asked and fails closed.
        """
        wanted = self._wanted(VALIDATING, attributes, obj)
        if not wanted:
            return
        raw = None if obj is None else orjson.dumps(obj)
        if len(wanted) == 1:
            await self._ask(wanted[0], attributes, raw)
            return
        outcomes = await asyncio.gather(*(self._ask(hook, attributes, raw) for hook in wanted), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    def _wanted(self, sort: str, attributes: Attributes, obj: JsonObject | None) -> tuple[Webhook, ...]:
        if attributes.resource.plural in _CONFIGURATIONS:
            return ()  # webhooks never see the configurations that could repair them
        plan = self._plans.get(sort)
        if plan is None:
            plan = self._plans[sort] = self._read(sort)
        if not plan:
            return ()
        if attributes.namespace and attributes.namespace_labels is None:
            namespace = self._store.get(NAMESPACES, attributes.namespace)
            if namespace is not None:
                attributes.namespace_labels = mapping(namespace.obj["metadata"].get("labels"))
        if sort == MUTATING:
            return tuple(hook for hook in plan if any(rule.matches(attributes) for rule in hook.rules))
        return tuple(hook for hook in plan if hook.wants(attributes, obj))

    def _read(self, sort: str) -> tuple[Webhook, ...]:
        resource = find("admissionregistration.k8s.io", "v1", sort)
        assert resource is not None
        hooks = webhooks_of([version.obj for version in self._store.ordered(resource)])
        for hook in hooks:
            if hook.reinvoked_if_needed:
                log.warning("webhook %s asks for reinvocation, which the lab does not do", hook.name)
            if hook.match_conditions:
                log.warning("webhook %s has matchConditions, which the lab takes as met", hook.name)
        return hooks

    async def _ask(self, hook: Webhook, attributes: Attributes, raw: bytes | None) -> list[JsonObject]:
        """Return the patch of a webhook that allowed the request; empty when it failed and is ignored."""
        if hook.match_conditions:
            self.counts.match_conditions_ignored += 1
        if attributes.dry_run and hook.side_effects_on_dry_run:
            raise bad_request(f'admission webhook "{hook.name}" does not support dry run')
        try:
            verdict = await self._caller.call(hook, attributes, raw)
        except WebhookCallError as failure:
            self.counts.calls[hook.name, "failed" if hook.fails_closed else "ignored"] += 1
            if hook.fails_closed:
                raise internal(f'failed calling webhook "{hook.name}": {failure}') from failure
            return []
        attributes.warnings.extend(verdict.warnings)
        if not verdict.allowed:
            self.counts.calls[hook.name, "denied"] += 1
            raise denial(hook.name, verdict.status)
        self.counts.calls[hook.name, "allowed"] += 1
        return verdict.operations


def denial(webhook: str, status: JsonObject) -> ApiError:
    """Return the error for a refusal: the webhook's own code, reason and details, its message after the server's words.

    A code below 400, or none, becomes 400 (as kube-apiserver 1.37 does).
    """
    code = status.get("code")
    why = text(status.get("message")) or text(status.get("reason"))
    opening = f'admission webhook "{webhook}" denied the request'
    return ApiError(
        code if isinstance(code, int) and code >= 400 else 400,
        text(status.get("reason")),
        f"{opening}: {why}" if why else f"{opening} without explanation",
        mapping(status.get("details")) or None,
    )
