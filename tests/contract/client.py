"""A bare HTTP client for the contract: methods, JSON, and lines of a watch."""

from __future__ import annotations

import asyncio
import io
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
PATIENCE_S = 10.0
"""How long anything may take that has to come; only a failing test waits so long."""


@dataclass(frozen=True)
class Api:
    """Where the API server under test is and how to get in."""

    base_url: str
    headers: Mapping[str, str]
    ssl_context: ssl.SSLContext | None


@dataclass(frozen=True)
class Answer:
    code: int
    body: dict[str, Any]
    warnings: list[str]


class Watch:
    """An open watch: events one by one."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def next(self) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE_S):
            line = await self._response.content.readline()
        assert line, "the watch ended although an event was expected"
        event: dict[str, Any] = orjson.loads(line)
        return event

    async def take(self, count: int) -> list[tuple[str, str]]:
        """Return type and name of the next events."""
        events = [await self.next() for _ in range(count)]
        return [(event["type"], event["object"]["metadata"]["name"]) for event in events]

    async def rest(self) -> list[dict[str, Any]]:
        """Return what comes until the server ends the watch."""
        async with asyncio.timeout(PATIENCE_S):
            body = await self._response.content.read()
        return [orjson.loads(line) for line in body.splitlines()]


class Http:
    """Requests against the API server under test."""

    def __init__(self, session: aiohttp.ClientSession, api: Api) -> None:
        self._session = session
        self._api = api

    async def send(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
        **query: Any,
    ) -> Answer:
        raw = body if body is None or isinstance(body, bytes) else orjson.dumps(body)
        data = None if raw is None else io.BytesIO(raw)
        async with self._session.request(
            method,
            self._api.base_url + path,
            data=data,
            params={key: str(value) for key, value in query.items()},
            headers={**self._api.headers, "Content-Type": content_type, **(headers or {})},
            ssl=self._api.ssl_context if self._api.ssl_context is not None else True,
        ) as response:
            sent = await response.read()
            document = orjson.loads(sent) if sent[:1] == b"{" else {"text": sent.decode()}
            return Answer(response.status, document, response.headers.getall("Warning", []))

    async def get(self, path: str, **query: Any) -> Answer:
        return await self.send("GET", path, **query)

    async def post(self, path: str, body: object, **query: Any) -> Answer:
        return await self.send("POST", path, body, **query)

    async def put(self, path: str, body: object, **query: Any) -> Answer:
        return await self.send("PUT", path, body, **query)

    async def delete(self, path: str, body: object = None, **query: Any) -> Answer:
        return await self.send("DELETE", path, body, **query)

    async def merge(self, path: str, body: object, **query: Any) -> Answer:
        return await self.send("PATCH", path, body, content_type=MERGE_PATCH, **query)

    async def json_patch(self, path: str, body: object, **query: Any) -> Answer:
        return await self.send("PATCH", path, body, content_type=JSON_PATCH, **query)

    async def created(self, path: str, body: object) -> dict[str, Any]:
        """Create an object and return it as stored."""
        answer = await self.post(path, body)
        assert answer.code == 201, answer.body
        return answer.body

    @asynccontextmanager
    async def watch(self, path: str, **query: Any) -> AsyncIterator[Watch]:
        async with self._session.get(
            self._api.base_url + path,
            params={"watch": "true", **{key: str(value) for key, value in query.items()}},
            headers=self._api.headers,
            ssl=self._api.ssl_context if self._api.ssl_context is not None else True,
            timeout=aiohttp.ClientTimeout(total=None),
        ) as response:
            assert response.status == 200, await response.text()
            try:
                yield Watch(response)
            finally:
                # A watch has no end, and a polite end of its TLS would outlast the test.
                if response.connection is not None and response.connection.transport is not None:
                    response.connection.transport.abort()
