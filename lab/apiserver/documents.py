"""Free-form Kubernetes objects: reading a path, replacing a part without touching the original."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

# Stored objects are documents of any shape that must survive unchanged, so their values stay untyped here.
JsonObject: TypeAlias = dict[str, Any]


def mapping(value: object) -> JsonObject:
    """Return `value` if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def text(value: object) -> str:
    """Return `value` if it is text, else the empty text."""
    return value if isinstance(value, str) else ""


def metadata(obj: JsonObject) -> JsonObject:
    """Return the metadata of an object; empty where there is none."""
    return mapping(obj.get("metadata"))


def labels(obj: JsonObject) -> JsonObject:
    """Return the labels of an object; empty where there are none."""
    return mapping(metadata(obj).get("labels"))


def with_metadata(obj: JsonObject, **changes: object) -> JsonObject:
    """Return the object with metadata fields replaced; a value of None removes the field."""
    return {**obj, "metadata": _changed(metadata(obj), changes)}


def with_field(obj: JsonObject, field: str, value: object) -> JsonObject:
    """Return the object with one top-level field replaced; None removes it."""
    return _changed(obj, {field: value})


def _changed(old: JsonObject, changes: Mapping[str, object]) -> JsonObject:
    merged = {**old, **changes}
    return {key: value for key, value in merged.items() if value is not None or key not in changes}
