"""What nobody may do to a pod that is there already. One small function a rule, asked in the order of the tuple.

What a running pod is worth to the books stands in annotations, and what its containers see was settled when it was placed. So
updates are judged by what they change; whatever they leave as it was passes, also where a new pod like it would be refused.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from devices.config import DeviceConfig
from devices.errors import QuantityError
from devices.keys import VGPU_NODE
from devices.managed import is_device_variable
from devices.objects import Container, Pod
from devices.quantity import Quantity, parse
from webhook.config import AdmissionSettings
from webhook.errors import NotAPodError
from webhook.requester import Requester
from webhook.validators import Refusal, RefusalReason
from webhook.wire import JsonObject

__all__ = ["Change", "EphemeralContainer", "added_ephemeral", "first_objection", "forged"]


class Variable(msgspec.Struct, frozen=True):
    """One entry of `env`."""

    name: str = ""


class EphemeralContainer(Container, rename="camel", frozen=True):
    """An ephemeral container, with what it brings into its environment."""

    env: list[Variable] | None = None
    env_from: list[dict[str, object]] | None = None


class _Spec(msgspec.Struct, rename="camel", frozen=True):
    ephemeral_containers: list[EphemeralContainer] | None = None


class _Pod(msgspec.Struct, frozen=True):
    spec: _Spec = _Spec()


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One update to judge."""

    before: Pod
    after: Pod
    added: Sequence[EphemeralContainer]
    """Ephemeral containers that were not there before; those that were can be neither changed nor removed."""
    resource: str
    """What was written to: `pods`, or a sub-resource as in `pods/status`."""
    requester: Requester
    settings: AdmissionSettings
    config: DeviceConfig
    managed: Sequence[str]
    """Managed resources that any container names, sorted."""

    @property
    def is_ours(self) -> bool:
        """Whether the pod is a device pod that we place: a pod keeps its scheduler, while labels can be changed."""
        ours = self.settings.scheduler_name
        return bool(self.managed) and (not ours or self.after.spec.scheduler_name == ours)


def added_ephemeral(pod: JsonObject, old: JsonObject) -> Sequence[EphemeralContainer]:
    """Ephemeral containers of `pod` whose names `old` does not have. Raises `NotAPodError`."""
    try:
        after, before = (msgspec.convert(document, _Pod).spec.ephemeral_containers or [] for document in (pod, old))
    except msgspec.ValidationError as error:
        raise NotAPodError(f"object is not a Pod: {error}") from error
    known = {container.name for container in before}
    return [container for container in after if container.name not in known]


def forged(key: str, requester: Requester) -> Refusal:
    """The refusal of a change of `key` (`annotation …` or `label …`): whose it is, and what helps."""
    who = requester.name or "an unnamed user"
    repair = "leave it as it is, or have the account listed with --key-writers and in ConfigMap slotwise-policy"
    return Refusal(RefusalReason.FORGED, f"{key} is written by the system alone, not by {who}: {repair}")


def keeps_protected_keys(change: Change) -> Refusal | None:
    """An allocation that is changed, added or taken away makes the books wrong."""
    if change.requester.is_among(change.settings.key_writers):
        return None
    before, after = change.before.annotations, change.after.annotations
    for key in change.config.protected_annotations:
        if before.get(key) != after.get(key):
            return forged(f"annotation {key}", change.requester)
    if change.before.labels.get(VGPU_NODE) != change.after.labels.get(VGPU_NODE):
        return forged(f"label {VGPU_NODE}", change.requester)
    return None


def _ephemeral(container: EphemeralContainer, text: str) -> Refusal:
    return Refusal(RefusalReason.EPHEMERAL, f"ephemeral container {container.name} {text}")


def adds_nothing_privileged(change: Change) -> Refusal | None:
    """A privileged container reaches every card of its node."""
    if not change.is_ours:
        return None
    found = next((container for container in change.added if container.is_privileged), None)
    if found is None:
        return None
    return _ephemeral(found, f"is privileged, in a pod with {change.managed[0]}: leave out securityContext.privileged")


def adds_no_device_environment(change: Change) -> Refusal | None:
    """Container runtimes open the cards that a variable names, whoever set it."""
    if not change.is_ours:
        return None
    for container in change.added:
        for variable in container.env or ():
            if is_device_variable(variable.name, change.config.vendors):
                return _ephemeral(
                    container, f"sets {variable.name}, in a pod with {change.managed[0]}: leave the variable out"
                )
        if container.env_from:
            return _ephemeral(
                container, f"has envFrom, in a pod with {change.managed[0]}: name each variable in env instead"
            )
    return None


def adds_no_devices(change: Change) -> Refusal | None:
    """Cards are given to pods once, when they are placed. (The API server refuses this, too.)"""
    managed = {name for vendor in change.config.vendors for name in vendor.resources}
    for container in change.added:
        asked = sorted(managed & {*container.limits, *container.requests})
        if asked:
            return _ephemeral(container, f"asks for {asked[0]}: only containers of a new pod can")
    return None


def keeps_device_amounts(change: Change) -> Refusal | None:
    """Nobody would choose cards for what is added, nor give back what is taken away. (The API server refuses this, too.)"""
    if change.resource != "pods/resize":
        return None
    managed = {name for vendor in change.config.vendors for name in vendor.resources}
    before = {container.name: container for container in (*change.before.init_containers, *change.before.containers)}
    for container in (*change.after.init_containers, *change.after.containers):
        old = before.get(container.name, Container())
        for was, now in ((old.limits, container.limits), (old.requests, container.requests)):
            for name in sorted(managed & {*was, *now}):
                if not _same(was, now, name):
                    text = f"container {container.name}: {name} of a pod that is there already cannot be changed: create a new pod"
                    return Refusal(RefusalReason.RESIZE, text)
    return None


def _same(was: Mapping[str, Quantity], now: Mapping[str, Quantity], name: str) -> bool:
    if name not in was or name not in now:
        return False
    try:
        return parse(was[name]) == parse(now[name])
    except QuantityError:
        return was[name] == now[name]


Rule = Callable[[Change], Refusal | None]
RULES: tuple[Rule, ...] = (
    keeps_protected_keys,
    adds_nothing_privileged,
    adds_no_device_environment,
    adds_no_devices,
    keeps_device_amounts,
)


def first_objection(change: Change) -> Refusal | None:
    """The first objection, in the order of the rules."""
    return next((refusal for rule in RULES if (refusal := rule(change)) is not None), None)
