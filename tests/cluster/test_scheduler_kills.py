"""The leading kube-scheduler and its extender are killed, again and again, while pods keep coming."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest

from lab.cluster import Cluster
from lab.control_plane import ADMIN, ControlPlane
from lab.follow import SeenPod
from lab.names import RUN_SECONDS
from lab.nodes import uniform_nodes
from lab.pods import pod_document
from lab.scenario import PodForm
from tests.cluster.lease_log import LEASE, LeaseLog
from tests.cluster.rendered import Changes
from tests.cluster.slotwise import Slotwise

LEASE_S, RENEW_DEADLINE_S, RETRY_S = 6, 4, 1
SHORT_LEASE = Changes(
    key_writers=(ADMIN.name,),
    leader_election={
        "leaseDuration": f"{LEASE_S}s",
        "renewDeadline": f"{RENEW_DEADLINE_S}s",
        "retryPeriod": f"{RETRY_S}s",
    },
    # It leaves no time for the Bindings of 5 s that are the default.
    extender=("--bind-timeout=2s",),
)
KILLS = int(os.environ.get("SLOTWISE_KILLS", "5"))
LONGEST_PAUSE_S = LEASE_S + 2.2 * RETRY_S + 1.0
"""From when the next leader could know of the killed one's last renewal to its first placement: what the Lease's own times allow, and a second.

A kube-scheduler that waits for the Lease looks at it every 1 to 2.2 retry periods and counts leaseDuration from the look that shows
another renewal (client-go, leaderelection.go), so up to 2.2 retry periods more may pass since the renewal itself.
"""
BETWEEN_PODS_S = 0.15
PATIENCE_S = 60.0
SHARE = PodForm(limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000, "nvidia.com/gpucores": 10})


class Stream:
    """Pods that are created one after the other, and when each was first seen placed. Each runs a second."""

    def __init__(self, cluster: Cluster) -> None:
        self.created: list[str] = []
        self.placed_at: dict[str, float] = {}
        self.violations: set[str] = set()
        self._cluster = cluster
        cluster.pods.listen(self._changed)

    def _changed(self, _: SeenPod | None, after: SeenPod | None) -> None:
        if after is not None and after.pod.bound_node and after.pod.name not in self.placed_at:
            self.placed_at[after.pod.name] = time.time()
            self.violations |= {str(found) for found in self._cluster.violations()}

    @asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        """Pods come while inside."""
        creating = asyncio.create_task(self._create())
        try:
            yield
        finally:
            creating.cancel()
            with suppress(asyncio.CancelledError):
                await creating

    async def _create(self) -> None:
        while True:
            name = f"stream-{len(self.created)}"
            form = PodForm(name=name, annotations={RUN_SECONDS: "1"})
            await self._cluster.create_pod(pod_document(form, SHARE), "default")
            self.created.append(name)
            await asyncio.sleep(BETWEEN_PODS_S)

    def first_after(self, moment: float) -> float | None:
        """When the first pod was placed after a moment."""
        return min((at for at in self.placed_at.values() if at > moment), default=None)


@pytest.fixture(scope="module")
def short_lease(slotwise: Slotwise) -> Iterator[None]:
    slotwise.use(SHORT_LEASE)
    yield
    slotwise.use(Changes(key_writers=(ADMIN.name,)))


async def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"it is not so that {what}"
        await asyncio.sleep(0.02)


async def placing_goes_on(pods: Stream) -> float:
    """When the next pod is placed."""
    now = time.time()
    await until(lambda: pods.first_after(now) is not None, "placing goes on")
    found = pods.first_after(now)
    assert found is not None
    return found


def seen_by_the_next(plane: ControlPlane, user: str, renewed_at: float) -> float:
    """When a kube-scheduler that does not lead first looked at the Lease after it was renewed at that moment."""
    calls = [call for call in plane.audited() if (call.user, call.resource, call.name) == (user, "leases", LEASE)]
    stored_at = min(call.answered_at for call in calls if call.verb == "update" and call.received_at >= renewed_at)
    return min(call.received_at for call in calls if call.verb == "get" and call.received_at >= stored_at)


def is_led_by_another(lease: LeaseLog, killed: str) -> bool:
    return lease.holder not in ("", killed)


@pytest.mark.usefixtures("short_lease")
async def test_pods_are_placed_whichever_leader_is_killed(
    control_plane: ControlPlane, slotwise: Slotwise, cluster: Cluster
) -> None:
    for spec in uniform_nodes(2, 4):
        await cluster.add_node(spec)
    lease = LeaseLog(cluster.client, slotwise.namespace)
    await lease.start()
    pods, pauses = Stream(cluster), []
    async with pods.going_on():
        for number in range(KILLS):
            await placing_goes_on(pods)
            killed = lease.holder
            slotwise.installation.kubelet.signal(lease.pod, signal.SIGKILL if number % 2 else signal.SIGTERM)
            await until(partial(is_led_by_another, lease, killed), "another one leads")
            goes_on_at = await placing_goes_on(pods)
            known_at = seen_by_the_next(control_plane, slotwise.scheduler_user, lease.renewed_at(killed))
            pauses.append(goes_on_at - known_at)
            await asyncio.to_thread(slotwise.installation.wait_ready)
    await until(lambda: set(pods.placed_at) == set(pods.created), "every pod is placed")

    def all_ended() -> bool:
        return {pod.status.phase for pod in cluster.all_pods() if pod.name in pods.placed_at} == {"Succeeded"}

    await until(all_ended, "every pod ran to its end")
    await lease.stop()
    assert pods.violations == set()
    assert cluster.violations() == ()
    assert max(pauses) <= LONGEST_PAUSE_S, pauses
