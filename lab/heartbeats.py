"""Signs of life of the lab's nodes, as kubelet and device plugin give them.

Without the kubelet's a real cluster takes a node for dead after less than a minute. A device plugin's, which change an annotation,
make kube-scheduler try refused pods again.
"""

import asyncio
import logging
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from devices.kube.client import KubeClient
from devices.kube.errors import KubeError, NotFound
from devices.kube.protocols import JsonObject
from devices.kube.resources import LEASES
from lab.follow import Followed, SeenNode
from lab.names import PUBLISHED

__all__ = ["Heartbeats"]

_log = logging.getLogger(__name__)

_NAMESPACE: Final = "kube-node-lease"
_INTERVAL_S: Final = 2.0
"""Shorter than the real ones (10 s and 30 s), so that no step waits long."""
_DURATION_S: Final = 40


class Heartbeats:
    """Renews every node's Lease, and with `plugins` its annotation, from `start` to `stop`.

    Follows `nodes`, which others start, later than this is made.
    """

    def __init__(self, client: KubeClient, nodes: Followed[SeenNode], plugins: bool) -> None:
        self._plugins = plugins
        self._client = client
        self._nodes = nodes
        self._task: asyncio.Task[None] | None = None
        self._appeared = asyncio.Event()
        nodes.listen(self._node_changed)

    async def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._run(), name="heartbeats")

    async def stop(self) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def _node_changed(self, before: SeenNode | None, after: SeenNode | None) -> None:
        if before is None:
            self._appeared.set()

    async def _run(self) -> None:
        while True:
            self._appeared.clear()
            for seen in list(self._nodes.objects.values()):
                try:
                    await self._renew(seen)
                except KubeError as error:
                    _log.warning("heartbeat of node %s: %s", seen.key, error)
            with suppress(TimeoutError):
                async with asyncio.timeout(_INTERVAL_S):
                    await self._appeared.wait()

    async def _renew(self, seen: SeenNode) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        if self._plugins:
            await self._client.patch_node(seen.key, {"metadata": {"uid": seen.uid, "annotations": {PUBLISHED: now}}})
        # Owned by the node, so that it goes with it.
        owner = {"apiVersion": "v1", "kind": "Node", "name": seen.key, "uid": seen.uid}
        lease: JsonObject = {
            "metadata": {"name": seen.key, "namespace": _NAMESPACE, "ownerReferences": [owner]},
            "spec": {
                "holderIdentity": seen.key,
                "leaseDurationSeconds": _DURATION_S,
                "renewTime": now,
            },
        }
        try:
            await self._client.merge_patch(LEASES, seen.key, lease, _NAMESPACE)
        except NotFound:
            kind: JsonObject = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
            await self._client.create(LEASES, {**kind, **lease}, _NAMESPACE)
