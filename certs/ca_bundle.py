"""Which webhooks of a configuration are ours, whether their `caBundle` is what it must be, and the patch that makes it so."""

import binascii
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from certs.errors import CertError
from certs.pki import read_certificates
from certs.secret import fingerprint
from devices.kube.protocols import JsonObject

__all__ = ["Bundle", "bundle_patch", "bundles", "foreign_hosts"]


@dataclass(frozen=True)
class Bundle:
    """The `caBundle` of one webhook of ours: its place in the configuration, its name, and the PEM it holds now."""

    index: int
    webhook: str
    pem: bytes

    def fingerprints(self) -> frozenset[bytes]:
        """Of every certificate in it; none for what cannot be read."""
        try:
            return frozenset(fingerprint(certificate) for certificate in read_certificates(self.pem, self.webhook))
        except CertError:
            return frozenset()


def bundles(configuration: JsonObject, hosts: Sequence[str] | None) -> tuple[Bundle, ...]:
    """The bundles of the webhooks that are called under one of `hosts`, which the API server checks the certificate for.

    A Service is called as `<name>.<namespace>.svc`, a URL by its host. All others belong to somebody else. None: all of them.
    """
    ours = None if hosts is None else {host.lower() for host in hosts}
    return tuple(
        Bundle(index, str(webhook.get("name", "")), _pem(client.get("caBundle")))
        for index, webhook, client, host in _webhooks(configuration)
        if ours is None or host in ours
    )


def foreign_hosts(configuration: JsonObject, hosts: Sequence[str]) -> tuple[str, ...]:
    """Under which other names webhooks of the configuration are called, as `webhook: host`."""
    ours = {host.lower() for host in hosts}
    return tuple(
        f"{webhook.get('name', '')}: {host}" for _, webhook, _, host in _webhooks(configuration) if host not in ours
    )


def bundle_patch(configuration: JsonObject, hosts: Sequence[str] | None, pem: bytes) -> list[JsonObject]:
    """JSON Patch operations that give every webhook of ours (see `bundles`) this bundle; none where all have it.

    The patch holds for this resourceVersion only: places are meaningless in any other, and somebody may have changed them.
    """
    encoded = b64encode(pem).decode()
    changes: list[JsonObject] = [
        {"op": "add", "path": f"/webhooks/{bundle.index}/clientConfig/caBundle", "value": encoded}
        for bundle in bundles(configuration, hosts)
        if bundle.pem != pem
    ]
    if not changes:
        return []
    metadata = configuration.get("metadata")
    version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
    return [{"op": "replace", "path": "/metadata/resourceVersion", "value": version}, *changes]


def _webhooks(configuration: JsonObject) -> Iterator[tuple[int, JsonObject, JsonObject, str]]:
    listed = configuration.get("webhooks")
    for index, webhook in enumerate(listed if isinstance(listed, list) else ()):
        client = webhook.get("clientConfig") if isinstance(webhook, dict) else None
        if isinstance(client, dict):
            yield index, webhook, client, _host(client)


def _host(client: JsonObject) -> str:
    service = client.get("service")
    if isinstance(service, dict):
        return f"{service.get('name', '')}.{service.get('namespace', '')}.svc".lower()
    try:
        return (urlsplit(str(client.get("url", ""))).hostname or "").lower()
    except ValueError:
        return ""


def _pem(encoded: object) -> bytes:
    try:
        return b64decode(encoded) if isinstance(encoded, str) else b""
    except (binascii.Error, ValueError):
        return b""
