"""Where the lab's API server, Slotwise and kube-scheduler come from."""

from contextlib import AsyncExitStack
from typing import Protocol

from devices.kube.client import KubeClient
from devices.ledger import Ledger
from lab.follow import Followed, SeenNode, SeenPod

__all__ = ["Backend"]


class Backend(Protocol):
    """Everything of a cluster but its nodes, kubelet and pods. Each instance is used once."""

    ledger: Ledger
    """Fed by watches: what the services' books say, or should say."""
    ledgers: tuple[Ledger, ...]
    """`ledger` and those of further webhook replicas, where they are in this process."""
    lag_s: float
    """How much later than the lab anybody else may see a change; 0 where the ledger is the services' own."""
    borrowed: bool
    """The cluster is there before and after: what the lab made in it has to go, and its nodes need signs of life."""

    strangers: tuple[str, ...]
    """Nodes that are there already, once it is started; none of the lab's pods can go there."""

    @property
    def address(self) -> str:
        """The API server's URL."""
        ...

    @property
    def views(self) -> str | None:
        """Base address of the scheduler's read-only port; None where it is not known."""
        ...

    @property
    def quotas(self) -> str | None:
        """Base address of a webhook's read-only port; None where it is not known."""
        ...

    async def start(self, stack: AsyncExitStack) -> None:
        """Bring it up; `stack` takes it down. Raises `LabError` if it is not fit for the lab."""
        ...

    async def new_client(self, stack: AsyncExitStack, agent: str) -> KubeClient:
        """A client for the lab's own use; `stack` closes it."""
        ...

    async def start_scheduler(self, stack: AsyncExitStack, pods: Followed[SeenPod], nodes: Followed[SeenNode]) -> None:
        """Start kube-scheduler where there is none yet. Comes before `pods` and `nodes` start, so that it hears of all."""
        ...

    async def ready_for_pods(self, client: KubeClient, namespace: str, timeout_s: float) -> None:
        """Return once pods can be created in a new namespace. Raises `LabError` after `timeout_s`."""
        ...

    def scheduler_writes(self) -> int | None:
        """Writes of the services stored by the API server, events left out; None where nobody counts them."""
        ...
