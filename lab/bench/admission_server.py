"""The webhook under load, in a process of its own: `python -m lab.bench.admission_server CERTIFICATE KEY`.

It is the service that users run, over TLS and with its log at the level it has by default, written to where standard error leads. Beside
its routes, `/floor` decodes the same request and gives a fixed answer. The ledger knows a few nodes and no limit.
Prints one line of JSON with its ports when it listens; ends when its standard input does.
"""

import asyncio
import gc
import json
import logging
import sys
from pathlib import Path

import orjson
from aiohttp import web

from devices.config import default_config
from devices.ledger import Ledger
from devices.objects import node_of
from lab.bench.synthetic import node_document
from serving.limits import read_json_body
from serving.log import start_log
from serving.server import Address, run, serve
from webhook.config import Settings
from webhook.handlers import BODY_LIMIT_BYTES
from webhook.service import WebhookService

__all__: list[str] = []

_NODES = 10
_CARDS = 8
_FIXED = orjson.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": {"allowed": True}})


async def _floor(request: web.Request) -> web.Response:
    orjson.loads(await read_json_body(request, BODY_LIMIT_BYTES))
    return web.Response(body=_FIXED, content_type="application/json")


async def _main(certificate: Path, key: Path) -> None:
    ledger = Ledger(default_config())
    for number in range(_NODES):
        ledger.put_node(node_of(node_document(number, _CARDS)))
    settings = Settings(
        host="127.0.0.1", port=0, plain_host="127.0.0.1", plain_port=0, cert_file=certificate, key_file=key
    )
    service = WebhookService(settings, ledger)
    listeners = service.listeners()
    listeners[0].app.router.add_post("/floor", _floor)
    gc.collect()
    gc.freeze()
    stop = asyncio.Event()

    async def end_of_input() -> None:
        await asyncio.to_thread(sys.stdin.read)
        stop.set()

    def bound(addresses: list[Address]) -> None:
        print(json.dumps({"port": addresses[0][1], "plain_port": addresses[1][1]}), flush=True)

    await service.start()
    watching = asyncio.create_task(end_of_input())
    try:
        await serve(listeners, stop=stop, on_bound=bound, idle_grace_s=0.0, handle_signals=False)
    finally:
        await service.stop()
        await watching


if __name__ == "__main__":
    start_log(logging.INFO)
    run(_main(Path(sys.argv[1]), Path(sys.argv[2])))
