"""The keeper: the one replica that holds the Lease makes Secret and webhook configurations what `certs.secret` says.

Every write rests on the version last seen, so that nothing is overwritten unseen, and a write whose reply was lost is found
out by the next one.
"""

import asyncio
import logging
import random as random_module
import time
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Protocol

from certs.ca_bundle import bundle_patch, bundles, foreign_hosts
from certs.errors import CertError, ForeignSecretError
from certs.metrics import CertificateMetrics
from certs.secret import CA, CERTIFICATE, Observed, fingerprint, plan, read
from certs.settings import KeptCertificates
from certs.watched import WatchedObject
from devices.kube.errors import Conflict, Invalid, KubeError, NotFound, OutcomeUnknown
from devices.kube.protocols import JsonObject, SecretWriter, WebhookPatcher
from devices.kube.resources import MUTATING_WEBHOOKS

__all__ = ["Keeper", "KeeperApi", "KeeperTimes", "Seat", "secret_data"]

_log = logging.getLogger(__name__)
_CERT_MANAGER: Final = "cert-manager.io/certificate-name"
_LONGEST_LOOK_S: Final = 300.0
_FOREIGN_LOOK_S: Final = 60.0
_LABELS: Final = {"app.kubernetes.io/name": "slotwise", "app.kubernetes.io/component": "webhook"}


class KeeperApi(SecretWriter, WebhookPatcher, Protocol):
    """What keeping certificates asks of the API server; `devices.kube.client.KubeClient` has it."""


class Seat(Protocol):
    """Whether this replica is the keeper at this moment; `certs.lease.LeaseHolder` is one."""

    @property
    def held(self) -> bool:
        """At this moment."""
        ...


@dataclass(frozen=True)
class KeeperTimes:
    """How the keeper waits."""

    pause_s: float = 1.0
    """After a change, before the next look: somebody who undoes our writes must not make us write all the time."""
    first_retry_s: float = 0.5
    longest_retry_s: float = 30.0


def secret_data(secret: JsonObject) -> dict[str, bytes]:
    """The data of a Secret, decoded; a value that is no base64 is empty."""
    data = secret.get("data")
    decoded: dict[str, bytes] = {}
    for key, value in data.items() if isinstance(data, dict) else ():
        try:
            decoded[str(key)] = b64decode(str(value), validate=True)
        except ValueError:
            decoded[str(key)] = b""
    return decoded


