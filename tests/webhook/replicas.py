"""Several webhook replicas in one process against the embedded API server: each with its own client, watch, ledger and record store."""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from devices.config import DeviceConfig
from devices.kube.client import ClientSettings, KubeClient, Page, WatchEvent
from devices.kube.config import explicit_access
from devices.kube.feed import LedgerFeed
from devices.kube.protocols import JsonObject
from devices.kube.resources import PODS, Resource
from devices.ledger import ADMITTED, Ledger
from devices.objects import pod_of
from devices.quota import Excess
from devices.requests import pod_request
from lab.apiserver.server import ApiServer
from tests.builders import card, container_document, node, nvidia_config
from webhook.admitted.store import Admissions, AdmittedSettings, record_name
from webhook.errors import QuotaUnavailableError
from webhook.quota_service import QuotaService

OWN = "slotwise-system"
TEAM = "team"
PATIENCE_S = 20.0
FAST = AdmittedSettings(catch_up_s=0.02, sweep_every_s=0.05, adopt_every_s=0.2, deadline_s=5.0)
AGENT = "replica"


class LaggingClient:
    """A client whose watches of pods deliver late, each event after a wait of its own; nothing overtakes."""

    def __init__(self, client: KubeClient, lag_s: Callable[[], float]) -> None:
        self._client = client
        self._lag_s = lag_s

    def list_pages(self, resource: Resource, namespace: str | None = None, **more: Any) -> AsyncGenerator[Page]:
        return self._client.list_pages(resource, namespace, **more)

    async def watch(self, resource: Resource, namespace: str | None = None, **more: Any) -> AsyncGenerator[WatchEvent]:
        async for event in self._client.watch(resource, namespace, **more):
            lag_s = self._lag_s() if resource is PODS else 0.0
            if lag_s:
                await asyncio.sleep(lag_s)
            yield event

    async def patch_pod(self, namespace: str, name: str, body: JsonObject) -> JsonObject:
        return await self._client.patch_pod(namespace, name, body)


@dataclass
class Replica:
    """One replica."""

    client: KubeClient
    ledger: Ledger
    feed: LedgerFeed
    admissions: Admissions
    task: asyncio.Task[None]

    async def admit(self, document: JsonObject, *, dry_run: bool = False) -> tuple[Excess, ...]:
        """What is over, nothing for a pod that is let in."""
        pod = pod_of(document)
        request = pod_request(pod, self.ledger.config.vendors, self.ledger)
        ask = QuotaService(self.ledger).ask(pod, request, pod.namespace)
        if ask is None:
            return ()
        return (await self.admissions.admit(ask, dry_run=dry_run)).excesses


@dataclass
class World:
    """The API server, its replicas, and what a user does."""

    api: ApiServer
    replicas: list[Replica]
    stack: AsyncExitStack
    config: DeviceConfig
    lag_s: Callable[[], float]
    settings: AdmittedSettings
    created: dict[str, JsonObject] = field(default_factory=dict)

    async def add_replica(self) -> Replica:
        client = await self.stack.enter_async_context(
            KubeClient(explicit_access(self.api.url), ClientSettings(user_agent=AGENT, qps=0))
        )
        ledger = Ledger(self.config, quota_counts=ADMITTED)
        feed = LedgerFeed(LaggingClient(client, self.lag_s), ledger, time.time)
        await feed.start()
        self.stack.push_async_callback(feed.stop)
        admissions = Admissions(client, feed, ledger, self.settings)
        self.stack.push_async_callback(admissions.stop)
        await feed.wait_synced()
        replica = Replica(client, ledger, feed, admissions, asyncio.create_task(admissions.run()))
        self.stack.callback(replica.task.cancel)
        self.replicas.append(replica)
        return replica

    async def quota(self, name: str = "q", **hard: object) -> None:
        """A quota; returns once every replica knows it."""
        limits = {f"limits.nvidia.com/{key}": str(value) for key, value in hard.items()}
        self.api.put(
            "resourcequotas",
            {"metadata": {"name": name, "namespace": TEAM, "uid": f"quota-{name}"}, "spec": {"hard": limits}},
        )
        await self.until(
            lambda: all(
                {k: str(v) for quota in r.ledger.quotas() if quota.name == name for k, v in quota.hard.items()}
                == limits
                for r in self.replicas
            )
        )

    async def create(self, document: JsonObject, replica: Replica) -> str:
        """What becomes of a pod that a user creates: "" once it exists, else why not."""
        try:
            over = await replica.admit(document)
        except QuotaUnavailableError as error:
            return str(error)
        if over:
            return "; ".join(map(str, over))
        self.put(document)
        return ""

    def put(self, document: JsonObject) -> None:
        """The pod exists now."""
        stored = self.api.put("pods", document)
        self.created[stored["metadata"]["uid"]] = stored

    def end(self, uid: str) -> None:
        """The pod is deleted."""
        self.api.remove("pods", TEAM, self.created.pop(uid)["metadata"]["name"])  # type: ignore[index] # a JSON object, whose values have no type of their own

    def record(self) -> Mapping[str, str]:
        """The record's data as stored, empty without one."""
        stored = self.api.get("configmaps", OWN, record_name(TEAM))
        return {} if stored is None else stored["data"]

    def calls(self, verb: str, resource: str) -> int:
        """Requests of the replicas so far."""
        return sum(
            n
            for key, n in self.api.requests.received.items()
            if (key.verb, key.resource, key.user_agent) == (verb, resource, AGENT)
        )

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for something that the replicas' books or the server come to; they announce nothing, so we look."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                if holds():
                    return
                await asyncio.sleep(0.002)

    async def seen(self) -> None:
        """Every replica's watch has shown what there is."""
        await self.until(lambda: all(set(r.ledger.charged_in(TEAM)) == set(self.created) for r in self.replicas))


def a_pod(name: str, memory: int = 1000, **container: Any) -> JsonObject:
    """A pod of namespace `team` with its UID, as the validating phase sees it."""
    limits = container or {"gpu": 1, "gpumem": memory}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": TEAM, "uid": f"uid-{name}"},
        "spec": {"containers": [container_document(**limits)]},
    }


@asynccontextmanager
async def world(
    replicas: int = 3,
    *,
    lag_s: Callable[[], float] = lambda: 0.0,
    settings: AdmittedSettings = FAST,
    config: DeviceConfig | None = None,
) -> AsyncIterator[World]:
    """An API server with namespace `team`, one node of two T4 cards, and so many replicas."""
    api = ApiServer(rng=random.Random(1))
    await api.start()
    try:
        for name in (OWN, TEAM):
            api.put("namespaces", {"metadata": {"name": name}})
        registered = node("n1", card("GPU-a"), card("GPU-b"))
        api.put("nodes", {"metadata": {"name": "n1", "annotations": dict(registered.annotations)}, "status": {}})
        async with AsyncExitStack() as stack:
            made = World(api, [], stack, config or nvidia_config(), lag_s, settings)
            for _ in range(replicas):
                await made.add_replica()
            yield made
    finally:
        await api.stop()
