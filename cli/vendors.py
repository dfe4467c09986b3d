"""`slotwise vendors`: the accelerator families of this version, from the data that the services themselves work with."""

import inspect
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import typer
import yaml

from devices.config import default_config, load, optional_families
from devices.errors import ConfigError, MalformedValue
from devices.fit import idle_for_exclusive_policy
from devices.managed import asks_condition, managed_resources, protected_keys
from devices.requests import read_resources
from devices.vendor import Family, FamilySettings, Vendor, plain_admission
from devices.vendors import families

__all__ = ["FamilyEntry", "VendorEntry", "listed", "markdown", "vendors"]


@dataclass(frozen=True, slots=True)
class VendorEntry:
    """One vendor key. `resources` are [name, what it counts]; empty texts and lists mean "has none"."""

    key: str
    resources: tuple[tuple[str, str], ...]
    defaults: tuple[str, ...]
    user_annotations: tuple[str, ...]
    admission_annotations: tuple[str, ...]
    system_annotations: tuple[str, ...]
    node_annotations: tuple[str, ...]
    handshake: str
    node_lock: str
    quota: tuple[str, ...]
    features: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FamilyEntry:
    """One section of the device configuration; `configuration` are its keys with the shipped values."""

    section: str
    about: str
    flag: str
    configuration: tuple[tuple[str, str], ...]
    vendors: tuple[VendorEntry, ...]


def _memory_unit(vendor: Vendor) -> str:
    factor = vendor.memory_factor
    return vendor.memory_unit or {1: "MiB", 1024: "GiB"}.get(factor, f"{factor} MiB")


def _resources(vendor: Vendor) -> tuple[tuple[str, str], ...]:
    units = {
        vendor.count_resource: "cards",
        vendor.memory_resource: f"memory of a card, {_memory_unit(vendor)}",
        vendor.percentage_resource: "memory, percent of a card",
        vendor.core_resource: f"compute, {vendor.core_unit}",
    }
    return tuple((name, units.get(name, "other")) for name in vendor.resources)


def _defaults(vendor: Vendor) -> tuple[str, ...]:
    """What a container gets that names a count alone; silent where that depends on the cards (a note says so)."""
    container = {"name": "main", "resources": {"limits": {vendor.count_resource: 1}}}
    try:
        request = vendor.request(read_resources(container))
    except MalformedValue:
        return ()
    if request is None:
        return ()
    found = []
    if vendor.memory_resource:
        found.append(f"memory: {f'{request.memory_mib} MiB' if request.memory_mib else 'the whole card'}")
    if vendor.core_resource and request.note is None:
        found.append(f"compute: {request.cores}" if request.cores else "compute: no share of its own")
    return tuple(found)


def _features(vendor: Vendor) -> tuple[str, ...]:
    hooks = vendor.hooks
    has = {
        "several tenants a card by memory": bool(vendor.memory_resource),
        "compute shares": bool(vendor.core_resource),
        "UUID lists": bool(vendor.uuid_keys),
        "type lists": vendor.type_keys is not None,
        "exclusive cards (mutex)": idle_for_exclusive_policy in map(inspect.unwrap, vendor.checks),
        "instances (MIG)": hooks.gives_several is not None,
        "cards of one NUMA node": hooks.groups_by_numa is not None,
        "choice among linked or similar cards": hooks.choose is not None,
        "a score for nodes": hooks.score is not None,
        "changes pods at admission": hooks.admit is not plain_admission,
        "watches what shares its cards": hooks.tenant_facts is not None,
    }
    return tuple(name for name, present in has.items() if present)


def _vendor(vendor: Vendor) -> VendorEntry:
    quota = (vendor.count_resource, vendor.memory_resource, vendor.core_resource)
    return VendorEntry(
        key=vendor.key,
        resources=_resources(vendor),
        defaults=_defaults(vendor),
        user_annotations=vendor.pod_annotations,
        admission_annotations=vendor.admission_outputs,
        system_annotations=vendor.protected_annotations,
        node_annotations=(*vendor.registration, *vendor.node_inputs),
        handshake=vendor.handshake,
        node_lock=vendor.node_lock,
        quota=tuple(f"limits.{name}" for name in quota if name),
        features=_features(vendor),
    )


def _shown(value: object) -> str:
    if isinstance(value, list):
        return f"{len(value)} entries"
    return json.dumps(value, ensure_ascii=False)


def _family(family: Family[FamilySettings]) -> FamilyEntry:
    settings = family.settings()
    names = {field.name: field.encode_name for field in msgspec.structs.fields(family.settings)}
    values = {names[name]: value for name, value in msgspec.structs.asdict(settings).items()}
    return FamilyEntry(
        section=family.section,
        about=family.about,
        flag=f"--enable-{family.flag}" if family.flag else "",
        configuration=tuple((name, _shown(value)) for name, value in values.items()),
        vendors=tuple(_vendor(vendor) for vendor in family.build(settings)),
    )


