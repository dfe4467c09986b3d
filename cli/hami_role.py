"""The label by which HAMi's Service finds the extender's pod, where no Lease says who leads."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from devices.kube.errors import KubeError
from devices.kube.freshness import OwnPod
from devices.kube.protocols import JsonObject, PodPatcher
from scheduler.election import ROLE_LABEL

__all__ = ["OnlyReplica"]

_AGAIN_S: Final = 15.0
"""HAMi's own interval. An extender of HAMi's that is about to be replaced calls every other pod a follower at each pass."""
_RETRY_S: Final = 1.0
"""Until the label is there the Service has no endpoint, and the API server lets device pods pass the webhook unseen."""

_LOG: Final = logging.getLogger("scheduler")


class OnlyReplica:
    """Keeps our own pod labelled as the leader, from `run` until it is cancelled. `sleep` can be replaced."""

    def __init__(
        self, patcher: PodPatcher, pod: OwnPod, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._patcher = patcher
        self._pod = pod
        self._sleep = sleep
        self._trouble = ""

    async def run(self) -> None:
        """Set the label now and again and again: a patch that changes nothing is no write."""
        while True:
            labelled = await self._label()
            await self._sleep(_AGAIN_S if labelled else _RETRY_S)

    async def _label(self) -> bool:
        try:
            body: JsonObject = {"metadata": {"labels": {ROLE_LABEL: "leader"}}}
            await self._patcher.patch_pod(self._pod.namespace, self._pod.name, body)
        except KubeError as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                _LOG.warning("own pod: no Service finds it, since it could not be labelled: %s", error)
            return False
        self._trouble = ""
        return True
