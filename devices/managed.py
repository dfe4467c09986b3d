"""What Kubernetes' own configuration has to name because of the families: generated, so that no family is forgotten in one place."""

import json
from collections.abc import Iterable

from devices.config import DeviceConfig
from devices.keys import SYSTEM_KEYS

__all__ = ["asks_condition", "managed_resources", "protected_keys"]


def _names(config: DeviceConfig) -> list[str]:
    return list(dict.fromkeys(name for vendor in config.vendors for name in vendor.resources))


def managed_resources(config: DeviceConfig) -> list[dict[str, object]]:
    """`managedResources` of the extender in a KubeSchedulerConfiguration: kube-scheduler calls us for these and counts none itself."""
    return [{"name": name, "ignoredByScheduler": True} for name in _names(config)]


def _exists(values: str, names: str) -> str:
    return f"(has(c.resources.{values}) && c.resources.{values}.exists(k, k in {names}))"


def asks_condition(config: DeviceConfig) -> str:
    """A CEL expression for a webhook's `matchConditions`: true for pods in which any container names a managed resource."""
    names = json.dumps(_names(config))
    container = f"has(c.resources) && ({_exists('limits', names)} || {_exists('requests', names)})"
    lists: Iterable[str] = ("containers", "initContainers")
    return " || ".join(f"(has(object.spec.{of}) && object.spec.{of}.exists(c, {container}))" for of in lists)


def protected_keys(config: DeviceConfig) -> list[str]:
    """Annotations that only the system may change, whatever the family; `hami.io/vgpu-node` is a label too."""
    return list(
        dict.fromkeys((*SYSTEM_KEYS, *(key for vendor in config.vendors for key in vendor.protected_annotations)))
    )
