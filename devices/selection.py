"""Which cards a pod's own annotations allow: UUID lists, type lists and family rules."""

from collections.abc import Mapping

import msgspec

from devices.model import Card

__all__ = ["Selection", "UuidKeys", "selection_of"]

UuidKeys = tuple[str, str]
"""The annotation that lists what may be used, and the one that lists what may not."""


_NO_ITEMS: frozenset[str] = frozenset()


def _items(text: str) -> frozenset[str]:
    if not text:
        return _NO_ITEMS
    return frozenset(item for item in (part.strip() for part in text.split(",")) if item)


class Selection(msgspec.Struct, frozen=True):
    """The parsed lists: None means "no constraint"; an empty use list (a value such as `,`) matches nothing."""

    use_uuids: tuple[frozenset[str], ...] = ()
    nouse_uuids: frozenset[str] = frozenset()
    use_types: frozenset[str] | None = None
    nouse_types: frozenset[str] = frozenset()
    annotations: Mapping[str, str] | None = None

    def allows_uuid(self, card: Card) -> bool:
        """Exact match after trimming."""
        return all(card.uuid in uuids for uuids in self.use_uuids) and card.uuid not in self.nouse_uuids

    def allows_type(self, card: Card) -> bool:
        """Case-insensitive substring of the registered type."""
        model = card.model.upper()
        if self.use_types is not None and not any(item in model for item in self.use_types):
            return False
        return not any(item in model for item in self.nouse_types)

    def value(self, key: str) -> str:
        """An annotation the family declares, empty when absent."""
        return (self.annotations or {}).get(key, "")


def selection_of(
    annotations: Mapping[str, str], uuid_keys: tuple[UuidKeys, ...], type_keys: UuidKeys | None
) -> Selection:
    """Parse the lists; a missing or blank value is no constraint (HAMi v2.10 wire contract, pod annotations set by users)."""
    use_uuids: list[frozenset[str]] = []
    nouse_uuids = _NO_ITEMS
    for use, nouse in uuid_keys:
        value = annotations.get(use, "")
        if value.strip():
            use_uuids.append(_items(value))
        nouse_uuids |= _items(annotations.get(nouse, ""))
    use_types, nouse_types = None, _NO_ITEMS
    if type_keys is not None:
        value = annotations.get(type_keys[0], "")
        use_types = frozenset(item.upper() for item in _items(value)) if value.strip() else None
        nouse_types = frozenset(item.upper() for item in _items(annotations.get(type_keys[1], "")))
    return Selection(tuple(use_uuids), nouse_uuids, use_types, nouse_types, annotations)
