"""The queue of kube-scheduler: pods to try now, pods in back-off, and pods that wait for the cluster to change."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["Backoff", "SchedulingQueue"]


@dataclass(frozen=True)
class Backoff:
    """Waits of a pod after failed attempts; kube-scheduler has 1 s, 10 s and 300 s."""

    initial_s: float = 1.0
    """After the first failure; doubled with every further one."""
    longest_s: float = 10.0
    flush_s: float = 300.0
    """How long a refused pod waits for a change of the cluster before it is tried again without one."""

    def wait_s(self, attempts: int) -> float:
        """Seconds after failed attempt number `attempts` (from 1)."""
        return min(self.longest_s, self.initial_s * 2.0 ** min(attempts - 1, 30))


@dataclass
class _Entry:
    """A pod that is to be scheduled."""

    attempts: int = 0
    ready_at: float = 0.0
    refused: bool = False
    """Waits for the cluster to change."""
    timer: asyncio.TimerHandle | None = field(default=None, repr=False)


class SchedulingQueue:
    """Pods by UID, first come first served. One consumer takes; all methods run on the event loop.

    A pod that was taken stays known until it is dropped or given back by `refused` or `failed`.
    """

    def __init__(self, backoff: Backoff, clock: Callable[[], float] | None = None) -> None:
        self._backoff = backoff
        self._clock = clock
        self._entries: dict[str, _Entry] = {}
        self._active: OrderedDict[str, None] = OrderedDict()
        self._wake = asyncio.Event()
        self._changes = 0
        self._changes_at_take = 0

    def __contains__(self, uid: str) -> bool:
        return uid in self._entries

    @property
    def waiting(self) -> int:
        """Pods that are tried now or after their back-off, refused ones left out."""
        return sum(not entry.refused for entry in self._entries.values())

    def add(self, uid: str) -> None:
        """Try a new pod; one that is known already keeps its place."""
        if uid not in self._entries:
            self._entries[uid] = _Entry()
            self._activate(uid)

    def drop(self, uid: str) -> None:
        """Forget a pod: it is placed or gone."""
        entry = self._entries.pop(uid, None)
        self._active.pop(uid, None)
        if entry is not None and entry.timer is not None:
            entry.timer.cancel()

    async def take(self) -> str:
        """The next pod to try, as soon as there is one."""
        while not self._active:
            self._wake.clear()
            await self._wake.wait()
        uid, _ = self._active.popitem(last=False)
        self._entries[uid].attempts += 1
        self._changes_at_take = self._changes
        return uid

    def refused(self, uid: str) -> None:
        """No node fits the pod just taken: it waits for a change, or only for its back-off if there has been one meanwhile."""
        entry = self._entries.get(uid)
        if entry is None:
            return
        entry.ready_at = self._now() + self._backoff.wait_s(entry.attempts)
        if self._changes != self._changes_at_take:
            self._wait_until(uid, entry, entry.ready_at)
            return
        entry.refused = True
        self._wait_until(uid, entry, self._now() + self._backoff.flush_s)

    def failed(self, uid: str) -> None:
        """The attempt ended with an error: it is repeated after the back-off."""
        entry = self._entries.get(uid)
        if entry is not None:
            entry.ready_at = self._now() + self._backoff.wait_s(entry.attempts)
            self._wait_until(uid, entry, entry.ready_at)

    def cluster_changed(self) -> None:
        """Something that may help a refused pod has happened: all of them are tried once their back-off is over."""
        self._changes += 1
        for uid in [uid for uid, entry in self._entries.items() if entry.refused]:
            self.pod_changed(uid)

    def pod_changed(self, uid: str) -> None:
        """A refused pod itself has changed: it is tried once its back-off is over."""
        entry = self._entries.get(uid)
        if entry is not None and entry.refused:
            entry.refused = False
            self._wait_until(uid, entry, entry.ready_at)

    def close(self) -> None:
        """Forget everything, timers included."""
        for uid in list(self._entries):
            self.drop(uid)

    def _now(self) -> float:
        return self._clock() if self._clock else asyncio.get_running_loop().time()

    def _wait_until(self, uid: str, entry: _Entry, when: float) -> None:
        if entry.timer is not None:
            entry.timer.cancel()
            entry.timer = None
        wait_s = when - self._now()
        if wait_s <= 0:
            self._activate(uid)
        else:
            entry.timer = asyncio.get_running_loop().call_later(wait_s, self._activate, uid)

    def _activate(self, uid: str) -> None:
        entry = self._entries[uid]
        entry.timer = None
        entry.refused = False
        self._active[uid] = None
        self._wake.set()
