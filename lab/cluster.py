"""A whole cluster in one process: API server, Slotwise's services, kube-scheduler, kubelet and cards. Nothing else is needed."""

import asyncio
import tempfile
from base64 import b64encode
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import aiohttp
import msgspec

from devices.config import default_config
from devices.kube.client import ClientSettings, KubeClient
from devices.kube.config import explicit_access
from devices.kube.errors import NotFound
from devices.kube.protocols import JsonObject
from devices.kube.resources import MUTATING_WEBHOOKS, NAMESPACES, NODES, PODS, RESOURCE_QUOTAS, VALIDATING_WEBHOOKS
from devices.ledger import Ledger
from devices.objects import Pod
from lab.apiserver.server import ApiServer
from lab.audit import CardUsage, Violation, audit, usage_of
from lab.errors import LabError
from lab.follow import follow_nodes, follow_pods
from lab.kube_scheduler import KubeScheduler, KubeSchedulerSettings
from lab.kubelet import Kubelet
from lab.nodes import NodeSpec, node_document
from lab.scheduling_queue import Backoff
from lab.services import SCHEDULER_NAME, ServiceUrls, start_services

__all__ = ["SCHEDULER_AGENT", "Cluster", "ClusterSettings"]

SCHEDULER_AGENT: Final = "slotwise/lab"
"""How the services name themselves to the API server; their writes are counted by it."""
_CONNECTIONS: Final = 256
_SETTLE_LOOK_S: Final = 0.005


@dataclass(frozen=True)
class ClusterSettings:
    """How the lab's cluster behaves."""

    backoff: Backoff = field(default_factory=lambda: Backoff(initial_s=0.05, longest_s=0.5, flush_s=0.5))
    """kube-scheduler's waits, short: a scenario should not take as long as the real ones."""
    settle_s: float = 10.0
    """Longest wait for anything that is expected to happen."""


class _ScoredCard(msgspec.Struct):
    uuid: str
    score: float


class _Decision(msgspec.Struct):
    cards: list[_ScoredCard]


