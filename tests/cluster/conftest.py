"""Tests on a real control plane run only where one was chosen; the others here need none."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from lab.cluster import Cluster
from lab.control_plane import ControlPlane
from tests.cluster.fixtures import control_plane, pytest_runtest_makereport
from tests.cluster.slotwise import Slotwise
from tests.cluster.switch import chosen_minor

__all__ = ["control_plane", "pytest_runtest_makereport"]

_NEED_NONE = ("test_addresses.py", "test_build.py")
_ALL = sorted(path.name for path in Path(__file__).parent.glob("test_*.py"))
collect_ignore = [] if chosen_minor() else [name for name in _ALL if name not in _NEED_NONE]


@pytest.fixture(scope="package")
def slotwise(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slotwise]:
    """Slotwise installed, for all tests of this folder."""
    with Slotwise(control_plane, tmp_path_factory.mktemp("slotwise")) as running:
        yield running


@pytest.fixture
async def cluster(slotwise: Slotwise) -> AsyncIterator[Cluster]:
    """Fake nodes, kubelet and pods on the real control plane; all of it is gone afterwards."""
    async with Cluster(slotwise.lab()) as running:
        yield running


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever wants a control plane without Slotwise on it comes first, and uninstalling it last.

    Where the policy has been deleted and made anew, kube-apiserver was seen not to follow changes of its parameters any more.
    """
    items.sort(
        key=lambda item: ("slotwise" in getattr(item, "fixturenames", ()), item.path.name == "test_uninstall.py")
    )
