"""Answering the device plugins' handshake, for those that still use it (HAMi v2.10 wire contract, handshake and health)."""

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from devices.kube.errors import KubeError
from devices.kube.protocols import NodePatcher
from devices.ledger import Ledger
from devices.vendor import Vendor
from scheduler.clock import Clock

__all__ = ["Handshake", "answer_to"]

_LOG = logging.getLogger(__name__)
_REQUESTING = "Requesting"
_REPORTED = "Reported"


def answer_to(value: str | None, mode: str, now_s: float) -> str | None:
    """The value to write, or None to leave it.

    `auto` answers a plugin that has reported; `always` whatever is not our own request, a missing value too. The time is in the
    local zone, as plugins read it.
    """
    if mode == "never" or (value is not None and _REQUESTING in value):
        return None
    if mode == "auto" and not (value or "").startswith(_REPORTED):
        return None
    stamp = datetime.fromtimestamp(now_s, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    return f"{_REQUESTING}_{stamp}"


class Handshake:
    """Answers in the background, once per change of a node, while `leads`."""

    def __init__(
        self,
        ledger: Ledger,
        api: NodePatcher,
        clock: Clock,
        vendors: Sequence[Vendor],
        mode: str,
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        self._ledger = ledger
        self._api = api
        self._clock = clock
        self._keys = tuple(dict.fromkeys(vendor.handshake for vendor in vendors if vendor.handshake))
        self._mode = mode
        self._leads = leads
        self._changed: OrderedDict[str, None] = OrderedDict()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def node_changed(self, name: str) -> None:
        """The watch has shown the node."""
        if self._mode != "never" and self._leads() and self._answers(name):
            self._changed[name] = None
            self._wake.set()

    def look_again(self) -> None:
        """From now on this replica leads: what came before has to be answered too."""
        for name in self._ledger.node_names():
            self.node_changed(name)

    def _answers(self, name: str) -> dict[str, str]:
        node = self._ledger.node_object(name)
        if node is None:
            return {}
        now = self._clock.now()
        found = ((key, answer_to(node.annotations.get(key), self._mode, now)) for key in self._keys)
        return {key: answer for key, answer in found if answer is not None}

    def start(self) -> None:
        """Begin to answer."""
        self._task = asyncio.create_task(self._run(), name="handshake")

    async def stop(self) -> None:
        """Stop answering."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._changed:
                name, _ = self._changed.popitem(last=False)
                answers = self._answers(name)
                if answers and self._leads():
                    try:
                        await self._api.patch_node(name, {"metadata": {"annotations": dict(answers)}})
                    except KubeError as error:
                        _LOG.warning("node %s: its plugin's handshake was not answered: %s", name, error)
