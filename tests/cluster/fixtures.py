"""The control plane as a fixture, shared by all tests of a session, for the conftest files that need it."""

import os
from collections.abc import Generator, Iterator
from typing import Final, Protocol, runtime_checkable

import pytest

from lab.control_plane import ControlPlane, User, cache_folder
from tests.cluster.addresses import service_range
from tests.cluster.build import BuildError, NoGoError, build
from tests.cluster.switch import VARIABLE, chosen_minor

__all__ = ["CONTRACT", "control_plane", "pytest_runtest_makereport"]

CONTRACT: Final = User("contract", ("system:masters",))
"""Who holds the API server to its contract."""
_NO_MINOR, _FAILED, _NO_GO = 2, 1, 3


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A running control plane, built first where it is not in the cache yet."""
    minor = chosen_minor()
    if minor is None:
        pytest.exit(f"these tests need a real control plane: set {VARIABLE}, to 1.37 for example", _NO_MINOR)
    try:
        programs = build(minor, cache_folder(os.environ))
    except BuildError as error:
        pytest.exit(str(error), _NO_GO if isinstance(error, NoGoError) else _FAILED)
    with ControlPlane(programs, tmp_path_factory.mktemp("control-plane"), [CONTRACT], service_range()) as running:
        yield running


@runtime_checkable
class _Reports(Protocol):
    def report(self) -> str: ...


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What the processes said goes with every test that failed beside them."""
    report = yield
    arguments: dict[str, object] = getattr(item, "funcargs", {})
    if report.failed:
        report.sections += [(name, one.report()) for name, one in arguments.items() if isinstance(one, _Reports)]
    return report
