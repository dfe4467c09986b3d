"""What the one write of a pod carries: the allocation as annotations and label of its Binding."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from devices.annotations import encode
from devices.config import DeviceConfig
from devices.keys import (
    BIND_PHASE,
    BIND_TIME,
    SYSTEM_KEYS,
    VGPU_NODE,
    VGPU_TIME,
    check_binding_metadata,
    is_label_value,
)
from devices.model import Allocation, Entry, NodeState
from devices.objects import Pod
from devices.vendor import Placed, Vendor

__all__ = ["Carried", "allocation_annotations", "carried", "carries"]


@dataclass(frozen=True, slots=True)
class Carried:
    """Annotations and labels of a Binding; the API server merges them into the pod as it sets the node."""

    annotations: Mapping[str, str]
    labels: Mapping[str, str]


def _vendors(allocation: Allocation, config: DeviceConfig) -> list[Vendor]:
    keys = {entry.vendor for entries in allocation for entry in entries}
    return [vendor for vendor in config.vendors if vendor.key in keys]


def _of(allocation: Allocation, vendor: Vendor) -> Sequence[tuple[Entry, ...]]:
    return [tuple(entry for entry in entries if entry.vendor == vendor.key) for entries in allocation]


def allocation_annotations(
    allocation: Allocation, config: DeviceConfig, pod: Pod, node: NodeState | None, now_s: float
) -> dict[str, str]:
    """The vendors' annotations. What an earlier attempt left in a protected key of the pod is emptied.

    A merge cannot delete a key, and an empty value reads as "none".
    """
    stale = pod.annotations
    found: dict[str, str] = {}
    holders = _vendors(allocation, config)
    for vendor in holders:
        text = encode(allocation, vendor.key)
        for key in (vendor.to_allocate, vendor.allocated):
            if key:
                found[key] = text
        if vendor.hooks.annotate is not None:
            cards = {s.card.uuid: s.card for s in node.cards if s.card.vendor == vendor.key} if node is not None else {}
            placed = Placed(pod, node.name if node is not None else "", cards, now_s)
            further = vendor.hooks.annotate(vendor, _of(allocation, vendor), placed)
            found |= {key: value for key, value in further.items() if value or key in stale}
    for key in config.protected_annotations:
        if stale.get(key) and key not in found and key not in SYSTEM_KEYS:
            found[key] = ""
    return found


def carried(
    node: str, allocation: Allocation, config: DeviceConfig, pod: Pod, state: NodeState | None, now_s: float
) -> Carried:
    """Everything the Binding carries; `state` is the node with the cards of the allocation. Raises `BindingMetadataError` for what the API server would store but never take again.

    A node name that is no label value (it may have 253 characters) gives no label.
    """
    seconds = str(int(now_s))
    annotations = {
        VGPU_NODE: node,
        VGPU_TIME: seconds,
        BIND_PHASE: "allocating",
        BIND_TIME: seconds,
        **allocation_annotations(allocation, config, pod, state, now_s),
    }
    labels = {VGPU_NODE: node} if is_label_value(node) else {}
    # The limit holds for all that the pod has in the end, so what its user wrote counts too.
    check_binding_metadata({**pod.annotations, **annotations}.items(), labels.items())
    return Carried(annotations, labels)


def carries(annotations: Mapping[str, str], allocation: Allocation, config: DeviceConfig) -> bool:
    """Whether a bound pod carries exactly this allocation (the durable texts, which no plugin changes)."""
    return all(
        annotations.get(vendor.allocated) == encode(allocation, vendor.key) for vendor in _vendors(allocation, config)
    )
