"""Settings of the accelerator families: a key for every plain value of the device configuration, and the file as a whole."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec
import yaml

from devices.config import optional_families, read
from devices.errors import ConfigError
from devices.vendor import Family, FamilySettings
from devices.vendors import families
from manifests.documents import Document, mapping, read_stream
from manifests.errors import ManifestError
from manifests.families import shipped_document
from manifests.objects import EXTENDER, WEBHOOK, Objects
from manifests.plan import Plan, Setting
from manifests.readers import boolean

__all__ = ["DEVICES"]

_EXAMPLES: Final[dict[type, str]] = {bool: "true", int: "7", float: "1.5", str: "example.com/other"}
_SPECIAL_EXAMPLES: Final = {"gpuCorePolicy": "force", "runtimeClassName": "nvidia", "disableCoreLimit": "true"}
_ACCEPTS: Final[dict[type, str]] = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


def _file(plan: Plan, path: str) -> None:
    if not path:
        return
    try:
        text = Path(path).read_text(encoding="utf-8")
        plan.warnings += read(text, optional_families()).warnings
        documents = read_stream(text, path)
    except (OSError, UnicodeDecodeError, ConfigError, ManifestError) as error:
        raise ValueError(str(error)) from error
    plan.device_config = {**shipped_document(), **(documents[0] if documents else {})}


def _enable(family: str) -> Setting:
    def apply(plan: Plan, text: str) -> None:
        if boolean(text):
            plan.enabled.append(family)
            plan.edits.append(_flags)

    def _flags(objects: Objects) -> None:
        for container in (WEBHOOK, EXTENDER):
            objects.put_flag(container, f"--enable-{family}", "true")

    about = f"manage {family.capitalize()} cards too"
    return Setting(f"enable-{family}", "false", "true or false", about, "true", apply)


def _value(kind: type, text: str) -> object:
    if kind is bool:
        return boolean(text)
    if kind is str:
        return text
    try:
        return kind(text)
    except ValueError as error:
        raise ValueError(f"expected {_ACCEPTS[kind]}") from error


def _put(section: str, key: str, kind: type) -> Callable[[Plan, str], None]:
    def apply(plan: Plan, text: str) -> None:
        value = _value(kind, text)
        try:
            read(yaml.safe_dump({section: {key: value}}), optional_families())
        except ConfigError as error:
            raise ValueError(str(error).partition(": ")[2]) from error
        values: Document = mapping(plan.device_config.get(section) or {}, section)
        plan.device_config[section] = {**values, key: value}

    return apply


def _plain(family: Family[FamilySettings]) -> Iterator[Setting]:
    if family.list_field:
        return
    for key, value in msgspec.to_builtins(family.settings()).items():
        kind = type(value)
        if kind in _ACCEPTS:
            default = str(value).lower() if kind is bool else str(value)
            example = _SPECIAL_EXAMPLES.get(key, _EXAMPLES[kind])
            about = f"`{key}` in section `{family.section}` of the device configuration"
            yield Setting(
                f"device.{family.section}.{key}",
                default,
                _ACCEPTS[kind],
                about,
                example,
                _put(family.section, key, kind),
            )


DEVICES: Final = (
    Setting(
        "device-config",
        "",
        "a file",
        "sections of the device configuration (HAMi's format); what it leaves out is as shipped",
        "devices.yaml",
        _file,
    ),
    *(_enable(family) for family in optional_families()),
    *(setting for family in families() for setting in _plain(family)),
)
