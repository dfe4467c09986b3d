"""The accelerator families as the manifests name them: the device configuration, and which of the optional families are on."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import msgspec
import yaml

from devices.admission_objects import admission_files
from devices.config import DeviceConfig, read
from devices.vendors import families

__all__ = ["Families", "shipped_document"]


def shipped_document() -> dict[str, object]:
    """The device configuration with every section and every shipped value written out."""
    document: dict[str, object] = {}
    for family in families():
        values = msgspec.to_builtins(family.settings())
        document[family.section] = values[family.list_field] if family.list_field else values
    return document


@dataclass(frozen=True)
class Families:
    """What generated parts are made from. Raises `devices.errors.ConfigError` for a document that cannot be used."""

    document: Mapping[str, object] = field(default_factory=shipped_document)
    enabled: tuple[str, ...] = ()
    """Optional families that are on, by the word in `--enable-<word>`."""
    config: DeviceConfig = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "config", read(self.text(), self.enabled))

    @cached_property
    def admission(self) -> Mapping[str, str]:
        """The texts of `base/admission`, by the name of the file."""
        return admission_files(self.config)

    def text(self) -> str:
        """The device configuration as the file that webhook and extender read."""
        return yaml.safe_dump(_plain(self.document), sort_keys=False, width=120, allow_unicode=True)


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [_plain(inner) for inner in value]
    return value
