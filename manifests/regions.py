"""Parts of the YAML that follow from the accelerator families: between two comments, generated, and never written by hand.

# generated: managed-resources
- {name: nvidia.com/gpu, ignoredByScheduler: true}
# end of generated
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from devices.managed import asks_condition, managed_resources, protected_keys
from manifests.errors import RegionError
from manifests.families import Families

__all__ = ["REGIONS", "filled"]

_START: Final = re.compile(r"^(\s*)# generated: (\S+)$")
_END: Final = re.compile(r"^\s*# end of generated$")


def _managed_resources(families: Families) -> Iterable[str]:
    for row in managed_resources(families.config):
        yield f"- {{name: {row['name']}, ignoredByScheduler: {json.dumps(row['ignoredByScheduler'])}}}"


def _device_config(families: Families) -> Iterable[str]:
    return families.text().splitlines()


def _asks_condition(families: Families) -> Iterable[str]:
    yield f"expression: {_quoted(asks_condition(families.config))}"


def _protected_keys(families: Families) -> Iterable[str]:
    return (f"- {key}" for key in protected_keys(families.config))


def _quoted(text: str) -> str:
    """A YAML scalar on one line, whatever the text."""
    return "'" + text.replace("'", "''") + "'"


REGIONS: Final[Mapping[str, Callable[[Families], Iterable[str]]]] = MappingProxyType(
    {
        "asks-condition": _asks_condition,
        "device-config": _device_config,
        "managed-resources": _managed_resources,
        "protected-keys": _protected_keys,
    }
)
"""By name: the lines of a generated part, without their indentation."""


def filled(text: str, families: Families, where: str) -> str:
    """The file with every generated part made anew from these families. Raises `RegionError` naming file and line."""
    lines: list[str] = []
    open_at = 0
    for number, line in enumerate(text.splitlines(), 1):
        if start := _START.match(line):
            if open_at:
                raise RegionError(f"{where}: line {number}: a generated part begins inside that of line {open_at}")
            indent, name = start[1], start[2]
            if name not in REGIONS:
                raise RegionError(f"{where}: line {number}: no generated part {name!r}: there are {', '.join(REGIONS)}")
            open_at = number
            lines += [line, *(f"{indent}{made}" for made in REGIONS[name](families))]
        elif _END.match(line):
            if not open_at:
                raise RegionError(f"{where}: line {number}: the end of a generated part that has no beginning")
            open_at = 0
            lines.append(line)
        elif not open_at:
            lines.append(line)
    if open_at:
        raise RegionError(f"{where}: line {open_at}: the generated part has no end: expected '# end of generated'")
    return "\n".join(lines) + "\n"
