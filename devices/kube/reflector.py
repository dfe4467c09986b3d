"""Keep a consumer equal to one resource of the API server: list, watch, and list again when the watch cannot go on.

Everything the consumer is told comes synchronously on the event loop, so it never shows half a list.
"""

import asyncio
import logging
import random as random_module
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from devices.kube.client import MALFORMED, WatchEvent
from devices.kube.consumer import Consumer, ListWatch
from devices.kube.errors import ApiStatusError, Gone, KubeError, MalformedReply, status_error
from devices.kube.metrics import ReflectorMetrics
from devices.kube.progress import Progress
from devices.kube.resources import Resource
from devices.kube.seen import Seen, SeenObject
from devices.objects import Metadata

__all__ = ["Consumer", "Reflector", "ReflectorSettings"]

T = TypeVar("T")

_FIRST_WAIT_S: Final = 0.2
# Failures in a row without any progress after which the place we stopped at is given up and everything listed again.
_FAILURES_BEFORE_LIST: Final = 5
# Objects decoded before others on the event loop get a turn, changes told to the consumer, and objects compared: each about 1 ms.
_DECODE_BATCH: Final = 50
_TELL_BATCH: Final = 10
_COMPARE_BATCH: Final = 1000

_EVENT_TYPES: Final = frozenset({"ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR", MALFORMED})

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ReflectorSettings:
    """How a reflector behaves. Raises ValueError for a value that makes no sense."""

    namespace: str | None = None
    """Only this namespace; None for all."""
    label_selector: str | None = None
    field_selector: str | None = None
    page_size: int = 500
    """Objects in one page of a list; 0 asks for all at once."""
    quiet_s: float = 90.0
    """Longest silence of a watch before everything is listed again; bookmarks come once a minute."""
    watch_s: float = 300.0
    """How long one watch lasts at least; up to twice that, at random, so that watches do not all end together."""
    resync_s: float = 1800.0
    """How old a full list may grow before one is made to compare; ≤ 0 for never."""
    longest_backoff_s: float = 30.0
    """Cap of the growing waits between failures."""

    def __post_init__(self) -> None:
        for name in ("quiet_s", "watch_s", "longest_backoff_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be above 0")
        if self.page_size < 0:
            raise ValueError(f"page_size is {self.page_size}: it must be 0 (all at once) or more")


_DEFAULT_SETTINGS: Final = ReflectorSettings()


class _ConsumerError(KubeError):
    """Our own consumer failed at a whole list."""


class _Cause(Enum):
    """Why a full list is made."""

    FIRST = "first"
    EXPIRED = "expired"
    QUIET = "quiet"
    RESYNC = "resync"
    MALFORMED = "malformed"
    FAILURES = "failures"


class _Metadata(msgspec.Struct, rename="camel"):
    uid: str
    resource_version: str
    name: str = ""
    namespace: str | None = None


class _Object(msgspec.Struct):
    metadata: _Metadata


class _BookmarkMetadata(msgspec.Struct, rename="camel"):
    resource_version: str


class _Bookmark(msgspec.Struct):
    metadata: _BookmarkMetadata


class _Turns:
    """Gives others on the event loop their turn now and then, while one list is gone through."""

    def __init__(self) -> None:
        self._told = 0
        self._compared = 0

    async def compared(self) -> None:
        """One more object was looked at."""
        self._compared += 1
        if self._compared % _COMPARE_BATCH == 0:
            await asyncio.sleep(0)

    async def told(self) -> None:
        """One more change is to be told."""
        self._told += 1
        if self._told % _TELL_BATCH == 0:
            await asyncio.sleep(0)


