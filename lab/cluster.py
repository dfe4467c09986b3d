"""A cluster to play in: nodes with cards, kubelet and pods, on an embedded control plane or on a real one."""

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

import aiohttp
import msgspec

from devices.kube.errors import AlreadyExists, NotFound
from devices.kube.protocols import JsonObject
from devices.kube.resources import NAMESPACES, NODES, PODS, RESOURCE_QUOTAS
from devices.objects import Pod
from lab.amounts import same_amounts
from lab.apiserver import ApiServerSettings
from lab.audit import CardUsage, Violation, audit, usage_of
from lab.backend import Backend
from lab.embedded import EmbeddedBackend
from lab.errors import LabError
from lab.external import ExternalBackend, ExternalSettings
from lab.follow import SeenNode, follow_nodes, follow_pods
from lab.heartbeats import Heartbeats
from lab.kubelet import Kubelet
from lab.leftovers import Leftovers
from lab.nodes import NodeSpec, node_document
from lab.scheduling_queue import Backoff
from lab.strangers import without_strangers

__all__ = ["Cluster", "ClusterSettings"]

_SETTLE_LOOK_S: Final = 0.005


@dataclass(frozen=True)
class ClusterSettings:
    """How the lab's cluster behaves."""

    backoff: Backoff = field(default_factory=lambda: Backoff(initial_s=0.05, longest_s=0.5, flush_s=0.5))
    """The embedded kube-scheduler's waits, short: a scenario should not take as long as the real ones."""
    settle_s: float = 10.0
    """Longest wait for anything that is expected to happen."""
    webhooks: int = 1
    """Replicas of the webhook, each with books of its own."""
    api: ApiServerSettings = field(default_factory=ApiServerSettings)
    """The embedded API server."""
    external: ExternalSettings | None = None
    """A control plane that is there already; None: the embedded one."""

    def new_backend(self) -> Backend:
        """A backend for one cluster."""
        return (
            ExternalBackend(self.external) if self.external else EmbeddedBackend(self.backoff, self.webhooks, self.api)
        )


class _ScoredCard(msgspec.Struct):
    uuid: str
    score: float


class _Decision(msgspec.Struct):
    cards: list[_ScoredCard]


