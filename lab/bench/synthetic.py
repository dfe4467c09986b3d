"""Clusters made up for measuring: nodes, cards and placed pods of any number, the same for the same numbers.

A cluster in use is mostly full: of ten nodes six are full in memory, one in slots, one in compute, and two are mixed. Every other
pod is in a namespace with a quota that it does not come near.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice

import orjson

from devices.ledger import Ledger
from devices.objects import node_of, pod_of, quota_of

__all__ = [
    "TIGHT",
    "TIGHT_MIB",
    "JsonObject",
    "Size",
    "card_uuid",
    "documents",
    "fill",
    "node_document",
    "node_documents",
    "node_name",
    "pod_document",
    "quota_document",
    "tight_quota_document",
    "with_kubernetes_fields",
]

CARD_MEMORY_MIB = 15360
CARD_SLOTS = 10
FEW_SLOTS = 2
"""Of the cards on nodes that are full in slots."""
FULL_IN_MEMORY, FULL_IN_SLOTS, FULL_IN_CORES = range(6), (6,), (7,)
"""Last digits of node numbers; the other nodes are mixed."""
LIMITED = "limited"
"""The namespace with a quota."""
TIGHT, TIGHT_MIB = "tight", 16_000
"""A namespace with a small quota, of which nothing is used."""
JsonObject = dict[str, object]


@dataclass(frozen=True, slots=True)
class Size:
    """How large a cluster is."""

    nodes: int
    cards: int
    pods: int


@dataclass(frozen=True, slots=True)
class _Place:
    node: int
    card: int
    memory_mib: int
    cores: int = 0


def node_name(number: int) -> str:
    """`node-00042`."""
    return f"node-{number:05d}"


def card_uuid(node: int, card: int) -> str:
    """As long as a real one."""
    return f"GPU-{node:08x}-0000-4000-8000-{card:012x}"


def _pair_scores(node: int, cards: int) -> str:
    """Every pair of neighbours is linked twice as well as any other pair."""
    uuids = [card_uuid(node, card) for card in range(cards)]
    rows = [
        {"uuid": mine, "score": {peer: 100 if a // 2 == b // 2 else 50 for b, peer in enumerate(uuids) if a != b}}
        for a, mine in enumerate(uuids)
    ]
    return orjson.dumps(rows).decode()


def node_document(
    number: int, cards: int, lock: bool = False, slots: int = CARD_SLOTS, linked: bool = False
) -> JsonObject:
    """A node whose plugin has registered its cards; without a lock where `lock` is false, with pair scores where `linked`."""
    listed = [
        {
            "id": card_uuid(number, card),
            "index": card,
            "count": slots,
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
    if linked:
        annotations["hami.io/node-nvidia-score"] = _pair_scores(number, cards)
    if not lock:
        annotations["slotwise.io/node-lock"] = "none"
    name = node_name(number)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": "1", "annotations": annotations},
        "status": {"allocatable": {"nvidia.com/gpu": str(cards * slots)}},
    }


def pod_document(
    name: str, memory_mib: int, count: int = 1, cores: int = 0, policy: str = "", namespace: str = "default"
) -> JsonObject:
    """A pod as it comes from the webhook, about 1.5 KB as many real ones."""
    environment = [{"name": f"SETTING_{n}", "value": "x" * 32} for n in range(16)]
    metadata: JsonObject = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "labels": {"app": "bench"}}
    if policy:
        metadata["annotations"] = {"hami.io/gpu-scheduler-policy": policy}
    container = {"image": "bench:1", "env": environment, **container_document("main", memory_mib, count, cores)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"schedulerName": "hami-scheduler", "containers": [container]},
        "status": {"phase": "Pending"},
    }


def container_document(name: str, memory_mib: int, count: int = 1, cores: int = 0) -> JsonObject:
    """A container that asks for shares of cards."""
    limits = {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": str(count), "nvidia.com/gpumem": str(memory_mib)}
    if cores:
        limits["nvidia.com/gpucores"] = str(cores)
    return {"name": name, "resources": {"limits": limits, "requests": limits}}


def _slots(node: int) -> int:
    return FEW_SLOTS if node % 10 in FULL_IN_SLOTS else CARD_SLOTS


def _full(size: Size) -> Iterator[_Place]:
    """What fills the nodes that are full."""
    for node in range(size.nodes):
        for card in range(size.cards):
            if node % 10 in FULL_IN_MEMORY:
                yield _Place(node, card, CARD_MEMORY_MIB - 360 + node % 10 * 10)
            elif node % 10 in FULL_IN_SLOTS:
                yield from [_Place(node, card, 1000)] * FEW_SLOTS
            elif node % 10 in FULL_IN_CORES:
                yield _Place(node, card, 1000, 100)


def _mixed(size: Size) -> Iterator[_Place]:
    """One pod a mixed node, then another, on one card until that has no room for a further one."""
    nodes = [node for node in range(size.nodes) if node % 10 not in (*FULL_IN_MEMORY, *FULL_IN_SLOTS, *FULL_IN_CORES)]
    for turn in range(size.cards * CARD_SLOTS):
        for node in nodes:
            yield _Place(node, turn // CARD_SLOTS, 500 + node // 10 % 10 * 100)


def _placed_pod(number: int, place: _Place) -> JsonObject:
    namespace = LIMITED if number % 2 else "default"
    pod = pod_document(f"placed-{number:06d}", place.memory_mib, cores=place.cores, namespace=namespace)
    metadata, spec = pod["metadata"], pod["spec"]
    assert isinstance(metadata, dict)
    assert isinstance(spec, dict)
    name = node_name(place.node)
    text = f"{card_uuid(place.node, place.card)},NVIDIA,{place.memory_mib},{place.cores}:;"
    metadata["annotations"] = {"hami.io/vgpu-node": name, "hami.io/vgpu-devices-allocated": text}
    metadata["labels"] = {"hami.io/vgpu-node": name}
    spec["nodeName"] = name
    pod["status"] = {"phase": "Running"}
    return pod


def documents(size: Size) -> Iterator[JsonObject]:
    """Every placed pod. Raises `ValueError` for more than there is room for."""
    places = list(islice(chain(_full(size), _mixed(size)), size.pods))
    if len(places) < size.pods:
        raise ValueError(
            f"{size.pods} pods do not fit on {size.nodes} nodes of {size.cards} cards: at most {len(places)} do"
        )
    return (_placed_pod(number, place) for number, place in enumerate(places))


def node_documents(size: Size, linked: bool = False) -> Iterator[JsonObject]:
    """Every node; `linked`: the nodes say how well their cards are linked."""
    return (node_document(number, size.cards, slots=_slots(number), linked=linked) for number in range(size.nodes))


def quota_document() -> JsonObject:
    """The quota of the namespace that has one; nobody comes near it."""
    return _quota(LIMITED, {"limits.nvidia.com/gpumem": "2000000000", "limits.nvidia.com/gpu": "2000000"})


def tight_quota_document() -> JsonObject:
    """The quota of `TIGHT`."""
    return _quota(TIGHT, {"limits.nvidia.com/gpumem": str(TIGHT_MIB)})


def _quota(namespace: str, hard: JsonObject) -> JsonObject:
    metadata = {"name": "bench", "namespace": namespace, "uid": f"uid-quota-{namespace}"}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": hard}}


def with_kubernetes_fields(pod: JsonObject) -> JsonObject:
    """A placed pod with what a cluster adds to it and Slotwise does not read: managed fields, volumes, conditions. About 5.5 KB then."""
    metadata, spec = pod["metadata"], pod["spec"]
    assert isinstance(metadata, dict)
    assert isinstance(spec, dict)
    owned: JsonObject = {f"f:field-{n}": {".": {}, "f:name": {}, "f:value": {}} for n in range(16)}
    manager = {"apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": owned}, "operation": "Update"}
    metadata |= {
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {**metadata["labels"], "pod-template-hash": "5d4f8c7b9", "controller-revision-hash": "6c9b7"},
        "managedFields": [{**manager, "manager": name} for name in ("kube-controller-manager", "slotwise", "kubelet")],
        "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "bench", "uid": "uid-owner"}],
    }
    spec |= {
        "dnsPolicy": "ClusterFirst",
        "restartPolicy": "Always",
        "serviceAccountName": "default",
        "tolerations": [
            {"key": f"node.kubernetes.io/{why}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
            for why in ("not-ready", "unreachable")
        ],
        "volumes": [{"name": f"volume-{n}", "projected": {"defaultMode": 420, "sources": []}} for n in range(4)],
    }
    ready = {"status": "True", "lastProbeTime": None, "lastTransitionTime": "2026-01-01T00:00:00Z"}
    pod["status"] = {
        "phase": "Running",
        "conditions": [{**ready, "type": kind} for kind in ("Initialized", "Ready", "ContainersReady", "PodScheduled")],
        "containerStatuses": [
            {"name": "main", "ready": True, "restartCount": 0, "image": "bench:1", "imageID": "x" * 80}
        ],
        "hostIP": "10.0.0.1",
        "podIP": "10.1.0.1",
        "qosClass": "Burstable",
    }
    return pod


def fill(ledger: Ledger, size: Size, linked: bool = False) -> None:
    """Put the whole cluster into a ledger; `linked`: the nodes say how well their cards are linked."""
    for node in node_documents(size, linked):
        ledger.put_node(node_of(node))
    for quota in (quota_document(), tight_quota_document()):
        ledger.put_quota(quota_of(quota))
    for document in documents(size):
        ledger.put_pod(pod_of(document), 0.0)
