"""Many pods at once on many equal nodes: how fast, with how many writes, and whether any card was given away twice."""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from devices.kube.errors import KubeError
from devices.kube.protocols import JsonObject
from lab.cluster import Cluster, ClusterSettings
from lab.errors import LabError
from lab.follow import SeenPod
from lab.names import ALLOCATED, COUNT, MEMORY
from lab.nodes import uniform_nodes
from lab.pods import pod_document
from lab.records import BurstProgress, BurstResult
from lab.scenario import PodForm

__all__ = ["BurstOptions", "run_burst"]

_TELL_EVERY_S: Final = 0.1


@dataclass(frozen=True)
class BurstOptions:
    """How large the burst is. Raises ValueError for a size that makes no sense."""

    nodes: int = 10
    cards: int = 8
    """Per node; each card has 15360 MiB, 10 slots and 100 percent compute."""
    pods: int = 400
    gpumem: int = 1000
    """MiB that each pod asks for on its one card."""
    creators: int = 16
    """Creates under way at a time; with 1 the pods come in order, and two bursts take the same cards."""
    patience_s: float = 5.0
    """The burst ends when nothing more has been placed for so long."""

    def __post_init__(self) -> None:
        for name in ("nodes", "cards", "pods", "gpumem", "creators"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 1")


class _Counter:
    """Watches pods being placed."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self.placed: set[str] = set()
        self.running: set[str] = set()
        self.last_at = time.monotonic()
        self.moved = asyncio.Event()

    def pod_changed(self, before: SeenPod | None, after: SeenPod | None) -> None:
        """(listener)"""
        if after is None or not after.pod.bound_node:
            return
        if after.uid not in self.placed and after.pod.annotations.get(ALLOCATED):
            self.placed.add(after.uid)
            self.last_at = time.monotonic()
            self.moved.set()
        if after.pod.status.phase == "Running" and after.uid not in self.running:
            self.running.add(after.uid)
            self.moved.set()

    @property
    def is_complete(self) -> bool:
        """Every pod is placed and the kubelet has taken it on."""
        return len(self.running) >= self._wanted


async def run_burst(
    options: BurstOptions, settings: ClusterSettings | None = None
) -> AsyncIterator[BurstProgress | BurstResult]:
    """Play a burst on a cluster of its own; the last record is the `BurstResult`. Raises `LabError` if no cluster comes up."""
    async with Cluster(settings) as cluster:
        nodes = uniform_nodes(options.nodes, options.cards)
        for node in nodes:
            await cluster.add_node(node)
        counter = _Counter(options.pods)
        cluster.pods.listen(counter.pod_changed)
        writes = cluster.scheduler_writes()
        began = time.monotonic()
        counter.last_at = told_at = began
        creating = asyncio.create_task(_create_all(cluster, options), name="burst")
        try:
            while not counter.is_complete:
                counter.moved.clear()
                try:
                    async with asyncio.timeout(1.0):
                        await counter.moved.wait()
                except TimeoutError:
                    pass
                now = time.monotonic()
                if creating.done() and (creating.exception() or now - counter.last_at > options.patience_s):
                    break
                if now - told_at >= _TELL_EVERY_S:
                    told_at = now
                    yield BurstProgress(len(counter.placed), options.pods, now - began)
            await creating
        finally:
            creating.cancel()
        seconds = max(counter.last_at - began, 1e-9)
        placed = len(counter.placed)
        yield BurstResult(
            nodes=options.nodes,
            cards=options.cards,
            pods=options.pods,
            placed=placed,
            lost=options.pods - placed,
            seconds=round(seconds, 3),
            per_second=round(placed / seconds, 1),
            writes_per_pod=_per_pod(writes, cluster.scheduler_writes(), placed),
            violations=tuple(f"{v.node} {v.card}: {v.text}" for v in cluster.violations()),
            digest=_digest(cluster),
        )


def _per_pod(before: int | None, after: int | None, placed: int) -> float | None:
    return None if before is None or after is None else round((after - before) / max(placed, 1), 4)


def _digest(cluster: Cluster) -> str:
    lines = sorted(
        f"{seen.pod.name} {seen.pod.bound_node} {seen.pod.annotations.get(ALLOCATED, '')}"
        for seen in cluster.pods.objects.values()
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


async def _create_all(cluster: Cluster, options: BurstOptions) -> None:
    """Create all pods. Raises `LabError` if one cannot be created; the others that are under way still are."""
    numbers = iter(range(1, options.pods + 1))

    async def create() -> None:
        for number in numbers:
            await cluster.create_pod(_pod(number, options.gpumem), "default")

    outcomes = await asyncio.gather(
        *(create() for _ in range(min(options.creators, options.pods))), return_exceptions=True
    )
    for outcome in outcomes:
        if isinstance(outcome, KubeError):
            raise LabError(f"the pods of the burst cannot be created: {outcome}") from outcome
        if outcome is not None:
            raise outcome


def _pod(number: int, gpumem: int) -> JsonObject:
    form = PodForm(name=f"burst-{number:05}", limits={COUNT: 1, MEMORY: gpumem})
    return pod_document(form, PodForm())
