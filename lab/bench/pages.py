"""An API server that does nothing but hand out what was encoded beforehand: `python -m lab.bench.pages NODES CARDS PODS PAGE_SIZE`.

It lists nodes, pods and ResourceQuotas in pages, with continue tokens as Kubernetes has them, and its watches say nothing: a client
that follows it shows what the client costs. Prints one line of JSON with its port and how many bytes the pages have; ends when its standard input does.
"""

import asyncio
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import orjson
from aiohttp import web

from lab.bench.synthetic import JsonObject, Size, documents, node_documents, quota_document, with_kubernetes_fields
from serving.server import run

__all__ = ["REVISION", "pages_of"]

REVISION = 1_000_000
"""Of every list."""
PATHS = {"nodes": "/api/v1/nodes", "pods": "/api/v1/pods", "resourcequotas": "/api/v1/resourcequotas"}


def pages_of(kind: str, items: Iterable[JsonObject], page_size: int) -> list[bytes]:
    """The List objects of `kind`, `page_size` objects each: every page but the last names the next one's number as its token."""
    numbered = iter(items)
    chunks: list[list[bytes]] = []
    while chunk := [orjson.dumps(item) for item in islice(numbered, page_size)]:
        chunks.append(chunk)
    chunks = chunks or [[]]
    return [_page(kind, chunk, str(number) if number < len(chunks) else "") for number, chunk in enumerate(chunks, 1)]


def _page(kind: str, items: Sequence[bytes], token: str) -> bytes:
    metadata = {"resourceVersion": str(REVISION), **({"continue": token} if token else {})}
    return b'{"kind":"%s","apiVersion":"v1","metadata":%s,"items":[%s]}' % (
        kind.encode(),
        orjson.dumps(metadata),
        b",".join(items),
    )


def _revised(items: Iterable[JsonObject]) -> Iterator[JsonObject]:
    for number, item in enumerate(items, 1):
        metadata = item["metadata"]
        assert isinstance(metadata, dict)
        metadata["resourceVersion"] = str(number)
        yield item


def _all_pages(size: Size, page_size: int) -> dict[str, list[bytes]]:
    return {
        PATHS["nodes"]: pages_of("NodeList", _revised(node_documents(size)), page_size),
        PATHS["pods"]: pages_of("PodList", _revised(map(with_kubernetes_fields, documents(size))), page_size),
        PATHS["resourcequotas"]: pages_of("ResourceQuotaList", _revised([quota_document()]), page_size),
    }


async def _main(size: Size, page_size: int) -> None:
    pages = _all_pages(size, page_size)
    stop = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.query.get("watch") == "true":
            return await _silence(request, stop)
        number = int(request.query.get("continue", "0"))
        return web.Response(body=pages[request.path][number], content_type="application/json")

    app = web.Application()
    app.add_routes([web.get(path, answer) for path in PATHS.values()])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(
        json.dumps(
            {"port": runner.addresses[0][1], "bytes": sum(len(page) for listed in pages.values() for page in listed)}
        ),
        flush=True,
    )
    await asyncio.to_thread(sys.stdin.read)
    stop.set()
    await runner.cleanup()


async def _silence(request: web.Request, stop: asyncio.Event) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    await stop.wait()
    return response


if __name__ == "__main__":
    run(_main(Size(*(int(argument) for argument in sys.argv[1:4])), int(sys.argv[4])))
