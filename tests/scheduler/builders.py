"""A small world around the engine: a clock that only tests move, an API server of dictionaries, and everything said of pods."""

import asyncio
import copy
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from devices.config import DeviceConfig
from devices.kube.errors import (
    Conflict,
    Invalid,
    KubeError,
    NotFound,
    OutcomeUnknown,
    Unreachable,
)
from devices.kube.protocols import JsonObject
from devices.ledger import Ledger
from devices.objects import Node, Pod, node_of, pod_of
from lab.replay.cluster import merge_patch
from scheduler.ask import Ask, Defaults, ask_of
from scheduler.bind import BindRequest, BindSettings, PodBinder
from scheduler.diagnosis import EventText
from scheduler.engine import Engine, Filtered
from scheduler.nodelock import LockSettings, NodeLocks, lock_formats
from tests import builders

NOW_S = 1_780_000_000.0
NOW = "2026-05-28T20:26:40Z"
LOCK = "hami.io/mutex.lock"
NO_LOCK = {"slotwise.io/node-lock": "none"}
CONFIG = builders.nvidia_config()


def ask(pod: Pod | None = None, config: DeviceConfig = CONFIG, **defaults: str) -> Ask:
    return ask_of(pod or builders.pod(), config, Defaults(**defaults))


async def settle() -> None:
    """Let everything that can run without time passing run."""
    for _ in range(60):
        await asyncio.sleep(0)


class Clock:
    """Stands still until a test moves it; `waits` lists the seconds of the waits that began."""

    def __init__(self, now_s: float = NOW_S) -> None:
        self.now_s = now_s
        self.waits: list[float] = []
        self._due: list[tuple[float, asyncio.Future[None]]] = []
        self._came = asyncio.Event()

    def now(self) -> float:
        return self.now_s

    async def wait(self, event: asyncio.Event, timeout_s: float) -> bool:
        if event.is_set() or timeout_s <= 0:
            return event.is_set()
        self.waits.append(timeout_s)
        due: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (self.now_s + timeout_s, due)
        self._due.append(entry)
        self._came.set()
        waiter: asyncio.Future[Any] = asyncio.ensure_future(event.wait())
        ends: set[asyncio.Future[Any]] = {waiter, due}
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiter.cancel()
            if entry in self._due:
                self._due.remove(entry)
        return event.is_set()

    async def advance(self, seconds: float) -> None:
        """Move on, stopping at every wait that ends meanwhile."""
        until = self.now_s + seconds
        await settle()
        while (due := [entry for entry in self._due if entry[0] <= until]) != []:
            entry = min(due, key=lambda e: e[0])
            self.now_s = entry[0]
            self._due.remove(entry)
            entry[1].set_result(None)
            await settle()
        self.now_s = until

    async def until_waiting(self) -> None:
        """Return once somebody waits (also where that takes real network answers)."""
        async with asyncio.timeout(20):
            while not self._due:
                self._came.clear()
                await self._came.wait()


@dataclass
class Hitch:
    """What one call meets: waits for `hold`, then raises `error` before or, with `after`, behind the deed."""

    error: Exception | None = None
    after: bool = False
    hold: asyncio.Event | None = None
    hold_after: asyncio.Event | None = None


def lost() -> OutcomeUnknown:
    return OutcomeUnknown("POST: the reply was lost")


def unreachable() -> Unreachable:
    return Unreachable("GET: connection refused")