class Cluster:
    """An async context manager: everything runs inside, and nothing afterwards. Each instance is used once."""

    def __init__(self, settings: ClusterSettings | None = None) -> None:
        self.settings = settings or ClusterSettings()
        self._backend = self.settings.new_backend()
        self.ledger = self._backend.ledger
        self._stack = AsyncExitStack()
        self._changed_at = 0.0

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await self._start(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def _start(self, stack: AsyncExitStack) -> None:
        backend = self._backend
        await backend.start(stack)
        self.client = await backend.new_client(stack, "slotwise-lab/user")
        self.pods = follow_pods(await backend.new_client(stack, "slotwise-lab/watch"), backend.strangers)
        self.nodes = follow_nodes(self.client, backend.strangers)
        vendors = self.ledger.config.vendors
        self.kubelet = Kubelet(await backend.new_client(stack, "kubelet/lab"), self.pods, self.nodes, vendors)
        await backend.start_scheduler(stack, self.pods, self.nodes)
        external = self.settings.external
        heartbeats = Heartbeats(self.client, self.nodes, external.plugin_heartbeats) if external else None
        for part in (self.nodes, self.pods, self.kubelet):
            await part.start()
            stack.push_async_callback(part.stop)
        self._session = await stack.enter_async_context(aiohttp.ClientSession())
        self._leftovers = Leftovers(self.client)
        if heartbeats is not None:
            await heartbeats.start()
            stack.push_async_callback(heartbeats.stop)
            # Last in, first out: the kubelet still runs while its pods are deleted.
            stack.push_async_callback(self._leftovers.remove, self.pods, self.settings.settle_s)

    # --- what is done to it ---

    @property
    def address(self) -> str:
        """The API server's URL, for kubectl or a browser."""
        return self._backend.address

    async def add_node(self, spec: NodeSpec) -> None:
        """Add a node; returns once its cards can be given away. Raises `LabError` if they never can."""
        await self.client.create(NODES, node_document(spec))
        self._leftovers.nodes.append(spec.name)
        await self._until(
            lambda: all(ledger.state(spec.name) is not None for ledger in self._backend.ledgers),
            f"node {spec.name} is offered",
        )

        def is_open() -> bool:
            seen = self.nodes.objects.get(spec.name)
            return seen is not None and not _is_tainted(seen)

        if not await self.nodes.wait_for(is_open, self.settings.settle_s):
            raise LabError(f"node {spec.name} keeps its taints, so that no pod may go there")
        self._changed()

    async def annotate_node(self, name: str, annotations: dict[str, str | None]) -> None:
        """Set annotations of a node, None to take one away; returns once the services have seen it."""
        stored = await self.client.patch_node(name, {"metadata": {"annotations": annotations}})
        wanted = {key: value for key, value in annotations.items() if value is not None}

        def seen() -> bool:
            node = self.ledger.node_object(name)
            held = node.annotations if node else {}
            return all(held.get(key) == wanted.get(key) for key in annotations)

        await self._until(seen, f"the services see node {name} at {stored.get('metadata')}")
        self._changed()

    async def add_namespace(self, name: str) -> None:
        """Add a namespace unless it is there; returns once pods can be created in it."""
        try:
            await self.client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        except AlreadyExists:
            return
        self._leftovers.namespaces.append(name)
        await self._backend.ready_for_pods(self.client, name, self.settings.settle_s)

    async def put_quota(self, namespace: str, name: str, hard: dict[str, str]) -> None:
        """Create or replace a ResourceQuota; returns once the services have seen it."""
        body: JsonObject = {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"hard": hard},
        }
        with suppress(NotFound):
            await self.client.delete(RESOURCE_QUOTAS, name, namespace)
        await self.client.create(RESOURCE_QUOTAS, body, namespace)
        self._leftovers.quotas.append((namespace, name))

        def seen() -> bool:
            return all(
                any(quota.name == name and same_amounts(quota.hard, hard) for quota in ledger.quotas_of(namespace))
                for ledger in self._backend.ledgers
            )

        await self._until(seen, f"the services see quota {namespace}/{name}")
        self._changed()

    async def create_pod(self, document: JsonObject, namespace: str) -> None:
        """Create a pod as a user would. Raises `ApiStatusError` with the text of a denial."""
        # Nobody tells us when other processes' watches have caught up with what was done before.
        await asyncio.sleep(max(self._changed_at + self._backend.lag_s - time.monotonic(), 0.0))
        stored = await self.client.create(PODS, document, namespace)
        self._leftovers.add_pod(stored)

    async def delete_pod(self, namespace: str, name: str) -> None:
        """Delete a pod; returns once it is gone and its cards are free again."""
        pod = self.pod(namespace, name)
        await self.client.delete(PODS, name, namespace)
        uid = pod.uid if pod else ""
        await self.pods.wait_for(lambda: self.pod(namespace, name) is None, self.settings.settle_s)
        await self._until(lambda: self._is_free(uid), f"the cards of {namespace}/{name} are free")
        self._changed()

    async def finish_pod(self, namespace: str, name: str) -> None:
        """End a pod's containers; returns once its cards are free again."""
        pod = self._known(namespace, name)
        await self.kubelet.finish(namespace, name)
        await self._until(lambda: self._is_free(pod.uid), f"the cards of {namespace}/{name} are free")
        self._changed()

    async def finish_init(self, namespace: str, name: str) -> None:
        """End a pod's init containers; returns once the services have seen it."""
        pod = self._known(namespace, name)
        await self.kubelet.finish_init(namespace, name)

        def seen() -> bool:
            held = self.ledger.pod(pod.uid)
            return held is not None and held.status.phase == "Running"

        await self._until(seen, f"the services see the init containers of {namespace}/{name} end")
        self._changed()

    def _is_free(self, uid: str) -> bool:
        """Whether everybody knows that the pod holds and costs nothing any more."""
        return all(ledger.holding(uid) is None and ledger.charged(uid) is None for ledger in self._backend.ledgers)

    # --- what can be seen of it ---

    def pod(self, namespace: str, name: str) -> Pod | None:
        """The pod as the lab's watch has shown it last."""
        seen = self.pods.objects.get(f"{namespace}/{name}")
        return seen.pod if seen else None

    def usage(self) -> tuple[CardUsage, ...]:
        """Every card with its tenants, from annotations alone."""
        nodes = [seen.node for seen in self.nodes.objects.values()]
        return usage_of(nodes, self.all_pods(), self.ledger.config.vendors)

    def violations(self) -> tuple[Violation, ...]:
        """Cards given away beyond what they have, from annotations alone."""
        nodes = [seen.node for seen in self.nodes.objects.values()]
        return audit(nodes, self.all_pods(), self.ledger.config.vendors)

    def all_pods(self) -> list[Pod]:
        """All pods as the lab's watch has shown them last."""
        return [seen.pod for seen in self.pods.objects.values()]

    def booked(self) -> dict[str, tuple[int, int, int]]:
        """What the services' ledger holds: (slots, MiB, cores) by `node/card`."""
        return {
            f"{node}/{uuid}": (hold.slots, hold.memory_mib, hold.cores)
            for node in self.ledger.node_names()
            for (_, uuid), hold in self.ledger.usage(node).items()
        }

    def quota_used(self, namespace: str) -> tuple[int, int, int]:
        """What the ledger charges a namespace: (MiB, cores, cards) over all families."""
        charges = self.ledger.used(namespace).values()
        return (sum(c.memory_mib for c in charges), sum(c.cores for c in charges), sum(c.cards for c in charges))

    async def quota_view(self, namespace: str) -> JsonObject | None:
        """The webhook's own account of a namespace's quota; None where its address is not known or it has nothing to say."""
        if self._backend.quotas is None:
            return None
        async with self._session.get(f"{self._backend.quotas}/quotas/{namespace}") as response:
            if response.status == 404:
                return None
            if response.status != 200:
                raise LabError(f"no quota of {namespace}: {response.status} {await response.text()}")
            document: JsonObject = await response.json()
            return document

    def own_words(self, message: str) -> str:
        """What kube-scheduler says about a pod, with the lab's nodes counted and no others."""
        return without_strangers(message, len(self._backend.strangers))

    async def card_scores(self, namespace: str, name: str) -> dict[str, float]:
        """By UUID, the scores on the chosen node before the pod was placed. Raises `LabError` if the scheduler gives none."""
        try:
            cards = msgspec.convert(await self.decision(namespace, name), _Decision).cards
        except msgspec.ValidationError as error:
            raise LabError(f"the decision for {namespace}/{name} cannot be read: {error}") from error
        return {card.uuid: card.score for card in cards}

    async def decision(self, namespace: str, name: str) -> JsonObject:
        """The scheduler's own account of its last decision for a pod. Raises `LabError` if it gives none."""
        views = self._backend.views
        if views is None:
            raise LabError(f"the decision for {namespace}/{name} cannot be asked for without --scheduler-url")
        async with self._session.get(f"{views}/decisions/{namespace}/{name}") as response:
            if response.status != 200:
                raise LabError(f"no decision for {namespace}/{name}: {response.status} {await response.text()}")
            document: JsonObject = await response.json()
            return document

    def scheduler_writes(self) -> int | None:
        """Writes of the services stored by the API server, events left out; None where nobody counts them."""
        return self._backend.scheduler_writes()

    async def settled(self, holds: Callable[[], bool]) -> bool:
        """Whether something in the services' books becomes true in time."""
        deadline = asyncio.get_running_loop().time() + self.settings.settle_s
        while not holds():
            if asyncio.get_running_loop().time() > deadline:
                return False
            await asyncio.sleep(_SETTLE_LOOK_S)  # the books announce nothing, so we look
        return True

    async def _until(self, holds: Callable[[], bool], what: str) -> None:
        if not await self.settled(holds):
            raise LabError(f"after {self.settings.settle_s:g} s it is still not so that {what}")

    def _changed(self) -> None:
        self._changed_at = time.monotonic()

    def _known(self, namespace: str, name: str) -> Pod:
        pod = self.pod(namespace, name)
        if pod is None:
            raise LabError(f"there is no pod {namespace}/{name}")
        return pod


class _Taint(msgspec.Struct):
    key: str


class _NodeSpec(msgspec.Struct):
    taints: list[_Taint] = msgspec.field(default_factory=list)


class _NodeWithTaints(msgspec.Struct):
    spec: _NodeSpec = msgspec.field(default_factory=_NodeSpec)


def _is_tainted(seen: SeenNode) -> bool:
    """A real API server gives every new node a taint that goes once the node controller has found it ready."""
    return bool(msgspec.json.decode(seen.raw, type=_NodeWithTaints).spec.taints)
