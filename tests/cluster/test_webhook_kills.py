"""A webhook replica goes while pods keep being created: in good order nobody notices, by force only requests under way do."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp

from lab.control_plane import ControlPlane
from lab.services import SCHEDULER_NAME
from tests.cluster.slotwise import Slotwise

CALLERS = 8
LONGEST_CALL_S = 2.0
"""Of any creation, whatever happens to a replica."""
BEFORE_S, AFTER_S = 1.0, 3.0


@dataclass
class Load:
    """What came of pods that several callers created at the same time, each one after the other."""

    created: int = 0
    refused: list[str] = field(default_factory=list)
    unmutated: list[str] = field(default_factory=list)
    longest_s: float = 0.0


@asynccontextmanager
async def load(plane: ControlPlane) -> AsyncIterator[Load]:
    """Callers create device pods as dry runs, which call both webhooks and leave nothing behind."""
    seen, stop = Load(), asyncio.Event()
    url = f"{plane.url}/api/v1/namespaces/default/pods?dryRun=All"
    headers = {"Authorization": f"Bearer {plane.token()}"}

    async def call(session: aiohttp.ClientSession) -> None:
        while not stop.is_set():
            began = time.monotonic()
            async with session.post(url, json=POD, headers=headers, ssl=plane.tls()) as response:
                answer = await response.json()
            seen.longest_s = max(seen.longest_s, time.monotonic() - began)
            if response.status != 201:
                seen.refused.append(str(answer.get("message")))
                continue
            seen.created += 1
            if answer["spec"]["schedulerName"] != SCHEDULER_NAME:
                seen.unmutated.append(str(answer))

    async with aiohttp.ClientSession() as session:
        callers = [asyncio.create_task(call(session)) for _ in range(CALLERS)]
        try:
            await asyncio.sleep(BEFORE_S)
            yield seen
            await asyncio.sleep(AFTER_S)
        finally:
            stop.set()
            await asyncio.gather(*callers)


POD = {
    "metadata": {"generateName": "load-"},
    "spec": {
        "containers": [
            {
                "name": "main",
                "image": "registry.k8s.io/pause:3.10",
                "resources": {"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000"}},
            }
        ]
    },
}


async def test_a_replica_that_is_deleted_refuses_nobody(control_plane: ControlPlane, slotwise: Slotwise) -> None:
    installation = slotwise.installation
    going = installation.pods("webhook")[0]
    async with load(control_plane) as seen:
        # Its end comes after `preStop`, so the load has to last until it is really gone.
        await asyncio.to_thread(
            installation.kubectl.run, "delete", "pod", going, f"--namespace={slotwise.namespace}", "--wait"
        )
    assert seen.refused == []
    assert seen.unmutated == []
    assert seen.created > CALLERS
    assert going not in installation.pods("webhook")
    await asyncio.to_thread(installation.wait_ready)


async def test_a_replica_that_is_killed_takes_no_more_with_it_than_what_it_was_asked(
    control_plane: ControlPlane, slotwise: Slotwise
) -> None:
    installation = slotwise.installation
    async with load(control_plane) as seen:
        installation.kubelet.signal(installation.pods("webhook")[0], signal.SIGKILL)
    assert len(seen.refused) <= CALLERS, seen.refused
    assert seen.unmutated == []
    assert seen.created > CALLERS
    assert seen.longest_s < LONGEST_CALL_S
    await asyncio.to_thread(installation.wait_ready)
