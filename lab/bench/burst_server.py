"""The extender with a large cluster and an API server elsewhere, in a process of its own: `python -m lab.bench.burst_server NODES CARDS PODS API_URL`.

Its writes go out by the client that it has in a cluster. The API server keeps nothing, so what the pod watch would show of a Binding, the
pod as it is then, is put together here, and read as an event of the watch is. Prints one line of JSON with its ports when it listens;
ends when its standard input does.
"""

import asyncio
import gc
import json
import logging
import sys
import time
from collections.abc import Callable

import msgspec
import orjson

from devices.config import default_config
from devices.kube.client import ClientSettings, KubeClient
from devices.kube.config import ClusterAccess, explicit_access
from devices.kube.protocols import JsonObject
from devices.ledger import Ledger
from devices.objects import decode_pod
from lab.bench.synthetic import Size, fill
from scheduler.config import Settings
from scheduler.service import SchedulerService
from serving.server import Address, run, serve

__all__: list[str] = []


class _Seeing(KubeClient):
    """Shows the ledger every pod that it has bound."""

    def __init__(self, access: ClusterAccess, settings: ClientSettings, ledger: Ledger) -> None:
        super().__init__(access, settings)
        self._ledger = ledger

    async def bind(
        self,
        namespace: str,
        name: str,
        body: JsonObject,
        timeout_s: float,
        *,
        before_send: Callable[[], None] | None = None,
    ) -> None:
        await super().bind(namespace, name, body, timeout_s, before_send=before_send)
        metadata, target = body["metadata"], body["target"]
        assert isinstance(metadata, dict)
        assert isinstance(target, dict)
        pod = self._ledger.pod(metadata["uid"])
        assert pod is not None
        document = msgspec.to_builtins(pod)
        document["metadata"] |= {**metadata, "resourceVersion": "2"}
        document["spec"]["nodeName"] = target["name"]
        self._ledger.put_pod(decode_pod(orjson.dumps(document)), time.time())


async def _main(size: Size, url: str) -> None:
    ledger = Ledger(default_config())
    fill(ledger, size)
    gc.collect()
    gc.freeze()
    stop = asyncio.Event()

    async def end_of_input() -> None:
        await asyncio.to_thread(sys.stdin.read)
        stop.set()

    def bound(addresses: list[Address]) -> None:
        print(json.dumps({"port": addresses[0][1], "plain_port": addresses[1][1]}), flush=True)

    async with _Seeing(explicit_access(url), ClientSettings(user_agent="bench", qps=0), ledger) as client:
        settings = Settings(host="127.0.0.1", port=0, plain_host="127.0.0.1", plain_port=0)
        service = SchedulerService(settings, client, ledger)
        await service.start()
        watching = asyncio.create_task(end_of_input())
        try:
            await serve(service.listeners(), stop=stop, on_bound=bound, idle_grace_s=0.0, handle_signals=False)
        finally:
            await service.stop()
            await watching


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    run(_main(Size(*(int(argument) for argument in sys.argv[1:4])), sys.argv[4]))
