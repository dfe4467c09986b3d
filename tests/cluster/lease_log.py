"""Who has held the schedulers' Lease, and when each last renewed it, as a watch shows it."""

from datetime import datetime

import msgspec

from devices.kube.client import KubeClient
from devices.kube.resources import LEASES
from tests.cluster.mirror import Mirror, RawObject

__all__ = ["LEASE", "LeaseLog"]

LEASE = "slotwise-scheduler"


class _Spec(msgspec.Struct, rename="camel"):
    holder_identity: str = ""
    renew_time: str = ""


class _Lease(msgspec.Struct):
    spec: _Spec


class LeaseLog:
    """From `start` to `stop`."""

    def __init__(self, client: KubeClient, namespace: str) -> None:
        self.holder = ""
        """kube-scheduler's own name of the present holder: its host's name and something random; empty where none holds it."""
        self._renewed_at: dict[str, float] = {}
        self._leases = Mirror(client, LEASES, namespace, self._changed)

    async def start(self) -> None:
        """Begin."""
        await self._leases.start()

    async def stop(self) -> None:
        """End."""
        await self._leases.stop()

    @property
    def pod(self) -> str:
        """The holder's pod."""
        return self.holder.partition("_")[0]

    def renewed_at(self, holder: str) -> float:
        """When this holder last renewed it, in Unix seconds. Raises KeyError for one that never did."""
        return self._renewed_at[holder]

    def _changed(self, seen: RawObject | None, _: str) -> None:
        if seen is None or seen.name != LEASE:
            return
        spec = msgspec.json.decode(seen.raw, type=_Lease).spec
        self.holder = spec.holder_identity
        if self.holder:
            self._renewed_at[self.holder] = datetime.fromisoformat(spec.renew_time).timestamp()
