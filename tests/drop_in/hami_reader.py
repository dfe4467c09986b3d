"""What HAMi 2.10 makes of a pod's annotations, written after its wire contract and not after Slotwise's own reader.

(HAMi v2.10 wire contract: other vendors' keys, pod allocation text, MIG reservation.)
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from devices.kube.protocols import JsonObject

__all__ = ["FAMILIES", "HamiCannotReadError", "Held", "held_by", "instances_of"]

_CHIPS: Final = (
    *("Ascend910A", "Ascend910B2", "Ascend910B3", "Ascend910B4", "Ascend910B4-1", "Ascend910C", "Ascend310P"),
    *("MR-V100", "MR-V50", "BI-V150", "BI-V100"),
)
FAMILIES: Final[Mapping[str, tuple[str, str]]] = {
    "NVIDIA": ("hami.io/vgpu-devices-to-allocate", "hami.io/vgpu-devices-allocated"),
    "AMD": ("hami.io/amd-devices-to-allocate", "hami.io/amd-devices-allocated"),
    "MLU": ("hami.io/cambricon-mlu-devices-to-allocate", "hami.io/cambricon-mlu-devices-allocated"),
    "DCU": ("hami.io/dcu-devices-to-allocate", "hami.io/dcu-devices-allocated"),
    "Mthreads": ("", "hami.io/mthreads-vgpu-devices-allocated"),
    "Metax-GPU": ("hami.io/metax-gpu-devices-to-allocate", "hami.io/metax-gpu-devices-allocated"),
    "Metax-SGPU": ("hami.io/metax-sgpu-devices-to-allocate", "hami.io/metax-sgpu-devices-allocated"),
    "kunlun": ("", "hami.io/kunlun-allocated"),
    "XPU": ("hami.io/xpu-devices-to-allocate", "hami.io/xpu-devices-allocated"),
    "Enflame": ("", "hami.io/enflame-vgpu-devices-allocated"),
    "GCU": ("hami.io/enflame-gcu-devices-to-allocate", "hami.io/enflame-gcu-devices-allocated"),
    "AWSNeuron": ("", "hami.io/aws-neuron-devices-allocated"),
    "Biren": ("hami.io/Biren-devices-to-allocate", "hami.io/Biren-devices-allocated"),
    "Vastai": ("hami.io/Vastai-devices-to-allocate", "hami.io/Vastai-devices-allocated"),
    **{chip: (f"hami.io/{chip}-devices-to-allocate", f"hami.io/{chip}-devices-allocated") for chip in _CHIPS},
}
"""By vendor key the annotations: still to be allocated (empty: there is none), and the durable record."""
_NAMED_BY_MODEL: Final = frozenset({"AMD"})
"""Where the card's registered type stands in place of the vendor key."""
_INT32: Final = range(-(2**31), 2**31)


class HamiCannotReadError(Exception):
    """HAMi would report an error for the pod, or drop part of it."""


@dataclass(frozen=True)
class Held:
    """One card that one container has."""

    family: str
    container: int
    """Position over init containers first, then containers."""
    uuid: str
    memory_mib: int
    cores: int


def _cards(family: str, text: str, containers: int) -> Iterator[Held]:
    if not text.endswith(";"):
        raise HamiCannotReadError(f"{text!r} does not end with ';'")
    parts = text.split(";")[:-1]
    if len(parts) > containers:
        raise HamiCannotReadError(f"{text!r} has {len(parts)} positions, the pod {containers} containers")
    for position, part in enumerate(parts):
        for piece in part.split(":"):
            if "," not in piece:
                continue
            fields = piece.split(",")
            if len(fields) < 4:
                raise HamiCannotReadError(
                    "pod annotation format error, missing fields, do not use nodeName in task spec"
                )
            uuid, key, memory, cores = fields[:4]
            if key != family and family not in _NAMED_BY_MODEL:
                raise HamiCannotReadError(f"{text!r}: a card of {key} among those of {family}")
            if not all(number.lstrip("-").isdigit() and int(number) in _INT32 for number in (memory, cores)):
                raise HamiCannotReadError(f"invalid memory or core field: {piece}")
            yield Held(family, position, uuid, int(memory), int(cores))


def held_by(pod: JsonObject) -> list[Held]:
    """What the pod holds by its durable records; nothing where no node is named. Raises `HamiCannotReadError`."""
    metadata, spec = pod["metadata"], pod["spec"]
    assert isinstance(metadata, dict)
    assert isinstance(spec, dict)
    annotations = metadata.get("annotations") or {}
    if not annotations.get("hami.io/vgpu-node"):
        return []
    if not str(annotations.get("hami.io/vgpu-time", "")).isdigit():
        raise HamiCannotReadError("hami.io/vgpu-time is no time")
    containers = len(spec.get("initContainers") or []) + len(spec["containers"])
    return [
        card
        for family, (_, record) in FAMILIES.items()
        if annotations.get(record)
        for card in _cards(family, annotations[record], containers)
    ]


def instances_of(pod: JsonObject) -> list[tuple[int, int, str]]:
    """(container, card in its list, UUID) of every MIG instance. Raises `HamiCannotReadError` for what HAMi would reject."""
    metadata = pod["metadata"]
    assert isinstance(metadata, dict)
    text = (metadata.get("annotations") or {}).get("hami.io/vgpu-mig-allocations") or "[]"
    found: list[tuple[int, int, str]] = []
    for one in json.loads(text):
        place = (one["containerIndex"], one["deviceIndex"])
        if min(place) < 0 or not one["gpuUUID"] or not one["profile"] or one["placement"]["size"] < 1:
            raise HamiCannotReadError(f"{text}: an entry that HAMi refuses")
        if place in [(container, card) for container, card, _ in found]:
            raise HamiCannotReadError(f"{text}: two entries for {place}")
        found.append((*place, one["gpuUUID"]))
    return found
