"""Objects of the device model that state only what a test is about; everything else is an idle T4 and a plain pod.

Kubernetes objects are built as the documents they are on the wire and decoded, so that builders and readers cannot agree on a
shape that no cluster sends.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import yaml

from devices.annotations import encode, encode_mig, mig_reservations
from devices.config import DeviceConfig, read
from devices.fit import Headroom, Walk
from devices.model import NO_CHARGE, Allocation, Card, CardState, Charge, Entry, MigProfile, Placement
from devices.objects import Container, Node, Pod, Quota, node_of, pod_of, quota_of
from devices.requests import DeviceRequest
from devices.vendor import Vendor

T4_MIB = 15360
REGISTER = "hami.io/node-nvidia-register"
PAIR_SCORES = "hami.io/node-nvidia-score"
ALLOCATED = "hami.io/vgpu-devices-allocated"
MIG_ALLOCATIONS = "hami.io/vgpu-mig-allocations"
VGPU_NODE = "hami.io/vgpu-node"
VGPU_TIME = "hami.io/vgpu-time"

Document = dict[str, Any]


def nvidia_config(**settings: object) -> DeviceConfig:
    """NVIDIA alone, with these keys in its section, spelt as in the file: `nvidia_config(memoryFactor=2)`."""
    found = read(yaml.safe_dump({"nvidia": settings}))
    return replace(found, vendors=tuple(vendor for vendor in found.vendors if vendor.key == "NVIDIA"))


def vendor_of(config: DeviceConfig, key: str) -> Vendor:
    """One vendor of a configuration."""
    found = config.vendor(key)
    assert found is not None, key
    return found


def nvidia(**settings: object) -> Vendor:
    """The NVIDIA vendor of that configuration."""
    return vendor_of(nvidia_config(**settings), "NVIDIA")


# Cards

A100_PROFILES = (
    MigProfile("1g.5gb", 4864, 15, 1, tuple(Placement(start, 1) for start in range(7))),
    MigProfile("2g.10gb", 9984, 29, 2, tuple(Placement(start, 2) for start in (0, 2, 4))),
    MigProfile("3g.20gb", 20096, 43, 3, (Placement(0, 4), Placement(4, 4))),
    MigProfile("7g.40gb", 40448, 100, 7, (Placement(0, 8),)),
)


def card(uuid: str = "GPU-a", **fields: Any) -> Card:
    """A healthy T4 of 10 slots, 15360 MiB and 100 % compute."""
    return Card(
        **{
            "uuid": uuid,
            "vendor": "NVIDIA",
            "slots": 10,
            "memory_mib": T4_MIB,
            "cores": 100,
            "model": "NVIDIA-Tesla T4",
            "mode": "hami-core",
            "healthy": True,
            **fields,
        }
    )


def mig_card(uuid: str = "GPU-m", **fields: Any) -> Card:
    """An A100 of 40 GB that hands out instances."""
    return card(
        uuid,
        **{
            "slots": 7,
            "memory_mib": 40960,
            "model": "NVIDIA A100-SXM4-40GB",
            "mode": "mig",
            "mig_profiles": A100_PROFILES,
            **fields,
        },
    )


def card_state(
    of: Card | str = "GPU-a",
    used: tuple[int, int, int] = (0, 0, 0),
    *,
    placements: Sequence[Placement] = (),
    healthy: bool = True,
    cordoned: bool = False,
    **fields: Any,
) -> CardState:
    """A card with `used` slots, MiB and percent; `fields` are the card's when only its UUID is given."""
    mine = card(of, **fields) if isinstance(of, str) else of
    return CardState(mine, *used, tuple(placements), mine.healthy and healthy, cordoned)


def entry(uuid: str = "GPU-a", memory_mib: int = 1000, cores: int = 0, **fields: Any) -> Entry:
    """One NVIDIA card given to one container."""
    return Entry(uuid, fields.pop("vendor", "NVIDIA"), memory_mib, cores, **fields)


# Requests and walks


def request(count: int = 1, memory_mib: int = 0, percentage: int | None = None, cores: int = 0) -> DeviceRequest:
    """A request for NVIDIA cards; neither memory nor percentage means whole cards."""
    if not memory_mib and percentage is None:
        percentage = 100
    return DeviceRequest("NVIDIA", count, memory_mib, percentage, cores)


def walk(
    asked: DeviceRequest | None = None,
    annotations: Mapping[str, str] | None = None,
    *,
    policies: Iterable[str] = (),
    headroom: Headroom | None = None,
    spent: Charge = NO_CHARGE,
    vendor: Vendor | None = None,
) -> Walk:
    """One container's walk, of 1000 MiB unless told otherwise."""
    vendor, asked = vendor or nvidia(), asked or request(memory_mib=1000)
    selection = vendor.selection(annotations or {})
    return Walk(vendor, asked, vendor.clamped(asked.cores), selection, frozenset(policies), headroom, spent)


# Kubernetes objects


