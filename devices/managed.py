"""What Kubernetes' own configuration has to name because of the families: generated, so that no family is forgotten in one place."""

import json
from collections.abc import Iterable, Sequence

from devices.config import DeviceConfig
from devices.keys import SYSTEM_KEYS, VGPU_NODE
from devices.vendor import Vendor

__all__ = [
    "asks_condition",
    "changes_condition",
    "device_variables",
    "is_device_variable",
    "managed_names",
    "managed_resources",
    "mutates_condition",
    "protected_keys",
]

_VISIBLE_DEVICES = "_VISIBLE_DEVICES"
"""Container runtimes of all families give a container the cards that a variable named so lists, whoever set it."""


def managed_names(config: DeviceConfig) -> list[str]:
    """Every resource that Slotwise manages, each once, vendor by vendor."""
    return list(dict.fromkeys(name for vendor in config.vendors for name in vendor.resources))


def managed_resources(config: DeviceConfig) -> list[dict[str, object]]:
    """`managedResources` of the extender in a KubeSchedulerConfiguration: kube-scheduler calls us for these and counts none itself."""
    return [{"name": name, "ignoredByScheduler": True} for name in managed_names(config)]


def _exists(values: str, names: str) -> str:
    return f"(has(c.resources.{values}) && c.resources.{values}.exists(k, k in {names}))"


def asks_condition(config: DeviceConfig) -> str:
    """A CEL expression for a webhook's `matchConditions`: true for pods in which any container names a managed resource."""
    names = json.dumps(managed_names(config))
    container = f"has(c.resources) && ({_exists('limits', names)} || {_exists('requests', names)})"
    lists: Iterable[str] = ("containers", "initContainers")
    return " || ".join(f"(has(object.spec.{of}) && object.spec.{of}.exists(c, {container}))" for of in lists)


def mutates_condition(config: DeviceConfig) -> str | None:
    """Like `asks_condition`, true also for new pods with a protected key, which is taken off them.

    None where a family changes pods that ask for nothing (`overwriteEnv`): every pod must be seen then.
    """
    if any(vendor.changes_other_pods for vendor in config.vendors):
        return None
    keys = json.dumps(protected_keys(config))
    forged = f"(has(object.metadata.annotations) && object.metadata.annotations.exists(k, k in {keys}))"
    label = f"(has(object.metadata.labels) && {json.dumps(VGPU_NODE)} in object.metadata.labels)"
    return f"{asks_condition(config)} || {forged} || {label}"


def changes_condition(config: DeviceConfig) -> str:
    """A CEL expression for updates of pods: true where a protected key is added, changed or removed."""
    held = "(has({0}.metadata.{1}) ? {0}.metadata.{1} : {{}})"
    new, old = held.format("object", "annotations"), held.format("oldObject", "annotations")
    annotations = f"{json.dumps(protected_keys(config))}.exists(k, {new}[?k] != {old}[?k])"
    new, old = held.format("object", "labels"), held.format("oldObject", "labels")
    key = json.dumps(VGPU_NODE)
    return f"{annotations} || {new}[?{key}] != {old}[?{key}]"


def protected_keys(config: DeviceConfig) -> list[str]:
    """Annotations that only the system may change, whatever the family; `hami.io/vgpu-node` is a label too."""
    return list(
        dict.fromkeys((*SYSTEM_KEYS, *(key for vendor in config.vendors for key in vendor.protected_annotations)))
    )


def device_variables(vendors: Iterable[Vendor]) -> Sequence[str]:
    """Variables that open cards to a container and do not end in `_VISIBLE_DEVICES`, as all others do."""
    return sorted({name for vendor in vendors for name in vendor.device_variables})


def is_device_variable(name: str, vendors: Iterable[Vendor]) -> bool:
    """Whether a variable of this name opens cards to the container that has it."""
    return name.endswith(_VISIBLE_DEVICES) or any(name in vendor.device_variables for vendor in vendors)
