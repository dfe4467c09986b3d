"""`slotwise bench cluster` in a small form: every figure is there, and each placed pod costs the API server one write."""

import json
import subprocess
import sys

from lab.control_plane import ControlPlane
from tests.cluster.switch import a_binding_carries_labels


def test_the_bench_places_all_pods_with_one_write_each(control_plane: ControlPlane) -> None:
    folders = {str(path.parent) for path in (control_plane.programs.etcd, control_plane.programs.apiserver)}
    bench = [*(sys.executable, "-m", "cli", "bench", "cluster"), *("--nodes=5", "--pods=40", "--rounds=1", "--json")]
    ended = subprocess.run([*bench, f"--programs={':'.join(folders)}"], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    figures = json.loads(ended.stdout)
    assert {"per_second", "alone_per_second", "ratio"} <= set(figures)
    if a_binding_carries_labels():
        assert figures["writes_per_pod"] == 1.0
    else:
        assert 1.0 <= figures["writes_per_pod"] <= 2.0  # labels are written beside, some after the count
    assert figures["kubernetes"] == control_plane.programs.version
