"""A pod's volumes and variables: from ConfigMaps, Secrets, tokens of its account and the downward API."""

import os
from base64 import b64decode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from devices.kube.errors import NotFound
from devices.kube.protocols import JsonObject
from devices.kube.resources import CONFIG_MAPS, SECRETS, Resource
from tests.cluster.addresses import loopback_of, moved
from tests.cluster.pod_spec import (
    EnvVar,
    Item,
    Pod,
    ProjectedSource,
    TokenSource,
    UnsupportedPodError,
    Volume,
)

__all__ = ["NotThereError", "PodObjects", "VolumeFiles"]

_EMPTY_MODE: Final = 0o777
_FOLDER_MODE: Final = 0o755


class NotThereError(Exception):
    """An object or key that a pod names does not exist (yet)."""


@dataclass(frozen=True)
class VolumeFiles:
    """What a volume holds, and who may read it."""

    files: Mapping[str, bytes]
    """Content by path."""
    mode: int
    group: int | None
    """The pod's `fsGroup`, which the kubelet lets read everything."""
    folder_mode: int = _FOLDER_MODE

    def write(self, folder: Path) -> None:
        """Fill a new folder; everything in it is root's."""
        folder.mkdir(parents=True)
        folder.chmod(self.folder_mode)
        for name, content in self.files.items():
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
            file.chmod(self.mode if self.group is None else self.mode | 0o440)
            os.chown(file, 0, self.group or 0)


@dataclass(frozen=True)
class PodObjects:
    """What a pod is given of the objects of its namespace. All of it raises `NotThereError`."""

    pod: Pod
    address: str
    """Its IP as the API server knows it."""
    get: Callable[[Resource, str, str], Awaitable[JsonObject]]
    """Reads an object by resource, name and namespace."""
    token: Callable[[TokenSource], Awaitable[str]]
    """A token of the pod's account."""

    async def config_map(self, name: str, optional: bool = False) -> Mapping[str, bytes]:
        """Its files by key."""
        document = await self._read(CONFIG_MAPS, name, optional)
        texts = _strings(document.get("data"))
        return {key: moved(text, loopback_of(self.address)).encode() for key, text in texts.items()}

    async def secret(self, name: str, optional: bool = False) -> Mapping[str, bytes]:
        """Its files by key."""
        document = await self._read(SECRETS, name, optional)
        return {key: b64decode(text) for key, text in _strings(document.get("data")).items()}

    async def environment(self, variables: Sequence[EnvVar]) -> Mapping[str, str]:
        """The values of a container's variables; an optional one that has none is left out."""
        values = {variable.name: await self._value(variable) for variable in variables}
        return {name: value for name, value in values.items() if value is not None}

    async def _value(self, variable: EnvVar) -> str | None:
        source = variable.value_from
        if source is None:
            return variable.value
        if source.field_ref is not None:
            return self.pod.field(source.field_ref.field_path, self.address)
        key, is_secret = source.secret_key_ref or source.config_map_key_ref, source.secret_key_ref is not None
        assert key is not None
        found = await (self.secret if is_secret else self.config_map)(key.name, key.optional)
        if key.key not in found and not key.optional:
            raise NotThereError(f"{key.name} has no key {key.key}")
        return found[key.key].decode() if key.key in found else None

    async def volume(self, volume: Volume) -> VolumeFiles:
        """What is in a volume. Raises `UnsupportedPodError` for one of a kind that is not known here."""
        group = self.pod.spec.security_context.fs_group
        if volume.empty_dir is not None:
            return VolumeFiles({}, 0, group, folder_mode=_EMPTY_MODE)
        if volume.config_map is not None:
            source = volume.config_map
            files = await self.config_map(source.name, source.optional)
            return VolumeFiles(_chosen(files, source.items, source.name), source.default_mode, group)
        if volume.secret is not None:
            hidden = volume.secret
            files = await self.secret(hidden.secret_name, hidden.optional)
            return VolumeFiles(_chosen(files, hidden.items, hidden.secret_name), hidden.default_mode, group)
        if volume.projected is not None:
            parts = [await self._projected(part) for part in volume.projected.sources]
            return VolumeFiles({k: v for part in parts for k, v in part.items()}, volume.projected.default_mode, group)
        raise UnsupportedPodError(f"volume {volume.name} of pod {self.pod.metadata.name} is of no known kind")

    async def _projected(self, source: ProjectedSource) -> Mapping[str, bytes]:
        if source.service_account_token is not None:
            token = source.service_account_token
            return {token.path: (await self.token(token)).encode()}
        if source.config_map is not None:
            files = await self.config_map(source.config_map.name, source.config_map.optional)
            return _chosen(files, source.config_map.items, source.config_map.name)
        if source.secret is not None:
            return _chosen(
                await self.secret(source.secret.name, source.secret.optional), source.secret.items, source.secret.name
            )
        assert source.downward_api is not None
        items = source.downward_api.items
        return {item.path: self.pod.field(item.field_ref.field_path, self.address).encode() for item in items}

    async def _read(self, resource: Resource, name: str, optional: bool) -> JsonObject:
        try:
            return await self.get(resource, name, self.pod.metadata.namespace)
        except NotFound as error:
            if optional:
                return {}
            raise NotThereError(f"there is no {resource.label} {name}") from error


def _chosen(files: Mapping[str, bytes], items: Sequence[Item] | None, of: str) -> Mapping[str, bytes]:
    if items is None:
        return files
    missing = [item.key for item in items if item.key not in files]
    if missing:
        raise NotThereError(f"{of} has no key {', '.join(missing)}")
    return {item.path: files[item.key] for item in items}


def _strings(found: object) -> dict[str, str]:
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}
