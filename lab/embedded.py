"""The embedded backend: API server, Slotwise's services and kube-scheduler in this process."""

import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from devices.kube.client import ClientSettings, KubeClient
from devices.kube.config import explicit_access
from devices.ledger import ADMITTED, Ledger
from lab.apiserver.server import ApiServer, ApiServerSettings
from lab.families import every_family
from lab.follow import Followed, SeenNode, SeenPod
from lab.kube_scheduler import KubeScheduler, KubeSchedulerSettings
from lab.scheduling_queue import Backoff
from lab.services import OWN_NAMESPACE, SCHEDULER_NAME, ServiceUrls, start_services
from lab.webhooks import embedded_configurations

__all__ = ["EmbeddedBackend"]

_SERVICES_AGENT: Final = "slotwise/lab"
"""How the services name themselves to the API server; their writes are counted by it."""
_CONNECTIONS: Final = 256


class EmbeddedBackend:
    """(Backend)"""

    lag_s = 0.0
    borrowed = False
    strangers: tuple[str, ...] = ()

    def __init__(self, backoff: Backoff, webhooks: int = 1, api: ApiServerSettings | None = None) -> None:
        self.api = ApiServer(api or ApiServerSettings())
        self.ledger = Ledger(every_family(), quota_counts=ADMITTED)
        self.ledgers: tuple[Ledger, ...] = (self.ledger,)
        self._backoff = backoff
        self._webhooks = webhooks
        self._urls: ServiceUrls | None = None

    @property
    def address(self) -> str:
        """(Backend)"""
        return self.api.url

    @property
    def views(self) -> str | None:
        """(Backend)"""
        return self._urls.views if self._urls else None

    @property
    def quotas(self) -> str | None:
        """(Backend)"""
        return self._urls.quotas if self._urls else None

    async def start(self, stack: AsyncExitStack) -> None:
        """(Backend)"""
        await self.api.start()
        stack.push_async_callback(self.api.stop)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slotwise-lab-")))
        services = await self.new_client(stack, _SERVICES_AGENT)
        self.api.put("namespaces", {"metadata": {"name": OWN_NAMESPACE}})
        more = [await self.new_client(stack, _SERVICES_AGENT) for _ in range(1, self._webhooks)]
        self._urls = await start_services(stack, services, self.ledger, folder, more)
        self.ledgers = self._urls.ledgers
        installer = await self.new_client(stack, "slotwise-lab/install")
        for resource, body in embedded_configurations(self.ledger.config, self._urls.webhook, self._urls.ca_pem):
            await installer.create(resource, body)

    async def new_client(self, stack: AsyncExitStack, agent: str) -> KubeClient:
        """(Backend)"""
        settings = ClientSettings(user_agent=agent, qps=0, connections=_CONNECTIONS)
        return await stack.enter_async_context(KubeClient(explicit_access(self.api.url), settings))

    async def start_scheduler(self, stack: AsyncExitStack, pods: Followed[SeenPod], nodes: Followed[SeenNode]) -> None:
        """(Backend)"""
        assert self._urls is not None
        settings = KubeSchedulerSettings(
            self._urls.extender, self.ledger.config.resources, SCHEDULER_NAME, self._backoff
        )
        scheduler = KubeScheduler(settings, await self.new_client(stack, "kube-scheduler/lab"), pods, nodes)
        await scheduler.start()
        stack.push_async_callback(scheduler.stop)

    async def ready_for_pods(self, client: KubeClient, namespace: str, timeout_s: float) -> None:
        """(Backend) At once: there are no service accounts here."""

    def scheduler_writes(self) -> int | None:
        """(Backend)"""
        return sum(
            count
            for key, count in self.api.requests.written.items()
            if key.user_agent == _SERVICES_AGENT and key.resource != "events"
        )
