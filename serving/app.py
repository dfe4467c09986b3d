"""An aiohttp application with the answers and counters every listener of ours has."""

import asyncio
import logging
from time import perf_counter

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware

from serving.access_log import OUTCOME, write_line
from serving.errors import BadBodyError, BodyTimeoutError, RequestError
from serving.metrics import RequestMetrics
from serving.quick import QUICK, QuickRoutes
from serving.route import CALLER_GONE, route_of

__all__ = ["new_app"]

logger = logging.getLogger(__name__)


def new_app(*, client_max_size: int, metrics: RequestMetrics, log: logging.Logger) -> web.Application:
    """An application without routes: one line a request to `log`, counts in `metrics`, errors in plain text.

    `client_max_size` (bytes) is what aiohttp's own body readers accept; `serving.limits` takes its own limit a call.
    Applications that share a registry share one `RequestMetrics`.
    """
    app = web.Application(client_max_size=client_max_size, middlewares=[_around(metrics, log)])
    app[QUICK] = QuickRoutes(metrics, log)
    return app


def _around(metrics: RequestMetrics, log: logging.Logger) -> Middleware:
    """All that is around a handler, in one middleware because every further one costs each request its share.

    Log and counters see the answer that errors were turned into. A caller that hangs up before the answer is logged and counts as 499.
    """

    @web.middleware
    async def around(request: web.Request, handler: Handler) -> web.StreamResponse:
        began = perf_counter()
        status = 500
        try:
            try:
                response = await handler(request)
            except Exception as error:
                response = _answer_to(error, request)
            status = response.status
        except web.HTTPException as answer:
            status = answer.status
            raise
        except asyncio.CancelledError:
            status = CALLER_GONE
            raise
        else:
            return response
        finally:
            elapsed_s = perf_counter() - began
            metrics.count(route_of(request), status, elapsed_s)
            write_line(log, request.method, request.rel_url.raw_path, status, elapsed_s, request.get(OUTCOME, ""))

    return around


def _answer_to(error: Exception, request: web.Request) -> web.StreamResponse:
    """What a handler raised as one line of plain text.

    A refused request gets its own status and text, an unknown path 404, a wrong method 405 with the ones allowed.
    Anything else is a fault of ours: logged once with its traceback, answered 500 without a word about the inside.
    """
    match error:
        case RequestError():
            response = _text(error.status, str(error))
            if isinstance(error, BodyTimeoutError | BadBodyError):
                response.force_close()  # where the next request would begin is not known
            request.setdefault(OUTCOME, str(error))
            return response
        case web.HTTPMethodNotAllowed():
            allowed = ", ".join(sorted(error.allowed_methods))
            response = _text(405, f"{request.method} is not allowed on {request.rel_url.raw_path}: use {allowed}")
            response.headers[hdrs.ALLOW] = allowed
            return response
        case web.HTTPNotFound():
            return _text(404, f"no such path: {request.rel_url.raw_path}")
        case web.HTTPException():
            raise error
        case ConnectionError() if _caller_gone(request):
            return web.Response(status=CALLER_GONE)  # for log and counters; nobody receives it
    logger.error("%s %s failed", request.method, request.rel_url.raw_path, exc_info=error)
    if request.writer.output_size > 0:
        # Part of an answer has gone out already: cut the connection, so that nobody takes it for a whole one.
        request.protocol.force_close()
    return _text(500, "internal error, see the log of this process")


def _caller_gone(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()


def _text(status: int, line: str) -> web.Response:
    return web.Response(status=status, text=f"{line}\n")
