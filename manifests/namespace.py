"""Everything into another namespace: its name stands in metadata, subjects, flags, DNS names, accounts and messages."""

import re
from typing import Final

from devices.admission_objects import NAMESPACE
from manifests.documents import Document, mapping
from manifests.objects import Objects

__all__ = ["moved"]

_WORD: Final = re.compile(rf"(?<![a-z0-9-]){re.escape(NAMESPACE)}(?![a-z0-9-])")


def moved(objects: Objects, namespace: str) -> None:
    """Put every object, and whatever names the namespace in any text, into another one."""
    objects.documents = [mapping(_renamed(document, namespace), "document") for document in objects.documents]


def _renamed(value: object, namespace: str) -> object:
    if isinstance(value, str):
        return _WORD.sub(namespace, value)
    if isinstance(value, dict):
        found: Document = {key: _renamed(inner, namespace) for key, inner in value.items()}
        return found
    if isinstance(value, list):
        return [_renamed(inner, namespace) for inner in value]
    return value
