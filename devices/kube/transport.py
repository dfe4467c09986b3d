"""One HTTP session to the API server: bounded time-outs, sockets that notice a dead peer, retries of reads.

A read is tried again while its time lasts; a write goes out once. Whatever the HTTP library raises leaves here as a
KubeError.
"""

import asyncio
import random as random_module
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlencode
from weakref import WeakSet

import aiohttp
from prometheus_client import CollectorRegistry
from yarl import URL

from devices.kube.config import ClusterAccess
from devices.kube.errors import (
    ApiStatusError,
    KubeError,
    NotSent,
    OutcomeUnknown,
    ServerError,
    TooManyRequests,
    Unauthorized,
    Unreachable,
    retry_after_s,
    status_error,
)
from devices.kube.metrics import KubeMetrics
from devices.kube.rate import TokenBucket

__all__ = ["Call", "ClientSettings", "Transport"]

_DEFAULT_TIMEOUT_S: Final = 30.0
_FIRST_RETRY_S: Final = 0.1
_LONGEST_RETRY_S: Final = 5.0
_GOODBYE_POLL_S: Final = 0.01
_GOODBYE_POLLS: Final = 100
# Below the 90 s after which the API server closes an idle connection: a write must not go out on one about to close.
_IDLE_CONNECTION_S: Final = 45.0
_ERROR_BODY_BYTES: Final = 64 * 1024


@dataclass(frozen=True)
class ClientSettings:
    """How the client behaves. Raises ValueError for a value that makes no sense."""

    user_agent: str
    """What the API server's logs and audit know us by, e.g. `slotwise-scheduler/0.1.0`."""
    timeout_s: float = 0.0
    """Longest time of one call with its retries; ≤ 0 (the default of `--kube-timeout`) means 30 s, never unbounded."""
    connect_timeout_s: float = 5.0
    """Longest wait for a connection from the pool or a new one, TLS included."""
    qps: float = 1000.0
    """Requests a second in the long run (`--kube-qps`); ≤ 0 switches the limit off."""
    burst: int = 2000
    """Requests at once before `qps` counts (`--kube-burst`)."""
    connections: int = 128
    """Most connections at a time; each watch holds one."""
    dead_peer_s: float = 15.0
    """A connection on which the peer acknowledges nothing for so long is given up."""

    def __post_init__(self) -> None:
        if not self.user_agent:
            raise ValueError("user_agent is empty: name the program and its version")
        if self.connect_timeout_s <= 0:
            raise ValueError(f"connect_timeout_s is {self.connect_timeout_s}: it must be above 0")
        if self.connections < 1:
            raise ValueError(f"connections is {self.connections}: it must be at least 1")
        if self.dead_peer_s < 1:
            raise ValueError(f"dead_peer_s is {self.dead_peer_s}: it must be at least 1")
        if self.qps > 0 and self.burst < 1:
            raise ValueError(f"burst is {self.burst}: with a qps of {self.qps} it must be at least 1")

    @property
    def longest_call_s(self) -> float:
        """`timeout_s` or what stands in for it."""
        return self.timeout_s if self.timeout_s > 0 else _DEFAULT_TIMEOUT_S


@dataclass(frozen=True)
class Call:
    """One request: `path` is quoted already, `resource` names it in metrics, no `timeout_s` means the settings' own."""

    verb: str
    resource: str
    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    content_type: str = "application/json"
    timeout_s: float | None = None
    before_send: Callable[[], None] | None = None

    def __str__(self) -> str:
        return f"{self.verb} {self.path}"


class _ReplyLostError(Exception):
    """The connection broke after the request may have left. No aiohttp error: aiohttp must not send it again."""


