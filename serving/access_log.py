"""One log line a request."""

import logging

from aiohttp import web

__all__ = ["OUTCOME", "QUIET_PATHS", "write_line"]

OUTCOME = web.RequestKey("outcome", str)
"""`request[OUTCOME] = "node n2"`: what a handler wants its log line to say."""

QUIET_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})
"""Paths asked every few seconds; their good answers are logged at DEBUG."""

_OUTCOME_MAX = 1000
"""Characters: refusals quote what callers sent, which may be 256 KiB of annotation in every retry."""


def write_line(
    logger: logging.Logger, method: str, path: str, status: int, elapsed_s: float, outcome: str = ""
) -> None:
    """Write method, path, status, milliseconds and the handler's outcome to `logger` at INFO.

    The path has to be as sent (percent-encoded) and without the query, so that no caller can forge a line.
    """
    level = logging.DEBUG if path in QUIET_PATHS and status < 400 else logging.INFO
    if logger.isEnabledFor(level):
        line = f"{method} {path} {status} {elapsed_s * 1000:.1f}ms{_words(outcome)}"
        # `logger.log` would walk the stack for a place that is always this one, which costs more than the line; a path has its parts
        # looked for.
        logger.handle(logging.LogRecord(logger.name, level, "", 0, line, None, None, write_line.__name__))


def _words(outcome: str) -> str:
    """The outcome on one line, with a space before it; nothing for none."""
    words = " ".join(outcome.split())
    if len(words) > _OUTCOME_MAX:
        words = words[: _OUTCOME_MAX - 1] + "…"
    return f" {words}" if words else ""
