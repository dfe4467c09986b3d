"""Admissions written down before anybody is told yes: one ConfigMap a tenant namespace, by compare-and-swap.

All that wait for the same namespace are decided together and written in one call. Whatever cannot be settled is refused with words.
"""

import asyncio
import contextlib
import logging
import random as random_module
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec
from prometheus_client import CollectorRegistry, Counter, Histogram

from devices.kube.errors import (
    Conflict,
    KubeError,
    MalformedReply,
    NotFound,
    OutcomeUnknown,
)
from devices.kube.protocols import ConfigMapStore, JsonObject, PodLister
from devices.ledger import Ledger
from devices.objects import Pod, pod_of
from webhook.admitted.record import (
    Entry,
    Outstanding,
    Record,
    RecordError,
    View,
    decide,
    decode,
    encode,
    merged,
    pruned,
    reached,
)
from webhook.errors import QuotaUnavailableError
from webhook.quota_service import QuotaAsk, QuotaJudgement, QuotaService

__all__ = [
    "RECORD_LABEL",
    "Admissions",
    "AdmissionsApi",
    "AdmittedSettings",
    "PodWatch",
    "RecordMetrics",
    "record_name",
]

RECORD_LABEL: Final = "slotwise.io/quota-record"
_NAMESPACE_ANNOTATION: Final = "slotwise.io/quota-namespace"
_PODS_A_SECOND: Final = 500
"""A list made only to check a refusal may cost so much."""
_BETWEEN_SWEEPS_S: Final = 0.005
NOTHING_AGAINST: Final = QuotaJudgement()
_log = logging.getLogger(__name__)


def record_name(namespace: str) -> str:
    """The ConfigMap of a tenant namespace."""
    return f"slotwise-quota-{namespace}"


class AdmissionsApi(ConfigMapStore, PodLister, Protocol):
    """What the store asks of the API server; `devices.kube.client.KubeClient` has it."""


class PodWatch(Protocol):
    """What the store asks of the feed of its ledger; `devices.kube.feed.LedgerFeed` has it."""

    @property
    def pods_revision(self) -> int:
        """The newest revision whose pod changes are in the ledger."""
        ...

    def reason(self) -> str | None:
        """Why the ledger may not show the cluster as it is; None when it does."""
        ...

    async def wait_for_pods(self, resource_version: str, timeout_s: float) -> bool:
        """True as soon as this revision's pod changes are in the ledger, False after the time."""
        ...

    def take_list(self, namespace: str, pods: Sequence[Pod], revision: int) -> bool:
        """Bring the ledger up to a list of one namespace; whether the watch had missed any of it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmittedSettings:
    """How admissions are recorded."""

    namespace: str = "slotwise-system"
    """Where the records are kept: Slotwise's own namespace."""
    deadline_s: float = 8.0
    """What is not settled by then is refused; below the 10 s for which the API server waits."""
    catch_up_s: float = 1.0
    """A watch that is behind the record gets so long before the namespace is listed."""
    entry_life_s: float = 90.0
    """The API server's own request time-out and a margin: a pod not created by then never will be."""
    sweep_every_s: float = 5.0
    """How often entries are looked through that no admission takes out."""
    adopt_every_s: float = 60.0
    """How often records that other replicas left behind are looked for."""
    record_bytes: int = 250_000
    """Largest text of a record, which keeps its object below 256 KiB."""


@dataclass(slots=True)
class _Waiting:
    ask: QuotaAsk
    dry_run: bool
    since: float
    done: asyncio.Future[QuotaJudgement]
    judgement: QuotaJudgement = NOTHING_AGAINST

    @property
    def uid(self) -> str:
        return self.ask.uid

    @property
    def entry(self) -> Entry:
        return Entry(self.ask.charges, self.ask.facts, self.ask.pod)


@dataclass(frozen=True, slots=True)
class _Held:
    """The record as stored; `resource_version` empty: there is no object yet."""

    record: Record
    resource_version: str


@dataclass(slots=True)
class _Namespace:
    name: str
    waiting: list[_Waiting] = field(default_factory=list)
    held: _Held | None = None
    listed: int = 0
    listed_at: float = float("-inf")
    first_seen: dict[str, float] = field(default_factory=dict)
    touched_at: float = float("-inf")
    """When the record was last read or written."""
    sweep: bool = False
    worker: asyncio.Task[None] | None = None


@dataclass(frozen=True, slots=True)
class _View:
    """(webhook.admitted.record.View)"""

    ledger: Ledger
    revision: int
    listed: int

    def shown(self, uid: str) -> int | None:
        return self.ledger.shown(uid)

    def counts(self, uid: str) -> bool:
        return self.ledger.charged(uid) is not None

    def is_over(self, uid: str) -> bool:
        return self.ledger.is_gone(uid)


