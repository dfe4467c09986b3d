"""Parts of the YAML that follow from the accelerator families: between two comments, generated, and never written by hand.

# generated: managed-resources
- {name: nvidia.com/gpu, ignoredByScheduler: true}
# end of generated
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from devices.managed import managed_resources
from manifests.errors import ManifestError, RegionError
from manifests.families import Families

__all__ = ["REGIONS", "filled", "generated"]

_WHOLE_FILES: Final = "admission"
_START: Final = re.compile(r"^(\s*)# generated: (\S+)$")
_END: Final = re.compile(r"^\s*# end of generated$")


def _managed_resources(families: Families) -> Iterable[str]:
    for row in managed_resources(families.config):
        yield f"- {{name: {row['name']}, ignoredByScheduler: {json.dumps(row['ignoredByScheduler'])}}}"


def _device_config(families: Families) -> Iterable[str]:
    return families.text().splitlines()


REGIONS: Final[Mapping[str, Callable[[Families], Iterable[str]]]] = MappingProxyType(
    {
        "device-config": _device_config,
        "managed-resources": _managed_resources,
    }
)
"""By name: the lines of a generated part, without their indentation."""


def generated(path: Path, families: Families) -> str:
    """A file with all that is generated in it made anew from these families. Raises `ManifestError` naming file and line."""
    if path.parent.name == _WHOLE_FILES and path.name in families.admission:
        return families.admission[path.name]
    try:
        return filled(path.read_text(encoding="utf-8"), families, str(path))
    except OSError as error:
        raise ManifestError(f"{path}: cannot be read: {error.strerror}") from error


def filled(text: str, families: Families, where: str) -> str:
    """The text with every generated part made anew from these families. Raises `RegionError` naming file and line."""
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