class Api:
    """Objects with resourceVersions; every change is shown to `watch` at once, unless `silent`."""

    def __init__(self) -> None:
        self.pods: dict[tuple[str, str], Any] = {}
        self.nodes: dict[str, Any] = {}
        self.events: list[JsonObject] = []
        self.calls: list[str] = []
        self.bodies: list[JsonObject] = []
        self.hitches: defaultdict[str, deque[Hitch]] = defaultdict(deque)
        self.on_pod: Callable[[JsonObject], None] = lambda _: None
        self.on_node: Callable[[JsonObject], None] = lambda _: None
        self.silent = False
        self._revision = 100

    def meets(self, verb: str, *hitches: Hitch | Exception) -> None:
        """What the next calls of a verb meet."""
        self.hitches[verb] += [h if isinstance(h, Hitch) else Hitch(h) for h in hitches]

    async def _call(self, verb: str, deed: Callable[[], JsonObject]) -> JsonObject:
        self.calls.append(verb)
        hitch = self.hitches[verb].popleft() if self.hitches[verb] else Hitch()
        if hitch.hold is not None:
            await hitch.hold.wait()
        if hitch.error is not None and not hitch.after:
            raise hitch.error
        done = copy.deepcopy(deed())
        if hitch.hold_after is not None:
            await hitch.hold_after.wait()
        if hitch.error is not None:
            raise hitch.error
        return done

    def _stamped(self, document: Any) -> Any:
        self._revision += 1
        document["metadata"]["resourceVersion"] = str(self._revision)
        return document

    def put_pod(self, document: Any) -> None:
        meta = document["metadata"]
        self.pods[meta["namespace"], meta["name"]] = self._stamped(document)
        if not self.silent:
            self.on_pod(document)

    def put_node(self, document: Any) -> None:
        self.nodes[document["metadata"]["name"]] = self._stamped(document)
        if not self.silent:
            self.on_node(document)

    def annotate_node(self, name: str, key: str, value: str | None) -> None:
        self.put_node(merge_patch(self.nodes[name], {"metadata": {"annotations": {key: value}}}))

    def lock(self, name: str = "n1", key: str = LOCK) -> str | None:
        found: str | None = (self.nodes[name]["metadata"].get("annotations") or {}).get(key)
        return found

    async def get_pod(self, namespace: str, name: str) -> JsonObject:
        if "/" in name or not name or not namespace:
            raise ValueError(f"name {name!r} is no name of an object")

        def deed() -> Any:
            if (namespace, name) not in self.pods:
                raise NotFound(404, "NotFound", f'pods "{name}" not found')
            return self.pods[namespace, name]

        return await self._call("get_pod", deed)

    async def patch_pod(self, namespace: str, name: str, body: JsonObject) -> JsonObject:
        def deed() -> Any:
            if (namespace, name) not in self.pods:
                raise NotFound(404, "NotFound", f'pods "{name}" not found')
            before, meta = self.pods[namespace, name], body["metadata"]
            assert isinstance(meta, dict)
            if meta.get("uid") not in (None, before["metadata"]["uid"]):
                raise Invalid(422, "Invalid", f'pods "{name}": metadata.uid: field is immutable')
            self.bodies.append(body)
            self.put_pod(merge_patch(before, body))
            return self.pods[namespace, name]

        return await self._call("patch_pod", deed)

    async def get_node(self, name: str) -> JsonObject:
        def deed() -> Any:
            if name not in self.nodes:
                raise NotFound(404, "NotFound", f'nodes "{name}" not found')
            return self.nodes[name]

        return await self._call("get_node", deed)

    async def patch_node(self, name: str, body: JsonObject) -> JsonObject:
        def deed() -> Any:
            before = self.nodes[name]
            meta: Any = body["metadata"]
            if meta.get("resourceVersion") not in (None, before["metadata"]["resourceVersion"]):
                raise Conflict(409, "Conflict", f'nodes "{name}": the object has been modified')
            self.put_node(merge_patch(before, body))
            return self.nodes[name]

        return await self._call("patch_node", deed)

    async def bind(
        self,
        namespace: str,
        name: str,
        body: JsonObject,
        timeout_s: float,
        *,
        before_send: Callable[[], None] | None = None,
    ) -> None:
        def deed() -> Any:
            if before_send is not None:
                before_send()
            self.bodies.append(body)
            pod = self.pods[namespace, name]
            sent: Any = body
            meta, target = sent["metadata"], sent["target"]
            if pod["spec"].get("nodeName") or pod["metadata"]["uid"] != meta["uid"]:
                raise Conflict(409, "Conflict", f'pods/binding "{name}" is already assigned')
            extra = {key: meta[key] for key in ("annotations", "labels") if key in meta}
            self.put_pod(merge_patch(pod, {"metadata": extra, "spec": {"nodeName": target["name"]}}))
            return {}

        await self._call("bind", deed)

    async def create_event(self, namespace: str, body: JsonObject) -> None:
        def deed() -> JsonObject:
            self.events.append(body)
            return {}

        await self._call("create_event", deed)


