"""Slotwise on a real control plane for the tests: the overlay `ha` as the command prints it, installed, with waits short enough for tests."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

from lab.cluster import ClusterSettings
from lab.control_plane import ADMIN, ControlPlane
from lab.external import ExternalSettings
from tests.cluster.installation import NAMESPACE, Installation
from tests.cluster.rendered import Changes, changed, printed

__all__ = ["Slotwise"]

_SETTLE_S: Final = 30.0
_VIEWS_PORT: Final = 9395
_QUOTAS_PORT: Final = 8080


class Slotwise:
    """A context manager: everything runs inside, and the API server calls no webhook of ours afterwards."""

    namespace: Final = NAMESPACE
    """Of its pods and service accounts."""
    scheduler_user: Final = f"system:serviceaccount:{NAMESPACE}:slotwise-scheduler"
    """The name under which the API server knows kube-scheduler and the extender beside it."""

    def __init__(self, plane: ControlPlane, folder: Path, overlay: str = "ha") -> None:
        self._printed = printed(overlay, plane.programs.version)
        self.installation = Installation(plane, self._documents(), folder)
        self._plane = plane
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self.installation)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def views(self) -> str:
        """Base address of the leading scheduler's read-only port. Raises KeyError while none leads."""
        return self.installation.url(self.installation.leader(), _VIEWS_PORT)

    def quotas(self) -> Sequence[str]:
        """Base address of every webhook replica's read-only port."""
        return [self.installation.url(pod, _QUOTAS_PORT) for pod in self.installation.pods("webhook")]

    def lab(self) -> ClusterSettings:
        """For a lab's cluster on this control plane."""
        external = ExternalSettings(str(self._plane.kubeconfig()), self.views)
        return ClusterSettings(settle_s=_SETTLE_S, external=external)

    def report(self) -> str:
        """What all processes said last, for a test that failed."""
        return self.installation.report()

    def use(self, changes: Changes) -> None:
        """Apply the manifests with other changes; returns once all pods are new."""
        self.installation.documents = self._documents(changes)
        self.installation.apply()
        self.installation.wait_ready()

    def _documents(self, changes: Changes | None = None) -> list[dict[str, object]]:
        # The lab's kubelet writes the keys that a device plugin writes.
        return changed(self._printed, changes or Changes(key_writers=(ADMIN.name,)))
