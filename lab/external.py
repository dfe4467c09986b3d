"""The external backend: a real API server with kube-scheduler and Slotwise in front of it, reached by a kubeconfig."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

import msgspec

from devices.kube.client import ClientSettings, KubeClient
from devices.kube.config import ClusterAccess, load_access
from devices.kube.errors import ConfigError, KubeError, NotFound
from devices.kube.feed import LedgerFeed
from devices.kube.resources import NODES, Resource
from devices.ledger import ADMITTED, Ledger
from lab.errors import LabError
from lab.families import every_family
from lab.follow import Followed, SeenNode, SeenPod
from lab.strangers import NodeAsFound

__all__ = ["ExternalBackend", "ExternalSettings"]

_SERVICE_ACCOUNTS: Final = Resource("serviceaccounts")
_START_S: Final = 30.0
_LOOK_S: Final = 0.05
_NAMES_SHOWN: Final = 3


@dataclass(frozen=True)
class ExternalSettings:
    """Which cluster, and how it is looked at."""

    kubeconfig: str
    """Whoever it belongs to may create and delete nodes, namespaces, quotas and pods, and write their status."""
    scheduler_url: str | None = None
    """Base address of the scheduler's read-only port; without it no step can ask for the scheduler's reasons."""
    lag_s: float = 0.5
    """How much later than the lab any other process of the cluster may see a change."""

    plugin_heartbeats: bool = True
    """Whether device plugins give signs of life, which make kube-scheduler try refused pods again."""


class _Nodes(msgspec.Struct):
    items: list[NodeAsFound]


class ExternalBackend:
    """(Backend) Its ledger is the lab's own, filled from watches alone: it shows what the services' books should say."""

    borrowed = True

    def __init__(self, settings: ExternalSettings) -> None:
        self.ledger = Ledger(every_family(), quota_counts=ADMITTED)
        self.ledgers: tuple[Ledger, ...] = (self.ledger,)
        self.lag_s = settings.lag_s
        self.strangers: tuple[str, ...] = ()
        self._settings = settings
        self._access: ClusterAccess | None = None

    @property
    def address(self) -> str:
        """(Backend)"""
        return self._access.host if self._access else ""

    @property
    def views(self) -> str | None:
        """(Backend)"""
        url = self._settings.scheduler_url
        return url.rstrip("/") if url else None

    @property
    def quotas(self) -> str | None:
        """(Backend)"""
        return None

    async def start(self, stack: AsyncExitStack) -> None:
        """(Backend) Nodes of its own have to be closed: nobody's node may get the lab's pods, which are none that could run."""
        try:
            self._access = await load_access(self._settings.kubeconfig)
            client = await self.new_client(stack, "slotwise-lab/observer")
            found = [node async for node in _nodes_there(client)]
        except (ConfigError, KubeError) as error:
            raise LabError(str(error)) from error
        self.strangers = tuple(node.metadata.name for node in found)
        if is_open := [node.metadata.name for node in found if not node.is_closed]:
            shown = ", ".join(is_open[:_NAMES_SHOWN]) + (", …" if len(is_open) > _NAMES_SHOWN else "")
            raise LabError(
                f"{self.address} has nodes that take pods ({shown}): the lab brings its own and needs all others closed, "
                "by a taint or `kubectl cordon`"
            )
        feed = LedgerFeed(client, self.ledger, time.time)
        await feed.start()
        stack.push_async_callback(feed.stop)
        try:
            async with asyncio.timeout(_START_S):
                await feed.wait_synced()
        except TimeoutError as error:
            raise LabError(f"{self.address} did not list its pods, nodes and quotas within {_START_S:g} s") from error

    async def new_client(self, stack: AsyncExitStack, agent: str) -> KubeClient:
        """(Backend)"""
        assert self._access is not None
        return await stack.enter_async_context(KubeClient(self._access, ClientSettings(user_agent=agent, qps=0)))

    async def start_scheduler(self, stack: AsyncExitStack, pods: Followed[SeenPod], nodes: Followed[SeenNode]) -> None:
        """(Backend) It runs already."""

    async def ready_for_pods(self, client: KubeClient, namespace: str, timeout_s: float) -> None:
        """(Backend) Pods are refused until the controllers have given the namespace its service account."""
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    try:
                        await client.get(_SERVICE_ACCOUNTS, "default", namespace)
                        return
                    except NotFound:
                        await asyncio.sleep(_LOOK_S)
        except TimeoutError as error:
            raise LabError(f"namespace {namespace} has no service account after {timeout_s:g} s") from error

    def scheduler_writes(self) -> int | None:
        """(Backend) The API server's audit log has them, and that is not ours to read."""
        return None


async def _nodes_there(client: KubeClient) -> AsyncGenerator[NodeAsFound]:
    async for page in client.list_pages(NODES):
        for node in msgspec.json.decode(page.raw, type=_Nodes).items:
            yield node
