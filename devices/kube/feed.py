"""The ledger kept equal to the cluster: pods, nodes and quotas followed by reflectors, overdue reservations released."""

import asyncio
import contextlib
import logging
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter

from devices.kube.consumer import ListWatch
from devices.kube.freshness import Freshness, OwnPod
from devices.kube.metrics import ReflectorMetrics
from devices.kube.protocols import PodPatcher
from devices.kube.reflector import Reflector, ReflectorSettings
from devices.kube.resources import NODES, PODS, RESOURCE_QUOTAS
from devices.kube.seen import SeenObject
from devices.ledger import Ledger
from devices.objects import Metadata, Node, Pod, Quota, decode_node, decode_pod, decode_quota
from devices.quota import quota_problems

__all__ = ["FeedApi", "LedgerFeed"]

_LOG = logging.getLogger(__name__)
_EXPIRE_EVERY_S = 5.0

Listener = Callable[[str], None]


class FeedApi(ListWatch, PodPatcher, Protocol):
    """What following the cluster needs of the API server."""


def _revision(pod: Pod) -> int:
    text = pod.metadata.resource_version
    return int(text) if text.isascii() and text.isdigit() else 0


def _metadata(item: Pod | Node) -> Metadata:
    return item.metadata


class _Pods:
    def __init__(self, ledger: Ledger, now: Callable[[], float], changed: Sequence[Listener]) -> None:
        self._ledger = ledger
        self._now = now
        self._changed = changed
        self._problems: dict[str, str] = {}
        self._left_out: dict[str, None] = {}
        """Pods that the books have no place for: plain ones, and such as have finished."""
        self._in_books = ledger.books_of_pods
        self._known = ChainMap[str, object](ledger.books_of_pods, self._left_out)  # type: ignore[arg-type] # read alone, but typed as mappings that can be changed
        self.watched_to: Callable[[], int] = lambda: 0
        """How far the watch has come: what is no newer and comes only now was missed, and a list has brought it."""

    def known(self) -> Mapping[str, object]:
        return self._known

    def replace(self, items: Sequence[Pod]) -> None:
        for uid in self._known.keys() - {pod.uid for pod in items}:
            self._delete(uid)
        for pod in items:
            self._put(pod, by_watch=False)

    def put(self, item: Pod) -> None:
        self._put(item, by_watch=_revision(item) > self.watched_to())

    def _put(self, item: Pod, *, by_watch: bool) -> None:
        uid = item.metadata.uid
        self._ledger.put_pod(item, self._now(), by_watch=by_watch)
        if uid not in self._in_books:
            self._left_out[uid] = None
        else:
            self._left_out.pop(uid, None)
            for listener in self._changed:
                listener(uid)
        problem = self._ledger.pod_problems().get(uid, "")
        if problem or uid in self._problems:
            self._report(item, problem)

    def _report(self, pod: Pod, problem: str) -> None:
        if problem != self._problems.pop(pod.uid, ""):
            _LOG.warning("%s", problem or f"pod {pod.namespace}/{pod.name}: its allocation can be read again")
        if problem:
            self._problems[pod.uid] = problem

    def delete(self, gone: SeenObject) -> None:
        pod = self._ledger.pod(gone.uid)
        if pod is not None and _revision(pod) > gone.revision:
            return  # made after the list that lacks it was taken: a filter call may bring a pod before the watch does
        self._delete(gone.uid)

    def _delete(self, uid: str) -> None:
        self._ledger.delete_pod(uid)
        self._problems.pop(uid, None)
        self._left_out.pop(uid, None)


class _Nodes:
    """Nodes are kept by name; the API server speaks of UIDs."""

    def __init__(self, ledger: Ledger, changed: Sequence[Listener], gone: Sequence[Listener]) -> None:
        self._ledger = ledger
        self._changed = changed
        self._gone = gone
        self._names: dict[str, str] = {}
        self._problems: dict[str, tuple[str, ...]] = {}

    def known(self) -> Mapping[str, object]:
        return self._names

    def replace(self, items: Sequence[Node]) -> None:
        names = {node.name for node in items}
        for name in [name for name in self._ledger.node_names() if name not in names]:
            self._delete(name)
        self._names.clear()
        for node in items:
            self.put(node)

    def put(self, item: Node) -> None:
        self._names[item.metadata.uid] = item.name
        self._ledger.put_node(item)
        self._report(item.name)
        for listener in self._changed:
            listener(item.name)

    def delete(self, gone: SeenObject) -> None:
        name = self._names.pop(gone.uid, None)
        # A node made again under the same name has another UID and is not gone.
        if name is not None and name not in self._names.values():
            self._delete(name)

    def _delete(self, name: str) -> None:
        self._ledger.delete_node(name)
        self._problems.pop(name, None)
        for listener in self._gone:
            listener(name)

    def _report(self, name: str) -> None:
        problems = self._ledger.problems_of(name)
        if problems and problems != self._problems.get(name):
            _LOG.warning("node %s: %s", name, "; ".join(problems))
        self._problems[name] = problems