@dataclass
class Said:
    """Takes Events; `later` runs at once."""

    events: list[tuple[str, str, str]] = field(default_factory=list)

    def emit(self, pod: Pod, event: EventText) -> None:
        self.events.append((event.type, event.reason, event.message))

    def later(self, work: Callable[[], None]) -> None:
        work()


class World:
    """Ledger, engine, locks and binder over the API server of dictionaries."""

    def __init__(
        self,
        *nodes: Node,
        config: DeviceConfig = CONFIG,
        card_policy: str = "spread",
        node_lock: str = "auto",
        clock: Any = None,
    ) -> None:
        self.clock = clock or Clock()
        self.api = Api()
        self.api.on_pod = lambda document: self.ledger.put_pod(pod_of(document), self.clock.now())
        self.api.on_node = self._node_seen
        self.ledger = Ledger(config)
        self.engine = Engine(self.ledger, Defaults(card_policy))
        self.locks = NodeLocks(self.api, self.clock, LockSettings(), lock_formats(config.vendors))
        self.said = Said()
        settings = BindSettings(node_lock)
        self.binder = PodBinder(self.engine, self.api, self.locks, self.clock, self.said, settings)
        for node in nodes:
            self.put_node(node)

    def _node_seen(self, document: JsonObject) -> None:
        node = node_of(document)
        self.ledger.put_node(node)
        self.locks.node_changed(node.name)

    def put_node(self, node: Node) -> None:
        self.api.put_node(msgspec.to_builtins(node))

    def put_pod(self, pod: Pod) -> Pod:
        """The pod as stored, seen by the watch."""
        self.api.put_pod(msgspec.to_builtins(pod))
        return pod_of(self.api.pods[pod.namespace, pod.name])

    def stored(self, name: str = "a", namespace: str = "default") -> Pod:
        return pod_of(self.api.pods[namespace, name])

    def delete_pod(self, name: str = "a", namespace: str = "default") -> None:
        document = self.api.pods.pop((namespace, name))
        self.ledger.delete_pod(document["metadata"]["uid"])

    def filter(self, pod: Pod, *names: str) -> Filtered:
        """Filter over the named nodes, or all known."""
        return self.engine.filter(pod, names or tuple(self.ledger.node_names()), self.clock.now())

    def filtered(self, pod: Pod) -> Pod:
        """Store the pod and reserve its cards."""
        stored = self.put_pod(pod)
        found = self.filter(stored)
        assert found.allocation is not None, found
        return stored

    def request(self, pod: Pod, node: str = "n1", deadline_s: float | None = None) -> BindRequest:
        return BindRequest(pod.namespace, pod.name, pod.uid, node, deadline_s)

    async def bind(self, pod: Pod, node: str = "n1") -> str:
        """Bind; the error's text, empty for success."""
        try:
            await self.binder.bind(self.request(pod, node))
        except KubeError as error:  # must never come out of the binder
            raise AssertionError(error) from error
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def held(self, node: str = "n1") -> dict[str, tuple[int, int, int]]:
        """Slots, MiB and percent in use by UUID, where any is."""
        state = self.ledger.state(node)
        return {
            s.card.uuid: (s.used_slots, s.used_memory_mib, s.used_cores)
            for s in (state.cards if state is not None else ())
            if s.used_slots
        }


def uuids(filtered: Filtered) -> list[str]:
    assert filtered.allocation is not None
    return [entry.uuid for entries in filtered.allocation for entry in entries]


def texts(events: Sequence[EventText]) -> list[str]:
    return [event.message for event in events]


def annotated(key: str, value: str) -> Mapping[str, str]:
    return {key: value}
