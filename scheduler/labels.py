"""The label of bound pods, for API servers that do not take it from the Binding (before Kubernetes 1.35)."""

import asyncio
import contextlib
import logging
from collections import OrderedDict
from typing import Final

import msgspec

from devices.keys import VGPU_NODE, is_label_value
from devices.kube.errors import Invalid, KubeError, NotFound
from devices.kube.protocols import PodPatcher
from devices.ledger import Ledger
from devices.objects import Pod, pod_of
from scheduler.clock import Clock
from scheduler.lead import Lead

__all__ = ["Labels"]

_LOG = logging.getLogger(__name__)
_AGAIN_S: Final = 5.0


def _lacks(pod: Pod | None) -> bool:
    """Whether the pod stands on the node that its allocation names, without the label that says so."""
    if pod is None or not pod.bound_node or pod.is_terminating or VGPU_NODE in pod.labels:
        return False
    return pod.annotations.get(VGPU_NODE) == pod.bound_node and is_label_value(pod.bound_node)


class Labels:
    """Adds the label wherever the watch shows a bound pod without it, while `lead` leads: also after a crash in between."""

    def __init__(self, ledger: Ledger, api: PodPatcher, clock: Clock, lead: Lead) -> None:
        self._ledger = ledger
        self._api = api
        self._clock = clock
        self._lead = lead
        self._lacking: OrderedDict[str, None] = OrderedDict()
        self._wake = asyncio.Event()
        self._failing = False
        self._task: asyncio.Task[None] | None = None

    def pod_changed(self, uid: str) -> None:
        """The watch has shown the pod."""
        if self._lead.leads and _lacks(self._ledger.pod(uid)):
            self._lacking[uid] = None
            self._wake.set()

    def look_again(self) -> None:
        """From now on this replica leads: what came before is its business, too."""
        for pod in self._ledger.pods():
            self.pod_changed(pod.uid)

    def start(self) -> None:
        """Begin to label."""
        self._task = asyncio.create_task(self._run(), name="labels")

    async def stop(self) -> None:
        """Label nothing any more."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._lacking:
                uid = next(iter(self._lacking))
                pod = self._ledger.pod(uid)
                if not self._lead.leads or pod is None or not _lacks(pod) or await self._label(pod):
                    self._lacking.pop(uid, None)
                else:
                    await self._clock.wait(asyncio.Event(), _AGAIN_S)

    async def _label(self, pod: Pod) -> bool:
        """Write the label; false where that has to be tried again."""
        body = {"metadata": {"uid": pod.uid, "labels": {VGPU_NODE: pod.bound_node}}}
        try:
            stored = await self._api.patch_pod(pod.namespace, pod.name, dict(body))
        except (NotFound, Invalid) as error:
            # Gone, or another pod has the name; or something else of the pod is not accepted, and never will be.
            _LOG.info("pod %s/%s is not labelled: %s", pod.namespace, pod.name, error)
        except KubeError as error:
            log = _LOG.debug if self._failing else _LOG.warning
            log("pod %s/%s lacks the label %s: %s", pod.namespace, pod.name, VGPU_NODE, error)
            self._failing = True
            return False
        else:
            with contextlib.suppress(msgspec.ValidationError):  # what is no pod tells nothing: the watch will
                # Earlier events, which may still come, do not ask for it again.
                self._ledger.put_pod(pod_of(stored), self._clock.now(), by_watch=False)
        self._failing = False
        return True
