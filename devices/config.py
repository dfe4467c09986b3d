"""The device configuration file (HAMi v2.10 wire contract, device config): YAML sections, one a family."""

import re
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec
import yaml

from devices.errors import ConfigError
from devices.keys import SYSTEM_KEYS
from devices.objects import Pod
from devices.requests import Resources
from devices.vendor import Family, FamilySettings, Vendor
from devices.vendors import families

__all__ = ["DeviceConfig", "default_config", "load", "optional_families", "read"]


@dataclass(frozen=True, slots=True)
class DeviceConfig:
    """The vendors that follow from the file, by key, and what in it has no effect."""

    vendors: tuple[Vendor, ...]
    warnings: tuple[str, ...] = ()
    resources: frozenset[str] = field(init=False, repr=False, compare=False)
    """Every resource name that Slotwise manages."""
    protected_annotations: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """Annotations that only the system may write."""
    known_annotations: frozenset[str] = field(init=False, repr=False, compare=False)
    """Every annotation of a pod that means anything to any family or was written by one."""
    annotation_prefixes: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """Of these, up to the slash, sorted."""
    _by_key: Mapping[str, Vendor] = field(init=False, repr=False, compare=False)
    _owners: Mapping[str, str] = field(init=False, repr=False, compare=False)
    """Vendor keys by resource name."""
    _always_admitting: frozenset[str] = field(init=False, repr=False, compare=False)
    """Keys of the vendors whose admission looks at every container."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "resources", frozenset(name for vendor in self.vendors for name in vendor.resources))
        object.__setattr__(self, "_by_key", {vendor.key: vendor for vendor in self.vendors})
        owners = {name: vendor.key for vendor in self.vendors for name in vendor.resources}
        object.__setattr__(self, "_owners", owners)
        protected = tuple(
            dict.fromkeys((*SYSTEM_KEYS, *(key for v in self.vendors for key in v.protected_annotations)))
        )
        object.__setattr__(self, "protected_annotations", protected)
        inputs = (key for v in self.vendors for key in (*v.pod_annotations, *v.admission_outputs))
        known = frozenset((*protected, *inputs))
        object.__setattr__(self, "known_annotations", known)
        object.__setattr__(self, "annotation_prefixes", tuple(sorted({key.partition("/")[0] + "/" for key in known})))
        always = frozenset(vendor.key for vendor in self.vendors if vendor.changes_other_pods)
        object.__setattr__(self, "_always_admitting", always)

    def vendor(self, key: str) -> Vendor | None:
        """The vendor of this key."""
        return self._by_key.get(key)

    @property
    def changes_every_pod(self) -> bool:
        """Whether any family's admission may change a pod that names no managed resource."""
        return bool(self._always_admitting)

    def admitting(self, container: Resources) -> tuple[Vendor, ...]:
        """The vendors whose admission has anything to say to a container, by key: the others would leave it alone."""
        named = self.resources.intersection(container.limits).union(self.resources.intersection(container.requests))
        keys = self._always_admitting.union([self._owners[name] for name in named])
        return tuple(self._by_key[key] for key in sorted(keys))

    def named_by(self, pod: Pod) -> tuple[Vendor, ...]:
        """The vendors any of whose resources a container names: no other can be asked anything by the pod."""
        return self.owners(self.managed_by(pod))

    def managed_by(self, pod: Pod) -> frozenset[str]:
        """Every resource of ours that a container names."""
        found: set[str] = set()
        for container in (*pod.init_containers, *pod.containers):
            found |= self.resources.intersection(container.limits)
            found |= self.resources.intersection(container.requests)
        return frozenset(found)

    def owners(self, managed: Iterable[str]) -> tuple[Vendor, ...]:
        """The vendors of these managed resources, by key: a pod that names no others can ask nothing of any other vendor."""
        return tuple(self._by_key[key] for key in sorted({self._owners[name] for name in managed}))


def _lines(node: yaml.Node | None, path: str = "$") -> Iterable[tuple[str, int]]:
    """Line numbers (from 1) by the paths that msgspec uses in its errors. Raises `ConfigError` for a key that stands twice."""
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            here = f"{path}.{key.value}"
            if here in seen:
                raise ConfigError(f"line {key.start_mark.line + 1}: {here.removeprefix('$.')} stands twice")
            seen.add(here)
            yield here, key.start_mark.line + 1
            yield from _lines(value, here)
    elif isinstance(node, yaml.SequenceNode):
        for position, value in enumerate(node.value):
            here = f"{path}[{position}]"
            yield here, value.start_mark.line + 1
            yield from _lines(value, here)


def _line(lines: Mapping[str, int], section: str, key: str = "") -> int:
    """The line of a key, else of its section: a key that YAML reads as another type or merges in has no line of its own."""
    return lines.get(f"$.{section}{key}", lines.get(f"$.{section}", 1))


