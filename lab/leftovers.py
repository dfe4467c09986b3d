"""What a lab has made in a cluster that is not its own, and taking it away again."""

import asyncio
from collections.abc import Awaitable
from typing import Final

from devices.kube.client import KubeClient
from devices.kube.errors import Conflict, NotFound
from devices.kube.protocols import JsonObject
from devices.kube.resources import NAMESPACES, NODES, PODS, RESOURCE_QUOTAS
from lab.errors import LabError
from lab.follow import Followed, SeenPod

__all__ = ["Leftovers"]

_LOOK_S: Final = 0.1
_TOGETHER: Final = 16
"""Deletions under way at a time."""


class Leftovers:
    """Add to it what was made; `remove` deletes it, pods first."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._pods: list[tuple[str, str, str]] = []
        self.quotas: list[tuple[str, str]] = []
        """Namespace and name."""
        self.nodes: list[str] = []
        self.namespaces: list[str] = []

    def add_pod(self, stored: JsonObject) -> None:
        """Note a pod as the API server answered it."""
        metadata = stored["metadata"]
        assert isinstance(metadata, dict)
        self._pods.append((metadata["namespace"], metadata["name"], metadata["uid"]))

    async def remove(self, pods: Followed[SeenPod], timeout_s: float) -> None:
        """Delete everything; returns once it is gone. Raises `LabError` if something stays for longer than `timeout_s`."""
        uids = {uid for _, _, uid in self._pods}
        for first in range(0, len(self._pods), _TOGETHER):
            batch = self._pods[first : first + _TOGETHER]
            await asyncio.gather(
                *(_gone(self._client.delete(PODS, name, ns, uid=uid, grace_s=0)) for ns, name, uid in batch)
            )
        for namespace, name in self.quotas:
            await _gone(self._client.delete(RESOURCE_QUOTAS, name, namespace))
        for name in self.namespaces:
            await _gone(self._client.delete(NAMESPACES, name))
        if not await pods.wait_for(lambda: uids.isdisjoint(seen.uid for seen in pods.objects.values()), timeout_s):
            left = sorted(seen.key for seen in pods.objects.values() if seen.uid in uids)
            raise LabError(f"these pods are still there {timeout_s:g} s after their deletion: {', '.join(left)}")
        for name in self.nodes:
            await _gone(self._client.delete(NODES, name))
        await self._wait_for_namespaces(timeout_s)

    async def _wait_for_namespaces(self, timeout_s: float) -> None:
        for name in self.namespaces:
            try:
                async with asyncio.timeout(timeout_s):
                    while True:
                        await self._client.get(NAMESPACES, name)
                        await asyncio.sleep(_LOOK_S)  # emptying it takes the namespace controller some rounds
            except NotFound:
                continue
            except TimeoutError as error:
                raise LabError(f"namespace {name} is still there {timeout_s:g} s after its deletion") from error


async def _gone(deletion: Awaitable[object]) -> None:
    try:
        await deletion
    except (NotFound, Conflict):
        return  # gone already, or another one of that name
