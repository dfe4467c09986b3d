"""Renders our kustomizations: the subset of kustomize that the files use. Anything beyond it is an error, never ignored."""

from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from types import MappingProxyType
from typing import Final

import jsonpatch

from manifests.documents import Document, Identity, identity, mapping, read_stream, read_values, sequence, text_at
from manifests.errors import ManifestError
from manifests.families import Families
from manifests.regions import generated
from manifests.strategic import merged

__all__ = ["COMPONENTS", "FOLDER", "components", "overlays", "render"]

FOLDER: Final = Path(__file__).parent
"""Where the kustomizations are."""
COMPONENTS: Final = "components"
_FILE: Final = "kustomization.yaml"
_HEADS: Final = MappingProxyType(
    {"Kustomization": "kustomize.config.k8s.io/v1beta1", "Component": "kustomize.config.k8s.io/v1alpha1"}
)
_TARGET_KEYS: Final = ("group", "version", "kind", "name", "namespace")


def overlays(root: Path = FOLDER) -> Mapping[str, str]:
    """The kustomizations to choose from by name, with the comment that each begins with."""
    return {path.parent.name: _about(path) for path in sorted(root.glob(f"*/{_FILE}"))}


def components(root: Path = FOLDER) -> Mapping[str, str]:
    """What can be added to an overlay, by name, with the comment that each begins with."""
    return {path.parent.name: _about(path) for path in sorted(root.glob(f"{COMPONENTS}/*/{_FILE}"))}


def _about(path: Path) -> str:
    lines = path.read_text(encoding="utf-8").splitlines()
    return " ".join(line.removeprefix("#").strip() for line in takewhile(lambda line: line.startswith("#"), lines))


def render(overlay: str, families: Families, *, also: Sequence[str] = (), root: Path = FOLDER) -> list[Document]:
    """The documents of an overlay with these components on top, in the order of the files.

    Raises `ManifestError` for an overlay or component that is not there, and for whatever a file has beyond the subset.
    """
    folder = root / overlay
    if not overlay or not (folder / _FILE).is_file():
        raise ManifestError(f"no overlay {overlay!r}: there are {', '.join(overlays(root))}")
    builder = _Builder(families)
    found = builder.built(folder, "Kustomization", [])
    for name in also:
        if name not in components(root):
            raise ManifestError(f"no component {name!r}: there are {', '.join(components(root))}")
        found = builder.built(root / COMPONENTS / name, "Component", found)
    return found


class _Builder:
    """One rendering. `built` is called again for every folder that another names."""

    def __init__(self, families: Families) -> None:
        self._families = families

    def built(self, folder: Path, kind: str, before: list[Document]) -> list[Document]:
        """The documents of a kustomization, or those `before` with a component added."""
        path = folder / _FILE
        if not path.is_file():
            raise ManifestError(f"{folder}: no {_FILE} there")
        [kustomization] = self._read(path)
        where = str(path)
        head = text_at(kustomization, "kind", where), text_at(kustomization, "apiVersion", where)
        if head != (kind, _HEADS[kind]):
            raise ManifestError(f"{where}: {head[0]} of {head[1]}: expected {kind} of {_HEADS[kind]}")
        found = list(before)
        for key, value in kustomization.items():
            if key not in ("kind", "apiVersion", *_STEPS):
                raise ManifestError(f"{where}: {key}: not supported: the renderer knows {', '.join(_STEPS)}")
            if not isinstance(value, str):
                sequence(value, f"{where}: {key}")
        for key, step in _STEPS.items():
            for number, item in enumerate(sequence(kustomization.get(key, []), where)):
                found = step(self, found, item, folder, f"{where}: {key}[{number}]")
        return found

    def _read(self, path: Path) -> list[Document]:
        return read_stream(generated(path, self._families), str(path))

    # --- one function a key of a kustomization ---

    def _resource(self, found: list[Document], item: object, folder: Path, where: str) -> list[Document]:
        path = folder / _name(item, where)
        added = self.built(path, "Kustomization", []) if path.is_dir() else self._read(path)
        known = {identity(document, where) for document in found}
        for document in added:
            if identity(document, str(path)) in known:
                raise ManifestError(f"{where}: {identity(document, str(path))} is there already")
        return [*found, *added]

    def _component(self, found: list[Document], item: object, folder: Path, where: str) -> list[Document]:
        return self.built(folder / _name(item, where), "Component", found)

    def _patch(self, found: list[Document], item: object, folder: Path, where: str) -> list[Document]:
        patch = _known_keys(item, ("path", "patch", "target"), where)
        if ("path" in patch) == ("patch" in patch):
            raise ManifestError(f"{where}: expected either path or patch")
        target = patch.get("target")
        if "path" in patch:
            path = folder / _name(patch["path"], f"{where}: path")
            where = str(path)
            text = generated(path, self._families)
        else:
            text = text_at(patch, "patch", where)
        for value in read_values(text, where):
            if isinstance(value, list):
                found = _json_patched(found, value, target, where)
            else:
                found = _merged(found, mapping(value, where), target, where)
        return found

    def _labels(self, found: list[Document], item: object, folder: Path, where: str) -> list[Document]:
        pairs = mapping(_known_keys(item, ("pairs", "includeSelectors"), where).get("pairs"), f"{where}: pairs")
        if mapping(item, where).get("includeSelectors", False) is not False:
            raise ManifestError(f"{where}: includeSelectors: only false is supported")
        return [_merge(document, {"metadata": {"labels": pairs}}, where) for document in found]

    def _replicas(self, found: list[Document], item: object, folder: Path, where: str) -> list[Document]:
        wanted = _known_keys(item, ("name", "count"), where)
        name = text_at(wanted, "name", where)
        chosen = [d for d in found if _is(d, kind="Deployment", name=name)]
        if not chosen:
            raise ManifestError(f"{where}: no Deployment {name}")
        return [_merge(d, {"spec": {"replicas": wanted.get("count")}}, where) if d in chosen else d for d in found]