class Cluster:
    """An async context manager: everything runs inside, and nothing afterwards. Each instance is used once."""

    def __init__(self, settings: ClusterSettings | None = None) -> None:
        self.settings = settings or ClusterSettings()
        self.api = ApiServer()
        self.ledger = Ledger(default_config())
        self._stack = AsyncExitStack()
        self._urls: ServiceUrls | None = None

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
        await self.api.start()
        stack.push_async_callback(self.api.stop)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slotwise-lab-")))
        services = await self._new_client(stack, SCHEDULER_AGENT)
        self._urls = await start_services(stack, services, self.ledger, folder)
        self.client = await self._new_client(stack, "slotwise-lab/user")
        await self._install_webhooks(self._urls)
        self.pods = follow_pods(await self._new_client(stack, "slotwise-lab/watch"))
        self.nodes = follow_nodes(self.client)
        self.kubelet = Kubelet(await self._new_client(stack, "kubelet/lab"), self.pods, self.nodes)
        self.scheduler = KubeScheduler(
            KubeSchedulerSettings(
                self._urls.extender, self.ledger.config.resources, SCHEDULER_NAME, self.settings.backoff
            ),
            await self._new_client(stack, "kube-scheduler/lab"),
            self.pods,
            self.nodes,
        )
        for part in (self.nodes, self.pods, self.kubelet, self.scheduler):
            await part.start()
            stack.push_async_callback(part.stop)
        self._session = await stack.enter_async_context(aiohttp.ClientSession())

    async def _new_client(self, stack: AsyncExitStack, agent: str) -> KubeClient:
        settings = ClientSettings(user_agent=agent, qps=0, connections=_CONNECTIONS)
        return await stack.enter_async_context(KubeClient(explicit_access(self.api.url), settings))

    async def _install_webhooks(self, urls: ServiceUrls) -> None:
        for resource, kind, name, path, policy in (
            (MUTATING_WEBHOOKS, "MutatingWebhookConfiguration", "vgpu.hami.io", "webhook", "Ignore"),
            (VALIDATING_WEBHOOKS, "ValidatingWebhookConfiguration", "validate.slotwise.io", "validate", "Fail"),
        ):
            hook: JsonObject = {
                "name": name,
                "clientConfig": {"url": f"{urls.webhook}/{path}", "caBundle": b64encode(urls.ca_pem).decode()},
                "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
                "admissionReviewVersions": ["v1"],
                "sideEffects": "NoneOnDryRun",
                "failurePolicy": policy,
                "timeoutSeconds": 10,
            }
            if resource is MUTATING_WEBHOOKS:
                hook["objectSelector"] = {
                    "matchExpressions": [{"key": "hami.io/webhook", "operator": "NotIn", "values": ["ignore"]}]
                }
            body: JsonObject = {
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": kind,
                "metadata": {"name": "slotwise"},
                "webhooks": [hook],
            }
            await self.client.create(resource, body)

    # --- what is done to it ---

    @property
    def address(self) -> str:
        """The API server's URL, for kubectl or a browser."""
        return self.api.url

    async def add_node(self, spec: NodeSpec) -> None:
        """Add a node; returns once its cards can be given away. Raises `LabError` if they never can."""
        await self.client.create(NODES, node_document(spec))
        await self._until(lambda: self.ledger.state(spec.name) is not None, f"node {spec.name} is offered")
        await self.nodes.wait_for(lambda: spec.name in self.nodes.objects, self.settings.settle_s)

    async def annotate_node(self, name: str, annotations: dict[str, str | None]) -> None:
        """Set annotations of a node, None to take one away; returns once the services have seen it."""
        stored = await self.client.patch_node(name, {"metadata": {"annotations": annotations}})
        wanted = {key: value for key, value in annotations.items() if value is not None}

        def seen() -> bool:
            node = self.ledger.node_object(name)
            held = node.annotations if node else {}
            return all(held.get(key) == wanted.get(key) for key in annotations)

        await self._until(seen, f"the services see node {name} at {stored.get('metadata')}")

    async def add_namespace(self, name: str) -> None:
        """Add a namespace unless it is there."""
        if self.api.get("namespaces", "", name) is None:
            await self.client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})

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

        def seen() -> bool:
            return any(
                (quota.namespace, quota.name) == (namespace, name)
                and {key: str(value) for key, value in quota.hard.items()} == hard
                for quota in self.ledger.quotas()
            )

        await self._until(seen, f"the services see quota {namespace}/{name}")

    async def create_pod(self, document: JsonObject, namespace: str) -> None:
        """Create a pod as a user would. Raises `ApiStatusError` with the text of a denial."""
        await self.client.create(PODS, document, namespace)

    async def delete_pod(self, namespace: str, name: str) -> None:
        """Delete a pod; returns once it is gone and its cards are free again."""
        pod = self.pod(namespace, name)
        await self.client.delete(PODS, name, namespace)
        uid = pod.uid if pod else ""
        await self.pods.wait_for(lambda: self.pod(namespace, name) is None, self.settings.settle_s)
        await self._until(lambda: self.ledger.holding(uid) is None, f"the cards of {namespace}/{name} are free")

    async def finish_pod(self, namespace: str, name: str) -> None:
        """End a pod's containers; returns once its cards are free again."""
        pod = self._known(namespace, name)
        await self.kubelet.finish(namespace, name)
        await self._until(lambda: self.ledger.holding(pod.uid) is None, f"the cards of {namespace}/{name} are free")

    async def finish_init(self, namespace: str, name: str) -> None:
        """End a pod's init containers; returns once the services have seen it."""
        pod = self._known(namespace, name)
        await self.kubelet.finish_init(namespace, name)

        def seen() -> bool:
            held = self.ledger.pod(pod.uid)
            return held is not None and held.status.phase == "Running"

        await self._until(seen, f"the services see the init containers of {namespace}/{name} end")

    # --- what can be seen of it ---

    def pod(self, namespace: str, name: str) -> Pod | None:
        """The pod as the lab's watch has shown it last."""
        seen = self.pods.objects.get(f"{namespace}/{name}")
        return seen.pod if seen else None

    def usage(self) -> tuple[CardUsage, ...]:
        """Every card with its tenants, from annotations alone."""
        return usage_of([seen.node for seen in self.nodes.objects.values()], self.all_pods())

    def violations(self) -> tuple[Violation, ...]:
        """Cards given away beyond what they have, from annotations alone."""
        return audit([seen.node for seen in self.nodes.objects.values()], self.all_pods())

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

    async def card_scores(self, namespace: str, name: str) -> dict[str, float]:
        """By UUID, the scores on the chosen node before the pod was placed. Raises `LabError` if the scheduler gives none."""
        try:
            cards = msgspec.convert(await self.decision(namespace, name), _Decision).cards
        except msgspec.ValidationError as error:
            raise LabError(f"the decision for {namespace}/{name} cannot be read: {error}") from error
        return {card.uuid: card.score for card in cards}

    async def decision(self, namespace: str, name: str) -> JsonObject:
        """The scheduler's own account of its last decision for a pod. Raises `LabError` if it gives none."""
        assert self._urls is not None
        async with self._session.get(f"{self._urls.views}/decisions/{namespace}/{name}") as response:
            if response.status != 200:
                raise LabError(f"no decision for {namespace}/{name}: {response.status} {await response.text()}")
            document: JsonObject = await response.json()
            return document

    def scheduler_writes(self) -> int:
        """Writes of the services stored by the API server, events left out."""
        return sum(
            count
            for key, count in self.api.requests.written.items()
            if key.user_agent == SCHEDULER_AGENT and key.resource != "events"
        )

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

    def _known(self, namespace: str, name: str) -> Pod:
        pod = self.pod(namespace, name)
        if pod is None:
            raise LabError(f"there is no pod {namespace}/{name}")
        return pod
