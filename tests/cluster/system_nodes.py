"""Nodes for the pods of Slotwise itself: without cards, closed for everything that does not tolerate a control plane's taint."""

import asyncio
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from devices.kube.client import KubeClient
from devices.kube.errors import KubeError, NotFound
from devices.kube.protocols import JsonObject
from devices.kube.resources import LEASES, NODES

__all__ = ["SYSTEM_NODES", "SystemNodes"]

SYSTEM_NODES: Final = ("system-1", "system-2")
_NAMESPACE: Final = "kube-node-lease"
_INTERVAL_S: Final = 5.0
_DURATION_S: Final = 40


class SystemNodes:
    """They are there, and give signs of life, from `start` to `stop`."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Create them."""
        for name in SYSTEM_NODES:
            await self._client.create(NODES, _node(name))
        self._task = asyncio.create_task(self._renew())

    async def stop(self) -> None:
        """Delete them."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        for name in SYSTEM_NODES:
            with suppress(NotFound):
                await self._client.delete(NODES, name)

    async def _renew(self) -> None:
        while True:
            for name in SYSTEM_NODES:
                with suppress(KubeError):  # the next round is soon enough
                    await self._renew_one(name)
            await asyncio.sleep(_INTERVAL_S)

    async def _renew_one(self, name: str) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec: JsonObject = {"holderIdentity": name, "leaseDurationSeconds": _DURATION_S, "renewTime": now}
        lease: JsonObject = {"metadata": {"name": name, "namespace": _NAMESPACE}, "spec": spec}
        try:
            await self._client.merge_patch(LEASES, name, lease, _NAMESPACE)
        except NotFound:
            await self._client.create(LEASES, lease, _NAMESPACE)


def _node(name: str) -> JsonObject:
    resources: JsonObject = {"cpu": "16", "memory": "64Gi", "pods": "110"}
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}},
        "spec": {"taints": [{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]},
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }
