"""A small API server over real HTTP: pods, lists in pages, watches, and whatever answer a test puts in front."""

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def status(code: int, reason: str, message: str = "no", **details: object) -> bytes:
    return json.dumps(
        {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message, "details": details}
    ).encode()


def answer(code: int, reason: str, message: str = "no", headers: dict[str, str] | None = None) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.Response(status=code, body=status(code, reason, message), headers=headers)

    return handler


def ok(document: object) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.json_response(document)

    return handler


async def hang_up(request: web.Request) -> web.StreamResponse:
    """Take the request and break the connection without an answer."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


class Happening:
    """Something to wait on until a condition holds; `tell` after every change."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def tell(self) -> None:
        self._changed.set()

    async def changed(self) -> None:
        """Wait for the next change; one since the last wait counts."""
        await self._changed.wait()
        self._changed.clear()

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(10):
            while not holds():
                self._changed.clear()
                await self._changed.wait()


class FakeApi:
    """Pods only. `script` answers the next requests in place of the store; `requests` has all that came."""

    def __init__(self) -> None:
        self.revision = 100
        self.oldest = 0  # watches from below get 410
        self.pods: dict[str, dict[str, object]] = {}
        self.history: list[tuple[int, bytes]] = []
        self.script: deque[Handler | None] = deque()
        self.requests: list[web.Request] = []
        self.bodies: list[bytes] = []
        self.open_watches = 0
        self.happening = Happening()
        self.gone_in_stream = False
        self._cuts = 0
        self._snapshots: dict[int, list[dict[str, object]]] = {}
        self._streams: set[Happening] = set()
        self.lists = 0
        self.watches = 0

    def application(self) -> web.Application:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._handle)
        return application

    # --- changes ---

    def put(self, name: str, uid: str | None = None, *, silently: bool = False, **spec: object) -> int:
        uid = f"uid-{name}" if uid is None else uid
        self.revision += 1
        kind = "MODIFIED" if uid in self.pods else "ADDED"
        self.pods[uid] = {
            "metadata": {"name": name, "namespace": "ns", "uid": uid, "resourceVersion": str(self.revision)},
            "spec": spec,
        }
        if not silently:
            self.send(kind, self.pods[uid])
        return self.revision

    def delete(self, uid: str, *, silently: bool = False) -> None:
        self.revision += 1
        pod = json.loads(json.dumps(self.pods.pop(uid)))
        pod["metadata"]["resourceVersion"] = str(self.revision)
        if not silently:
            self.send("DELETED", pod)

    def send(self, kind: str, pod: object) -> None:
        self.send_line(json.dumps({"type": kind, "object": pod}).encode())

    def send_line(self, line: bytes) -> None:
        self.history.append((self.revision, line + b"\n"))
        self._tell_streams()

    def _tell_streams(self) -> None:
        for grown in self._streams:
            grown.tell()

    def bookmark(self) -> None:
        self.send("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": str(self.revision)}})

    def cut(self) -> None:
        """End every open watch."""
        self._cuts += 1
        self._tell_streams()

    def forget(self) -> None:
        """Watches from here or before are answered with 410."""
        self.oldest = self.revision + 1

    def server_state(self) -> dict[str, str]:
        return {uid: pod["metadata"]["resourceVersion"] for uid, pod in self.pods.items()}  # type: ignore[index] # a JSON object, whose values have no type of their own

    # --- requests ---

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        self.bodies.append(await request.read())
        self.happening.tell()
        scripted = self.script.popleft() if self.script else None
        if scripted is not None:
            return await scripted(request)
        if request.query.get("watch") == "true":
            return await self._watch(request)
        return self._list(request)

    def _list(self, request: web.Request) -> web.StreamResponse:
        self.lists += 1
        self.oldest = min(self.oldest, self.revision)
        limit = int(request.query.get("limit", "0"))
        revision, start = map(int, request.query.get("continue", f"{self.revision}-0").split("-"))
        if not start:
            self._snapshots[revision] = [self.pods[uid] for uid in sorted(self.pods)]
        everything = self._snapshots[revision]
        page = everything[start : start + limit] if limit else everything
        metadata = {"resourceVersion": str(revision)}
        if limit and start + limit < len(everything):
            metadata["continue"] = f"{revision}-{start + limit}"
        return web.json_response({"kind": "PodList", "metadata": metadata, "items": page})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        self.watches += 1
        since = int(request.query["resourceVersion"])
        if since < self.oldest and not self.gone_in_stream:
            return web.Response(status=410, body=status(410, "Expired", "too old resource version"))
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        if since < self.oldest:
            error = json.loads(status(410, "Expired", "too old resource version"))
            await response.write(json.dumps({"type": "ERROR", "object": error}).encode() + b"\n")
            return response
        cuts, place = self._cuts, next((i for i, (at, _) in enumerate(self.history) if at > since), len(self.history))
        self.open_watches += 1
        self.happening.tell()
        grown = Happening()
        self._streams.add(grown)
        try:
            while self._cuts == cuts:
                if place == len(self.history):
                    await grown.changed()
                    continue
                await response.write(self.history[place][1])
                place += 1
        finally:
            self._streams.discard(grown)
            self.open_watches -= 1
            self.happening.tell()
        return response