class Reflector(Generic[T]):
    """Feeds one consumer. `run` works until cancelled; everything else may be read at any time.

    `decoder` makes a T of one object's JSON and raises ValueError (msgspec's errors are such) for one it cannot read:
    that object is counted and skipped. `metadata` finds the metadata in a T, so that each text of the first list is read once; without
    it, identities are read by themselves. Clock (monotonic seconds), sleep and random can be replaced.
    """

    def __init__(
        self,
        client: ListWatch,
        resource: Resource,
        decoder: Callable[[bytes | msgspec.Raw], T],
        consumer: Consumer[T],
        settings: ReflectorSettings = _DEFAULT_SETTINGS,
        *,
        metadata: Callable[[T], Metadata] | None = None,
        metrics: ReflectorMetrics | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        random: Callable[[], float] = random_module.random,
    ) -> None:
        self.synced = asyncio.Event()
        """Set once the consumer holds a whole list; never cleared: later it may be behind, but never partial."""
        self._client = client
        self._resource = resource
        self._decode = decoder
        self._metadata = metadata
        self._consumer = consumer
        self._settings = settings
        self._metrics = metrics or ReflectorMetrics()
        self._clock = clock
        self._sleep = sleep
        self._random = random
        self._seen = Seen()
        self._progress = Progress()
        self._heard_at = clock()
        self._listed_at = clock()
        self._next_list: _Cause | None = _Cause.FIRST
        self._silence: asyncio.Timeout | None = None
        self._failures = 0
        self._said = ""
        self._objects = msgspec.json.Decoder(_Object)
        self._bookmarks = msgspec.json.Decoder(_Bookmark)

    @property
    def resource(self) -> Resource:
        """What is watched."""
        return self._resource

    @property
    def resource_version(self) -> int:
        """The newest revision whose changes, and all before it, the consumer has seen; 0 before the first list."""
        return self._progress.revision

    @property
    def last_event_age_s(self) -> float:
        """Seconds since the API server last told us anything: an event, a bookmark or a list."""
        return self._clock() - self._heard_at

    async def wait_for_revision(self, resource_version: str | int, timeout_s: float) -> bool:
        """True as soon as the consumer has seen this revision; False after `timeout_s` seconds.

        Raises ValueError for a resourceVersion that is no number.
        """
        return await self._progress.wait_for(int(resource_version), timeout_s)

    def request_resync(self) -> None:
        """Make a full list soon and compare."""
        self._want_list(_Cause.RESYNC)
        if self._silence is not None and not self._silence.expired():
            self._silence.reschedule(asyncio.get_running_loop().time())

    async def run(self) -> None:
        """List and watch until cancelled; API errors only delay it."""
        while True:
            began_at, revision = self._clock(), self._progress.revision
            error: KubeError | None = None
            try:
                while self._next_list is not None:
                    await self._list(self._next_list)
                began_at, revision = self._clock(), self._progress.revision
                await self._watch()
            except KubeError as caught:
                error = caught
            if self._progress.revision > revision:
                self._failures = 0
            wait_s = self._wait_after(error, began_at, progress=self._progress.revision > revision)
            if self._failures >= _FAILURES_BEFORE_LIST:
                self._want_list(_Cause.FAILURES)
            if wait_s > 0:
                await self._sleep(wait_s)

    def _wait_after(self, error: KubeError | None, began_at: float, *, progress: bool) -> float:
        """Seconds until the next attempt after one that ended with `error` or in good order; counts failures."""
        if error is not None:
            if isinstance(error, Gone):
                self._want_list(_Cause.EXPIRED)
            return self._failed(error)
        if progress or self._next_list in {_Cause.QUIET, _Cause.RESYNC}:
            return 0.0
        # It brought nothing new: reconnecting at once could go round in circles.
        if self._heard_at > began_at or self._clock() - began_at >= self._settings.longest_backoff_s:
            self._failures = 0
        wait_s = self._backoff_s(None)
        self._failures += 1
        return wait_s

    def _want_list(self, cause: _Cause) -> None:
        if self._next_list is None:
            self._next_list = cause

    def _failed(self, error: KubeError) -> float:
        self._metrics.failures.labels(self._resource.label).inc()
        text = str(error)
        if text != self._said:
            self._said = text
            _log.warning("watching %s: %s", self._resource.label, text)
        # The first expiry is ordinary life and needs no wait; a second without progress between does.
        ordinary = isinstance(error, Gone) and self._failures == 0
        wait_s = 0.0 if ordinary else self._backoff_s(error)
        self._failures += 1
        return wait_s

    def _backoff_s(self, error: KubeError | None) -> float:
        grown = min(self._settings.longest_backoff_s, _FIRST_WAIT_S * 2.0 ** min(self._failures, 30))
        wait_s = grown * (0.5 + 0.5 * self._random())
        asked = error.retry_after_s if isinstance(error, ApiStatusError) else None
        return wait_s if asked is None else max(wait_s, asked)

    # --- full lists ---

    async def _list(self, cause: _Cause) -> None:
        self._next_list = None  # one asked for from here on is a list of its own
        try:
            try:
                listed, items, revision = await self._fetch(self._settings.page_size)
            except Gone:
                # The list took longer than its snapshot lives: pages would fail again, one whole answer cannot.
                listed, items, revision = await self._fetch(0)
            await self._deliver(cause, listed, items, revision)
        except KubeError:
            self._want_list(cause)
            raise
        self._metrics.lists.labels(self._resource.label, cause.value).inc()
        if revision < self._progress.revision:
            _log.warning(
                "%s: the API server went back from revision %d to %d, as after a restore of its storage; following it",
                self._resource.label,
                self._progress.revision,
                revision,
            )
        self._listed_at = self._heard_at = self._clock()
        self._progress.restart(revision)
        self._seen.listed(revision)
        self.synced.set()
        if self._said:
            self._said = ""
            _log.info("watching %s again", self._resource.label)

    async def _fetch(self, page_size: int) -> tuple[dict[str, SeenObject], dict[str, T], int]:
        """What the server has: every object's identity by UID, the revision of it all, and decoded what may be news and can be read.

        A page is read in slices, between which others on the event loop get their turn.
        """
        settings = self._settings
        listed: dict[str, SeenObject] = {}
        items: dict[str, T] = {}
        version = ""
        pages = self._client.list_pages(
            self._resource,
            settings.namespace,
            limit=page_size,
            label_selector=settings.label_selector,
            field_selector=settings.field_selector,
        )
        async with aclosing(pages):
            async for page in pages:
                # All pages are of one snapshot. Were they not, changes since the first would come with the watch.
                version = version or page.resource_version
                for number, raw in enumerate(page.items):
                    if number % _DECODE_BATCH == 0:
                        await asyncio.sleep(0)
                    read = None if self.synced.is_set() else self._read_at_once(raw)
                    if read is not None:
                        uid = read[0].uid
                        listed[uid], items[uid] = read
                        continue
                    identity = self._identify(raw)
                    if identity is None:
                        continue
                    listed[identity.uid] = identity
                    if self._is_held(identity):
                        continue
                    decoded = self._read(identity, raw)
                    if decoded is not None:
                        items[identity.uid] = decoded
        if not version.isdigit():
            raise MalformedReply(f"list of {self._resource.label}: resourceVersion {version!r} is no number")
        return listed, items, int(version)

    def _read_at_once(self, raw: msgspec.Raw) -> tuple[SeenObject, T] | None:
        """Object and identity of one reading of its text; None for what has to be looked at more closely."""
        if self._metadata is None:
            return None
        try:
            item = self._decode(raw)
            metadata = self._metadata(item)
            revision = int(metadata.resource_version)
        except ValueError:
            return None
        return (
            (SeenObject(metadata.uid, metadata.namespace or "", metadata.name, revision), item)
            if metadata.uid
            else None
        )

    def _is_held(self, identity: SeenObject) -> bool:
        """Whether the consumer has been told this very state, and has not lost it since."""
        return self._seen.revision(identity.uid) == identity.revision and identity.uid in self._consumer.known()

    async def _deliver(
        self, cause: _Cause, listed: Mapping[str, SeenObject], items: Mapping[str, T], revision: int
    ) -> None:
        try:
            if self.synced.is_set():
                await self._compare(cause, listed, items, revision)
            else:
                self._consumer.replace(list(items.values()))
                self._seen.replace(listed.values())
        except Exception as error:
            self._metrics.faults.labels(self._resource.label).inc()
            _log.exception("the list of %s was not taken in", self._resource.label)
            raise _ConsumerError(f"the list of {self._resource.label} was not taken in: {error!r}") from error

    async def _compare(
        self, cause: _Cause, listed: Mapping[str, SeenObject], items: Mapping[str, T], revision: int
    ) -> None:
        """Tell the consumer what a later list shows otherwise than it holds, and report how much that was.

        Objects no newer than where the watch stood should have been delivered: they were missed. Nothing else is told meanwhile, but
        others on the event loop get their turn, so the consumer may show one change of the list and not yet the next, as with a watch.
        """
        missed = newer = 0
        turn = _Turns()
        # Deletions first: an object and its successor of the same name are never held at once.
        away = []
        for uid in [*self._consumer.known(), *self._seen.uids()]:
            await turn.compared()
            if uid not in listed:
                away.append(uid)
        vanished = sorted(set(away))
        for uid in vanished:
            await turn.told()
            last = self._seen.get(uid) or SeenObject(uid, "", "", 0)
            self._delete(replace(last, revision=revision))
        gone = len(vanished)
        for identity in listed.values():
            await turn.compared()
            if identity.uid not in items or self._is_held(identity):
                continue  # unreadable, counted already (an older state stays in place), or nothing new
            if identity.revision <= self._progress.revision:
                missed += 1
            else:
                newer += 1
            await turn.told()
            self._put(identity, items[identity.uid])
        for kind, count in (("missed", missed), ("newer", newer), ("gone", gone)):
            self._metrics.differences.labels(self._resource.label, cause.value, kind).inc(count)
        if missed or newer or gone:
            _log.log(
                logging.WARNING if missed else logging.INFO,
                "full list of %s (%s): %d objects, %d missed by the watch, %d changed since, %d gone since",
                self._resource.label,
                cause.value,
                len(listed),
                missed,
                newer,
                gone,
            )

    # --- the watch ---

    async def _watch(self) -> None:
        """Follow changes until the watch ends; sets `_next_list` where going on needs a full list. Raises KubeError."""
        settings = self._settings
        events = self._client.watch(
            self._resource,
            settings.namespace,
            resource_version=str(self._progress.revision),
            timeout_s=settings.watch_s * (1.0 + self._random()),
            label_selector=settings.label_selector,
            field_selector=settings.field_selector,
        )
        now = asyncio.get_running_loop().time
        try:
            async with asyncio.timeout(settings.quiet_s) as self._silence, aclosing(events):
                async for event in events:
                    self._silence.reschedule(now() + settings.quiet_s)
                    self._heard_at = self._clock()
                    self._take(event)
                    if self._next_list is not None:
                        return
        except TimeoutError:
            if self._next_list is None:  # else a resync was asked for
                _log.warning(
                    "watching %s: nothing heard for %g s, listing again", self._resource.label, settings.quiet_s
                )
                self._want_list(_Cause.QUIET)
            return
        finally:
            self._silence = None
        if 0 < settings.resync_s <= self._clock() - self._listed_at:
            self._want_list(_Cause.RESYNC)

    def _take(self, event: WatchEvent) -> None:
        kind = event.type if event.type in _EVENT_TYPES else "unknown"
        self._metrics.events.labels(self._resource.label, kind).inc()
        if kind == "ERROR":
            raise status_error(0, event.raw)
        if kind == "BOOKMARK":
            try:
                self._progress.advance(int(self._bookmarks.decode(event.raw).metadata.resource_version))
            except ValueError:
                self._malformed(event.raw)
            return
        if kind == "unknown":
            self._malformed(event.raw)  # a newer API server's invention: changes come as the known types
            return
        identity = None
        if kind == MALFORMED:
            self._malformed(event.raw)
        else:
            identity = self._identify(event.raw)
        if identity is None:
            self._want_list(_Cause.MALFORMED)  # whose change it was cannot be told
            return
        if not self._seen.is_news(identity, deleted=kind == "DELETED"):
            self._metrics.ignored.labels(self._resource.label).inc()
        elif kind == "DELETED":
            self._delete(identity)
        else:
            self._change(identity, event.raw)
        self._progress.advance(identity.revision)

    def _change(self, identity: SeenObject, raw: bytes) -> None:
        """ADDED or MODIFIED."""
        namesake = self._seen.namesake(identity)
        if namesake is not None:
            if namesake.revision > identity.revision:  # late, and gone since
                self._metrics.ignored.labels(self._resource.label).inc()
                return
            self._metrics.differences.labels(self._resource.label, "namesake", "missed").inc()
            _log.warning(
                "%s %s/%s is another object than before, and the end of the old one never came",
                self._resource.label,
                identity.namespace,
                identity.name,
            )
            self._delete(replace(namesake, revision=identity.revision))
        item = self._read(identity, raw)
        if item is not None:
            self._put(identity, item)

    # --- single objects ---

    def _identify(self, raw: bytes | msgspec.Raw) -> SeenObject | None:
        try:
            metadata = self._objects.decode(raw).metadata
            if not metadata.uid:
                raise ValueError("uid is empty")
            return SeenObject(metadata.uid, metadata.namespace or "", metadata.name, int(metadata.resource_version))
        except ValueError:
            self._malformed(raw)
            return None

    def _read(self, identity: SeenObject, raw: bytes | msgspec.Raw) -> T | None:
        try:
            return self._decode(raw)
        except ValueError as error:
            self._metrics.malformed.labels(self._resource.label).inc()
            _log.warning(
                "%s %s/%s cannot be read and is skipped: %s",
                self._resource.label,
                identity.namespace,
                identity.name,
                error,
            )
            return None

    def _malformed(self, raw: bytes | msgspec.Raw) -> None:
        self._metrics.malformed.labels(self._resource.label).inc()
        _log.warning("%s: skipped what is no object: %r", self._resource.label, bytes(raw)[:200])

    def _put(self, identity: SeenObject, item: T) -> None:
        try:
            self._consumer.put(item)
        except Exception:
            self._fault(identity)
        else:
            self._seen.put(identity)

    def _delete(self, identity: SeenObject) -> None:
        try:
            self._consumer.delete(identity)
        except Exception:
            self._fault(identity)
        else:
            self._seen.delete(identity)

    def _fault(self, identity: SeenObject) -> None:
        self._metrics.faults.labels(self._resource.label).inc()
        self._seen.forget(identity.uid)
        _log.exception("%s %s/%s was not taken in", self._resource.label, identity.namespace, identity.name)
