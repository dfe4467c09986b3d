"""The HTTP side: one handler that authenticates, applies faults, dispatches and answers."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import orjson
from aiohttp import web

from . import discovery, errors
from .documents import JsonObject, mapping, text
from .errors import ApiError
from .faults import Faults, RequestFault
from .hooks import User
from .locate import Meaning, dry_run, duration_s, meaning, whole_number
from .operations import Caller, DeleteOptions, Target, Written
from .reads import Reader, list_body
from .resources import Resource
from .store import Store, Version
from .watch import Sleep, WatchHub
from .writes import Writer

log = logging.getLogger(__name__)

_OPTIONS_KIND = {
    "create": "CreateOptions",
    "update": "UpdateOptions",
    "patch": "PatchOptions",
    "delete": "DeleteOptions",
    "deletecollection": "DeleteOptions",
}


class RequestKey(NamedTuple):
    """What requests are counted by."""

    verb: str
    resource: str
    """Plural name."""
    subresource: str
    user_agent: str


@dataclass(slots=True)
class RequestCounts:
    """Requests since the start."""

    received: Counter[RequestKey] = field(default_factory=Counter)
    """All that reached the API, whatever the answer."""
    written: Counter[RequestKey] = field(default_factory=Counter)
    """Writes that were stored; not dry runs, not those that changed nothing."""


@dataclass(frozen=True, slots=True)
class FrontendSettings:
    """How the HTTP side behaves."""

    git_version: str
    bookmark_interval_s: float
    max_body_bytes: int


class Frontend:
    """Turns HTTP requests into reads and writes.

    Args:
        tokens: bearer token to user name; None lets everybody in as anonymous.
        sleep: waits out the delays of faults.
    """

    def __init__(
        self,
        settings: FrontendSettings,
        store: Store,
        reader: Reader,
        writer: Writer,
        hub: WatchHub,
        faults: Faults,
        tokens: Mapping[str, str] | None,
        sleep: Sleep,
    ) -> None:
        self._settings = settings
        self._store = store
        self._reader = reader
        self._writer = writer
        self._hub = hub
        self._faults = faults
        self._sleep = sleep
        self._users = (
            None
            if tokens is None
            else {f"Bearer {token}": User(name, ("system:authenticated",)) for token, name in tokens.items()}
        )
        self._anonymous = User("system:anonymous", ("system:unauthenticated",))
        self.counts = RequestCounts()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request; every error is a Status."""
        try:
            return await self._handle(request)
        except ApiError as error:
            return _error_response(error)
        except web.HTTPRequestEntityTooLarge:
            return _error_response(errors.too_large_body(self._settings.max_body_bytes))
        except Exception as error:  # the last place where a fault of ours can still become an answer
            log.exception("%s %s failed", request.method, request.path)
            return _error_response(errors.internal(repr(error)))

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        path = request.path.rstrip("/") or "/"
        if path in discovery.HEALTH_PATHS:
            return web.Response(text="ok")
        user = self._authenticate(request)
        if request.method == "GET":
            document = discovery.document(path, self._settings.git_version)
            if document is not None:
                return _json(200, orjson.dumps(document))
        query: Mapping[str, str] = request.query if request.query_string else {}
        asked = meaning(request.method, path, query)
        key = RequestKey(
            asked.verb,
            asked.target.resource.plural,
            asked.target.subresource,
            request.headers.get("User-Agent", ""),
        )
        self.counts.received[key] += 1
        timeout_s = duration_s(query, "timeout") if asked.verb != "watch" else None
        try:
            async with asyncio.timeout(timeout_s):
                return await self._with_faults(request, asked, query, user, key)
        except TimeoutError as error:
            message = "Timeout: request did not complete within the requested timeout"
            raise ApiError(504, "Timeout", message, {"retryAfterSeconds": 0}) from error

    async def _with_faults(
        self, request: web.Request, asked: Meaning, query: Mapping[str, str], user: User, key: RequestKey
    ) -> web.StreamResponse:
        fault = self._faults.take_request(key.verb, key.resource, key.subresource)
        if fault is None:
            return await self._dispatch(request, asked, query, user, key)
        if fault.delay_s:
            await self._sleep(fault.delay_s)
        if fault.answer_code is not None:
            raise _fault_error(fault, asked.target)
        response = await self._dispatch(request, asked, query, user, key)
        if fault.lose_reply and request.transport is not None:
            request.transport.abort()
        return response

    def _authenticate(self, request: web.Request) -> User:
        if self._users is None:
            return self._anonymous
        user = self._users.get(request.headers.get("Authorization", ""))
        if user is None:
            raise errors.unauthorized()
        return user

    async def _dispatch(
        self, request: web.Request, asked: Meaning, query: Mapping[str, str], user: User, key: RequestKey
    ) -> web.StreamResponse:
        target = asked.target
        match asked.verb:
            case "get":
                return _json(200, self._reader.get(target))
            case "list":
                return _json(200, self._reader.list_page(target, query))
            case "watch":
                return await self._watch(request, target, query)
        body = await request.read()
        options = _read_delete_options(body, query) if asked.verb.startswith("delete") else DeleteOptions()
        caller = Caller(
            user,
            # Options of a delete stand in its body or in its query: with a body nobody reads the query.
            dry_run({} if options.document else query, _OPTIONS_KIND[asked.verb], options.document.get("dryRun") or []),
            query.get("fieldManager", ""),
        )
        if asked.verb == "deletecollection":
            return await self._delete_collection(target, query, caller, options, key)
        written = await self._write(request, asked, caller, options, body)
        if written.changed:
            self.counts.written[key] += 1
        return _written_response(written)

    async def _write(
        self, request: web.Request, asked: Meaning, caller: Caller, options: DeleteOptions, body: bytes
    ) -> Written:
        target = asked.target
        match asked.verb:
            case "create" if target.subresource == "binding" or target.resource.kind == "Binding":
                return await self._writer.bind(target, caller, _read_object(request, body, target.resource, "Binding"))
            case "create":
                return await self._writer.create(target, caller, _read_object(request, body, target.resource))
            case "update":
                return await self._writer.update(target, caller, _read_object(request, body, target.resource))
            case "patch":
                return await self._writer.patch(target, caller, request.content_type, body)
        return await self._writer.delete(target, caller, options)

    async def _watch(self, request: web.Request, target: Target, query: Mapping[str, str]) -> web.StreamResponse:
        timeout_s = whole_number(query, "timeoutSeconds")
        return await self._hub.stream(
            request,
            self._reader.watcher(target, query),
            timeout_s=timeout_s or None,
            bookmark_interval_s=self._settings.bookmark_interval_s,
            revision=lambda: self._store.revision,
            sleep=self._sleep,
        )

    async def _delete_collection(
        self, target: Target, query: Mapping[str, str], caller: Caller, options: DeleteOptions, key: RequestKey
    ) -> web.Response:
        deleted: list[Version] = []
        for version in self._reader.select(target, query):
            name = version.obj["metadata"]["name"]
            one = Target(target.resource, target.namespace, name)
            try:
                written = await self._writer.delete(one, caller, options)
            except ApiError as error:
                if error.code == 404:
                    continue  # gone meanwhile, which is what was asked for
                raise
            deleted.append(written.version or version)
            if written.changed:
                self.counts.written[key] += 1
        return _json(200, list_body(target.resource, {"resourceVersion": str(self._store.revision)}, deleted))


