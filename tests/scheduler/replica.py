"""One replica of the extender over HTTP, on the embedded API server, with clocks that only the test moves."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import orjson
from prometheus_client import CollectorRegistry

from devices.kube.client import ClientSettings, KubeClient
from devices.kube.config import explicit_access
from devices.kube.feed import LedgerFeed
from devices.kube.freshness import OwnPod
from devices.kube.resources import PODS
from devices.ledger import Ledger
from devices.objects import Pod, pod_of
from lab.apiserver import ApiServer
from scheduler.config import Settings
from scheduler.election import Election, ElectionSettings
from scheduler.service import SchedulerService
from tests.scheduler.builders import CONFIG, NOW_S, Clock
from tests.scheduler.served import LOCAL
from tests.serving.running import Running, running, until

NAMESPACE = "slotwise-system"
LEASE = "slotwise-scheduler"


def lease_document(holder: str, renewed_s: float, *, acquired: int = 0, duration_s: int = 15) -> dict[str, Any]:
    def stamp(seconds: float) -> str:
        return f"2026-05-28T20:{26 + int(seconds + 40) // 60:02d}:{(seconds + 40) % 60:09.6f}Z"

    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": LEASE, "namespace": NAMESPACE, "uid": "lease-1"},
        "spec": {
            "holderIdentity": holder,
            "leaseDurationSeconds": duration_s if holder else 1,
            "acquireTime": stamp(acquired),
            "renewTime": stamp(renewed_s - NOW_S),
            "leaseTransitions": acquired,
        },
    }


class Replica:
    """Host `host`: kube-scheduler beside it calls itself `host_1`. `clock` is the Lease's and the wall's."""

    def __init__(
        self, api: ApiServer, client: KubeClient, registry: CollectorRegistry, host: str, **flags: Any
    ) -> None:
        self.api, self.client, self.host, self.registry = api, client, host, registry
        self.clock = Clock()
        self.ledger = Ledger(CONFIG)
        own = OwnPod(NAMESPACE, f"pod-of-{host}")
        self.feed = LedgerFeed(client, self.ledger, self.clock.now, registry=registry)
        settings = Settings(**{**LOCAL, **flags})
        self.election = Election(
            client,
            ElectionSettings(LEASE, NAMESPACE, host, own, settings.bind_timeout_s, settings.leader_elect_margin_s),
            self.feed.wait_for_pods,
            registry=registry,
            reflector_metrics=self.feed.watch_metrics,
            clock=self.clock,
            wall=self.clock.now,
        )
        self.service = SchedulerService(
            settings, client, self.ledger, self.feed, clock=Clock(), registry=registry, lead=self.election
        )
        self.session: aiohttp.ClientSession
        self.server: Running

    async def hold(self, holder: str | None = None, **more: int) -> None:
        """The Lease is so from now on, and the replica has seen it."""
        holder = f"{self.host}_1" if holder is None else holder
        stored = self.api.put("leases", lease_document(holder, self.clock.now(), **more))
        await self.shown(stored)

    async def shown(self, stored: Any) -> None:
        """The Lease's watch has brought this version."""
        revision = stored["metadata"]["resourceVersion"]
        assert await self.election._news.wait_for_revision(revision, 20)

    async def lead(self) -> None:
        """Take over from a Lease that ran out."""
        await self.hold("other_1")
        await self.clock.advance(20)
        await self.hold(acquired=1)
        await until(self.leads)

    async def leads(self) -> bool:
        return self.election.leads

    def own_pod(self) -> Pod:
        return pod_of(self.api.get("pods", NAMESPACE, f"pod-of-{self.host}"))

    def used(self, node: str = "n1") -> int:
        state = self.ledger.state(node)
        return sum(s.used_slots for s in state.cards) if state is not None else 0

    async def created(self, name: str = "p") -> tuple[Pod, dict[str, Any]]:
        limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000"}
        body: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"containers": [{"name": "c", "image": "i", "resources": {"limits": limits}}]},
        }
        made = await self.client.create(PODS, body, "default")
        return pod_of(made), made

    async def post(self, path: str, body: object) -> Any:
        async with self.session.post(self.server.url(path), data=orjson.dumps(body)) as answer:
            return orjson.loads(await answer.read())

    async def filter(self, document: object, *nodes: str) -> Any:
        return await self.post("/filter", {"Pod": document, "Nodes": None, "NodeNames": list(nodes or ("n1",))})

    async def bind(self, pod: Pod, node: str = "n1") -> str:
        body = {"PodName": pod.name, "PodNamespace": pod.namespace, "PodUID": pod.uid, "Node": node}
        return str((await self.post("/bind", body))["Error"])

    async def get(self, path: str) -> tuple[int, str]:
        async with self.session.get(self.server.url(path, listener=1)) as answer:
            return answer.status, await answer.text()


def own_pod_document(host: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"pod-of-{host}", "namespace": NAMESPACE},
        "spec": {"containers": [{"name": "extender", "image": "i"}]},
    }


@asynccontextmanager
async def replica(api: ApiServer, host: str = "host", **flags: Any) -> AsyncIterator[Replica]:
    """A replica that runs, with its pod; it has looked at the Lease."""
    access = explicit_access(api.url)
    async with KubeClient(access, ClientSettings(user_agent=f"extender-{host}", qps=0)) as client:
        if api.get("pods", NAMESPACE, f"pod-of-{host}") is None:
            await client.create(PODS, own_pod_document(host), NAMESPACE)
        one = Replica(api, client, CollectorRegistry(), host, **flags)
        await one.feed.start()
        await one.feed.wait_synced()
        await one.service.start()
        try:
            await one.election._news.synced.wait()
            async with running(one.service.listeners(), drain=one.service.drain, drain_timeout_s=1) as server:
                one.server = server
                async with aiohttp.ClientSession() as one.session:
                    yield one
        finally:
            await one.service.stop()
            await one.feed.stop()


def writes(api: ApiServer, host: str = "host") -> dict[tuple[str, str, str], int]:
    """What this replica has written, events left out."""
    counted = api.requests.written
    return {
        (key.verb, key.resource, key.subresource): count
        for key, count in counted.items()
        if key.user_agent == f"extender-{host}" and key.resource != "events"
    }


async def soon() -> None:
    """Let what is under way over the network come in: nothing is announced that must not happen."""
    await asyncio.sleep(0.05)
