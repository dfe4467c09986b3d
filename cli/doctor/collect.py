"""Reading a cluster once for the checks: every object is asked for once, and a refusal is noted with the API server's words."""

import asyncio
import json
import os
import ssl
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final, TypeVar
from urllib.parse import urlsplit

import msgspec

from cli.doctor.facts import (
    DEVICE_CONFIG,
    INSTALLATION,
    KUBE_SCHEDULER_CONFIG,
    POLICY_PARAMETERS,
    SCHEDULER,
    WEBHOOK,
    Facts,
    Probe,
    Unread,
)
from cli.doctor.objects import (
    ConfigMap,
    EndpointSlice,
    Lease,
    Pod,
    Policy,
    PolicyBinding,
    Secret,
    Service,
    WebhookConfiguration,
    Workload,
)
from cli.doctor.probes import probe_pods
from devices.config import default_config
from devices.kube.access import Access
from devices.kube.client import KubeClient
from devices.kube.errors import ApiStatusError, KubeError, NotFound
from devices.kube.protocols import JsonObject
from devices.kube.resources import (
    ADMISSION_POLICIES,
    ADMISSION_POLICY_BINDINGS,
    CONFIG_MAPS,
    LEASES,
    MUTATING_WEBHOOKS,
    NODES,
    PODS,
    SECRETS,
    VALIDATING_WEBHOOKS,
    Resource,
)
from devices.ledger import Ledger
from devices.objects import node_of, pod_of
from scheduler.access import accesses as scheduler_accesses
from webhook.access import accesses as webhook_accesses

__all__ = ["Collected", "collect"]

T = TypeVar("T")

DEPLOYMENTS: Final = Resource("deployments", "apps")
DAEMON_SETS: Final = Resource("daemonsets", "apps")
SERVICES: Final = Resource("services")
ENDPOINT_SLICES: Final = Resource("endpointslices", "discovery.k8s.io")
SUBJECT_REVIEWS: Final = Resource("subjectaccessreviews", "authorization.k8s.io", namespaced=False)
_CERTIFICATES: Final = "slotwise-webhook-tls"
_CONNECT_S: Final = 5.0
_AT_ONCE: Final = 8
_HTTPS: Final = 443


@dataclass
class Collected:
    """The facts, and the documents they were read from by kind and name: what `--bundle` keeps."""

    facts: Facts
    documents: dict[str, list[JsonObject]] = field(default_factory=dict)


class _Reader:
    """Reads with a note of what could not be read."""

    def __init__(self, client: KubeClient, say: Callable[[str], None]) -> None:
        self._client = client
        self._say = say
        self.unread: dict[str, Unread] = {}
        self.documents: dict[str, list[JsonObject]] = {}

    async def every(self, resource: Resource, kind: str, namespace: str | None = None) -> list[JsonObject]:
        """All objects; none where they cannot be read."""
        self._say(f"reading {resource.plural}")
        found: list[JsonObject] = []
        try:
            async for page in self._client.list_pages(resource, namespace):
                items = json.loads(page.raw).get("items") or []
                found += [{"kind": kind, **item} for item in items]
        except NotFound:
            return []  # the API server does not serve this kind
        except KubeError as error:
            self.unread[kind if resource.group == "admissionregistration.k8s.io" else resource.plural] = Unread(
                resource.plural, str(error)
            )
            return []
        self.documents[kind if namespace is None else f"{kind} in {namespace}"] = found
        return found

    async def one(self, resource: Resource, name: str, namespace: str) -> JsonObject | None:
        """An object by name; None where it is not there or cannot be read."""
        try:
            return await self._client.get(resource, name, namespace)
        except NotFound:
            return None
        except KubeError as error:
            self.unread[resource.plural] = Unread(resource.plural, str(error))
            return None


def _decoded(documents: Iterable[JsonObject], kind: type[T]) -> list[T]:
    return [msgspec.convert(document, kind) for document in documents]


async def collect(
    client: KubeClient,
    namespace: str,
    probe_namespace: str,
    *,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    say: Callable[[str], None] = lambda _: None,
    environment: Mapping[str, str] = os.environ,
) -> Collected:
    """Everything the checks ask for.

    Raises `KubeError` only where the API server does not answer at all; whatever it refuses is in `Facts.unread`.
    """
    say("asking the API server for its version")
    version = str((await client.version()).get("gitVersion", ""))
    reader = _Reader(client, say)
    facts = await _installation(reader, namespace)
    facts = replace(facts, version=version, now=now())
    facts = await _cluster(reader, facts)
    facts = await _rights(client, reader, facts, say)
    facts = await _probes(client, reader, facts, probe_namespace, now, say)
    served = await _served(facts, environment)
    return Collected(replace(facts, served_pem=served, unread=reader.unread), reader.documents)


