"""`--set key=value`: the closed list of settings, and an overlay rendered with some of them."""

import difflib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Final

from manifests.device_settings import DEVICES
from manifests.documents import Document, in_order, mapping
from manifests.errors import SettingError
from manifests.findings import Finding
from manifests.flag_settings import FLAGS
from manifests.kube_scheduler import configuration_findings
from manifests.kustomize import render
from manifests.namespace import moved
from manifests.objects import Objects, inside
from manifests.plan import Plan, Setting
from manifests.pod_settings import PODS
from manifests.service_settings import SERVICES

__all__ = ["GROUPS", "SETTINGS", "Rendered", "Setting", "given", "rendered"]

GROUPS: Final[Mapping[str, tuple[Setting, ...]]] = MappingProxyType(
    {"pods": PODS, "services": SERVICES, "flags": FLAGS, "devices": DEVICES}
)
SETTINGS: Final[Mapping[str, Setting]] = MappingProxyType(
    {setting.name: setting for setting in chain.from_iterable(GROUPS.values())}
)
"""By name, in the order in which they are applied."""
_LEASE: Final = ("lease-duration", "renew-deadline", "retry-period")
CHECKSUM: Final = "slotwise.io/config-checksum"
"""On a pod template: changes with the ConfigMaps that the pod reads, since the processes do so once, at start."""


@dataclass(frozen=True)
class Rendered:
    """The documents in the order in which they are to be applied, and what was given without effect."""

    documents: Sequence[Document]
    warnings: Sequence[str]


def given(pairs: Sequence[str]) -> Mapping[str, str]:
    """`key=value` texts as a mapping. Raises `SettingError` for a key that is not there or stands twice."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise SettingError(f"--set {pair}: expected key=value")
        if name not in SETTINGS:
            near = difflib.get_close_matches(name, SETTINGS, n=1, cutoff=0.5)
            meant = f" (did you mean {near[0]}?)" if near else ""
            raise SettingError(f"--set {pair}: no setting {name!r}{meant}: there are {', '.join(SETTINGS)}")
        if name in found:
            raise SettingError(f"--set {name}: given twice, as {found[name]!r} and {value!r}")
        found[name] = value
    return found


def rendered(overlay: str, values: Mapping[str, str]) -> Rendered:
    """The overlay with these settings, all of them in `SETTINGS`.

    Raises `ManifestError` naming overlay or setting, `devices.errors.ConfigError` for values of families that do not go together.
    """
    plan = Plan()
    for name, setting in SETTINGS.items():
        if name in values:
            setting.put(plan, values[name])
    objects = Objects(overlay, render(overlay, plan.families(), also=_components(overlay, plan)))
    if plan.namespace:
        moved(objects, plan.namespace)
    for edit in plan.edits:
        edit(objects)
    _check_lease(objects, values)
    _checksums(objects)
    return Rendered(in_order(objects.documents), plan.warnings)


def _components(overlay: str, plan: Plan) -> Sequence[str]:
    """The overlay of this name has the component already."""
    return [name for name in plan.components if name != overlay]


def _check_lease(objects: Objects, values: Mapping[str, str]) -> None:
    """What each of the three takes alone may not go together; kube-scheduler would not start."""
    given_times = [f"--set {name}={values[name]}" for name in _LEASE if name in values]
    wrong: list[Finding] = []
    if given_times:
        objects.kube_scheduler(lambda document: wrong.extend(configuration_findings(document)))
    if wrong:
        raise SettingError(f"{', '.join(given_times)}: {wrong[0]}")


def _checksums(objects: Objects) -> None:
    maps = {
        str(mapping(document["metadata"], "metadata")["name"]): document.get("data")
        for document in objects.documents
        if document["kind"] == "ConfigMap"
    }
    for document in objects.documents:
        if document["kind"] == "Deployment":
            template = inside(document, "spec", "template")
            texts = [f"{name}={maps[name]}" for name in sorted(set(_config_maps(template))) if name in maps]
            if texts:
                digest = hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]
                inside(template, "metadata", "annotations")[CHECKSUM] = digest


def _config_maps(value: object) -> Iterator[str]:
    """Names of the ConfigMaps that a pod mounts, or has in its environment."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in ("configMap", "configMapKeyRef", "configMapRef") and isinstance(inner, dict):
                yield str(inner.get("name"))
            yield from _config_maps(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _config_maps(inner)
