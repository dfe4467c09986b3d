"""What a pod is refused for. One small function a rule; the tuples below say which are asked, and in which order."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from devices.config import DeviceConfig
from devices.keys import IGNORE_LABEL, VGPU_NODE
from devices.objects import Pod
from devices.quota import Excess
from devices.requests import NO_CLUSTER, Cluster
from webhook.advice import Advice
from webhook.config import AdmissionSettings

__all__ = [
    "AFTER_MUTATION",
    "BEFORE_EXEMPTIONS",
    "BEFORE_MUTATION",
    "FINAL",
    "Case",
    "Refusal",
    "RefusalReason",
    "Validator",
    "exceeding",
    "first_refusal",
    "is_ignored",
]

DEFAULT_SCHEDULER = "default-scheduler"


class RefusalReason(StrEnum):
    """Label of the counter of denials."""

    NO_CONTAINERS = "no-containers"
    MALFORMED = "malformed"
    NOT_A_POD = "not-a-pod"
    IGNORED = "ignore-label"
    FORGED = "protected-key"
    SCHEDULER = "scheduler"
    PRIVILEGED = "privileged"
    NODE_NAME = "node-name"
    BINDING = "binding"
    EPHEMERAL = "ephemeral-container"
    RESIZE = "resize"
    POD_UNKNOWN = "pod-unavailable"
    QUOTA = "quota"
    QUOTA_UNKNOWN = "quota-unavailable"
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a pod is refused: the user's text, the HTTP-like code of the answer, and what it counts as."""

    reason: RefusalReason
    message: str
    code: int = 403
    excesses: tuple[Excess, ...] = ()
    """Of a refusal for quota: every key that is over."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One pod to judge, with all that a rule may look at."""

    pod: Pod
    namespace: str
    settings: AdmissionSettings
    config: DeviceConfig
    managed: tuple[str, ...]
    """Managed resources that any container names, in limits or requests, sorted."""
    asks: bool
    """A family has taken the pod for its own."""
    cluster: Cluster = NO_CLUSTER
    advice: Advice = msgspec.field(default_factory=Advice)


Validator = Callable[[Case], Refusal | None]


def has_containers(case: Case) -> Refusal | None:
    """A pod without containers cannot be placed."""
    return None if case.pod.containers else Refusal(RefusalReason.NO_CONTAINERS, "pod has no containers")


def is_ignored(pod: Pod) -> bool:
    """The pod is labelled to be left alone by `/webhook`."""
    return pod.labels.get(IGNORE_LABEL) == "ignore"


def not_ignored(case: Case) -> Refusal | None:
    """A device pod that was never mutated would run beside the books."""
    if not case.managed or not is_ignored(case.pod) or case.settings.ignored_device_pods == "allow":
        return None
    text = f"pod asks for {case.managed[0]} but its label {IGNORE_LABEL}: ignore keeps it from being placed"
    if case.settings.ignored_device_pods == "warn":
        case.advice.add(text)
        return None
    return Refusal(RefusalReason.IGNORED, text + ": remove the label or the resource")


def no_protected_keys(case: Case) -> Refusal | None:
    """An allocation in a new pod is forged: it would count as usage of cards that nobody gave it."""
    annotations = case.pod.annotations
    found = (
        [f"annotation {key}" for key in case.config.protected_annotations if key in annotations] if annotations else []
    )
    found += [f"label {VGPU_NODE}"] if VGPU_NODE in case.pod.labels else []
    return Refusal(RefusalReason.FORGED, f"{found[0]} is written by the system alone: remove it") if found else None


def our_scheduler(case: Case) -> Refusal | None:
    """A device pod of another scheduler gets no cards from us; also one that `/webhook` never saw."""
    name, ours = case.pod.spec.scheduler_name or DEFAULT_SCHEDULER, case.settings.scheduler_name
    if not case.managed or not ours or name == ours or case.settings.lets_pass(name):
        return None
    if is_ignored(case.pod):  # let through above, knowingly
        return None
    return Refusal(RefusalReason.SCHEDULER, f"pod asks for {case.managed[0]} but its scheduler is {name}, not {ours}")


def not_privileged(case: Case) -> Refusal | None:
    """A privileged container reaches every card of its node, so no container of a device pod may be one."""
    if not case.managed:
        return None
    for container in (*case.pod.init_containers, *case.pod.containers):
        if container.is_privileged:
            return Refusal(RefusalReason.PRIVILEGED, f"container {container.name} is privileged")
    return None


def no_node_name(case: Case) -> Refusal | None:
    """A pod with a node passes no scheduler, so nobody would choose its cards."""
    if case.asks and case.settings.scheduler_name and case.pod.bound_node:
        return Refusal(RefusalReason.NODE_NAME, "pod has node assigned")
    return None


def exceeding(excesses: tuple[Excess, ...]) -> Refusal:
    """The refusal that names every key that is over, beginning with the words that clients match on."""
    text = "exceeding resource quota: " + "; ".join(str(e) for e in excesses)
    return Refusal(RefusalReason.QUOTA, text, excesses=excesses)


BEFORE_MUTATION: tuple[Validator, ...] = (has_containers,)
AFTER_MUTATION: tuple[Validator, ...] = (not_privileged, no_node_name)

BEFORE_EXEMPTIONS: tuple[Validator, ...] = (has_containers, no_protected_keys, not_ignored, our_scheduler)
"""Of the final pod: asked of every one, whoever schedules it."""
FINAL: tuple[Validator, ...] = (not_privileged, no_node_name)
"""Of the final pod, if it is ours to place; its quota comes after them."""


def first_refusal(validators: Iterable[Validator], case: Case) -> Refusal | None:
    """The first objection, in the order of `validators`."""
    for validator in validators:
        if (refusal := validator(case)) is not None:
            return refusal
    return None