async def _installation(reader: _Reader, namespace: str) -> Facts:
    """What is in the installation's own namespace."""
    deployments = _decoded(await reader.every(DEPLOYMENTS, "Deployment"), Workload)
    pods = _decoded(await reader.every(PODS, "Pod", namespace), Pod)
    services = _decoded(await reader.every(SERVICES, "Service", namespace), Service)
    slices = _decoded(await reader.every(ENDPOINT_SLICES, "EndpointSlice", namespace), EndpointSlice)
    config_maps: dict[str, ConfigMap] = {}
    for name in (DEVICE_CONFIG, KUBE_SCHEDULER_CONFIG, POLICY_PARAMETERS):
        document = await reader.one(CONFIG_MAPS, name, namespace)
        if document is not None:
            reader.documents.setdefault("ConfigMap", []).append(document)
            config_maps[name] = msgspec.convert(document, ConfigMap)
    leases = {lease.name: lease for lease in _decoded(await reader.every(LEASES, "Lease", namespace), Lease)}
    certificates: dict[str, bytes] = {}
    secret = await reader.one(SECRETS, _CERTIFICATES, namespace)
    if secret is not None:
        # Only certificates leave this line: a key is never kept, shown or bundled.
        data = msgspec.convert(secret, Secret).data or {}
        certificates = {name: b64decode(text) for name, text in data.items() if name.endswith(".crt") and text}
    ours = {one.name: one for one in deployments if one.metadata.namespace == namespace}
    return Facts(
        namespace=namespace,
        now=datetime.now(UTC),
        deployments={name: ours[name] for name in (WEBHOOK, SCHEDULER) if name in ours},
        other_deployments=[one for one in deployments if one.metadata.namespace != namespace or one.name not in ours],
        pods=pods,
        services={one.name: one for one in services},
        slices=slices,
        config_maps=config_maps,
        leases=leases,
        certificates_pem=certificates,
        unread=reader.unread,
    )


async def _cluster(reader: _Reader, facts: Facts) -> Facts:
    """What is in the cluster as a whole."""
    mutating = await reader.every(MUTATING_WEBHOOKS, "MutatingWebhookConfiguration")
    validating = await reader.every(VALIDATING_WEBHOOKS, "ValidatingWebhookConfiguration")
    policies = await reader.every(ADMISSION_POLICIES, "ValidatingAdmissionPolicy")
    bindings = await reader.every(ADMISSION_POLICY_BINDINGS, "ValidatingAdmissionPolicyBinding")
    daemon_sets = await reader.every(DAEMON_SETS, "DaemonSet")
    nodes = await reader.every(NODES, "Node")
    pods = await reader.every(PODS, "Pod")
    reader.documents.pop("Pod", None)  # other people's: a bundle has the waiting ones only
    config = facts.device_config
    ledger = Ledger(default_config() if isinstance(config, str) else config)
    for node in nodes:
        ledger.put_node(node_of(node))
    waiting = []
    for document in pods:
        pod = pod_of(document)
        if pod.spec.node_name or pod.is_finished or pod.metadata.deletion_timestamp:
            continue
        containers = (*pod.init_containers, *pod.containers)
        if {name for c in containers for name in (*c.limits, *c.requests)} & ledger.config.resources:
            waiting.append(document)
    reader.documents["Pod that waits"] = waiting
    named_policies = {msgspec.convert(one, Policy).name: one for one in policies}
    return replace(
        facts,
        mutating=_decoded(mutating, WebhookConfiguration),
        validating=_decoded(validating, WebhookConfiguration),
        policies={name: msgspec.convert(one, Policy) for name, one in named_policies.items()},
        policy_texts=named_policies,
        policy_bindings=_decoded(bindings, PolicyBinding),
        daemon_sets=_decoded(daemon_sets, Workload),
        waiting=_decoded(waiting, Pod),
        ledger=ledger,
    )