class _Quotas:
    def __init__(self, ledger: Ledger, changed: Sequence[Callable[[Quota], None]] = ()) -> None:
        self._ledger = ledger
        self._changed = changed
        self._objects: dict[str, tuple[str, str]] = {}
        self._said: dict[tuple[str, str], tuple[str, ...]] = {}

    def known(self) -> Mapping[str, object]:
        return self._objects

    def replace(self, items: Sequence[Quota]) -> None:
        listed = {(quota.namespace, quota.name) for quota in items}
        for quota in [quota for quota in self._ledger.quotas() if (quota.namespace, quota.name) not in listed]:
            self._ledger.delete_quota(quota.namespace, quota.name)
        self._objects.clear()
        for quota in items:
            self.put(quota)

    def put(self, item: Quota) -> None:
        self._objects[item.metadata.uid] = (item.namespace, item.name)
        self._ledger.put_quota(item)
        problems = quota_problems(item, self._ledger.quota_names)
        for problem in problems:
            if problem not in self._said.get((item.namespace, item.name), ()):
                _LOG.warning("%s", problem)
        self._said[item.namespace, item.name] = problems
        for listener in self._changed:
            listener(item)

    def delete(self, gone: SeenObject) -> None:
        place = self._objects.pop(gone.uid, None)
        if place is not None and place not in self._objects.values():
            self._ledger.delete_quota(*place)
            self._said.pop(place, None)


class LedgerFeed:
    """Feeds one ledger. `now` gives Unix seconds; `own_pod` proves by round trips that the pod watch is fresh."""

    def __init__(
        self,
        client: FeedApi,
        ledger: Ledger,
        now: Callable[[], float],
        *,
        own_pod: OwnPod | None = None,
        registry: CollectorRegistry | None = None,
        settings: ReflectorSettings | None = None,
        expire_every_s: float = _EXPIRE_EVERY_S,
    ) -> None:
        self._ledger = ledger
        self._now = now
        self._expire_every_s = expire_every_s
        self.pod_changed: list[Listener] = []
        """Called with a pod's UID after each change of it, if the books have a place for it."""
        self.node_changed: list[Listener] = []
        """Called with a node's name after each change of it."""
        self.node_gone: list[Listener] = []
        """Called with a node's name after it is gone."""
        self.quota_changed: list[Callable[[Quota], None]] = []
        """Called with each ResourceQuota as it is now."""
        registry = registry or CollectorRegistry()
        metrics, settings = ReflectorMetrics(registry), settings or ReflectorSettings()
        self.watch_metrics = metrics
        """For further watches of the process."""
        pods_consumer = _Pods(ledger, now, self.pod_changed)
        pods = Reflector(client, PODS, decode_pod, pods_consumer, settings, metadata=_metadata, metrics=metrics)
        pods_consumer.watched_to = lambda: pods.resource_version
        nodes_consumer = _Nodes(ledger, self.node_changed, self.node_gone)
        nodes = Reflector(client, NODES, decode_node, nodes_consumer, settings, metadata=_metadata, metrics=metrics)
        quotas = Reflector(
            client, RESOURCE_QUOTAS, decode_quota, _Quotas(ledger, self.quota_changed), settings, metrics=metrics
        )
        self._pods, self._nodes, self._quotas = pods, nodes, quotas
        self.freshness = Freshness(pods, client, own_pod, registry=registry)
        self._has_own_pod = own_pod is not None
        self._expired = Counter(
            "slotwise_reservations_expired_total",
            "Reservations, and annotations of unbound pods, that were given back for their age.",
            registry=registry,
        )
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def synced(self) -> bool:
        """Whether the ledger shows the cluster as it is: everything listed once, and the pod watch fresh."""
        return self.reason() is None

    def reason(self) -> str | None:
        """Why the ledger may not show the cluster as it is; None when it does."""
        for reflector in (self._nodes, self._pods, self._quotas):
            if not reflector.synced.is_set():
                return f"the {reflector.resource.label} are not listed yet"
        return self.freshness.reason()

    async def wait_synced(self) -> None:
        """Return once everything has been listed."""
        for reflector in (self._nodes, self._pods, self._quotas):
            await reflector.synced.wait()

    @property
    def pods_revision(self) -> int:
        """The newest revision whose pod changes are in the ledger."""
        return self._pods.resource_version

    async def wait_for_pods(self, resource_version: str, timeout_s: float) -> bool:
        """True as soon as this revision's pod changes are in the ledger, False after the time."""
        return await self._pods.wait_for_revision(resource_version, timeout_s)

    def resync_pods(self) -> None:
        """Make a full list of the pods soon and compare."""
        self._pods.request_resync()

    def take_list(self, namespace: str, pods: Sequence[Pod], revision: int) -> bool:
        """Bring the ledger up to a quorum list of one namespace; whether it showed a pod that the watch has missed."""
        missed = False
        listed = {pod.uid for pod in pods}
        for pod in pods:
            if self._ledger.pod(pod.uid) is None and self._ledger.shown(pod.uid) is None and not pod.is_finished:
                missed = missed or _revision(pod) <= self._pods.resource_version
            self._ledger.put_pod(pod, self._now(), by_watch=False)
        for uid in [uid for uid in self._ledger.charged_in(namespace) if uid not in listed]:
            known = self._ledger.pod(uid)
            if known is not None and _revision(known) <= revision:
                self._ledger.delete_pod(uid)
        if missed:
            _LOG.warning("the pod watch has missed pods of namespace %s: listing everything again", namespace)
            self._pods.request_resync()
        return missed

    async def start(self) -> None:
        """Begin to follow."""
        runs = [self._nodes.run(), self._quotas.run(), self._pods.run(), self._expire()]
        if self._has_own_pod:
            runs.append(self.freshness.run())
        self._tasks = [asyncio.create_task(run) for run in runs]

    async def stop(self) -> None:
        """Stop following."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._tasks = []

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(self._expire_every_s)
            expired = self._ledger.expire(self._now())
            if expired:
                self._expired.inc(len(expired))
                _LOG.warning("released the overdue reservations of %d pods: %s", len(expired), ", ".join(expired[:10]))