def listed() -> tuple[FamilyEntry, ...]:
    """Every family as the shipped configuration makes it, those that are off by default as well."""
    return tuple(_family(family) for family in families())


def _rows(vendor: VendorEntry) -> Mapping[str, Sequence[str]]:
    return {
        "resources": [f"{name} ({unit})" for name, unit in vendor.resources],
        "count alone": vendor.defaults,
        "set by users": vendor.user_annotations,
        "set at admission": vendor.admission_annotations,
        "written by Slotwise": vendor.system_annotations,
        "read from nodes": vendor.node_annotations,
        "handshake": [vendor.handshake] if vendor.handshake else [],
        "node lock": [vendor.node_lock] if vendor.node_lock else [],
        "quota": vendor.quota,
        "features": vendor.features,
    }


def _text(entries: Iterable[FamilyEntry]) -> Iterable[str]:
    for family in entries:
        switch = f", off unless {family.flag}" if family.flag else ""
        for vendor in family.vendors:
            yield f"{vendor.key} (section {family.section}{switch})"
            for title, values in _rows(vendor).items():
                if values:
                    yield f"  {title + ':':<21}{(chr(10) + ' ' * 23).join(values)}"
            yield ""


_HEAD = """\
# Accelerator families

Generated by `slotwise vendors --markdown`; `slotwise vendors` shows the same, `--json` for programs. Names are those of the shipped
configuration. What a family does with a value is told where it differs from [asking for a share](ask-for-a-share.md).

- *count alone*: what a container gets that asks for cards and nothing else.
- *set by users*: annotations of a pod that its placement depends on. *set at admission*: those that Slotwise's webhook adds.
- *written by Slotwise*: annotations that only Slotwise may write; they travel in the Binding.
- *read from nodes*: where cards come from and what else of a node counts. Without any, cards come from the node's capacity.
- *quota*: keys of a ResourceQuota that limit the family; memory in the unit of the resource.
"""


def markdown(entries: Iterable[FamilyEntry]) -> str:
    """The page of the documentation."""
    known = tuple(entries)
    lines = [_HEAD, "| section | vendors | |", "|---|---|---|"]
    for family in known:
        keys = ", ".join(f"`{vendor.key}`" for vendor in family.vendors)
        switch = f" Off unless `{family.flag}`." if family.flag else ""
        lines.append(f"| [`{family.section}`](#{family.section}) | {keys} | {family.about}{switch} |")
    for family in known:
        lines += ["", f"## {family.section}", "", family.about]
        lines += ["", "| key | shipped value |", "|---|---|"]
        lines += [f"| `{name}` | `{value}` |" for name, value in family.configuration]
        for vendor in family.vendors:
            lines += ["", f"### {vendor.key}", "", "| | |", "|---|---|"]
            for title, values in _rows(vendor).items():
                if values:
                    lines.append(f"| {title} | {'<br>'.join(_coded(value) for value in values)} |")
    return "\n".join(lines) + "\n"


def _coded(value: str) -> str:
    """Names in back-ticks, words as they are."""
    name, _, rest = value.partition(" ")
    is_name = "/" in name or "_" in name or (not rest and "-" in name)
    return f"`{name}`{' ' + rest if rest else ''}" if is_name else value


def _kubernetes(path: Path | None) -> str:
    """YAML made from the families' data, the optional ones among them."""
    try:
        config = load(str(path), optional_families()) if path is not None else default_config(optional_families())
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from error
    document = {
        "managedResources": managed_resources(config),
        "matchConditions": [{"name": "asks-for-a-managed-resource", "expression": asks_condition(config)}],
        "protectedAnnotations": protected_keys(config),
    }
    return yaml.safe_dump(document, sort_keys=False, width=10**6)


def vendors(
    as_json: Annotated[bool, typer.Option("--json", help="For programs: a list of families.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="As the page of the documentation.")] = False,
    kubernetes: Annotated[
        bool,
        typer.Option("--kubernetes", help="What Kubernetes' own configuration has to name because of them, as YAML."),
    ] = False,
    device_config_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --kubernetes: the device configuration, which may rename.")
    ] = None,
) -> None:
    """List the accelerator families: resources with their units, defaults, annotations, quota keys and features.

    With --kubernetes: managedResources for the KubeSchedulerConfiguration, matchConditions for the validating webhook, and the
    annotations that only the system may change.

    Example: slotwise vendors --kubernetes
    """
    if as_json + as_markdown + kubernetes > 1:
        raise typer.BadParameter("--json, --markdown and --kubernetes exclude each other")
    if kubernetes:
        typer.echo(_kubernetes(device_config_file), nl=False)
        return
    if device_config_file is not None:
        raise typer.BadParameter("--device-config-file goes with --kubernetes: the list shows the shipped names")
    entries = listed()
    if as_json:
        typer.echo(json.dumps([asdict(entry) for entry in entries], indent=1, ensure_ascii=False))
    elif as_markdown:
        typer.echo(markdown(entries), nl=False)
    else:
        typer.echo("\n".join(_text(entries)), nl=False)