def _name(item: object, where: str) -> str:
    if not isinstance(item, str) or not item or item.startswith("/") or "://" in item:
        raise ManifestError(f"{where}: {item!r}: expected a path beside this file")
    return item


def _known_keys(item: object, known: Sequence[str], where: str) -> Document:
    found = mapping(item, where)
    for key in found:
        if key not in known:
            raise ManifestError(f"{where}: {key}: not supported: the renderer knows {', '.join(known)}")
    return found


def _is(document: Document, **wanted: str) -> bool:
    found = identity(document, "manifests")
    group, _, version = found.api_version.rpartition("/")
    has = {"group": group, "version": version, "kind": found.kind, "name": found.name, "namespace": found.namespace}
    return all(has[key] == value for key, value in wanted.items())


def _matching(found: Sequence[Document], wanted: Mapping[str, str], where: str) -> list[Document]:
    chosen = [document for document in found if _is(document, **wanted)]
    if not chosen:
        raise ManifestError(f"{where}: nothing to patch: no {' '.join(wanted.values())}")
    return chosen


def _target(target: object, where: str) -> dict[str, str]:
    wanted = _known_keys(target, _TARGET_KEYS, f"{where}: target")
    for key, value in wanted.items():
        if not isinstance(value, str) or not value.replace("-", "").replace(".", "").replace("/", "").isalnum():
            raise ManifestError(f"{where}: target: {key}: {value!r} is not supported: expected a name, no pattern")
    return {key: str(value) for key, value in wanted.items()}


def _own_target(patch: Document, where: str) -> dict[str, str]:
    own: Identity = identity(patch, where)
    group, _, version = own.api_version.rpartition("/")
    return {"group": group, "version": version, "kind": own.kind, "name": own.name, "namespace": own.namespace}


def _merge(document: Document, patch: Document, where: str) -> Document:
    result = merged(document, patch, where)
    assert result is not None
    return result


def _merged(found: list[Document], patch: Document, target: object, where: str) -> list[Document]:
    wanted = _own_target(patch, where) if target is None else _target(target, where)
    chosen = _matching(found, wanted, where)
    if target is not None:
        # With a target the patch's own name says nothing.
        patch = {key: value for key, value in patch.items() if key not in ("apiVersion", "kind")}
        metadata = patch.get("metadata")
        if isinstance(metadata, dict):
            patch["metadata"] = {key: value for key, value in metadata.items() if key not in ("name", "namespace")}
    results = (merged(document, patch, where) if document in chosen else document for document in found)
    return [document for document in results if document is not None]


def _json_patched(found: list[Document], operations: list[object], target: object, where: str) -> list[Document]:
    if target is None:
        raise ManifestError(f"{where}: a JSON patch needs a target")
    chosen = _matching(found, _target(target, where), where)
    try:
        patch = jsonpatch.JsonPatch([mapping(operation, where) for operation in operations])
        return [mapping(patch.apply(document), where) if document in chosen else document for document in found]
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
        raise ManifestError(f"{where}: {error}") from error


_Step = Callable[[_Builder, list[Document], object, Path, str], list[Document]]
_STEPS: Final[Mapping[str, _Step]] = MappingProxyType(
    {
        "resources": _Builder._resource,
        "components": _Builder._component,
        "patches": _Builder._patch,
        "labels": _Builder._labels,
        "replicas": _Builder._replicas,
    }
)
"""The keys of a kustomization that are known, in the order in which kustomize takes them."""
