"""Clusters made up for measuring: nodes, cards and placed pods of any number, the same for the same numbers."""

from collections.abc import Iterator
from dataclasses import dataclass

import orjson

from devices.ledger import Ledger
from devices.objects import node_of, pod_of

__all__ = ["Size", "card_uuid", "fill", "node_document", "node_name", "placed_pod", "pod_document"]

CARD_MEMORY_MIB = 15360
CARD_SLOTS = 10
JsonObject = dict[str, object]


@dataclass(frozen=True, slots=True)
class Size:
    """How large a cluster is."""

    nodes: int
    cards: int
    pods: int


def node_name(number: int) -> str:
    """`node-00042`."""
    return f"node-{number:05d}"


def card_uuid(node: int, card: int) -> str:
    """As long as a real one."""
    return f"GPU-{node:08x}-0000-4000-8000-{card:012x}"


def node_document(number: int, cards: int, lock: bool = False) -> JsonObject:
    """A node whose plugin has registered its cards; without a lock where `lock` is false."""
    listed = [
        {
            "id": card_uuid(number, card),
            "index": card,
            "count": CARD_SLOTS,
            "devmem": CARD_MEMORY_MIB,
            "devcore": 100,
            "type": "NVIDIA-Tesla T4",
            "numa": card * 2 // cards,
            "mode": "hami-core",
            "health": True,
        }
        for card in range(cards)
    ]
    annotations = {"hami.io/node-nvidia-register": orjson.dumps(listed).decode()}
    if not lock:
        annotations["slotwise.io/node-lock"] = "none"
    name = node_name(number)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": "1", "annotations": annotations},
        "status": {"allocatable": {"nvidia.com/gpu": str(cards * CARD_SLOTS)}},
    }


def pod_document(name: str, memory_mib: int, count: int = 1, cores: int = 0, policy: str = "") -> JsonObject:
    """A pod as it comes from the webhook, about 1.5 KB as many real ones."""
    limits = {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": str(count), "nvidia.com/gpumem": str(memory_mib)}
    if cores:
        limits["nvidia.com/gpucores"] = str(cores)
    environment = [{"name": f"SETTING_{n}", "value": "x" * 32} for n in range(16)]
    metadata: JsonObject = {"name": name, "namespace": "default", "uid": f"uid-{name}", "labels": {"app": "bench"}}
    if policy:
        metadata["annotations"] = {"hami.io/gpu-scheduler-policy": policy}
    container = {
        "name": "main",
        "image": "bench:1",
        "env": environment,
        "resources": {"limits": limits, "requests": limits},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"schedulerName": "hami-scheduler", "containers": [container]},
        "status": {"phase": "Pending"},
    }


def placed_pod(number: int, size: Size) -> JsonObject:
    """A running pod with its allocation; pods go over the nodes in turn, two a card before the next card."""
    node, turn = number % size.nodes, number // size.nodes
    card = (turn // 2) % size.cards
    pod = pod_document(f"placed-{number:06d}", 1000)
    metadata, spec = pod["metadata"], pod["spec"]
    assert isinstance(metadata, dict)
    assert isinstance(spec, dict)
    text = f"{card_uuid(node, card)},NVIDIA,1000,0:;"
    metadata["annotations"] = {"hami.io/vgpu-node": node_name(node), "hami.io/vgpu-devices-allocated": text}
    spec["nodeName"] = node_name(node)
    pod["status"] = {"phase": "Running"}
    return pod


def _fit(size: Size) -> None:
    room = size.nodes * size.cards * CARD_SLOTS
    if size.pods > room:
        raise ValueError(f"{size.pods} pods do not fit on {size.nodes} nodes of {size.cards} cards: at most {room} do")


def documents(size: Size) -> Iterator[JsonObject]:
    """Every placed pod."""
    _fit(size)
    return (placed_pod(number, size) for number in range(size.pods))


def fill(ledger: Ledger, size: Size) -> None:
    """Put the whole cluster into a ledger."""
    for number in range(size.nodes):
        ledger.put_node(node_of(node_document(number, size.cards)))
    for document in documents(size):
        ledger.put_pod(pod_of(document), 0.0)
