"""Everything into another namespace: its name stands in metadata, subjects, flags, DNS names, accounts and messages."""

import re
from typing import Final

from devices.admission_objects import NAMESPACE
from manifests.documents import Document, mapping
from manifests.errors import SettingError
from manifests.objects import Objects

__all__ = ["moved"]

_WORD: Final = re.compile(rf"(?<![a-z0-9-]){re.escape(NAMESPACE)}(?![a-z0-9-])")


def moved(objects: Objects, namespace: str) -> None:
    """Put every object, and whatever names the namespace in any text, into another one.

    Raises `SettingError` where nothing names it, as in an overlay for what somebody else has installed.
    """
    found = [mapping(_renamed(document, namespace), "document") for document in objects.documents]
    if found == objects.documents and namespace != NAMESPACE:
        raise SettingError(
            f"--set namespace={namespace}: nothing in this overlay is in {NAMESPACE}; what it changes stays where it was installed"
        )
    objects.documents = found


def _renamed(value: object, namespace: str) -> object:
    if isinstance(value, str):
        return _WORD.sub(namespace, value)
    if isinstance(value, dict):
        found: Document = {key: _renamed(inner, namespace) for key, inner in value.items()}
        return found
    if isinstance(value, list):
        return [_renamed(inner, namespace) for inner in value]
    return value
