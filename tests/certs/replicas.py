"""Replicas that keep certificates against an API server, on a clock that the test moves."""

import asyncio
import ssl
from base64 import b64decode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from cryptography import x509
from prometheus_client import CollectorRegistry

from certs.keeper import Keeper, KeeperTimes, secret_data
from certs.lease import LeaseHolder, LeaseTimes
from certs.metrics import CertificateMetrics
from certs.pki import read_certificates
from certs.secret import Contents, pem_of, read
from certs.settings import KeptCertificates
from certs.watched import WatchedObject
from devices.kube.client import ClientSettings, KubeClient
from devices.kube.config import explicit_access
from devices.kube.protocols import JsonObject
from devices.kube.resources import MUTATING_WEBHOOKS, SECRETS, VALIDATING_WEBHOOKS, Resource
from lab.apiserver import ApiServer

NAMESPACE = "slotwise-system"
HOST = "slotwise-webhook.slotwise-system.svc"
SETTINGS = KeptCertificates(
    secret="tls", namespace=NAMESPACE, hosts=(HOST, "127.0.0.1"), cert_days=3, ca_days=30, overlap_s=600
)
MUTATING = "mutatingwebhookconfigurations"
VALIDATING = "validatingwebhookconfigurations"
KINDS = (MUTATING, VALIDATING)
PATIENCE_S = 20.0
START = datetime(2026, 3, 1, tzinfo=UTC)


@dataclass
class Clock:
    """Monotonic and wall time of the keepers, and the Lease's own, so that it does not run out when days pass at once."""

    seconds: float = 0.0
    lease_seconds: float = 0.0

    def __call__(self) -> float:
        return self.seconds

    def of_lease(self) -> float:
        return self.lease_seconds

    def now(self) -> datetime:
        return START + timedelta(seconds=self.seconds)


@dataclass
class Replica:
    identity: str
    lease: LeaseHolder
    keeper: Keeper
    secret: WatchedObject
    configurations: list[WatchedObject]
    registry: CollectorRegistry
    tasks: list["asyncio.Task[None]"] = field(default_factory=list)

    def count(self, name: str, resource: Resource) -> float:
        found = self.registry.get_sample_value(f"slotwise_certificates_{name}_total", {"resource": resource.label})
        return 0.0 if found is None else found

    async def turns(self, api: ApiServer) -> None:
        """Look until nothing is left to do, everything seen that is there, and the Lease held."""

        def sees_all() -> bool:
            watched = (("secrets", NAMESPACE, self.secret), *zip(KINDS, ("", ""), self.configurations, strict=True))
            return self.lease.held and all(
                view.synced and version(view.current) == version(api.get(plural, namespace, view.name))
                for plural, namespace, view in watched
            )

        while True:
            await until(sees_all)
            _, pause_s = await self.keeper.turn()
            if pause_s == 0:
                return

    async def stop(self) -> None:
        """As a process that is killed: nothing is given back."""
        for task in self.tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        self.tasks = []


async def no_wait(seconds: float) -> None:
    await asyncio.sleep(0.005)


def version(item: JsonObject | None) -> object:
    metadata = {} if item is None else item["metadata"]
    assert isinstance(metadata, dict)
    return metadata.get("resourceVersion")


@asynccontextmanager
async def replica(
    api: ApiServer,
    clock: Clock,
    identity: str = "one",
    settings: KeptCertificates = SETTINGS,
    *,
    by_hand: bool = False,
) -> AsyncIterator[Replica]:
    registry = CollectorRegistry()
    metrics = CertificateMetrics(registry)
    access = explicit_access(api.url)
    async with KubeClient(
        access, ClientSettings(user_agent=f"slotwise-{identity}", timeout_s=10), sleep=no_wait
    ) as client:
        secret = WatchedObject(client, SECRETS, settings.secret, settings.namespace)
        configurations = [
            WatchedObject(client, resource, settings.configuration)
            for resource in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS)
        ]

        def lease_changed() -> None:
            keeper.look()

        lease = LeaseHolder(
            client,
            settings.namespace,
            settings.lease,
            identity,
            changed=lease_changed,
            times=LeaseTimes(),
            clock=clock.of_lease,
            now=clock.now,
            sleep=no_wait,
        )
        keeper = Keeper(
            client,
            settings,
            lease,
            secret,
            configurations,
            metrics,
            times=KeeperTimes(pause_s=0.001),
            clock=clock,
            now=clock.now,
            sleep=no_wait,
        )
        running = Replica(identity, lease, keeper, secret, configurations, registry)
        runs = [secret.run, *(watched.run for watched in configurations), lease.run]
        if not by_hand:
            runs.append(keeper.run)
        running.tasks = [asyncio.create_task(run()) for run in runs]
        try:
            yield running
        finally:
            await running.stop()


def webhook(name: str, client: JsonObject) -> JsonObject:
    return {"name": name, "clientConfig": client, "admissionReviewVersions": ["v1"], "sideEffects": "None", "rules": []}


SERVICE: JsonObject = {"service": {"name": "slotwise-webhook", "namespace": NAMESPACE, "path": "/webhook"}}


def install(api: ApiServer, *more: JsonObject) -> None:
    """Both configurations, without a bundle, as the manifests have them."""
    for plural, kind in ((MUTATING, "MutatingWebhookConfiguration"), (VALIDATING, "ValidatingWebhookConfiguration")):
        api.put(
            plural,
            {
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": kind,
                "metadata": {"name": "slotwise"},
                "webhooks": [webhook("pods.slotwise.io", SERVICE), *more],
            },
        )


def contents(api: ApiServer, name: str = "tls") -> Contents:
    secret = api.get("secrets", NAMESPACE, name)
    return Contents() if secret is None else read(secret_data(secret), name)


def bundle(api: ApiServer, plural: str, index: int = 0) -> tuple[x509.Certificate, ...]:
    """What the API server trusts for a webhook."""
    configuration = api.get(plural, "", "slotwise")
    assert configuration is not None
    hooks = configuration["webhooks"]
    assert isinstance(hooks, list)
    encoded = hooks[index]["clientConfig"].get("caBundle")
    return read_certificates(b64decode(encoded), plural) if encoded else ()


def is_settled(api: ApiServer) -> bool:
    """Whether a certificate is there and both configurations trust exactly what the Secret says."""
    held = contents(api)
    return held.serving is not None and all(bundle(api, plural) == held.trusted for plural in KINDS)


async def until(holds: Callable[[], bool]) -> None:
    """Wait for what the API server's watchers bring about."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - what is waited for happens in another process's place
            await asyncio.sleep(0.005)


def trusts(trusted: tuple[x509.Certificate, ...]) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=pem_of(trusted).decode())