class Keeper:
    """Works while `run` runs and the seat is held. Clock (monotonic seconds), wall time, sleep and random can be replaced."""

    def __init__(
        self,
        client: KeeperApi,
        settings: KeptCertificates,
        seat: Seat,
        secret: WatchedObject,
        configurations: Sequence[WatchedObject],
        metrics: CertificateMetrics,
        *,
        times: KeeperTimes = KeeperTimes(),
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        random: Callable[[], float] = random_module.random,
    ) -> None:
        self._client = client
        self._settings = settings
        self._seat = seat
        self._secret = secret
        self._configurations = configurations
        self._metrics = metrics
        self._times = times
        self._clock = clock
        self._now = now
        self._sleep = sleep
        self._random = random
        self._wake = asyncio.Event()
        self._remembered: Mapping[str, bytes] | None = None
        self._published: dict[bytes, float] = {}
        self._served: tuple[bytes, float] | None = None
        self._failed = 0
        self._said: dict[str, str] = {}
        for watched in (secret, *configurations):
            watched.changed.append(self.look)

    def look(self) -> None:
        """Something may have changed."""
        self._wake.set()

    async def run(self) -> None:
        """Keep the certificates until cancelled; errors only delay it."""
        while True:
            self._wake.clear()
            wait_s, pause_s = await self.turn()
            if pause_s > 0:
                await self._sleep(pause_s)
                continue
            try:
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def turn(self) -> tuple[float | None, float]:
        """Look once and do what is due.

        Returns how long to wait for a change before the next look (None: for as long as it takes), and how long to pause
        before anything, which is 0 where nothing was written.
        """
        if not self._seat.held or not all(watched.synced for watched in (self._secret, *self._configurations)):
            self._published.clear()
            self._served = None
            return None, 0.0
        try:
            wait_s, written = await self._keep()
        except ForeignSecretError as error:
            self._fault(self._secret, error)
            return _FOREIGN_LOOK_S, 0.0
        except (KubeError, CertError):
            return None, self._retry_s()
        except Exception:
            # A fault of ours. Certificates end whether we look or not: better to look again than never.
            self._metrics.failures.labels(self._secret.resource.label).inc()
            _log.exception("keeping Secret %s failed", self._settings.secret)
            return None, self._retry_s()
        self._failed = 0
        return min(wait_s, _LONGEST_LOOK_S), self._times.pause_s if written else 0.0

    def _retry_s(self) -> float:
        """After one more failure: growing, half of it random."""
        grown = min(self._times.longest_retry_s, self._times.first_retry_s * 2.0 ** min(self._failed, 20))
        self._failed += 1
        return grown * (0.5 + 0.5 * self._random())

    async def _keep(self) -> tuple[float, bool]:
        secret = self._secret.current
        if secret is not None and _annotation(secret, _CERT_MANAGER):
            raise ForeignSecretError(
                f"Secret {self._settings.namespace}/{self._settings.secret} is kept by cert-manager: mount it and serve it with"
                " --cert-file and --key-file, or name another with --cert-secret"
            )
        data = None if secret is None else secret_data(secret)
        planned = plan(
            data,
            now=self._now(),
            settings=self._settings,
            observed=self._observe(data or {}),
            remembered=self._remembered,
        )
        written = False
        if planned.changes:
            if not self._seat.held:
                return 0.0, False
            await self._write_secret(secret, planned.data)
            _log.info("Secret %s: %s", self._settings.secret, "; ".join(planned.changes))
            written = True
        self._remembered = dict(planned.data)
        for watched in self._configurations:
            written = await self._write_bundles(watched, planned.data[CA]) or written
        return planned.next_look_s, written

    def _observe(self, data: Mapping[str, bytes]) -> Observed:
        """For how long things have been as they are, as far as we have seen."""
        clock = self._clock()
        everywhere = [
            bundle.fingerprints()
            for watched in self._configurations
            if watched.current is not None
            for bundle in bundles(watched.current, self._settings.hosts)
        ]
        trusted = {fingerprint(certificate) for certificate in read(data, self._settings.secret).trusted}
        there = {known for known in trusted if all(known in bundle for bundle in everywhere)}
        self._published = {known: self._published.get(known, clock) for known in there}
        served = data.get(CERTIFICATE, b"")
        if self._served is None or self._served[0] != served:
            self._served = (served, clock)
        return Observed({known: clock - since for known, since in self._published.items()}, clock - self._served[1])

    async def _write_secret(self, secret: JsonObject | None, data: Mapping[str, bytes]) -> None:
        encoded = {key: b64encode(value).decode() for key, value in data.items()}
        namespace, name = self._settings.namespace, self._settings.secret
        try:
            if secret is None:
                body: JsonObject = {
                    "apiVersion": "v1",
                    "kind": "Secret",
                    "metadata": {"name": name, "namespace": namespace, "labels": dict(_LABELS)},
                    "type": "Opaque",
                    "data": encoded,
                }
                stored = await self._client.create_secret(namespace, body)
            else:
                stored = await self._client.replace_secret(namespace, name, {**secret, "data": encoded})
        except KubeError as error:
            self._fault(self._secret, error)
            raise
        self._done(self._secret, stored)

    async def _write_bundles(self, watched: WatchedObject, pem: bytes) -> bool:
        configuration = watched.current
        if configuration is None:
            self._say(watched, f"there is no {watched.resource.label} {watched.name} yet: nobody to tell the CA")
            return False
        foreign = foreign_hosts(configuration, self._settings.hosts)
        if foreign:
            self._say(watched, f"not ours, left alone, since --cert-hosts does not name them: {', '.join(foreign)}")
        operations = bundle_patch(configuration, self._settings.hosts, pem)
        if not operations or not self._seat.held:
            return False
        try:
            if watched.resource is MUTATING_WEBHOOKS:
                stored = await self._client.patch_mutating_webhooks(watched.name, operations)
            else:
                stored = await self._client.patch_validating_webhooks(watched.name, operations)
        except KubeError as error:
            self._fault(watched, error)
            raise
        self._done(watched, stored)
        _log.info("%s %s: wrote caBundle", watched.resource.label, watched.name)
        return True

    def _done(self, watched: WatchedObject, stored: JsonObject) -> None:
        self._metrics.writes.labels(watched.resource.label).inc()
        self._said.pop(watched.resource.label, None)
        watched.take(stored)

    def _fault(self, watched: WatchedObject, error: KubeError | CertError) -> None:
        self._metrics.failures.labels(watched.resource.label).inc()
        self._say(watched, str(error))
        if isinstance(error, Conflict | Invalid | NotFound | OutcomeUnknown):
            watched.doubt()  # what is there is not what we hold

    def _say(self, watched: WatchedObject, text: str) -> None:
        """Once for as long as it stays the same."""
        if self._said.get(watched.resource.label) != text:
            self._said[watched.resource.label] = text
            _log.warning("%s %s: %s", watched.resource.label, watched.name, text)


def _annotation(item: JsonObject, key: str) -> object:
    metadata = item.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    return annotations.get(key) if isinstance(annotations, dict) else None
