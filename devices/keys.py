"""Names on the wire that belong to no single accelerator family (HAMi v2.10 wire contract, names)."""

from collections.abc import Iterable
from functools import lru_cache

from devices.errors import BindingMetadataError

__all__ = [
    "BIND_PHASE",
    "BIND_TIME",
    "CARD_POLICY",
    "CORDON",
    "IGNORE_LABEL",
    "NODE_LOCK",
    "NODE_LOCK_MODE",
    "NODE_POLICY",
    "POD_GROUP_LABEL",
    "SYSTEM_KEYS",
    "VGPU_NODE",
    "VGPU_TIME",
    "WEIGHTS",
    "check_binding_metadata",
    "is_label_value",
]

NODE_POLICY = "hami.io/node-scheduler-policy"
CARD_POLICY = "hami.io/gpu-scheduler-policy"
WEIGHTS = "hami.io/device-scoring-weights"

VGPU_NODE = "hami.io/vgpu-node"
VGPU_TIME = "hami.io/vgpu-time"
BIND_PHASE = "hami.io/bind-phase"
BIND_TIME = "hami.io/bind-time"
SYSTEM_KEYS = (VGPU_NODE, VGPU_TIME, BIND_PHASE, BIND_TIME)
"""Written by the system alone, whatever the family; `VGPU_NODE` is a label too."""

CORDON = "hami.io/device-cordon"
NODE_LOCK = "hami.io/mutex.lock"
NODE_LOCK_MODE = "slotwise.io/node-lock"
"""On a node: `none` says that its device plugin needs no lock."""

IGNORE_LABEL = "hami.io/webhook"
POD_GROUP_LABEL = "scheduling.x-k8s.io/pod-group"

_LABEL_VALUE_MAX = 63
_ANNOTATIONS_MAX_BYTES = 256 * 1024
_KEY_PARTS_MAX = (253, 63)


def _is_name(text: str) -> bool:
    inner = text.replace("-", "a").replace("_", "a").replace(".", "a")
    return text.isascii() and inner.isalnum() and text[0].isalnum() and text[-1].isalnum()


def is_label_value(text: str) -> bool:
    """Whether the API server accepts `text` as a label value; a node name of more than 63 characters is none."""
    return text == "" or (len(text) <= _LABEL_VALUE_MAX and _is_name(text))


def _is_key(key: str) -> bool:
    return len(key) <= sum(_KEY_PARTS_MAX) + 1 and _is_qualified(key)


@lru_cache(maxsize=1024)
def _is_qualified(key: str) -> bool:
    """Most pods carry the same few keys."""
    prefix, slash, name = key.rpartition("/")
    if slash and (
        len(prefix) > _KEY_PARTS_MAX[0]
        or not all(_is_name(label) for label in prefix.split("."))
        or prefix != prefix.lower()
        or "_" in prefix
    ):
        return False
    return 0 < len(name) <= _KEY_PARTS_MAX[1] and _is_name(name)


def check_binding_metadata(annotations: Iterable[tuple[str, str]], labels: Iterable[tuple[str, str]]) -> None:
    """Refuse what the API server merges from a Binding unchecked but rejects in every later write of that pod.

    Raises `BindingMetadataError` naming the key.
    """
    total = 0
    for key, value in annotations:
        if not _is_key(key.lower()):
            raise BindingMetadataError(f"annotation key {key!r} is not a qualified name")
        total += len(key.encode()) + len(value.encode())
    if total > _ANNOTATIONS_MAX_BYTES:
        raise BindingMetadataError(
            f"the annotations of the pod and its allocation take {total} bytes, more than the {_ANNOTATIONS_MAX_BYTES} a pod may carry"
        )
    for key, value in labels:
        if not _is_key(key):
            raise BindingMetadataError(f"label key {key!r} is not a qualified name")
        if not is_label_value(value):
            raise BindingMetadataError(
                f"label {key}: {value!r} is no label value (63 characters of letters, digits, '-', '_', '.')"
            )