class RecordMetrics:
    """What recording admissions counts; build it once a registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.writes = Counter(
            "slotwise_quota_record_writes",
            "Writes of admission records by outcome: stored, conflict, unknown, failed.",
            ["outcome"],
            registry=registry,
        )
        self.together = Histogram(
            "slotwise_quota_admissions_per_write",
            "Admissions written in one call.",
            registry=registry,
            buckets=(1, 2, 5, 10, 20, 50, 100, 200, 500),
        )
        self.lists = Counter(
            "slotwise_quota_namespace_lists",
            "Quorum lists of a namespace's pods, by cause: missing, behind, refusal, expired.",
            ["cause"],
            registry=registry,
        )


class Admissions:
    """Admits pods against quota so that all replicas together never admit too many. `run` has to run.

    The ledger must count `admitted`. Clock (monotonic seconds), sleep and random can be replaced.
    """

    def __init__(
        self,
        api: AdmissionsApi,
        watch: PodWatch,
        ledger: Ledger,
        settings: AdmittedSettings,
        *,
        metrics: RecordMetrics | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        random: Callable[[], float] = random_module.random,
    ) -> None:
        self._api = api
        self._watch = watch
        self._ledger = ledger
        self._quota = QuotaService(ledger)
        self._settings = settings
        self._clock = clock
        self._sleep = sleep
        self._random = random
        self._namespaces: dict[str, _Namespace] = {}
        self._metrics = metrics or RecordMetrics(CollectorRegistry())

    async def admit(self, ask: QuotaAsk, *, dry_run: bool = False) -> QuotaJudgement:
        """The judgement on a pod; without excesses it is recorded (not on dry-run) and will count from now on.

        Raises `QuotaUnavailableError` where it could not be settled: the pod must be refused.
        """
        if not ask.uid:
            raise QuotaUnavailableError(f"quota of namespace {ask.namespace}: the pod has no metadata.uid")
        space = self._namespaces.setdefault(ask.namespace, _Namespace(ask.namespace))
        one = _Waiting(ask, dry_run, self._clock(), asyncio.get_running_loop().create_future())
        space.waiting.append(one)
        self._wake(space)
        try:
            return await one.done
        finally:
            if one in space.waiting:  # the caller has gone before it was looked at
                space.waiting.remove(one)

    def held(self, namespace: str) -> Mapping[str, Entry]:
        """What is admitted and not yet seen, as last read or written."""
        space = self._namespaces.get(namespace)
        if space is None or space.held is None:
            return {}
        return self._unseen(space.held.record, self._view(space))

    @staticmethod
    def _unseen(record: Record, view: View) -> Mapping[str, Entry]:
        return {
            uid: entry
            for uid, entry in record.entries.items()
            if view.shown(uid) is None and not view.counts(uid) and not view.is_over(uid)
        }

    async def outstanding(self, namespace: str) -> Record:
        """The record as stored, without what our own ledger counts already. Raises KubeError."""
        held = await self._read_object(namespace)
        record = held.record if held is not None else Record()
        view = self._view(self._namespaces.get(namespace) or _Namespace(namespace))
        return Record(record.seen_through, record.listed_through, self._unseen(record, view))

    async def run(self) -> None:
        """Look through the records until cancelled: entries whose pods came, ended or never came go."""
        adopted_at = float("-inf")
        while True:
            # Replicas that started together should not write together for ever.
            await self._sleep(self._settings.sweep_every_s * (0.75 + 0.5 * self._random()))
            if self._clock() - adopted_at >= self._settings.adopt_every_s:
                adopted_at = self._clock()
                await self._adopt()
            for space in list(self._namespaces.values()):
                if self._is_due(space):
                    space.sweep = True
                    self._wake(space)
                    await self._sleep(_BETWEEN_SWEEPS_S)  # not all at once, in the way of admissions

    def _is_due(self, space: _Namespace) -> bool:
        """Whether a record is worth a look: admissions take out what they find, but nothing for its age."""
        now = self._clock()
        if space.held is not None and not space.held.record.entries:
            return False
        if any(now - at >= self._settings.entry_life_s for at in space.first_seen.values()):
            return True
        return now - space.touched_at >= self._settings.sweep_every_s / 2

    async def stop(self) -> None:
        """Give up what is under way."""
        for space in self._namespaces.values():
            if space.worker is not None:
                space.worker.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await space.worker
        for space in self._namespaces.values():
            for one in space.waiting:
                if not one.done.done():
                    one.done.set_exception(self._unavailable(space, "this process is stopping"))

    async def settled(self) -> None:
        """Return once nothing is under way."""
        while workers := [s.worker for s in self._namespaces.values() if s.worker is not None and not s.worker.done()]:
            await asyncio.wait(workers)

    # --- one worker a namespace, while there is work ---

    def _wake(self, space: _Namespace) -> None:
        if space.worker is None or space.worker.done():
            space.worker = asyncio.create_task(self._work(space), name=f"quota of {space.name}")

    async def _work(self, space: _Namespace) -> None:
        while space.waiting or space.sweep:
            if space.waiting:
                batch, space.waiting = space.waiting, []
                await self._serve(space, batch)
            else:
                space.sweep = False
                await self._tidy(space)

    async def _serve(self, space: _Namespace, batch: list[_Waiting]) -> None:
        left_s = self._settings.deadline_s - (self._clock() - min(one.since for one in batch))
        try:
            async with asyncio.timeout(max(left_s, 0.0)):
                await self._decide(space, batch)
        except TimeoutError:
            space.held = None
            self._fail(space, batch, "it could not be settled in time, try again")
        except KubeError as error:
            space.held = None
            self._fail(space, batch, f"the API server does not take it: {error}")
        except RecordError as error:
            space.held = None
            self._fail(
                space,
                batch,
                f"ConfigMap {self._settings.namespace}/{record_name(space.name)} cannot be read ({error}): repair or delete it",
            )
        except asyncio.CancelledError:
            self._fail(space, batch, "this process is stopping")
            raise
        except Exception as error:
            space.held = None
            for one in batch:
                if not one.done.done():
                    one.done.set_exception(error)

    def _fail(self, space: _Namespace, batch: Iterable[_Waiting], why: str) -> None:
        for one in batch:
            if not one.done.done():
                one.done.set_exception(self._unavailable(space, why))

    @staticmethod
    def _unavailable(space: _Namespace, why: str) -> QuotaUnavailableError:
        return QuotaUnavailableError(f"quota of namespace {space.name} cannot be checked: {why}")

    async def _decide(self, space: _Namespace, batch: list[_Waiting]) -> None:
        """Decide until every answer may stand: a yes is stored, a no rests on the newest record and pods."""
        is_newest, attempts = False, 0
        while True:
            if space.held is None:
                await self._read(space)
                is_newest = True
            assert space.held is not None
            await self._reach(space, space.held.record)
            view = self._view(space)
            asking = [one for one in batch if not one.done.done()]
            for one in asking:
                one.judgement = NOTHING_AGAINST
            # What is not to be recorded is decided last: it must not take room from what is.
            asking.sort(key=lambda one: one.dry_run)
            decision = decide(space.held.record, view, asking, self._fits, self._settings.record_bytes)
            if decision.refused and not is_newest:
                space.held = None
                continue
            if decision.refused and self._may_list(space):
                await self._list(space, "refusal")
                continue
            recorded = {one.uid for one in decision.admitted if not one.dry_run}
            entries = {uid: entry for uid, entry in decision.entries.items() if uid in recorded}
            # Nobody is told anything before the write: those refused may have had to give way to others of the batch.
            if not entries or await self._write(space, merged(pruned(space.held.record, view), entries)):
                self._metrics.together.observe(len(entries))
                for one in decision.crowded:
                    self._fail(space, [one], "too many admissions are under way at once, try again")
                for one in (*decision.admitted, *decision.refused):
                    self._answer(one)
                return
            attempts += 1
            is_newest = False
            await self._sleep(min(0.05, 0.001 * 2.0 ** min(attempts, 6)) * self._random())

    def _fits(self, one: _Waiting, outstanding: Outstanding) -> bool:
        ask = one.ask
        standings = self._ledger.standings(ask.namespace, ask.facts, without=ask.uid)
        one.judgement = self._quota.judge_against(ask, outstanding.on_top_of(standings))
        return not one.judgement.excesses

    @staticmethod
    def _answer(one: _Waiting) -> None:
        if not one.done.done():
            one.done.set_result(one.judgement)

    # --- views ---

    def _view(self, space: _Namespace) -> _View:
        return _View(self._ledger, max(self._watch.pods_revision, space.listed), space.listed)

    async def _reach(self, space: _Namespace, record: Record) -> None:
        """Return once a decision may rest on our view: the watch has caught up, or a list has."""
        stale = self._watch.reason() is not None
        view = self._view(space)
        if not stale and not reached(record, view) and view.listed >= record.listed_through:
            await self._watch.wait_for_pods(str(record.seen_through), self._settings.catch_up_s)
        if stale or not reached(record, self._view(space)):
            await self._list(space, "behind")

    def _may_list(self, space: _Namespace) -> bool:
        """Whether a refusal is worth another list: not more often than once a second, less often for large namespaces."""
        every_s = max(1.0, len(self._ledger.charged_in(space.name)) / _PODS_A_SECOND)
        return self._clock() - space.listed_at >= every_s

    async def _list(self, space: _Namespace, cause: str) -> None:
        self._metrics.lists.labels(cause).inc()
        documents, version = await self._api.list_pods(space.name)
        if not (version.isascii() and version.isdigit()):
            raise MalformedReply(f"list of pods in {space.name}: resourceVersion {version!r} is no number")
        try:
            pods = [pod_of(document) for document in documents]
        except msgspec.ValidationError as error:
            raise MalformedReply(f"list of pods in {space.name}: {error}") from error
        self._watch.take_list(space.name, pods, int(version))
        space.listed, space.listed_at = int(version), self._clock()

    # --- the record ---

    async def _read(self, space: _Namespace) -> None:
        """Hold the record as it is stored now. Without one, the namespace is listed and a new one begins there."""
        held = await self._read_object(space.name)
        if held is None:
            await self._list(space, "missing")
            held = _Held(Record(seen_through=space.listed), "")
        self._hold(space, held)

    async def _read_object(self, namespace: str) -> _Held | None:
        try:
            return _held(await self._api.get_config_map(self._settings.namespace, record_name(namespace)))
        except NotFound:
            return None

    def _hold(self, space: _Namespace, held: _Held) -> None:
        space.held = held
        now = space.touched_at = self._clock()
        space.first_seen = {uid: space.first_seen.get(uid, now) for uid in held.record.entries}

    async def _write(self, space: _Namespace, record: Record) -> bool:
        """Store the record in place of the one held; False when that is not known to have happened. Raises KubeError."""
        assert space.held is not None
        data: JsonObject = dict(encode(record))
        name, version = record_name(space.name), space.held.resource_version
        try:
            if version:
                body: JsonObject = {"metadata": {"resourceVersion": version}, "data": data}
                stored = await self._api.patch_config_map(self._settings.namespace, name, body)
            else:
                stored = await self._api.create_config_map(
                    self._settings.namespace,
                    {
                        "apiVersion": "v1",
                        "kind": "ConfigMap",
                        "metadata": {
                            "name": name,
                            "namespace": self._settings.namespace,
                            "labels": {RECORD_LABEL: "true"},
                            "annotations": {_NAMESPACE_ANNOTATION: space.name},
                        },
                        "data": data,
                    },
                )
        except Conflict:
            space.held = None
            self._metrics.writes.labels("conflict").inc()
            return False
        except (OutcomeUnknown, NotFound) as error:
            # It may have landed; the next write that lands ends the doubt, because the version has moved on then.
            space.held = None
            self._metrics.writes.labels("unknown" if isinstance(error, OutcomeUnknown) else "conflict").inc()
            return False
        except KubeError:
            self._metrics.writes.labels("failed").inc()
            raise
        self._metrics.writes.labels("stored").inc()
        self._hold(space, _Held(record, _version_of(stored)))
        return True

    # --- looking after records that nobody writes at the moment ---

    async def _tidy(self, space: _Namespace) -> None:
        try:
            async with asyncio.timeout(self._settings.deadline_s):
                held = await self._read_object(space.name)
                if held is None:
                    space.held = None
                    return
                self._hold(space, held)
                now = self._clock()
                old = {uid for uid, at in space.first_seen.items() if now - at >= self._settings.entry_life_s}
                if any(self._ledger.shown(uid) is None for uid in old):
                    await self._list(space, "expired")
                elif self._watch.reason() is not None:
                    return
                shorter = pruned(held.record, self._view(space), frozenset(old))
                if shorter is not held.record:
                    await self._write(space, shorter)
        except (KubeError, RecordError, TimeoutError) as error:
            space.held = None
            _log.warning(
                "the admission record of namespace %s could not be tidied: %s", space.name, error or "time-out"
            )

    async def _adopt(self) -> None:
        """Take over the records of replicas that are gone."""
        if not any(self._ledger.limit_groups(quota.namespace) for quota in self._ledger.quotas()):
            return
        try:
            found = await self._api.list_config_maps(self._settings.namespace, f"{RECORD_LABEL}=true")
        except KubeError as error:
            _log.warning("admission records could not be listed: %s", error)
            return
        for document in found:
            metadata = document.get("metadata")
            annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
            name = annotations.get(_NAMESPACE_ANNOTATION) if isinstance(annotations, dict) else None
            if isinstance(name, str) and name and name not in self._namespaces:
                try:
                    held = _held(document)
                except RecordError as error:
                    _log.warning("the admission record of namespace %s: %s", name, error)
                    continue
                if held.record.entries:
                    space = self._namespaces[name] = _Namespace(name)
                    self._hold(space, held)


def _version_of(document: JsonObject) -> str:
    metadata = document.get("metadata")
    version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
    if not isinstance(version, str) or not version:
        raise RecordError(f"its resourceVersion is {version!r}")
    return version


def _held(document: JsonObject) -> _Held:
    data = document.get("data")
    return _Held(decode(data if isinstance(data, dict) else {}), _version_of(document))
