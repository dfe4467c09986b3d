"""What a request body may be: its size, its kind, and how long it may take to arrive."""

import asyncio

from aiohttp import hdrs, web

from serving.errors import (
    BadBodyError,
    BodyTimeoutError,
    BodyTooLargeError,
    UnsupportedMediaTypeError,
)

__all__ = ["BODY_TIMEOUT_S", "read_body", "read_json_body", "require_json"]

BODY_TIMEOUT_S = 60.0
"""Seconds a caller has to send its body (HAMi v2.10 wire contract: server limits)."""


async def read_body(request: web.Request, limit_bytes: int, *, timeout_s: float = BODY_TIMEOUT_S) -> bytes:
    """Return the whole body, at most `limit_bytes` long after decompression; empty if there is none.

    A body announced as too large is refused before any of it is read. Raises `BodyTooLargeError`, `BodyTimeoutError` or
    `BadBodyError`; a caller that hangs up meanwhile raises `ConnectionError`.
    """
    announced = request.content_length
    if announced is not None and announced > limit_bytes:
        raise BodyTooLargeError(f"request body too large: {announced} bytes, the limit is {_in_words(limit_bytes)}")
    if request.content.is_eof() and not request.content.exception():
        # All of it has come with the head, as most bodies do: there is nothing to wait for.
        whole = request.content.read_nowait()
        if len(whole) <= limit_bytes:
            return whole
        raise BodyTooLargeError(f"request body too large: the limit is {_in_words(limit_bytes)}")
    body = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            # Piece by piece, so that a body without Content-Length or one that unpacks to gigabytes stops at the limit.
            while chunk := await request.content.readany():
                body += chunk
                if len(body) > limit_bytes:
                    raise BodyTooLargeError(f"request body too large: the limit is {_in_words(limit_bytes)}")
    except TimeoutError as error:
        request.content.feed_eof()  # or aiohttp waits ten seconds more for the rest before it closes
        raise BodyTimeoutError(
            f"request body did not arrive within {timeout_s:g} s ({len(body)} bytes came)"
        ) from error
    except web.RequestPayloadError as error:
        request.content.feed_eof()  # or aiohttp reads on, and logs the same error as a fault of ours
        raise BadBodyError(f"request body is broken: {_one_line(error)}") from error
    return bytes(body)


def require_json(request: web.Request) -> None:
    """Raise `UnsupportedMediaTypeError` unless the request says `application/json`, with or without parameters."""
    declared = request.headers.get(hdrs.CONTENT_TYPE)
    if declared is None:
        raise UnsupportedMediaTypeError("no Content-Type: send application/json")
    if declared.partition(";")[0].strip().lower() != "application/json":
        raise UnsupportedMediaTypeError(f"Content-Type {declared!r} is not accepted: send application/json")


async def read_json_body(request: web.Request, limit_bytes: int, *, timeout_s: float = BODY_TIMEOUT_S) -> bytes:
    """`require_json`, then `read_body`; the bytes are not decoded here."""
    require_json(request)
    return await read_body(request, limit_bytes, timeout_s=timeout_s)


def _in_words(size_bytes: int) -> str:
    whole_mib, rest = divmod(size_bytes, 2**20)
    return f"{size_bytes} bytes ({whole_mib} MiB)" if whole_mib and not rest else f"{size_bytes} bytes"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).removeprefix("400, message:").split()) or type(error).__name__