def _unknown(family: Family[FamilySettings], values: Mapping[str, object], lines: Mapping[str, int]) -> Iterable[str]:
    """Keys that nothing reads, of the section or, where it is a list, of its elements."""
    if not family.list_field:
        yield from _unknown_keys(family.section, family.settings, values, lines)
        return
    element = typing.get_args(typing.get_type_hints(family.settings)[family.list_field])[0]
    items = values[family.list_field]
    for position, item in enumerate(items if isinstance(items, list) else ()):
        if isinstance(item, dict):
            yield from _unknown_keys(f"{family.section}[{position}]", element, item, lines)


def _unknown_keys(
    where: str, settings: type[FamilySettings], values: Mapping[str, object], lines: Mapping[str, int]
) -> Iterable[str]:
    known = {field.encode_name for field in msgspec.structs.fields(settings)}
    for key in values:
        if not isinstance(key, str):
            raise ConfigError(f"line {_line(lines, where)}: {where}: key {key!r} must be text, such as 'memoryFactor'")
        if key not in known:
            yield (
                f"line {_line(lines, where, f'.{key}')}: unknown key {where}.{key} has no effect; "
                f"known are {', '.join(sorted(known))}"
            )


def _settings(family: Family[FamilySettings], values: object, lines: Mapping[str, int]) -> FamilySettings:
    try:
        return msgspec.convert(values, family.settings)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$")
        path = path.rstrip("`").removeprefix(f".{family.list_field}") if family.list_field else path.rstrip("`")
        raise ConfigError(f"line {_line(lines, family.section, path)}: {family.section}{path}: {text}") from error


def _compose(text: str) -> tuple[Mapping[str, object], Mapping[str, int]]:
    try:
        lines = dict(_lines(yaml.compose(text, Loader=yaml.SafeLoader)))
        document = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # ValueError: an impossible date. RecursionError: an alias inside its own anchor.
        raise ConfigError(f"the device configuration is not YAML: {' '.join(str(error).split())}") from error
    if document is None:
        document = {}
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        raise ConfigError("the device configuration must be a mapping of sections such as 'nvidia:'")
    return document, lines


def optional_families() -> tuple[str, ...]:
    """Families that are off by default, by the word in `--enable-<word>`."""
    return tuple(sorted(family.flag for family in families() if family.flag))


def read(text: str, enabled: Iterable[str] = ()) -> DeviceConfig:
    """The configuration from its YAML. A missing section has the shipped defaults.

    `enabled` are the optional families to build; of the others the section is checked and has no further effect. Raises `ConfigError` naming line and key: not YAML, a value of a wrong type or out of range, one resource name used twice.
    """
    document, lines = _compose(text)
    switched_on = frozenset(enabled)
    warnings: list[str] = []
    vendors: list[Vendor] = []
    sections: dict[str, str] = {}
    known = {family.section: family for family in families()}
    for section in document:
        if section not in known:
            warnings.append(
                f"line {_line(lines, section)}: section {section} has no effect: no accelerator family reads it; known are {', '.join(sorted(known))}"
            )
    for section, family in known.items():
        values = document.get(section)
        if family.list_field:
            values = {} if values is None else {family.list_field: values}
        values = {} if values is None else values
        if isinstance(values, dict) and values:
            warnings += _unknown(family, values, lines)
        settings = _settings(family, values, lines)
        try:
            built = family.build(settings)
        except ConfigError as error:
            key = re.match(r"\w+", str(error))
            line = _line(lines, section, f".{key[0]}" if key else "")
            raise ConfigError(f"line {line}: {section}.{error}") from error
        if family.flag and family.flag not in switched_on:
            continue
        vendors += built
        sections.update(dict.fromkeys((vendor.key for vendor in built), section))
    vendors.sort(key=lambda vendor: vendor.key)
    owners: dict[str, str] = {}
    for vendor in vendors:
        for name in vendor.resources:
            if owners.setdefault(name, vendor.key) != vendor.key:
                section = sections[vendor.key]
                raise ConfigError(
                    f"line {_line(lines, section)}: {section}: resource {name} is used by both {owners[name]} and {vendor.key}"
                )
    return DeviceConfig(tuple(vendors), tuple(warnings))


def load(path: str, enabled: Iterable[str] = ()) -> DeviceConfig:
    """The configuration from a file. Raises `ConfigError` naming the file."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the device configuration {path}: {error}") from error
    try:
        return read(text, enabled)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def default_config(enabled: Iterable[str] = ()) -> DeviceConfig:
    """The shipped defaults of every family that is on by default, and of the `enabled` ones."""
    return read("", enabled)
