"""Fake nodes: Node objects that carry the registration a device plugin would publish."""

from dataclasses import dataclass, field
from typing import Final

import orjson

from devices.keys import NODE_LOCK_MODE
from devices.kube.protocols import JsonObject
from lab.names import CORES, COUNT, MEMORY, PERCENTAGE, REGISTRATION

__all__ = ["CardSpec", "NodeSpec", "node_document", "uniform_nodes"]

_LONGEST_LABEL: Final = 63
"""A node's name may be longer; it is no label value then."""


@dataclass(frozen=True)
class CardSpec:
    """One fake card. Memory is MiB, compute percent; the index on the node is the card's place in the list."""

    uuid: str
    type: str = "NVIDIA-Tesla T4"
    memory_mib: int = 15360
    slots: int = 10
    cores: int = 100
    numa: int = 0
    mode: str = "hami-core"
    healthy: bool = True


@dataclass(frozen=True)
class NodeSpec:
    """One fake node with its cards in index order."""

    name: str
    cards: tuple[CardSpec, ...]
    annotations: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    node_lock: bool = False
    """True: the node's plugin needs the node lock, as HAMi's does."""
    capacity: dict[str, str] = field(default_factory=dict)
    """What other plugins announce as number: capacity and allocatable alike."""


def _registered(card: CardSpec, index: int) -> JsonObject:
    entry: JsonObject = {
        "id": card.uuid,
        "index": index,
        "count": card.slots,
        "devmem": card.memory_mib,
        "devcore": card.cores,
        "type": card.type,
        "numa": card.numa,
        "mode": card.mode,
        "health": card.healthy,
    }
    # The plugin's writer leaves out zero values, so that an unhealthy card has no `health` at all.
    return {key: value for key, value in entry.items() if value or key == "id"}


def _cards_announced(spec: NodeSpec) -> tuple[dict[str, str], dict[str, str]]:
    """Annotations and resources by which a node with these cards is known; none of either without cards."""
    if not spec.cards:
        return {}, {}
    registration = orjson.dumps([_registered(card, index) for index, card in enumerate(spec.cards)]).decode()
    resources = {
        COUNT: str(sum(card.slots for card in spec.cards)),
        CORES: str(sum(card.cores for card in spec.cards)),
        MEMORY: str(sum(card.memory_mib for card in spec.cards)),
        PERCENTAGE: str(100 * len(spec.cards)),
    }
    return {REGISTRATION: registration}, resources


def node_document(spec: NodeSpec) -> JsonObject:
    """The Node object: Ready, cards registered, their sums as allocatable, and whatever else the spec says."""
    annotations, announced = _cards_announced(spec)
    if not spec.node_lock:
        annotations[NODE_LOCK_MODE] = "none"
    annotations.update(spec.annotations)
    resources = {"cpu": "64", "memory": "256Gi", "pods": "1000", **announced, **spec.capacity}
    hostname = {"kubernetes.io/hostname": spec.name} if len(spec.name) <= _LONGEST_LABEL else {}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": spec.name,
            "annotations": annotations,
            "labels": {**hostname, "gpu": "on", **spec.labels},
        },
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }


def uniform_nodes(nodes: int, cards: int, *, memory_mib: int = 15360, slots: int = 10) -> tuple[NodeSpec, ...]:
    """`nodes` equal nodes of `cards` equal cards each: `node-001` with `GPU-001-0`, `GPU-001-1` and so on."""
    return tuple(
        NodeSpec(
            f"node-{node:03}",
            tuple(CardSpec(f"GPU-{node:03}-{card}", memory_mib=memory_mib, slots=slots) for card in range(cards)),
        )
        for node in range(1, nodes + 1)
    )
