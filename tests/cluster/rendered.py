"""The manifests as `slotwise manifests` prints them, and what the fixture changes in them before it applies them.

Each change stands here and nowhere else.
"""

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from devices.config import optional_families

__all__ = ["Changes", "Document", "as_stream", "changed", "printed"]

Document = dict[str, Any]
_QUICK: Final = {"podInitialBackoffSeconds": 1, "podMaxBackoffSeconds": 1}


@dataclass(frozen=True)
class Changes:
    """What is other than printed, besides waits short enough for tests."""

    key_writers: tuple[str, ...]
    """Who may write allocation keys besides those that are printed."""
    extender: tuple[str, ...] = ()
    """Further arguments of the extender."""
    extender_fields: Mapping[str, object] = field(default_factory=dict)
    """Fields of the extender in kube-scheduler's configuration."""
    leader_election: Mapping[str, object] = field(default_factory=dict)
    """Fields of `leaderElection` there."""


def printed(overlay: str, kube_version: str) -> list[Document]:
    """What the command prints for a Kubernetes of this version (`1.37.2`), every family switched on."""
    settings = [f"kube-version={kube_version}", *(f"enable-{family}=true" for family in optional_families())]
    flags = [flag for setting in settings for flag in ("--set", setting)]
    command = [sys.executable, "-m", "cli", "manifests", overlay, *flags]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    return list(yaml.safe_load_all(ended.stdout))


def as_stream(documents: Sequence[Document]) -> str:
    """For `kubectl apply -f -`."""
    return yaml.safe_dump_all(documents, sort_keys=False)


def changed(documents: Sequence[Document], changes: Changes) -> list[Document]:
    """The documents with the fixture's changes."""
    return [_change(document, changes) for document in documents]


def _change(document: Document, changes: Changes) -> Document:
    name = document["kind"], document["metadata"]["name"]
    if name == ("ConfigMap", "slotwise-kube-scheduler"):
        return _with_data(document, "kube-scheduler.yaml", lambda text: _scheduler(text, changes))
    if name == ("ConfigMap", "slotwise-policy"):
        return _with_data(document, "keyWriters", lambda text: ",".join((text, *changes.key_writers)))
    if name == ("Deployment", "slotwise-scheduler"):
        return _with_arguments(document, "extender", changes.extender)
    return document


def _scheduler(text: str, changes: Changes) -> str:
    configuration = yaml.safe_load(text)
    configuration["leaderElection"] = {**configuration["leaderElection"], **changes.leader_election}
    configuration["extenders"] = [{**extender, **changes.extender_fields} for extender in configuration["extenders"]]
    return yaml.safe_dump({**configuration, **_QUICK}, sort_keys=False)


def _with_data(document: Document, key: str, change: Callable[[str], str]) -> Document:
    data: Mapping[str, str] = document["data"]
    return {**document, "data": {**data, key: change(data[key])}}


def _with_arguments(document: Document, container: str, more: Sequence[str]) -> Document:
    spec = document["spec"]["template"]["spec"]
    containers = [
        {**found, "args": [*found["args"], *more]} if found["name"] == container else found
        for found in spec["containers"]
    ]
    template = {**document["spec"]["template"], "spec": {**spec, "containers": containers}}
    return {**document, "spec": {**document["spec"], "template": template}}