class Transport:
    """The session and its rules. Open until `close`; clock (monotonic seconds), sleep and random can be replaced."""

    def __init__(
        self,
        access: ClusterAccess,
        settings: ClientSettings,
        *,
        registry: CollectorRegistry | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        random: Callable[[], float] = random_module.random,
    ) -> None:
        self._access = access
        self._settings = settings
        self._metrics = KubeMetrics(registry)
        self._clock = clock
        self._sleep = sleep
        self._random = random
        self._bucket = TokenBucket(settings.qps, settings.burst, clock=clock, sleep=sleep)
        self._session: aiohttp.ClientSession | None = None
        self._sockets: WeakSet[socket.socket] = WeakSet()
        self._closed = False

    async def close(self) -> None:
        """Close every connection; calls under way fail with Unreachable or OutcomeUnknown."""
        self._closed = True
        if self._session is not None:
            await self._session.close()
            self._session = None
        # The connection of a call that was cancelled says goodbye over TLS, which the session does not wait for.
        for _ in range(_GOODBYE_POLLS):
            if all(one.fileno() < 0 for one in self._sockets):
                return
            await asyncio.sleep(_GOODBYE_POLL_S)

    async def read(self, call: Call) -> bytes:
        """The body of a successful answer.

        429, 5xx and connection errors are tried again with growing, jittered waits, or what Retry-After asks, as long
        as the call's time lasts. Raises Unreachable or an ApiStatusError: the last one seen.
        """
        ends_at = self._clock() + self._time_of(call)
        attempt = 0
        while True:
            try:
                return await self._once(call, ends_at - self._clock(), write=False)
            except (TooManyRequests, ServerError, Unreachable) as error:
                wait_s = self.backoff_s(attempt, error)
                if isinstance(error, NotSent) or self._closed or self._clock() + wait_s >= ends_at:
                    raise
                code = str(error.code) if isinstance(error, ApiStatusError) else "unreachable"
                self._metrics.retries.labels(call.resource, code).inc()
            attempt += 1
            await self._sleep(wait_s)

    async def write(self, call: Call) -> bytes:
        """The body of a successful answer; the request goes out once (after a 401, which did nothing, once more).

        Raises OutcomeUnknown where the write may have happened: reply lost, time-out, or any 5xx, since a proxy or a
        storage time-out looks like that, too. Unreachable and every other ApiStatusError mean that it has not.
        """
        return await self._once(call, self._time_of(call), write=True)

    @asynccontextmanager
    async def stream(self, call: Call) -> AsyncGenerator[aiohttp.ClientResponse]:
        """A successful answer whose body is read by the caller, for at most the call's time. Not tried again.

        Errors on the way through the body are the caller's to wrap with `unreachable`.
        """
        deadline_s = self._time_of(call)
        response = await self._open(call, deadline_s, self._clock() + deadline_s)
        try:
            yield response
        finally:
            # A stream is broken off more often than it ends: over TLS a polite goodbye would go on after the client is closed.
            if response.connection is not None and response.connection.transport is not None:
                response.connection.transport.abort()
            response.close()

    def backoff_s(self, attempt: int, error: KubeError | None = None) -> float:
        """Seconds to wait after failed attempt number `attempt` (from 0): doubling, capped, half of it random.

        A wait that the server asked for is kept in full.
        """
        grown = min(_LONGEST_RETRY_S, _FIRST_RETRY_S * 2.0 ** min(attempt, 30))
        wait_s = grown * (0.5 + 0.5 * self._random())
        asked = error.retry_after_s if isinstance(error, ApiStatusError) else None
        return wait_s if asked is None else max(wait_s, asked)

    def _time_of(self, call: Call) -> float:
        return self._settings.longest_call_s if call.timeout_s is None else call.timeout_s

    async def _once(self, call: Call, timeout_s: float, *, write: bool) -> bytes:
        ends_at = self._clock() + timeout_s
        started = self._clock()
        try:
            response = await self._open(call, timeout_s, ends_at, write=write)
            try:
                return await response.read()
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise self._no_answer(call, error, write=write) from error
            finally:
                response.release()
        except ServerError as error:
            if write:
                raise OutcomeUnknown(f"{call}: {error}") from error
            raise
        finally:
            self._metrics.seconds.labels(call.verb, call.resource).observe(self._clock() - started)

    async def _open(
        self, call: Call, timeout_s: float, ends_at: float, *, write: bool = False
    ) -> aiohttp.ClientResponse:
        """Wait for a token, send, and return the answer once its head says success; the body is still to be read."""
        if not await self._bucket.take(timeout_s):
            self._count(call, "not_sent")
            raise NotSent(f"{call}: held back by the client's own rate limit ({self._settings.qps:g} a second)")
        for last_try in (False, True):
            try:
                headers = await self._access.headers()
                return await self._send(call, headers, ends_at - self._clock(), write=write)
            except Unauthorized:
                if last_try or not await self._access.refused(headers):
                    raise
        raise AssertionError("the second try returns or raises")

    async def _send(self, call: Call, headers: dict[str, str], left_s: float, *, write: bool) -> aiohttp.ClientResponse:
        if left_s <= 0:
            self._count(call, "not_sent")
            raise NotSent(f"{call}: its time was up before it could be sent")
        session = self._open_session()
        if call.before_send is not None:
            call.before_send()
        if call.body is not None:
            headers["Content-Type"] = call.content_type
        url = self._access.host + call.path
        if call.query:
            url = f"{url}?{urlencode(call.query)}"
        try:
            response = await session.request(
                call.method,
                URL(url, encoded=True),
                data=call.body,
                headers=headers,
                proxy=self._access.proxy,
                server_hostname=self._access.server_hostname,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=left_s, connect=min(self._settings.connect_timeout_s, left_s)),
                middlewares=(_send_once,) if write else (),
            )
        except (aiohttp.ClientError, _ReplyLostError, TimeoutError, OSError) as error:
            raise self._no_answer(call, error, write=write) from error
        self._count(call, str(response.status))
        if 200 <= response.status < 300:
            return response
        try:
            body = await response.content.read(_ERROR_BODY_BYTES)
        except (aiohttp.ClientError, TimeoutError, OSError):
            body = b"the explanation was cut off"  # the status is known, and that is what decides
        finally:
            response.close()
        wait = retry_after_s(response.headers.get("Retry-After"), time.time())
        raise status_error(response.status, body, wait)

    def _open_session(self) -> aiohttp.ClientSession:
        if self._closed:
            raise Unreachable("the client is closed")
        if self._session is None:
            settings = self._settings
            connector = aiohttp.TCPConnector(
                limit=settings.connections,
                keepalive_timeout=_IDLE_CONNECTION_S,
                ssl=True if self._access.ssl_context is None else self._access.ssl_context,
                socket_factory=self._new_socket,
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                # Unpacking costs the event loop more than the bytes cost a cluster's own network.
                headers={
                    "User-Agent": settings.user_agent,
                    "Accept": "application/json",
                    "Accept-Encoding": "identity",
                },
            )
        return self._session

    def _new_socket(self, address: aiohttp.AddrInfoType) -> socket.socket:
        created = _watchful_socket(address, self._settings.dead_peer_s)
        self._sockets.add(created)
        return created

    def _no_answer(self, call: Call, error: Exception, *, write: bool) -> KubeError:
        sent = not isinstance(
            error,
            aiohttp.ClientConnectorError
            | aiohttp.ConnectionTimeoutError
            | aiohttp.ClientHttpProxyError
            | aiohttp.InvalidURL,
        )
        if write and sent:
            self._count(call, "unknown")
            return OutcomeUnknown(f"{call}: the reply was lost: {describe(error)}")
        self._count(call, "unreachable")
        return unreachable(str(call), error)

    def _count(self, call: Call, code: str) -> None:
        self._metrics.requests.labels(call.verb, call.resource, code).inc()


