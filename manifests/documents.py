"""Kubernetes objects as plain YAML documents: reading a stream strictly, telling them apart, their order, writing them."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import yaml

from manifests.errors import ManifestError

__all__ = [
    "Document",
    "Identity",
    "as_yaml",
    "identity",
    "in_order",
    "mapping",
    "read_stream",
    "read_values",
    "sequence",
    "text_at",
]

Document = dict[str, object]

_ORDER: Final = (
    "Namespace",
    "PriorityClass",
    "ServiceAccount",
    "ClusterRole",
    "Role",
    "ClusterRoleBinding",
    "RoleBinding",
    "ConfigMap",
    "Secret",
    "Issuer",
    "Certificate",
    "Service",
    "NetworkPolicy",
    "PodDisruptionBudget",
    "Deployment",
    "Job",
    "ServiceMonitor",
)
"""What others refer to comes first."""
_LAST: Final = (
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
)
"""What touches the pods of others comes last."""


@dataclass(frozen=True, order=True)
class Identity:
    """What the API server tells objects apart by; `namespace` is empty for objects of the whole cluster."""

    api_version: str
    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


# libyaml reads and writes ten times as fast, where PyYAML was built with it.
_FastLoader = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
_FastDumper = yaml.CSafeDumper if yaml.__with_libyaml__ else yaml.SafeDumper


class _Loader(_FastLoader):  # type: ignore[valid-type,misc] # which of two it is only shows at run time
    """A key that stands twice is an error instead of the last one winning; a time stays the text that it is."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, object]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    "while reading a mapping", node.start_mark, f"key {key!r} stands twice", key_node.start_mark
                )
            seen.add(key)
        found: dict[Hashable, object] = super().construct_mapping(node, deep)
        return found


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if tag != "tag:yaml.org,2002:timestamp"]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class _Dumper(_FastDumper):  # type: ignore[valid-type,misc] # the same
    """Texts of several lines as blocks, the way people write them; no anchors."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def mapping(value: object, where: str) -> Document:
    """The value if it is a mapping with texts as keys. Raises `ManifestError` naming where it stands."""
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return value
    raise ManifestError(f"{where}: expected a mapping, got {_shown(value)}")


def sequence(value: object, where: str) -> list[object]:
    """The value if it is a list. Raises `ManifestError` naming where it stands."""
    if isinstance(value, list):
        return value
    raise ManifestError(f"{where}: expected a list, got {_shown(value)}")


def text_at(document: Document, key: str, where: str) -> str:
    """A text that has to be there. Raises `ManifestError` naming where."""
    value = document.get(key)
    if isinstance(value, str) and value:
        return value
    raise ManifestError(f"{where}: {key}: expected a text, got {_shown(value)}")


def _shown(value: object) -> str:
    return "nothing" if value is None else f"{type(value).__name__} {str(value)[:60]!r}"


def read_values(text: str, where: str) -> list[object]:
    """What a YAML stream holds; empty documents do not count. Raises `ManifestError` naming file and line."""
    try:
        return [value for value in yaml.load_all(text, Loader=_Loader) if value is not None]
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # ValueError: a number that is none. RecursionError: an alias inside its own anchor.
        raise ManifestError(f"{where}: not YAML: {' '.join(str(error).split())}") from error


def read_stream(text: str, where: str) -> list[Document]:
    """The documents of a YAML stream. Raises `ManifestError` as `read_values`, and for what is no mapping."""
    return [mapping(value, f"{where}: document {n}") for n, value in enumerate(read_values(text, where), 1)]


def identity(document: Document, where: str) -> Identity:
    """What the document is. Raises `ManifestError` where it does not say."""
    metadata = mapping(document.get("metadata"), f"{where}: metadata")
    namespace = metadata.get("namespace", "")
    return Identity(
        text_at(document, "apiVersion", where),
        text_at(document, "kind", where),
        namespace if isinstance(namespace, str) else "",
        text_at(metadata, "name", f"{where}: metadata"),
    )


def _place(document: Document) -> tuple[int, int, Identity]:
    found = identity(document, "manifests")
    if found.kind in _LAST:
        return 2, _LAST.index(found.kind), found
    return (0, _ORDER.index(found.kind), found) if found.kind in _ORDER else (1, 0, found)


def in_order(documents: Iterable[Document]) -> list[Document]:
    """In the order in which they are to be applied; the same documents give the same order."""
    return sorted(documents, key=_place)


def as_yaml(documents: Sequence[Document]) -> str:
    """A YAML stream."""
    return yaml.dump_all(
        documents, Dumper=_Dumper, sort_keys=False, width=10**6, allow_unicode=True, explicit_start=True
    )