def _json(code: int, body: bytes) -> web.Response:
    return web.Response(status=code, body=body, content_type="application/json")


def _written_response(written: Written) -> web.Response:
    if written.status is not None:
        body = orjson.dumps(written.status)
    else:
        assert written.version is not None
        body = written.version.raw
    response = _json(201 if written.created else 200, body)
    for warning in written.warnings:
        escaped = warning.replace("\\", "\\\\").replace('"', '\\"').replace("\r", " ").replace("\n", " ")
        response.headers.add("Warning", f'299 - "{escaped}"')
    return response


def _error_response(error: ApiError) -> web.Response:
    response = _json(error.code, orjson.dumps(error.status))
    if error.retry_after_s:
        response.headers["Retry-After"] = str(error.retry_after_s)
    return response


def _fault_error(fault: RequestFault, target: Target) -> ApiError:
    wait = {"retryAfterSeconds": fault.retry_after_s} if fault.retry_after_s else None
    match fault.answer_code:
        case 409:
            return errors.conflict(target.resource, target.name, errors.OPTIMISTIC_LOCK)
        case 429:
            message = "Too many requests, please try again later."
            return ApiError(429, "TooManyRequests", message, wait or {"retryAfterSeconds": 1})
        case 503:
            return ApiError(503, "ServiceUnavailable", "apiserver is shutting down", wait)
        case 504:
            return ApiError(504, "Timeout", "Timeout: request did not complete within the allotted timeout", wait)
    return ApiError(500, "InternalError", "Internal error occurred: etcdserver: request timed out", wait)


def _read_object(request: web.Request, body: bytes, resource: Resource, kind: str = "") -> JsonObject:
    if request.content_type not in ("application/json", "application/octet-stream"):
        raise errors.unsupported_media_type(("application/json",))
    kind = kind or resource.kind
    try:
        obj = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        message = f"the object provided is unrecognized (must be of type {kind}): couldn't get version/kind: {error}"
        raise errors.bad_request(message) from error
    if not isinstance(obj, dict):
        raise errors.bad_request(f"the object provided is unrecognized (must be of type {kind}): not an object")
    sent_kind, sent_version = text(obj.get("kind")), text(obj.get("apiVersion"))
    if sent_kind and sent_kind != kind:
        version = sent_version.rpartition("/")[2]
        raise errors.bad_request(
            f'{sent_kind} in version "{version}" cannot be handled as a {kind}: converting (v1.{sent_kind}) to '
            f"(core.{kind}): unknown conversion"
        )
    if sent_version and sent_version != resource.api_version:
        raise errors.bad_request(
            f"the API version in the data ({sent_version}) does not match the expected API version "
            f"({resource.api_version})"
        )
    obj["kind"], obj["apiVersion"] = kind, resource.api_version
    return obj


def _read_delete_options(body: bytes, query: Mapping[str, str]) -> DeleteOptions:
    if not body:
        return DeleteOptions(grace_period_s=whole_number(query, "gracePeriodSeconds"))
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise errors.bad_request(f"couldn't get version/kind; json parse error: {error}") from error
    if not isinstance(document, dict):
        raise errors.bad_request("decoded object cannot be converted to DeleteOptions")
    preconditions = mapping(document.get("preconditions"))
    grace_period_s = document.get("gracePeriodSeconds")
    if grace_period_s is not None and not isinstance(grace_period_s, int):
        raise errors.bad_request(f"gracePeriodSeconds is {grace_period_s!r}; a whole number is accepted")
    return DeleteOptions(
        grace_period_s=grace_period_s,
        uid=preconditions.get("uid"),
        resource_version=preconditions.get("resourceVersion"),
        document={"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1", **document},
    )
