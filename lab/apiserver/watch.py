"""Watch streams: who watches what, which changes each one sees, and the lines it is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import orjson
from aiohttp import web

from .documents import with_metadata
from .errors import ApiError
from .faults import WatchFault
from .resources import RESOURCES, Resource
from .selectors import Selection
from .store import Change, watch_line

Sleep = Callable[[float], Awaitable[None]]

INITIAL_EVENTS_END = "k8s.io/initial-events-end"


class Watcher:
    """One open watch: collects lines until its stream writes them in one go."""

    def __init__(self, resource: Resource, selection: Selection, *, bookmarks: bool) -> None:
        self.resource = resource
        self.bookmarks = bookmarks
        self._selection = selection
        self._pending: list[bytes | float] = []
        self._wake = asyncio.Event()
        self.ended = False
        """No more lines will come; what is pending is still written."""
        self.was_cut = False
        """The connection is to be dropped without an ending."""

    def offer(self, change: Change, fault: WatchFault | None = None) -> None:
        """Queue the change if the watcher selects it, as the type it sees."""
        line = seen_line(change, self._selection)
        if line is None or (fault is not None and fault.drop):
            return
        if fault is not None and fault.delay_s:
            self._pending.append(fault.delay_s)
        self._pending.extend((line,) * (2 if fault is not None and fault.duplicate else 1))
        self._wake.set()

    def push(self, line: bytes) -> None:
        """Queue a line that every watcher gets."""
        self._pending.append(line)
        self._wake.set()

    def end(self) -> None:
        """Let the stream finish in order."""
        self.ended = True
        self._wake.set()

    def cut(self) -> None:
        """Let the stream break off: what is pending is lost."""
        self.was_cut = self.ended = True
        self._wake.set()

    async def take(self) -> list[bytes | float]:
        """Wait for lines (or seconds to delay what follows); empty only when the watch has ended."""
        while not self._pending and not self.ended:
            self._wake.clear()
            await self._wake.wait()
        taken, self._pending = self._pending, []
        return taken


def seen_line(change: Change, selection: Selection) -> bytes | None:
    """Return the line a watcher with this selection gets, or None.

    An object that starts to match is ADDED, one that stops matching is DELETED with the last state that matched.
    """
    if selection.everything:
        return change.line
    now = change.type != "DELETED" and selection.matches(change.version.obj)
    before = change.previous is not None and selection.matches(change.previous.obj)
    if now and before:
        return change.line
    if now:
        return change.line if change.type == "ADDED" else watch_line("ADDED", change.version.raw)
    if not before or change.previous is None:
        return None
    if change.type == "DELETED":
        return change.line
    gone = with_metadata(change.previous.obj, resourceVersion=str(change.version.revision))
    return watch_line("DELETED", orjson.dumps(gone))


def bookmark_line(resource: Resource, revision: int, *, initial_events_end: bool = False) -> bytes:
    """Return a BOOKMARK: everything up to the revision has been sent."""
    meta: dict[str, object] = {"resourceVersion": str(revision), "creationTimestamp": None}
    if initial_events_end:
        meta["annotations"] = {INITIAL_EVENTS_END: "true"}
    document = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": meta}
    return watch_line("BOOKMARK", orjson.dumps(document))


def error_line(error: ApiError) -> bytes:
    """Return an ERROR event that carries a Status."""
    return watch_line("ERROR", orjson.dumps(error.status))


class WatchHub:
    """All open watches, by kind."""

    def __init__(self) -> None:
        self._watchers: dict[Resource, set[Watcher]] = {resource: set() for resource in RESOURCES}
        self._waiting: list[tuple[Resource, int, asyncio.Future[None]]] = []

    def count(self, resource: Resource) -> int:
        """Return how many watches of the kind are open."""
        return len(self._watchers[resource])

    async def until(self, resource: Resource, count: int) -> None:
        """Wait until exactly `count` watches of the kind are open."""
        if self.count(resource) == count:
            return
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = (resource, count, reached)
        self._waiting.append(waiting)
        try:
            await reached
        finally:
            self._waiting.remove(waiting)

    def _counted(self, resource: Resource) -> None:
        """Wake those who wait for the present number of watches."""
        for wanted, count, reached in self._waiting:
            if wanted is resource and count == self.count(resource) and not reached.done():
                reached.set_result(None)

    def publish(self, resource: Resource, change: Change, fault: WatchFault | None) -> None:
        """Offer a change to every watch of its kind."""
        for watcher in self._watchers[resource]:
            watcher.offer(change, fault)

    def cut(self, resource: Resource | None = None) -> int:
        """Break off all watches, or those of one kind; return how many."""
        cut = self._chosen(resource)
        for watcher in cut:
            watcher.cut()
        return len(cut)

    def end(self) -> None:
        """Finish all watches in order."""
        for watcher in self._chosen(None):
            watcher.end()

    def bookmark(self, revision: int, resource: Resource | None = None) -> None:
        """Send a bookmark to every watch that asked for bookmarks."""
        for watcher in self._chosen(resource):
            if watcher.bookmarks:
                watcher.push(bookmark_line(watcher.resource, revision))

    def _chosen(self, resource: Resource | None) -> list[Watcher]:
        resources = self._watchers if resource is None else (resource,)
        return [watcher for chosen in resources for watcher in self._watchers[chosen]]

    async def stream(
        self,
        request: web.Request,
        watcher: Watcher,
        *,
        timeout_s: float | None,
        bookmark_interval_s: float,
        revision: Callable[[], int],
        sleep: Sleep,
    ) -> web.StreamResponse:
        """Answer the request with the watcher's lines until it ends, is cut or the client goes.

        The watcher is registered before the first await, so nothing is missed between list and stream.
        """
        loop = asyncio.get_running_loop()
        self._watchers[watcher.resource].add(watcher)
        self._counted(watcher.resource)
        timers: list[asyncio.TimerHandle] = []

        def next_bookmark() -> None:
            watcher.push(bookmark_line(watcher.resource, revision()))
            timers[0] = loop.call_later(bookmark_interval_s, next_bookmark)

        if watcher.bookmarks:
            timers.append(loop.call_later(bookmark_interval_s, next_bookmark))
        if timeout_s is not None:
            timers.append(loop.call_later(timeout_s, watcher.end))
        response = web.StreamResponse(
            headers={"Content-Type": "application/json", "Cache-Control": "no-cache, private"}
        )
        try:
            await response.prepare(request)
            while taken := await watcher.take():
                await _write(response, taken, watcher, sleep)
            if watcher.was_cut:
                if request.transport is not None:
                    request.transport.abort()
            else:
                await response.write_eof()
        except ConnectionResetError:
            pass  # the client has gone, which is how most watches end
        finally:
            self._watchers[watcher.resource].discard(watcher)
            self._counted(watcher.resource)
            for timer in timers:
                timer.cancel()
        return response


async def _write(response: web.StreamResponse, taken: list[bytes | float], watcher: Watcher, sleep: Sleep) -> None:
    """Write lines in as few pieces as the delays between them allow."""
    lines: list[bytes] = []
    for entry in taken:
        if isinstance(entry, bytes):
            lines.append(entry)
            continue
        if lines:
            await response.write(b"".join(lines))
            lines = []
        await sleep(entry)
    if lines and not watcher.was_cut:
        await response.write(b"".join(lines))
