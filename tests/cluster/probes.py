"""Asks a container what its probes say to ask."""

import asyncio
from collections.abc import Callable
from typing import Final

import aiohttp

from tests.cluster.pod_spec import Probe

__all__ = ["Prober"]

_FIRST_PERIOD_S: Final = 0.2
"""Until a probe has succeeded once: the kubelet waits a whole period, and every test would."""


class Prober:
    """Probes of one container at `address`."""

    def __init__(self, session: aiohttp.ClientSession, address: str, port: Callable[[int | str], int]) -> None:
        self._session = session
        self._address = address
        self._port = port

    async def succeeds(self, probe: Probe) -> bool:
        """One try, as the kubelet judges it: any status from 200 to 399."""
        get = probe.http_get
        url = f"{get.scheme.lower()}://{self._address}:{self._port(get.port)}{get.path}"
        timeout = aiohttp.ClientTimeout(total=probe.timeout_seconds)
        try:
            async with self._session.get(url, ssl=False, timeout=timeout, allow_redirects=False) as response:
                return 200 <= response.status < 400
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    async def until_success(self, probe: Probe) -> bool:
        """Whether it succeeds before it has failed too often: the startup probe."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + probe.initial_delay_seconds + probe.period_seconds * probe.failure_threshold
        while not await self.succeeds(probe):
            if loop.time() > give_up_at:
                return False
            await asyncio.sleep(_FIRST_PERIOD_S)
        return True

    async def follow(self, probe: Probe, told: Callable[[bool], None]) -> None:
        """Tell of every turn, from success to failure and back, with the thresholds of the probe. Until cancelled."""
        stands: bool | None = None
        agreeing = 0
        while True:
            outcome = await self.succeeds(probe)
            if outcome == stands:
                agreeing = 0
            else:
                agreeing += 1
                needed = probe.success_threshold if outcome else probe.failure_threshold
                if agreeing >= needed:
                    stands, agreeing = outcome, 0
                    told(outcome)
            await asyncio.sleep(probe.period_seconds if stands is not None else _FIRST_PERIOD_S)
