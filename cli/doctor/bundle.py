"""`--bundle`: what somebody else needs to understand an installation, in one archive without secrets."""

import io
import json
import tarfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from cli.doctor.collect import Collected
from cli.doctor.errors import BundleError
from devices.kube.client import KubeClient
from devices.kube.errors import KubeError

__all__ = ["LEFT_OUT", "container_logs", "redacted", "write_bundle"]

LEFT_OUT: Final = "(left out)"
_LINES: Final = 2000
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_OURS_ONLY: Final = frozenset({"Deployment", "DaemonSet"})
_KEYS_KEPT_OF_OTHERS: Final = ("kind", "metadata", "status")


def redacted(document: Mapping[str, object]) -> dict[str, object]:
    """A copy without anything that may be secret: values of environment variables, the data of Secrets, earlier versions."""
    if document.get("kind") == "Secret":
        return {key: document[key] for key in ("kind", "metadata") if key in document}
    return {key: _redacted(key, value) for key, value in document.items()}


def _redacted(key: str, value: object) -> object:
    if key == "managedFields":
        return LEFT_OUT
    if key == "env" and isinstance(value, list):
        return [{**one, "value": LEFT_OUT} if isinstance(one, dict) and "value" in one else one for one in value]
    if isinstance(value, dict):
        return {name: LEFT_OUT if name == _LAST_APPLIED else _redacted(name, found) for name, found in value.items()}
    if isinstance(value, list):
        return [_redacted(key, one) for one in value]
    return value


def _of_others(document: Mapping[str, object], namespace: str) -> bool:
    metadata = document.get("metadata")
    return not isinstance(metadata, dict) or metadata.get("namespace") != namespace


def _images(document: Mapping[str, object]) -> dict[str, object]:
    """A workload of somebody else's: its name, its state and its images, no command lines."""
    spec = document.get("spec")
    template = spec.get("template") if isinstance(spec, dict) else None
    inner = template.get("spec") if isinstance(template, dict) else None
    containers = inner.get("containers") if isinstance(inner, dict) else None
    images = [one.get("image") for one in containers or () if isinstance(one, dict)]
    return {**{key: document[key] for key in _KEYS_KEPT_OF_OTHERS if key in document}, "images": images}


async def container_logs(client: KubeClient, collected: Collected) -> dict[str, str]:
    """By `POD/CONTAINER`: the last lines of every container of the installation, or why there are none."""
    logs: dict[str, str] = {}
    for pod in collected.facts.pods:
        for container in pod.spec.containers:
            try:
                text = await client.pod_log(collected.facts.namespace, pod.name, container.name, _LINES)
            except KubeError as error:
                text = f"(not readable: {error})\n"
            logs[f"{pod.name}/{container.name}"] = text
    return logs


def write_bundle(
    path: Path, collected: Collected, report: Mapping[str, object], logs: Mapping[str, str]
) -> Sequence[str]:
    """Write the archive (tar, gzip); returns the names of what is in it. Raises `BundleError`; nothing is left half-written."""
    files: dict[str, str] = {"doctor.json": json.dumps(report, indent=1, ensure_ascii=False)}
    for kind, documents in sorted(collected.documents.items()):
        kept = [
            _images(one) if kind in _OURS_ONLY and _of_others(one, collected.facts.namespace) else one
            for one in documents
        ]
        files[f"objects/{kind.replace(' ', '-')}.json"] = json.dumps([redacted(one) for one in kept], indent=1)
    for key, pem in collected.facts.certificates_pem.items():
        files[f"certificates/{key}"] = pem.decode(errors="replace")
    for name, text in logs.items():
        files[f"logs/{name}.log"] = text
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        with tarfile.open(unfinished, "w:gz") as archive:
            for name, text in files.items():
                content = text.encode()
                entry = tarfile.TarInfo(f"slotwise-doctor/{name}")
                entry.size, entry.mtime = len(content), int(time.time())
                archive.addfile(entry, io.BytesIO(content))
        unfinished.replace(path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise BundleError(
            f"--bundle {path}: {error.strerror or error}; a file in a folder that can be written is accepted"
        ) from error
    return list(files)
