"""The certificate that is served from a Secret: watched by every replica, kept by the one that holds the Lease."""

import os
import secrets
import socket
from collections.abc import Callable, Coroutine, Mapping
from typing import Final, Protocol

from prometheus_client import CollectorRegistry

from certs.keeper import Keeper, KeeperApi, KeeperTimes, secret_data
from certs.lease import LeaseHolder, LeaseTimes
from certs.metrics import CertificateMetrics
from certs.secret import CERTIFICATE, KEY, read
from certs.settings import KeptCertificates
from certs.watched import WatchedObject
from devices.kube.consumer import ListWatch
from devices.kube.metrics import ReflectorMetrics
from devices.kube.protocols import LeaseStore
from devices.kube.resources import LEASES, MUTATING_WEBHOOKS, SECRETS, VALIDATING_WEBHOOKS
from serving.tls import PemPair, ServedCertificate

__all__ = ["CertificatesApi", "SecretCertificates", "replica_identity"]

_STALE_S: Final = 150.0
"""A watch hears a bookmark a minute, and lists again after 90 s without one."""


class CertificatesApi(ListWatch, KeeperApi, LeaseStore, Protocol):
    """What certificates in a Secret ask of the API server; `devices.kube.client.KubeClient` has it."""


def replica_identity(environment: Mapping[str, str] = os.environ) -> str:
    """What this process is called in the Lease: its pod, or its host, and what tells it from an earlier one there."""
    return f"{environment.get('POD_NAME') or socket.gethostname()}_{secrets.token_hex(4)}"


class SecretCertificates:
    """`context` serves what the Secret holds, from the first time it holds a usable pair; `runs` are to run meanwhile."""

    def __init__(
        self,
        settings: KeptCertificates,
        client: CertificatesApi,
        *,
        identity: str,
        registry: CollectorRegistry,
        watch_metrics: ReflectorMetrics | None = None,
        lease_times: LeaseTimes | None = None,
        keeper_times: KeeperTimes | None = None,
    ) -> None:
        self._settings = settings
        self._served = ServedCertificate(registry)
        self.context = self._served.context
        self._metrics = CertificateMetrics(registry)
        self._secret = WatchedObject(client, SECRETS, settings.secret, settings.namespace, metrics=watch_metrics)
        self._secret.changed.append(self._load)
        configurations = [
            WatchedObject(client, resource, settings.configuration, metrics=watch_metrics)
            for resource in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS)
        ]
        self.lease = LeaseHolder(
            client,
            settings.namespace,
            settings.lease,
            identity,
            changed=self._lease_changed,
            failed=self._metrics.failures.labels(LEASES.label).inc,
            times=lease_times or LeaseTimes(),
        )
        self._metrics.show_keeper(lambda: self.lease.held)
        self._keeper = Keeper(
            client,
            settings,
            self.lease,
            self._secret,
            configurations,
            self._metrics,
            times=keeper_times or KeeperTimes(),
        )
        self.runs: tuple[Callable[[], Coroutine[None, None, None]], ...] = (
            self._secret.run,
            *(watched.run for watched in configurations),
            self.lease.run,
            self._keeper.run,
        )

    def reason(self) -> str | None:
        """Why callers may meet the wrong certificate, or none; None where they do not."""
        name = f"Secret {self._settings.namespace}/{self._settings.secret}"
        if not self._served.loaded:
            return f"no certificate yet: {name} holds none that can be served"
        if self._secret.age_s > _STALE_S:
            return (
                f"{name} has not been heard of for {self._secret.age_s:.0f} s: the certificate served may be an old one"
            )
        return None

    async def stop(self) -> None:
        """Let another replica keep the certificates at once; call it when `runs` have ended."""
        await self.lease.release()

    def _lease_changed(self) -> None:
        self._keeper.look()

    def _load(self) -> None:
        secret = self._secret.current
        if secret is None:
            return  # the keeper puts it back
        data = secret_data(secret)
        name = f"Secret {self._settings.secret}"
        self._metrics.show_authorities(read(data, name).trusted)
        if CERTIFICATE in data and KEY in data:
            self._served.take(PemPair(f"{name}: {CERTIFICATE}", f"{name}: {KEY}", data[CERTIFICATE], data[KEY]))
