"""Manifests held against what will read them: the API server's schemas, kube-scheduler, and our own processes. Nothing is asked of a cluster."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from devices.config import optional_families, read
from devices.errors import ConfigError
from manifests.documents import Document, Identity, identity, mapping, read_stream, sequence
from manifests.errors import ManifestError, ProcessError
from manifests.findings import Finding, path_text, schema_findings
from manifests.kube_scheduler import KIND, configuration_findings
from manifests.processes import (
    SCHEDULER_MODULE,
    WEBHOOK_MODULE,
    Variable,
    environment_of,
    module_of,
    scheduler_settings,
    webhook_settings,
)
from manifests.schemas import Schemas

__all__ = ["PARTIAL", "Problem", "problems"]

PARTIAL: Final = frozenset({"hami-drop-in"})
"""Overlays whose objects are parts of what is in the cluster already: what they leave out is not missing."""
_WORKLOADS: Final = ("Deployment", "StatefulSet", "DaemonSet", "Job")
_DEVICE_FILE: Final = "device-config.yaml"
_SCHEDULER_FILE: Final = "kube-scheduler.yaml"


@dataclass(frozen=True)
class Problem:
    """What is wrong, where in which object."""

    object: Identity
    finding: Finding

    def __str__(self) -> str:
        return f"{self.object}: {self.finding}"


def problems(documents: Sequence[Document], schemas: Schemas, *, partial: bool = False) -> list[Problem]:
    """Everything wrong with these documents, in their order. Raises `ManifestError` for one that does not say what it is."""
    found: list[Problem] = []
    seen: set[Identity] = set()
    for number, document in enumerate(documents, 1):
        about = identity(document, f"document {number}")
        if about in seen:
            found.append(Problem(about, Finding("", "stands twice")))
        seen.add(about)
        found += [Problem(about, finding) for finding in _of(document, about, schemas, partial)]
    return found


def _of(document: Document, about: Identity, schemas: Schemas, partial: bool) -> Iterator[Finding]:
    validator = schemas.validator(about.api_version, about.kind)
    if validator is None:
        yield Finding(
            "", f"no schema of {about.api_version} {about.kind} is kept for Kubernetes {schemas.version}: not checked"
        )
        return
    wrong = [f for f in schema_findings(validator, document) if not (partial and f.text == "missing, and required")]
    yield from wrong
    if wrong:
        return  # what follows relies on the shape
    if about.kind == "ConfigMap":
        yield from _config_map(document)
    elif about.kind in _WORKLOADS:
        yield from _workload(document, about, partial)


def _config_map(document: Document) -> Iterator[Finding]:
    for key, text in mapping(document.get("data") or {}, "data").items():
        check = _FILES.get(key)
        if check is None:
            continue
        for finding in check(str(text)):
            yield Finding(f"{path_text(['data', key])}: {finding.path}".removesuffix(": "), finding.text)


def _device_config(text: str) -> Iterator[Finding]:
    try:
        config = read(text, optional_families())
    except ConfigError as error:
        yield Finding("", str(error))
        return
    for warning in config.warnings:
        yield Finding("", warning)


def _scheduler_config(text: str) -> Iterator[Finding]:
    try:
        documents = read_stream(text, _SCHEDULER_FILE)
    except ManifestError as error:
        yield Finding("", str(error))
        return
    if len(documents) != 1:
        yield Finding("", f"expected one {KIND}, got {len(documents)} documents")
        return
    yield from configuration_findings(documents[0])


_FILES: Final[Mapping[str, Callable[[str], Iterator[Finding]]]] = {
    _DEVICE_FILE: _device_config,
    _SCHEDULER_FILE: _scheduler_config,
}
"""Checks of what ConfigMaps hold, by key."""


def _workload(document: Document, about: Identity, partial: bool) -> Iterator[Finding]:
    spec = mapping(document["spec"], "spec")
    template = mapping(spec["template"], "template")
    if not partial and about.kind != "Job":
        labels = mapping(mapping(template.get("metadata") or {}, "metadata").get("labels") or {}, "labels")
        wanted = mapping(mapping(spec["selector"], "selector").get("matchLabels") or {}, "matchLabels")
        for key, value in wanted.items():
            if labels.get(key) != value:
                yield Finding(
                    path_text(["spec", "template", "metadata", "labels", key]),
                    f"expected {value}, as spec.selector has it",
                )
    pod = mapping(template["spec"], "spec")
    volumes = {mapping(volume, "volumes").get("name") for volume in sequence(pod.get("volumes") or [], "volumes")}
    for kind in ("initContainers", "containers"):
        for number, item in enumerate(sequence(pod.get(kind) or [], kind)):
            where = ["spec", "template", "spec", kind, number]
            yield from _container(mapping(item, kind), about, where, volumes)


def _container(
    container: Document, about: Identity, where: Sequence[str | int], volumes: set[object]
) -> Iterator[Finding]:
    for number, mount in enumerate(sequence(container.get("volumeMounts") or [], "volumeMounts")):
        name = mapping(mount, "volumeMounts")["name"]
        if name not in volumes:
            yield Finding(path_text([*where, "volumeMounts", number, "name"]), f"no volume {name!r} in this pod")
    command = [str(word) for word in sequence(container.get("command") or [], "command")]
    line = [*command, *(str(word) for word in sequence(container.get("args") or [], "args"))]
    variables = msgspec.convert(container.get("env") or [], list[Variable])
    environment = environment_of(variables, about.namespace)
    try:
        if module_of(line) == WEBHOOK_MODULE:
            webhook_settings(line, environment)
        elif module_of(line) == SCHEDULER_MODULE:
            scheduler_settings(line, environment)
    except ProcessError as error:
        yield Finding(path_text([*where, "args"]), str(error))
