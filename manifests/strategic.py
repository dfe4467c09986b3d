"""Strategic merge patches, as far as our overlays use them: mappings merge, lists of named things merge by their name."""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from types import MappingProxyType
from typing import Final

from manifests.documents import Document, mapping, sequence
from manifests.errors import ManifestError

__all__ = ["merged"]

_MERGE_KEYS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "containers": "name",
        "initContainers": "name",
        "env": "name",
        "volumes": "name",
        "volumeMounts": "mountPath",
        "imagePullSecrets": "name",
        "topologySpreadConstraints": "topologyKey",
        "webhooks": "name",
        "matchConditions": "name",
    }
)
"""By the field that holds the list (Kubernetes API conventions, `patchMergeKey`); every other list is replaced as a whole."""
_PORT_KEYS: Final = MappingProxyType({"Service": "port"})
_BUILT_IN: Final = (".k8s.io", "apps", "policy", "batch")
_DIRECTIVE: Final = "$patch"


def merged(target: Document, patch: Document, where: str) -> Document | None:
    """The object with the patch in it; None where the patch deletes it. Raises `ManifestError` for directives we do not know."""
    if patch.get(_DIRECTIVE) == "delete":
        return None
    group = str(target.get("apiVersion", "")).rpartition("/")[0]
    # Of custom resources nobody knows merge keys, so all their lists are replaced.
    merges = group == "" or group.endswith(_BUILT_IN)
    keys = dict(_MERGE_KEYS) if merges else {}
    if merges:
        keys["ports"] = _PORT_KEYS.get(str(target.get("kind")), "containerPort")
    return _mapping(target, patch, keys, where)


def _mapping(target: Document, patch: Document, keys: Mapping[str, str], where: str) -> Document:
    if patch.get(_DIRECTIVE) == "replace":
        return _without_directive(patch, where)
    result = dict(target)
    for key, value in patch.items():
        here = f"{where}: {key}"
        if key.startswith("$"):
            raise ManifestError(
                f"{here}: {value!r} is not supported: of the directives only $patch: delete and replace are"
            )
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            if value.get(_DIRECTIVE) == "delete":
                result.pop(key, None)
                continue
            old = result.get(key)
            result[key] = _mapping(old if isinstance(old, dict) else {}, mapping(value, here), keys, here)
        elif isinstance(value, list) and key in keys:
            result[key] = list(_list(sequence(result.get(key) or [], here), value, keys[key], keys, here))
        else:
            result[key] = deepcopy(value)
    return result


def _without_directive(patch: Document, where: str) -> Document:
    return _mapping({}, {key: value for key, value in patch.items() if key != _DIRECTIVE}, {}, where)


def _list(target: list[object], patch: list[object], by: str, keys: Mapping[str, str], where: str) -> Iterator[object]:
    """New elements first, as kustomize has it, then those that were there in their order."""
    patches: dict[object, Document] = {}
    for element in patch:
        item = mapping(element, where)
        if item.keys() == {_DIRECTIVE}:
            raise ManifestError(f"{where}: {_DIRECTIVE} for a whole list is not supported")
        if by not in item:
            raise ManifestError(f"{where}: an element of the patch has no {by}")
        patches[item[by]] = item
    known = [mapping(element, where).get(by) for element in target]
    for name, item in patches.items():
        if name not in known and item.get(_DIRECTIVE) != "delete":
            yield _mapping({}, item, keys, f"{where}[{name}]")
    for name, element in zip(known, target, strict=True):
        item = patches.get(name, {})
        if item.get(_DIRECTIVE) != "delete":
            yield _mapping(mapping(element, where), item, keys, f"{where}[{name}]")