def unreachable(what: str, error: Exception) -> Unreachable:
    """The error for a read, or the rest of one, that got no answer."""
    return Unreachable(f"{what}: {describe(error)}")


def describe(error: BaseException) -> str:
    """A library's error in words; some have no text of their own."""
    if isinstance(error, _ReplyLostError) and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, TimeoutError):
        return str(error) or "timed out"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


async def _send_once(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Hide a broken connection from aiohttp, which sends PUT and DELETE a second time when one breaks."""
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:
        raise  # nothing was sent, and aiohttp does not try again
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise _ReplyLostError from error


def _watchful_socket(address: aiohttp.AddrInfoType, dead_peer_s: float) -> socket.socket:
    """A socket that notices within `dead_peer_s` seconds that the other side is gone, whether we send or wait.

    TCP_USER_TIMEOUT bounds unacknowledged data, keep-alive probes find a peer that died while a watch was quiet.
    """
    family, kind, protocol = address[0], address[1], address[2]
    created = socket.socket(family, kind, protocol)
    try:
        created.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        third = max(1, round(dead_peer_s / 3))
        # Linux names; elsewhere the system's own keep-alive times stand and the watch's quiet time does the rest.
        for option, value in (
            ("TCP_KEEPIDLE", third),
            ("TCP_KEEPINTVL", third),
            ("TCP_KEEPCNT", 2),
            ("TCP_USER_TIMEOUT", round(dead_peer_s * 1000)),
        ):
            if hasattr(socket, option):
                created.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        created.setblocking(False)
    except BaseException:
        created.close()
        raise
    return created