def card_document(of: Card) -> Document:
    """The card as its node's plugin writes it: zero values left out."""
    profiles = [
        {
            "name": profile.name,
            "memoryMB": profile.memory_mib,
            "core": profile.cores,
            "sliceCount": profile.slice_count,
            "placements": [{"start": place.start, "size": place.size} for place in profile.placements],
        }
        for profile in of.mig_profiles
    ]
    document: Document = {
        "id": of.uuid,
        "index": of.index,
        "count": of.slots,
        "devmem": of.memory_mib,
        "devcore": of.cores,
        "type": of.model,
        "numa": of.numa,
        "mode": of.mode,
        "migProfiles": profiles,
        "health": of.healthy,
    }
    return {key: value for key, value in document.items() if value}


def registration(*cards: Card) -> str:
    """The register annotation of these cards."""
    return json.dumps([card_document(one) for one in cards])


def node(
    name: str = "n1",
    *cards: Card,
    cordon: str | None = None,
    annotations: Mapping[str, str] = MappingProxyType({}),
    labels: Mapping[str, str] = MappingProxyType({}),
    allocatable: Mapping[str, object] = MappingProxyType({}),
) -> Node:
    """A node that registers the cards (none: it has no register annotation)."""
    values = dict(annotations)
    if cards:
        values[REGISTER] = registration(*cards)
    if cordon is not None:
        values["hami.io/device-cordon"] = cordon
    metadata = {"name": name, "uid": f"uid-{name}", "annotations": values, "labels": dict(labels)}
    return node_of({"metadata": metadata, "status": {"allocatable": dict(allocatable)}})


_SHORT_NAMES = {
    "gpu": "nvidia.com/gpu",
    "gpumem": "nvidia.com/gpumem",
    "gpucores": "nvidia.com/gpucores",
    "percentage": "nvidia.com/gpumem-percentage",
}


def container_document(
    name: str = "main", *, sidecar: bool = False, requests: Mapping[str, object] | None = None, **limits: object
) -> Document:
    """A container whose limits are given by short name: `container_document(gpu=1, gpumem=3000)`."""
    document: Document = {"name": name}
    if sidecar:
        document["restartPolicy"] = "Always"
    resources = {
        kind: {_SHORT_NAMES.get(key, key): value for key, value in values.items()}
        for kind, values in (("limits", limits), ("requests", requests or {}))
        if values
    }
    if resources:
        document["resources"] = resources
    return document


def container(name: str = "main", **fields: Any) -> Container:
    """The same, decoded."""
    return pod(container_document(name, **fields)).containers[0]


def pod(
    *containers: Document,
    init: Sequence[Document] = (),
    name: str = "a",
    uid: str | None = None,
    namespace: str | None = "default",
    annotations: Mapping[str, str] = MappingProxyType({}),
    node: str = "",
    phase: str = "",
    version: int = 1,
    unschedulable: bool | str = False,
    terminating: bool = False,
    exit_codes: Mapping[str, int] = MappingProxyType({}),
) -> Pod:
    """A pod; without containers it has one that asks for 1000 MiB of one card.

    `node` binds it, `version` is its resourceVersion, `unschedulable` may be kube-scheduler's message, `exit_codes` are those of init containers that have ended.
    """
    metadata: Document = {"name": name, "uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    if namespace is not None:
        metadata["namespace"] = namespace
    if annotations:
        metadata["annotations"] = dict(annotations)
    if terminating:
        metadata["deletionTimestamp"] = "2026-08-01T06:00:00Z"
    spec: Document = {"containers": list(containers) or [container_document(gpu=1, gpumem=1000)]}
    if init:
        spec["initContainers"] = list(init)
    if node:
        spec["nodeName"] = node
    status: Document = {}
    if phase:
        status["phase"] = phase
    if unschedulable:
        message = {"message": unschedulable} if isinstance(unschedulable, str) else {}
        status["conditions"] = [{"type": "PodScheduled", "status": "False", **message}]
    if exit_codes:
        status["initContainerStatuses"] = [
            {"name": ended, "state": {"terminated": {"exitCode": code}}} for ended, code in exit_codes.items()
        ]
    return pod_of({"metadata": metadata, "spec": spec, "status": status})


def allocated(allocation: Allocation, node: str = "n1") -> dict[str, str]:
    """The annotations with which a pod carries an allocation."""
    values = {VGPU_NODE: node, ALLOCATED: encode(allocation, "NVIDIA")}
    instances = encode_mig(mig_reservations(allocation))
    return {**values, MIG_ALLOCATIONS: instances} if instances else values


def quota(name: str = "q", namespace: str = "default", /, **hard: object) -> Quota:
    """A ResourceQuota with limits by short name: `quota(gpumem=4000)`."""
    limits = {f"limits.{_SHORT_NAMES.get(key, key)}": value for key, value in hard.items()}
    return quota_of({"metadata": {"name": name, "namespace": namespace}, "spec": {"hard": limits}})
