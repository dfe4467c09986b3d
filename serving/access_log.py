"""One log line a request."""

import asyncio
import logging
from collections.abc import Collection
from time import perf_counter

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from serving.route import CALLER_GONE

__all__ = ["OUTCOME", "QUIET_PATHS", "access_log"]

OUTCOME = web.RequestKey("outcome", str)
"""`request[OUTCOME] = "node n2"`: what a handler wants its log line to say."""

QUIET_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})
"""Paths asked every few seconds; their good answers are logged at DEBUG."""

_OUTCOME_MAX = 1000
"""Characters: refusals quote what callers sent, which may be 256 KiB of annotation in every retry."""


def access_log(logger: logging.Logger, *, quiet_paths: Collection[str] = QUIET_PATHS) -> Middleware:
    """A middleware that writes method, path, status, milliseconds and the handler's outcome to `logger` at INFO.

    A caller that hung up before the answer is logged as 499. The path is logged as sent (percent-encoded, without
    the query), so that no caller can forge a line.
    """

    @web.middleware
    async def log(request: web.Request, handler: Handler) -> web.StreamResponse:
        began = perf_counter()
        status = 500
        try:
            response = await handler(request)
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
            path = request.rel_url.raw_path
            level = logging.DEBUG if path in quiet_paths and status < 400 else logging.INFO
            if logger.isEnabledFor(level):
                elapsed_ms = (perf_counter() - began) * 1000
                line = f"{request.method} {path} {status} {elapsed_ms:.1f}ms{_words(request.get(OUTCOME, ''))}"
                # `logger.log` would walk the stack for a place that is always this one, which costs more than the line.
                logger.handle(logging.LogRecord(logger.name, level, __file__, 0, line, (), None, log.__name__))

    return log


def _words(outcome: str) -> str:
    """The outcome on one line, with a space before it; nothing for none."""
    words = " ".join(outcome.split())
    if len(words) > _OUTCOME_MAX:
        words = words[: _OUTCOME_MAX - 1] + "…"
    return f" {words}" if words else ""
