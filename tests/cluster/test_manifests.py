"""The manifests before those who decide: kustomize renders the same, the API server takes every field, the kept schemas are its own."""

import json
import subprocess
from collections.abc import Mapping, Sequence

import pytest

from lab.control_plane import ControlPlane
from manifests.check import PARTIAL
from manifests.documents import Document, as_yaml, in_order, read_stream
from manifests.families import Families
from manifests.kustomize import FOLDER, overlays, render
from manifests.schemas import load, minors
from manifests.settings import SETTINGS, rendered
from tests.cluster.schemas import PATHS, trimmed

CUSTOM = {"Issuer", "Certificate", "ServiceMonitor"}
"""Kinds of operators, which are not in this cluster."""
NOT_TOGETHER = {"namespace", "certificates", "network-policies", "priority-class", "cert-days", "ca-days"}
"""Settings that take away what others change, or name what is not in this cluster."""
SETS: Mapping[str, Mapping[str, str]] = {
    "shipped": {},
    "every setting": {
        name: setting.example
        for name, setting in SETTINGS.items()
        if not name.startswith("device") and name not in NOT_TOGETHER
    },
}


def kubectl(plane: ControlPlane, *arguments: str, text: str = "") -> str:
    command = [str(plane.programs.kubectl), f"--kubeconfig={plane.kubeconfig()}", *arguments]
    ran = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, f"{ran.stderr}\n{ran.stdout}"
    return ran.stdout


@pytest.mark.parametrize("overlay", sorted(overlays()))
def test_kustomize_renders_the_same(control_plane: ControlPlane, overlay: str) -> None:
    theirs = read_stream(kubectl(control_plane, "kustomize", str(FOLDER / overlay)), overlay)
    assert in_order(render(overlay, Families())) == in_order(theirs)


@pytest.mark.parametrize("values", SETS.values(), ids=SETS)
@pytest.mark.parametrize("overlay", sorted(set(overlays()) - PARTIAL))
def test_the_api_server_takes_every_field(control_plane: ControlPlane, overlay: str, values: Mapping[str, str]) -> None:
    found = [document for document in rendered(overlay, values).documents if document["kind"] not in CUSTOM]
    # In a dry run nothing is there for the next object, and everything else needs the namespace.
    namespaces, rest = [d for d in found if d["kind"] == "Namespace"], [d for d in found if d["kind"] != "Namespace"]
    kubectl(control_plane, "apply", "--validate=strict", "-f", "-", text=as_yaml(namespaces))
    said = kubectl(control_plane, "apply", "--dry-run=server", "--validate=strict", "-f", "-", text=as_yaml(rest))
    assert len(said.splitlines()) == len(rest)


def test_the_kept_schemas_are_those_of_the_api_server(control_plane: ControlPlane) -> None:
    minor = ".".join(control_plane.programs.version.split(".")[:2])
    assert minor in minors(), f"run python -m tests.cluster.schemas {minor}"
    documents: Sequence[Document] = [control_plane.request("GET", path)[1] for path in PATHS]
    said = trimmed(control_plane.programs.version, documents)
    kept = load(minor)
    assert kept.version == said["version"]
    definitions, kinds = said["$defs"], said["kinds"]
    assert isinstance(definitions, dict)
    assert isinstance(kinds, dict)
    assert {kind: kept.kinds.get(kind) for kind in kinds} == kinds
    assert json.dumps({name: kept.definitions.get(name) for name in definitions}, sort_keys=True) == json.dumps(
        definitions, sort_keys=True
    ), f"run python -m tests.cluster.schemas {minor}"
