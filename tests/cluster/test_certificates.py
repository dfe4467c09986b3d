"""The webhook keeps its own certificate on a real control plane, and changes it while the API server asks on and on."""

import asyncio
import os
import re
import signal
import sys
import time
import urllib.request
import uuid
from base64 import b64decode
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
from cryptography import x509

from certs.keeper import secret_data
from certs.pki import read_certificates
from certs.secret import Contents, read
from devices.kube.resources import MUTATING_WEBHOOKS, SECRETS, VALIDATING_WEBHOOKS
from devices.managed import managed_resources
from lab.balancer import balancer
from lab.control_plane import ControlPlane
from lab.families import every_family
from lab.processes import LOOPBACK, Child, answers
from lab.webhooks import webhook_configurations

START_S: Final = 60.0
RATE: Final = 200
"""Admissions a second."""
WAITING: Final = 150
"""More are not sent before others are answered: a slow machine is asked less often, not later and later."""
OVERLAP_S: Final = 3
LISTENING: Final = re.compile(r"listening on 127\.0\.0\.1:(\d+), 127\.0\.0\.1:(\d+)")
SECRET: Final = "slotwise-webhook-tls"
LEASE: Final = "slotwise-webhook-certificates"


def rules(configuration: str) -> Sequence[Mapping[str, object]]:
    """As the manifests have them."""
    admission = ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"]
    leases: Mapping[str, object] = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}
    secrets: Mapping[str, object] = {"apiGroups": [""], "resources": ["secrets"]}
    return [
        {"apiGroups": [""], "resources": ["pods", "nodes", "resourcequotas"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
        {
            "apiGroups": ["admissionregistration.k8s.io"],
            "resources": admission,
            "resourceNames": [configuration],
            "verbs": ["list", "watch", "patch"],
        },
        {**secrets, "resourceNames": [SECRET], "verbs": ["list", "watch", "update"]},
        {**secrets, "verbs": ["create"]},
        {**leases, "resourceNames": [LEASE], "verbs": ["get", "update"]},
        {**leases, "verbs": ["create"]},
    ]


@dataclass
class Process:
    """One replica."""

    child: Child
    port: int
    plain: int

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(f"http://{LOOPBACK}:{self.plain}/metrics", timeout=10) as answer:
            page = answer.read().decode()
        found = re.search(rf"^{name} (\S+)$", page, re.MULTILINE)
        assert found is not None, name
        return float(found[1])


class Kept:
    """Two replicas in a namespace of their own, and configurations that concern this namespace alone."""

    def __init__(self, plane: ControlPlane, folder: Path, stack: ExitStack) -> None:
        self.plane = plane
        self.namespace = f"certs-{uuid.uuid4().hex[:8]}"
        self.configuration = f"slotwise-{self.namespace}"
        self._folder = folder
        self._stack = stack
        plane.create_namespace(self.namespace)
        plane.create_service_account(self.namespace, "slotwise-webhook", rules(self.configuration))
        self._kubeconfig = plane.kubeconfig_with(
            plane.service_account_token(self.namespace, "slotwise-webhook"), f"{self.namespace}-webhook"
        )
        self.replicas = [self._start(f"webhook-{number}") for number in (1, 2)]
        for replica in self.replicas:
            replica.child.wait_until(lambda plain=replica.plain: answers(plain, "/readyz"), START_S, "it is ready")  # type: ignore[misc]  # a lambda's default has no type

    def _start(self, name: str) -> Process:
        child = Child(
            name,
            [
                *(sys.executable, "-m", "webhook", f"--kubeconfig={self._kubeconfig}"),
                *(f"--http_bind={LOOPBACK}:0", f"--metrics-bind-address={LOOPBACK}:0"),
                *(f"--own-namespace={self.namespace}", f"--cert-secret={SECRET}", f"--cert-lease={LEASE}"),
                *(f"--webhook-configuration={self.configuration}", f"--cert-hosts={LOOPBACK}"),
                f"--cert-overlap={OVERLAP_S}s",
            ],
            self._folder / f"{name}.log",
            {**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self._stack.callback(child.stop)
        child.wait_until(lambda: LISTENING.search(child.log.read_text()) is not None, START_S, "it listens")
        found = LISTENING.search(child.log.read_text())
        assert found is not None
        return Process(child, int(found[1]), int(found[2]))

    def register(self, url: str) -> None:
        """As the manifests have them, without a caBundle, by address, for the pods of this namespace."""
        for resource, document in webhook_configurations(every_family(), url, b""):
            hooks: Any = document["webhooks"]
            for hook in hooks:
                hook["clientConfig"].pop("caBundle")
                hook["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": self.namespace}}
            self.plane.create(
                resource.collection(), {**document, "metadata": {"name": self.configuration}, "webhooks": hooks}
            )
            self._stack.callback(self.plane.request, "DELETE", resource.item(self.configuration))

    def contents(self) -> Contents:
        status, secret = self.plane.request("GET", SECRETS.item(SECRET, self.namespace))
        return read(secret_data(secret), SECRET) if status == 200 else Contents()

    def take_out(self, *parts: str) -> None:
        """What is taken out of the Secret is made anew."""
        body = {"data": dict.fromkeys(parts)}
        assert self.plane.request("PATCH", SECRETS.item(SECRET, self.namespace), body)[0] == 200

    def bundles(self) -> list[tuple[x509.Certificate, ...]]:
        """What the API server trusts, for every webhook of both configurations."""
        found = []
        for resource in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
            hooks: Any = self.plane.request("GET", resource.item(self.configuration))[1]["webhooks"]
            for hook in hooks:
                pem = b64decode(hook["clientConfig"].get("caBundle", ""))
                found.append(read_certificates(pem, resource.label) if pem else ())
        return found

    def trusts(self) -> bool:
        """Whether every bundle is what the Secret says."""
        held = self.contents()
        return held.serving is not None and all(bundle == held.trusted for bundle in self.bundles())

    def serves(self) -> bool:
        """Whether all replicas serve what the Secret holds."""
        serving = self.contents().serving
        assert serving is not None
        expiry = serving.certificate.not_valid_after_utc.timestamp()
        name = "slotwise_tls_certificate_expiry_timestamp_seconds"
        return all(replica.metric(name) == expiry for replica in self.replicas)

    def keepers(self) -> list[Process]:
        return [replica for replica in self.replicas if replica.metric("slotwise_certificates_keeper") == 1]


@pytest.fixture
def kept(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Kept]:
    with ExitStack() as stack:
        yield Kept(control_plane, tmp_path, stack)


async def until(holds: Callable[[], bool], what: str) -> None:
    try:
        async with asyncio.timeout(START_S):
            while not await asyncio.to_thread(holds):  # noqa: ASYNC110 - other processes announce nothing to us
                await asyncio.sleep(0.1)
    except TimeoutError as error:
        raise AssertionError(f"after {START_S:g} s it is still not so that {what}") from error


class Stream:
    """Creates pods by dry run, `RATE` a second, and notes what became of them."""

    def __init__(self, kept: Kept) -> None:
        self._plane = kept.plane
        self._url = f"{kept.plane.url}/api/v1/namespaces/{kept.namespace}/pods?dryRun=All"
        self.outcomes: Counter[str] = Counter()
        self.began = time.monotonic()
        self.is_over = False
        """Set, it ends once every request has its answer: a cancelled one would leave its connection behind."""
        resource = "nvidia.com/gpu"
        assert resource in {entry["name"] for entry in managed_resources(every_family())}
        self._pod = {
            "metadata": {"generateName": "asked-"},
            "spec": {"containers": [{"name": "main", "image": "app:1", "resources": {"limits": {resource: 1}}}]},
        }

    @property
    def rate(self) -> float:
        return self.outcomes.total() / (time.monotonic() - self.began)

    async def admitted(self, session: aiohttp.ClientSession) -> str:
        """`ok` for a pod that both webhooks have seen, else what went wrong."""
        try:
            async with session.post(self._url, json=self._pod) as answer:
                body = await answer.json()
        except (aiohttp.ClientError, TimeoutError) as error:
            return f"{type(error).__name__}: {error}"
        if answer.status != 201:
            return f"{answer.status} {body.get('message')}"
        # The mutating webhook fails open: only what it does to a pod shows that it was asked.
        return "ok" if body["spec"]["schedulerName"] == "hami-scheduler" else "not mutated"

    async def run(self) -> None:
        async def one() -> None:
            async with slots:
                self.outcomes[await self.admitted(session)] += 1

        slots = asyncio.Semaphore(WAITING)
        headers = {"Authorization": f"Bearer {self._plane.token()}"}
        connector = aiohttp.TCPConnector(ssl=self._plane.tls(), limit=WAITING)
        async with aiohttp.ClientSession(headers=headers, connector=connector) as session, asyncio.TaskGroup() as asked:
            self.began, sent = time.monotonic(), 0
            while not self.is_over:
                await asyncio.sleep(1 / RATE)
                due = int((time.monotonic() - self.began) * RATE)
                while sent < due:
                    if slots.locked():
                        await asyncio.sleep(0.01)
                        continue
                    asked.create_task(one())
                    await asyncio.sleep(0)
                    sent += 1

    async def more(self) -> None:
        goal = self.outcomes.total() + 100
        await until(lambda: self.outcomes.total() >= goal, "more pods were asked about")


@asynccontextmanager
async def flowing(kept: Kept) -> AsyncIterator[Stream]:
    """A stream that goes on while inside; the API server reaches the replicas by one address, as by a Service."""

    def targets() -> list[tuple[str, int]]:
        return [(LOOPBACK, replica.port) for replica in kept.replicas]

    async with balancer(targets, LOOPBACK) as (host, port):
        await asyncio.to_thread(kept.register, f"https://{host}:{port}")
        await until(kept.trusts, "the CA is known")
        stream = Stream(kept)
        headers = {"Authorization": f"Bearer {kept.plane.token()}"}
        async with aiohttp.ClientSession(
            headers=headers, connector=aiohttp.TCPConnector(ssl=kept.plane.tls())
        ) as session:
            # The API server takes a moment to see new configurations.
            async with asyncio.timeout(START_S):
                while (outcome := await stream.admitted(session)) != "ok":
                    assert outcome == "not mutated" or "failed calling webhook" in outcome, outcome
                    await asyncio.sleep(0.2)
        running = asyncio.create_task(stream.run())
        try:
            yield stream
        finally:
            stream.is_over = True
            await running


async def test_certificates_change_while_200_pods_a_second_ask_for_admission_and_none_fails(kept: Kept) -> None:
    async with flowing(kept) as stream:
        await stream.more()
        before = kept.contents()

        kept.take_out("tls.crt", "tls.key")
        await until(lambda: kept.contents().serving not in (None, before.serving), "there is a new certificate")
        await until(kept.serves, "all serve it")
        await stream.more()
        assert kept.contents().trusted == before.trusted

        kept.take_out("ca.key")
        await until(lambda: kept.contents().upcoming is not None and kept.trusts(), "the next CA is known")
        assert len(kept.contents().trusted) == 2
        await until(lambda: kept.contents().signing is not None, "it signs")
        await until(kept.serves, "all serve what it signed")
        await stream.more()
        await until(lambda: len(kept.contents().trusted) == 1 and kept.trusts(), "the old CA is gone")
        await stream.more()
        after = kept.contents()
        assert not set(after.trusted) & set(before.trusted)
        assert set(stream.outcomes) == {"ok"}, stream.outcomes


async def test_a_keeper_that_ends_in_the_middle_of_it_is_succeeded(kept: Kept) -> None:
    async with flowing(kept) as stream:
        await until(lambda: len(kept.keepers()) == 1, "there is one keeper")
        (keeper,) = kept.keepers()
        kept.take_out("ca.key")
        await until(lambda: kept.contents().upcoming is not None, "the next CA is known")
        kept.replicas.remove(keeper)  # as its Service would see it: no new connections
        keeper.child.signal(signal.SIGTERM)
        await until(lambda: kept.keepers() == kept.replicas, "the other one is keeper")
        await until(lambda: len(kept.contents().trusted) == 1 and kept.trusts(), "the old CA is gone")
        await stream.more()
        assert set(stream.outcomes) == {"ok"}, stream.outcomes


def test_it_asks_for_nothing_it_may_not_do(kept: Kept) -> None:
    kept.register(f"https://{LOOPBACK}:{kept.replicas[0].port}")
    kept.replicas[0].child.wait_until(kept.trusts, START_S, "both configurations know the CA")
    for resource in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
        hooks: Any = kept.plane.request("GET", resource.item(kept.configuration))[1]["webhooks"]
        for hook in hooks:
            hook["clientConfig"]["caBundle"] = None
        kept.plane.request("PATCH", resource.item(kept.configuration), {"webhooks": hooks})
    kept.replicas[0].child.wait_until(kept.trusts, START_S, "both are repaired")
    before = kept.contents()
    kept.plane.request("DELETE", SECRETS.item(SECRET, kept.namespace))
    kept.replicas[0].child.wait_until(lambda: kept.contents() == before, START_S, "the Secret is put back")
    user = f"system:serviceaccount:{kept.namespace}:slotwise-webhook"
    calls = [call for call in kept.plane.audited() if call.user == user]
    about = ("secrets", "leases", MUTATING_WEBHOOKS.plural, VALIDATING_WEBHOOKS.plural)
    assert {call.verb for call in calls if call.resource == "secrets"} >= {"create", "list"}
    assert [call for call in calls if call.resource in about and call.code == 403] == []