async def _rights(client: KubeClient, reader: _Reader, facts: Facts, say: Callable[[str], None]) -> Facts:
    """Whether each process may make its calls, asked of the API server."""
    webhook, scheduler = facts.webhook_settings, facts.scheduler_settings
    needed: dict[str, Sequence[Access]] = {}
    if not isinstance(webhook, str):
        needed[WEBHOOK] = sorted(webhook_accesses(webhook, facts.namespace))
    if not isinstance(scheduler, str):
        needed[SCHEDULER] = sorted(scheduler_accesses(scheduler, facts.namespace))
    say("asking for the processes' rights")
    limit = asyncio.Semaphore(_AT_ONCE)
    answers: dict[str, dict[str, bool]] = {account: {} for account in needed}

    async def ask(account: str, access: Access) -> None:
        async with limit:
            answers[account][str(access)] = await _may(
                client, f"system:serviceaccount:{facts.namespace}:{account}", access
            )

    try:
        await _all(ask(account, access) for account, accesses in needed.items() for access in accesses)
    except KubeError as error:
        reader.unread["subjectaccessreviews"] = Unread("subjectaccessreviews", str(error))
        return facts
    return replace(
        facts,
        reviews={
            account: {str(one): answers[account][str(one)] for one in accesses} for account, accesses in needed.items()
        },
    )


async def _all(work: Iterable[Awaitable[None]]) -> None:
    """All of it, to its end; raises the first error afterwards."""
    for result in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


async def _may(client: KubeClient, user: str, access: Access) -> bool:
    resource, _, subresource = access.resource.partition("/")
    _, _, namespace, _ = user.split(":")
    body: JsonObject = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": user,
            "groups": ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"],
            "resourceAttributes": {
                "verb": access.verb,
                "group": access.group,
                "resource": resource,
                "subresource": subresource,
                "namespace": access.namespace,
                "name": access.name,
            },
        },
    }
    status = (await client.create(SUBJECT_REVIEWS, body)).get("status")
    return isinstance(status, dict) and status.get("allowed") is True


async def _probes(
    client: KubeClient,
    reader: _Reader,
    facts: Facts,
    namespace: str,
    now: Callable[[], datetime],
    say: Callable[[str], None],
) -> Facts:
    """The pods sent with `dryRun=All`, and the time by which the API server would have created them."""
    probes: dict[str, Probe] = {}
    server_time: datetime | None = None
    at = facts.now
    for name, pod in probe_pods(facts.ledger, namespace).items():
        say(f"sending a pod as a dry run: {name}")
        try:
            stored = await client.create(PODS, pod, namespace, dry_run=True)
        except ApiStatusError as error:
            if _is_about_us(error):
                reader.unread["pods/dry-run"] = Unread("pods/dry-run", str(error))
                break
            probes[name] = Probe(None, error.code, error.message)
            continue
        except KubeError as error:
            probes[name] = Probe(None, 0, str(error))
            continue
        probes[name] = Probe(stored)
        metadata = stored.get("metadata")
        created = metadata.get("creationTimestamp") if isinstance(metadata, dict) else None
        if isinstance(created, str):
            server_time, at = datetime.fromisoformat(created), now()
    return replace(facts, probes=probes, server_time=server_time, now=at)


def _is_about_us(error: ApiStatusError) -> bool:
    """Whether the caller may not create pods at all: the API server's own words, not those of an admission plugin."""
    return error.code == 401 or (error.code == 403 and "cannot create resource" in error.message)


async def _served(facts: Facts, environment: Mapping[str, str]) -> bytes:
    """The certificate that the webhook shows, where this machine can connect to it: by URL, or inside the cluster by its Service."""
    targets: list[tuple[str, int]] = []
    for configuration in (*facts.mutating, *facts.validating):
        for webhook in (configuration.webhooks or ()) if configuration.name == INSTALLATION else ():
            config = webhook.client_config
            if config.url:
                found = urlsplit(config.url)
                targets.append((found.hostname or "", found.port or _HTTPS))
            elif config.service is not None and "KUBERNETES_SERVICE_HOST" in environment:
                targets.append((f"{config.service.name}.{config.service.namespace}.svc", config.service.port or _HTTPS))
    for host, port in dict.fromkeys(targets):
        try:
            async with asyncio.timeout(_CONNECT_S):
                return await _shown(host, port)
        except (OSError, TimeoutError):
            continue  # the dry-run pods tell whether the API server gets through; this was our own way
    return b""


async def _shown(host: str, port: int) -> bytes:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # looked at, not trusted: whether it should be is what the checks ask
    _, writer = await asyncio.open_connection(host, port, ssl=context)
    try:
        found = writer.get_extra_info("ssl_object")
        der = found.getpeercert(binary_form=True) if found is not None else None
        return ssl.DER_cert_to_PEM_cert(der).encode() if der else b""
    finally:
        writer.close()
