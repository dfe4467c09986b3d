"""What the images of the manifests are here: the tree under test with the Python that runs the tests, and a kube-scheduler that was built."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.cluster.container import Bind
from tests.cluster.pod_spec import Container, UnsupportedPodError

__all__ = ["Image", "Images", "python_binds"]

_ROOT: Final = Path(__file__).parent.parent.parent
_PATH: Final = "/image/python/bin:/image/bin:/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True)
class Image:
    """Files, environment, and what has to be said to a program that cannot be told by its manifest where this pod is."""

    binds: Sequence[Bind]
    environment: dict[str, str]
    address_flag: str | None = None
    """The flag whose default is "all addresses", where two pods would meet."""

    def arguments(self, given: Sequence[str], address: str) -> list[str]:
        """The command line, with the pod's address added where it would be every pod's."""
        flag = self.address_flag
        if flag is None or any(argument.startswith(f"{flag}=") for argument in given):
            return list(given)
        return [*given, f"{flag}={address}"]


class Images:
    """Images by the last part of their name."""

    def __init__(self, kube_scheduler: Path) -> None:
        scheduler = Bind(str(kube_scheduler), "/image/bin/kube-scheduler")
        self._images = {
            "slotwise": Image(python_binds(), {"PATH": _PATH, "PYTHONPATH": "/image/code", "PYTHONUNBUFFERED": "1"}),
            "kube-scheduler": Image([scheduler], {"PATH": _PATH}, address_flag="--bind-address"),
        }

    def of(self, container: Container) -> Image:
        """The image of a container. Raises `UnsupportedPodError` for one that stands for nothing here."""
        name = container.image.rpartition("/")[2].partition("@")[0].partition(":")[0]
        if name not in self._images:
            raise UnsupportedPodError(f"container {container.name}: nothing here stands for image {container.image}")
        if not container.command:
            raise UnsupportedPodError(f"container {container.name}: the manifest has to say its command")
        return self._images[name]


def python_binds() -> list[Bind]:
    """An environment finds the interpreter that it was made of where that is, so it goes to the same place."""
    binds = [Bind(str(_ROOT), "/image/code"), Bind(sys.prefix, "/image/python")]
    base = Path(sys.base_prefix)
    return binds if base.is_relative_to("/usr") else [*binds, Bind(str(base), str(base))]
