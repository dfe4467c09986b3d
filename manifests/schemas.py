"""What the API server of a Kubernetes minor takes, kept in the package: OpenAPI v3, trimmed and compressed; and of two operators' CRDs."""

import json
import lzma
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from jsonschema import Draft202012Validator

from manifests.documents import Document, mapping
from manifests.errors import ManifestError

__all__ = ["FOLDER", "Schemas", "load", "minors"]

FOLDER: Final = Path(__file__).parent / "openapi"
_EXTENSIONS: Final = "extensions.json.xz"


@dataclass(frozen=True)
class Schemas:
    """The schemas of one Kubernetes minor, and of the operators' kinds."""

    version: str
    kinds: Mapping[str, str]
    """Names in `definitions` by `apiVersion kind`."""
    definitions: Document

    def validator(self, api_version: str, kind: str) -> Draft202012Validator | None:
        """For objects of this kind; None where no schema is kept for it."""
        name = self.kinds.get(f"{api_version} {kind}")
        if name is None:
            return None
        return Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": self.definitions})


def minors() -> Sequence[str]:
    """Minors of Kubernetes whose schemas are kept, the newest first."""
    found = [path.name.removeprefix("kubernetes-").split(".json")[0] for path in FOLDER.glob("kubernetes-*.json.xz")]
    return sorted(found, key=lambda minor: [int(part) for part in minor.split(".")], reverse=True)


@lru_cache
def load(minor: str) -> Schemas:
    """Raises `ManifestError` naming the minors there are."""
    if minor not in minors():
        raise ManifestError(f"no schemas of Kubernetes {minor!r} here: there are {', '.join(minors())}")
    kubernetes, extensions = _read(f"kubernetes-{minor}.json.xz"), _read(_EXTENSIONS)
    kinds = {**mapping(kubernetes["kinds"], "kinds"), **mapping(extensions["kinds"], "kinds")}
    return Schemas(
        str(kubernetes["version"]),
        {kind: str(name) for kind, name in kinds.items()},
        {**mapping(kubernetes["$defs"], "$defs"), **mapping(extensions["$defs"], "$defs")},
    )


def _read(name: str) -> Document:
    return mapping(json.loads(lzma.decompress((FOLDER / name).read_bytes())), name)
