"""`slotwise certs create --secret-name …` and `slotwise certs patch`: the certificate in a Secret, its CA in webhook configurations.

With them the two Jobs of HAMi's chart work with their own arguments (HAMi v2.10 wire contract: Certificates).
"""

from base64 import b64encode
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeVar

from cryptography import x509

from certs.ca_bundle import bundle_patch, bundles
from certs.keeper import secret_data
from certs.pki import create_ca, issue_serving, read_ca, read_certificates, san_of
from certs.secret import CA
from devices.kube.client import ClientSettings, KubeClient
from devices.kube.config import load_access
from devices.kube.errors import AlreadyExists, Conflict, NotFound
from devices.kube.protocols import JsonObject
from devices.kube.resources import MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS, Resource

__all__ = ["ClusterError", "Patched", "SecretOutcome", "create_in_cluster", "in_cluster", "patch_webhooks"]

CA_OF_HAMI: Final = "ca"
"""Under which key the Jobs of HAMi's chart keep the CA's certificate."""
_TRIES: Final = 5

T = TypeVar("T")


class ClusterError(Exception):
    """What is in the cluster does not allow what was asked; the text says how to go on."""


@dataclass(frozen=True)
class SecretOutcome:
    """The Secret as it is now, or would be: whether it was made, and its certificate."""

    created: bool
    certificate: x509.Certificate


@dataclass(frozen=True)
class Patched:
    """One configuration: the webhooks whose `caBundle` was, or would be, written; none: all had it."""

    resource: Resource
    webhooks: tuple[str, ...]


async def in_cluster(kubeconfig: str | None, work: Callable[[KubeClient], Awaitable[T]]) -> T:
    """What `work` returns, given a client. Raises `KubeError`."""
    access = await load_access(kubeconfig)
    async with KubeClient(access, ClientSettings(user_agent="slotwise-certs")) as client:
        return await work(client)


async def create_in_cluster(
    client: KubeClient,
    namespace: str,
    name: str,
    hosts: Sequence[str],
    *,
    certificate_key: str,
    key_key: str,
    days: int,
    ca_days: int,
    now: datetime,
    dry_run: bool,
) -> SecretOutcome:
    """Make a CA and a certificate and put them into a Secret; one that is there is kept as it is.

    The CA's key is kept nowhere: a later certificate needs a new CA. Raises `CertError`, `ClusterError`, `KubeError`.
    """
    for host in hosts:
        san_of(host)  # also where the Secret is kept: a wrong host is a wrong host
    try:
        return _kept(await client.get_secret(namespace, name), namespace, name, certificate_key)
    except NotFound:
        authority = create_ca("slotwise CA", now=now, days=ca_days)
        serving = issue_serving(authority, hosts, now=now, days=days)
    ca_pem = authority.certificate_pem()
    data = {
        CA: ca_pem,
        CA_OF_HAMI: ca_pem,
        certificate_key: serving.certificate_pem(),
        key_key: serving.key_pem(),
    }
    body: JsonObject = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace},
        "type": "Opaque",
        "data": {key: b64encode(value).decode() for key, value in data.items()},
    }
    if not dry_run:
        try:
            await client.create_secret(namespace, body)
        except AlreadyExists:
            return _kept(await client.get_secret(namespace, name), namespace, name, certificate_key)
    return SecretOutcome(True, serving.certificate)


def _kept(secret: JsonObject, namespace: str, name: str, certificate_key: str) -> SecretOutcome:
    data = secret_data(secret)
    if certificate_key not in data:
        held = ", ".join(sorted(data)) or "nothing"
        raise ClusterError(
            f"Secret {namespace}/{name} is there, but without {certificate_key} (it holds {held}): name its key with"
            " --cert-name, or delete it"
        )
    source = f"Secret {namespace}/{name}: {certificate_key}"
    return SecretOutcome(False, read_certificates(data[certificate_key], source)[0])


async def patch_webhooks(
    client: KubeClient,
    namespace: str,
    secret_name: str,
    webhook_name: str,
    *,
    mutating: bool,
    validating: bool,
    dry_run: bool,
) -> list[Patched]:
    """Copy the CA of a Secret into every webhook of the chosen configurations called `webhook_name`.

    Raises `CertError`, `ClusterError`, `KubeError`.
    """
    pem = await _ca_of(client, namespace, secret_name)
    chosen = ((MUTATING_WEBHOOKS, mutating), (VALIDATING_WEBHOOKS, validating))
    return [
        await _patch(client, resource, webhook_name, pem, dry_run=dry_run)
        for resource, is_chosen in chosen
        if is_chosen
    ]


async def _ca_of(client: KubeClient, namespace: str, name: str) -> bytes:
    try:
        data = secret_data(await client.get_secret(namespace, name))
    except NotFound as error:
        raise ClusterError(
            f"there is no Secret {namespace}/{name}: make it with slotwise certs create --secret-name={name}"
        ) from error
    for key in (CA, CA_OF_HAMI):
        if key in data:
            read_ca(data[key], f"Secret {namespace}/{name}: {key}")
            return data[key]
    held = ", ".join(sorted(data)) or "nothing"
    raise ClusterError(f"Secret {namespace}/{name} holds no CA: {CA} or {CA_OF_HAMI} is expected, it holds {held}")


async def _patch(client: KubeClient, resource: Resource, name: str, pem: bytes, *, dry_run: bool) -> Patched:
    write = client.patch_mutating_webhooks if resource is MUTATING_WEBHOOKS else client.patch_validating_webhooks
    for last in (False,) * (_TRIES - 1) + (True,):
        try:
            configuration = await client.get(resource, name)
        except NotFound as error:
            option = "--patch-mutating" if resource is MUTATING_WEBHOOKS else "--patch-validating"
            raise ClusterError(
                f"there is no {resource.plural} {name}: name it with --webhook-name, or leave it out with {option}=false"
            ) from error
        webhooks = tuple(bundle.webhook for bundle in bundles(configuration, None) if bundle.pem != pem)
        operations = bundle_patch(configuration, None, pem)
        if not operations or dry_run:
            return Patched(resource, webhooks)
        try:
            await write(name, operations)
        except Conflict:
            if last:
                raise
            continue
        return Patched(resource, webhooks)
    raise AssertionError("the last try returns or raises")
