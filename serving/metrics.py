"""The `/metrics` page, and counters for the requests themselves."""

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import choose_encoder

from serving.page import Blocks, packed, page

__all__ = ["REQUEST_BUCKETS_S", "RequestMetrics", "metrics_handler"]

REQUEST_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds in seconds: fine around a filter's 2 ms, and up to the 30 s a caller waits at most."""


def metrics_handler(registry: CollectorRegistry, blocks: Blocks | None = None) -> Handler:
    """A handler that shows `registry` and then `blocks` in the format the caller accepts; `?name[]=` limits it to the metrics named.

    The page is written piece by piece, so that a large one does not hold up decisions; a collector of one's own must not
    take long, since it is called on the event loop.
    """

    async def metrics(request: web.Request) -> web.StreamResponse:
        accept = ",".join(request.headers.getall(hdrs.ACCEPT, []))
        response = web.StreamResponse(headers={hdrs.CONTENT_TYPE: choose_encoder(accept)[1]})
        pieces = page(registry, accept, request.query.getall("name[]", []), blocks)
        if _takes_gzip(request):
            response.headers[hdrs.CONTENT_ENCODING] = "gzip"
            pieces = packed(pieces)
        await response.prepare(request)
        async for piece in pieces:
            await response.write(piece)
        await response.write_eof()
        return response

    return metrics


def _takes_gzip(request: web.Request) -> bool:
    """Left to itself aiohttp prefers deflate, which Prometheus does not read."""
    offered = ",".join(request.headers.getall(hdrs.ACCEPT_ENCODING, []))
    return any(coding.replace(" ", "").lower() in ("gzip", "gzip;q=1.0") for coding in offered.split(","))


class RequestMetrics:
    """Counts every request, by route and code, and times it by route; build it once a registry and share it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "slotwise_http_requests", "HTTP requests by route and answer.", ["route", "code"], registry=registry
        )
        self._seconds = Histogram(
            "slotwise_http_request_seconds",
            "Seconds from a request's head to its answer.",
            ["route"],
            registry=registry,
            buckets=REQUEST_BUCKETS_S,
        )
        # Looking a series up by its labels costs more than counting in it; there are few.
        self._by_answer: dict[tuple[str, int], Counter] = {}
        self._by_route: dict[str, Histogram] = {}

    def count(self, route: str, code: int, seconds: float) -> None:
        """Count one request; `code` 499 where the caller hung up before the answer, 500 for a fault of ours."""
        counted = self._by_answer.get((route, code))
        if counted is None:
            counted = self._by_answer[route, code] = self._requests.labels(route, str(code))
        timed = self._by_route.get(route)
        if timed is None:
            timed = self._by_route[route] = self._seconds.labels(route)
        counted.inc()
        timed.observe(seconds)
