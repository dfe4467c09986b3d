"""Makes the schemas with which `slotwise manifests --check` works offline, from the API server that was built, and from CRDs.

    python -m tests.cluster.schemas 1.37        # manifests/openapi/kubernetes-1.37.json.xz
    python -m tests.cluster.schemas extensions  # manifests/openapi/extensions.json.xz: ServiceMonitor, Certificate, Issuer

Only what the checks need is kept: no descriptions, no defaults, no kinds that manifests never have; an object takes the fields it names.
"""

import json
import lzma
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import yaml

from lab.control_plane import ControlPlane, cache_folder
from manifests.schemas import FOLDER
from tests.cluster.build import build

__all__ = ["KINDS", "PATHS", "extensions", "trimmed"]

Json = dict[str, object]

KINDS: Final[Mapping[str, Sequence[str]]] = {
    "v1": ("Namespace", "ServiceAccount", "ConfigMap", "Secret", "Service", "Pod", "ResourceQuota", "LimitRange"),
    "apps/v1": ("Deployment", "DaemonSet", "StatefulSet"),
    "batch/v1": ("Job",),
    "rbac.authorization.k8s.io/v1": ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"),
    "policy/v1": ("PodDisruptionBudget",),
    "networking.k8s.io/v1": ("NetworkPolicy",),
    "scheduling.k8s.io/v1": ("PriorityClass",),
    "coordination.k8s.io/v1": ("Lease",),
    "admissionregistration.k8s.io/v1": (
        "MutatingWebhookConfiguration",
        "ValidatingWebhookConfiguration",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    ),
}
"""What manifests may have, by API version."""
PATHS: Final = tuple(f"/openapi/v3/{'api' if version == 'v1' else 'apis'}/{version}" for version in KINDS)
_REF: Final = "#/components/schemas/"
_META: Final = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
_KEPT: Final = (
    "type",
    "enum",
    "required",
    "pattern",
    "minimum",
    "maximum",
    "minItems",
    "maxItems",
    "minLength",
    "maxLength",
)
_EXTENSIONS: Final = {
    "github.com/prometheus-operator/prometheus-operator@v0.85.0": (
        "example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml",
    ),
    "github.com/cert-manager/cert-manager@v1.21.2": (
        "deploy/crds/cert-manager.io_certificates.yaml",
        "deploy/crds/cert-manager.io_issuers.yaml",
    ),
}
"""Files of Go modules that hold CRDs."""


def _mapping(value: object) -> Json:
    assert isinstance(value, dict)
    return value


def _strict(schema: Json) -> Json:
    """One schema of OpenAPI as one of JSON Schema that takes no field it does not name."""
    if schema.get("x-kubernetes-int-or-string") or schema.get("format") == "int-or-string":
        return {"type": ["integer", "string"]}
    reference, parts = schema.get("$ref"), schema.get("allOf")
    if isinstance(parts, list) and len(parts) == 1 and "$ref" in parts[0]:
        reference = parts[0]["$ref"]
    if reference is not None:
        return {"$ref": str(reference).replace(_REF, "#/$defs/")}
    made: Json = {key: schema[key] for key in _KEPT if key in schema}
    alternatives = schema.get("oneOf")
    if isinstance(alternatives, list) and all(part.keys() == {"type"} for part in alternatives):
        made["type"] = [part["type"] for part in alternatives]
    if schema.get("nullable"):
        made["type"] = [schema["type"], "null"]
    if "items" in schema:
        made["items"] = _strict(_mapping(schema["items"]))
    rest = schema.get("additionalProperties")
    if "properties" in schema:
        made["properties"] = {key: _strict(_mapping(value)) for key, value in _mapping(schema["properties"]).items()}
        made["additionalProperties"] = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
    if isinstance(rest, dict):
        made["additionalProperties"] = _strict(rest)
    return made


def _references(schema: object) -> Iterable[str]:
    if isinstance(schema, dict):
        if "$ref" in schema:
            yield schema["$ref"].removeprefix("#/$defs/")
        for value in schema.values():
            yield from _references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _references(value)


def trimmed(version: str, documents: Iterable[Json]) -> Json:
    """The schemas of `KINDS`, and all that they refer to, from the API server's OpenAPI v3 documents."""
    every: dict[str, Json] = {}
    for document in documents:
        every |= _mapping(_mapping(document["components"])["schemas"])  # type: ignore[arg-type] # each is a mapping
    kinds: dict[str, str] = {}
    for name, schema in every.items():
        for kind in schema.get("x-kubernetes-group-version-kind", ()):  # type: ignore[attr-defined] # a list of mappings
            api_version = f"{kind['group']}/{kind['version']}" if kind["group"] else kind["version"]
            if kind["kind"] in KINDS.get(api_version, ()):
                kinds[f"{api_version} {kind['kind']}"] = name
    kept: dict[str, Json] = {}
    wanted = [*kinds.values(), _META]
    while wanted:
        name = wanted.pop()
        if name not in kept:
            kept[name] = _strict(every[name])
            wanted += _references(kept[name])
    return {"version": version, "kinds": dict(sorted(kinds.items())), "$defs": dict(sorted(kept.items()))}


def extensions(definitions: Mapping[str, Iterable[str]]) -> Json:
    """The schemas of custom resources from the texts of their CustomResourceDefinitions, by where those are from."""
    kinds: dict[str, str] = {}
    kept: dict[str, Json] = {}
    for texts in definitions.values():
        for text in texts:
            spec = yaml.safe_load(text)["spec"]
            for version in spec["versions"]:
                name = f"{spec['group']}/{version['name']} {spec['names']['kind']}"
                schema = _strict(version["schema"]["openAPIV3Schema"])
                _mapping(schema["properties"])["metadata"] = {"$ref": f"#/$defs/{_META}"}
                kinds[name] = name.replace("/", ".").replace(" ", ".")
                kept[kinds[name]] = schema
    return {
        "version": ", ".join(definitions),
        "kinds": dict(sorted(kinds.items())),
        "$defs": dict(sorted(kept.items())),
    }


def _packed(document: Json) -> bytes:
    return lzma.compress(json.dumps(document, separators=(",", ":"), sort_keys=True).encode(), preset=9)


def _write(name: str, document: Json) -> None:
    path = FOLDER / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(_packed(document))
    print(f"{path}: {path.stat().st_size} bytes, {len(_mapping(document['$defs']))} schemas of {document['version']}")


def _from_modules() -> Mapping[str, Iterable[str]]:
    found = {}
    for module, files in _EXTENSIONS.items():
        asked = subprocess.run(["go", "mod", "download", "-json", module], capture_output=True, text=True, check=True)
        folder = Path(json.loads(asked.stdout)["Dir"])
        found[module.removeprefix("github.com/")] = [(folder / file).read_text() for file in files]
    return found


def _of_server(minor: str) -> Json:
    programs = build(minor, cache_folder(os.environ))
    with tempfile.TemporaryDirectory() as folder, ControlPlane(programs, Path(folder)) as plane:
        return trimmed(programs.version, [plane.request("GET", path)[1] for path in PATHS])


def main(arguments: Sequence[str]) -> int:
    """Make the files named, `extensions` or minors of Kubernetes."""
    for name in arguments:
        if name == "extensions":
            _write("extensions.json.xz", extensions(_from_modules()))
        else:
            _write(f"kubernetes-{name}.json.xz", _of_server(name))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
