"""Tests on a real control plane run only where one was chosen; the others here need none."""

from tests.cluster.fixtures import control_plane, pytest_runtest_makereport
from tests.cluster.switch import chosen_minor

__all__ = ["control_plane", "pytest_runtest_makereport"]

_ON_IT = (
    "test_admission_policy.py",
    "test_control_plane.py",
    "test_drop_in.py",
    "test_main_job.py",
    "test_manifests.py",
    "test_waiting_pods.py",
    "test_webhook_down.py",
)
collect_ignore = [] if chosen_minor() else list(_ON_IT)
