"""An aiohttp application with the answers and counters every listener of ours has."""

import logging

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from serving.access_log import OUTCOME, access_log
from serving.errors import BadBodyError, BodyTimeoutError, RequestError
from serving.metrics import RequestMetrics
from serving.route import CALLER_GONE

__all__ = ["answer_errors", "new_app"]

logger = logging.getLogger(__name__)


def new_app(*, client_max_size: int, metrics: RequestMetrics, log: logging.Logger) -> web.Application:
    """An application without routes: one line a request to `log`, counts in `metrics`, errors in plain text.

    `client_max_size` (bytes) is what aiohttp's own body readers accept; `serving.limits` takes its own limit a call.
    Applications that share a registry share one `RequestMetrics`.
    """
    # Outermost first: the log and the counters see the answer that errors were turned into.
    return web.Application(
        client_max_size=client_max_size,
        middlewares=[access_log(log), metrics.middleware(), answer_errors],
    )


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn what a handler raises into one line of plain text.

    A refused request gets its own status and text, an unknown path 404, a wrong method 405 with the ones allowed.
    Anything else is a fault of ours: logged once with its traceback, answered 500 without a word about the inside.
    """
    try:
        return await handler(request)
    except RequestError as refusal:
        response = _text(refusal.status, str(refusal))
        if isinstance(refusal, BodyTimeoutError | BadBodyError):
            response.force_close()  # where the next request would begin is not known
        request.setdefault(OUTCOME, str(refusal))
        return response
    except web.HTTPMethodNotAllowed as answer:
        allowed = ", ".join(sorted(answer.allowed_methods))
        response = _text(405, f"{request.method} is not allowed on {request.rel_url.raw_path}: use {allowed}")
        response.headers[hdrs.ALLOW] = allowed
        return response
    except web.HTTPNotFound:
        return _text(404, f"no such path: {request.rel_url.raw_path}")
    except web.HTTPException:
        raise
    except Exception as error:
        if isinstance(error, ConnectionError) and _caller_gone(request):
            return web.Response(status=CALLER_GONE)  # for log and counters; nobody receives it
        logger.exception("%s %s failed", request.method, request.rel_url.raw_path)
        if request.writer.output_size > 0:
            # Part of an answer has gone out already: cut the connection, so that nobody takes it for a whole one.
            request.protocol.force_close()
        return _text(500, "internal error, see the log of this process")


def _caller_gone(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()


def _text(status: int, line: str) -> web.Response:
    return web.Response(status=status, text=f"{line}\n")
