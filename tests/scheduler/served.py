"""The extender served over real HTTP on loopback, with the world's API server behind it."""

import asyncio
import io
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import orjson
from prometheus_client import CollectorRegistry

from devices.config import DeviceConfig
from devices.ledger import Ledger
from devices.objects import Node, Pod, node_of, pod_of
from scheduler.config import Settings
from scheduler.service import SchedulerService
from tests.scheduler.builders import CONFIG, Api
from tests.serving.running import Running, running

LOCAL: dict[str, Any] = {"host": "127.0.0.1", "port": 0, "plain_host": "127.0.0.1", "plain_port": 0}


class Feed:
    """What says how the ledger stands; `complete()` ends the waiting."""

    def __init__(self, why: str | None = None) -> None:
        self.why = why
        self.pod_changed: list[Callable[[str], None]] = []
        self.node_changed: list[Callable[[str], None]] = []
        self.node_gone: list[Callable[[str], None]] = []
        self._synced = asyncio.Event()
        self.waiting = asyncio.Event()
        if why is None:
            self._synced.set()

    def reason(self) -> str | None:
        return self.why

    async def wait_synced(self) -> None:
        self.waiting.set()
        await self._synced.wait()

    def complete(self) -> None:
        self.why = None
        self._synced.set()


class Served:
    """A running service and what is around it."""

    def __init__(self, service: SchedulerService, api: Api, ledger: Ledger, server: Running) -> None:
        self.service = service
        self.api = api
        self.ledger = ledger
        self.server = server
        self.session = aiohttp.ClientSession()

    async def post(self, path: str, body: object, *, listener: int = 0) -> tuple[int, Any]:
        """Status, and the answer as JSON or text. Bytes go out as they are."""
        data = body if isinstance(body, bytes) else orjson.dumps(body)
        headers = {"Content-Type": "application/json"}
        url = self.server.url(path, listener=listener)
        async with self.session.post(url, data=io.BytesIO(data), headers=headers) as answer:
            shown = await answer.read()
            is_json = answer.content_type == "application/json"
            return answer.status, orjson.loads(shown) if is_json else shown.decode()

    async def get(self, path: str, *, listener: int = 1) -> tuple[int, Any]:
        async with self.session.get(self.server.url(path, listener=listener)) as answer:
            shown = await answer.read()
            is_json = answer.content_type == "application/json"
            return answer.status, orjson.loads(shown) if is_json else shown.decode()

    def put_pod(self, pod: Pod) -> Any:
        self.api.put_pod(msgspec.to_builtins(pod))
        return self.api.pods[pod.namespace, pod.name]

    def books(self) -> tuple[object, ...]:
        """Everything the ledger knows, to compare before and after."""
        pods = {p.uid: (self.ledger.reservation(p.uid), self.ledger.holding(p.uid)) for p in self.ledger.pods()}
        return self.ledger.version, pods, self.ledger.namespaces()

    async def said(self, count: int) -> list[str]:
        """Messages of the Events once there are so many."""
        async with asyncio.timeout(10):
            while len(self.api.events) < count:  # noqa: ASYNC110 - the sender announces nothing
                await asyncio.sleep(0.005)
        return [str(event["message"]) for event in self.api.events]


@asynccontextmanager
async def served(
    *nodes: Node, config: DeviceConfig = CONFIG, feed: Feed | None = None, **settings: object
) -> AsyncIterator[Served]:
    """The service with these nodes known."""
    api, ledger = Api(), Ledger(config)
    api.on_pod = lambda document: ledger.put_pod(pod_of(document), 0.0)
    api.on_node = lambda document: ledger.put_node(node_of(document))
    service = SchedulerService(
        Settings(**{**LOCAL, **settings}),
        api,
        ledger,
        feed,  # type: ignore[arg-type]  # a stand-in with what the service uses
        registry=CollectorRegistry(),
    )
    for node in nodes:
        api.put_node(msgspec.to_builtins(node))
    await service.start()
    try:
        async with running(service.listeners(), drain=service.drain, drain_timeout_s=1) as server:
            one = Served(service, api, ledger, server)
            try:
                yield one
            finally:
                await one.session.close()
    finally:
        await service.stop()


def filter_args(pod: Pod, *names: str) -> dict[str, object]:
    return {"Pod": msgspec.to_builtins(pod), "Nodes": None, "NodeNames": list(names)}


def with_nodes(pod: Pod, nodes: Sequence[Node]) -> dict[str, object]:
    return {"Pod": msgspec.to_builtins(pod), "Nodes": {"items": [msgspec.to_builtins(n) for n in nodes]}}


def bind_args(pod: Pod, node: str) -> dict[str, str]:
    return {"PodName": pod.name, "PodNamespace": pod.namespace, "PodUID": pod.uid, "Node": node}
