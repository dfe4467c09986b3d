"""A container's process sees its own files, host name and user, and nothing of the host that it was not given."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster import container
from tests.cluster.container import Bind, ContainerSpec
from tests.cluster.images import python_binds

LOOK = """
import json, os, pathlib, socket
def tried(path):
    try:
        pathlib.Path(path).write_text("x")
        return "written"
    except OSError as error:
        return type(error).__name__
print(json.dumps({
    "host": socket.gethostname(), "user": [os.getuid(), os.getgid(), os.getgroups()], "root": sorted(os.listdir("/")),
    "token": pathlib.Path("/var/run/secrets/kubernetes.io/serviceaccount/token").read_text(),
    "config": sorted(os.listdir("/etc/slotwise")), "variables": sorted(os.environ),
    "writes": {path: tried(path) for path in ("/tmp/a", "/etc/slotwise/a", "/opt-a", "/usr/a")},
}))
"""


@pytest.fixture
def spec(tmp_path: Path) -> ContainerSpec:
    (tmp_path / "root").mkdir()
    for name, mode in {"token": 0o755, "config": 0o755, "scratch": 0o777}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
    (tmp_path / "token/token").write_text("secret")
    (tmp_path / "config/a.yaml").touch()
    return ContainerSpec(
        root=str(tmp_path / "root"),
        hostname="pod-1",
        command=["python", "-c", LOOK],
        environment={"PATH": "/image/python/bin", "A": "1"},
        binds=[
            *python_binds(),
            Bind(str(tmp_path / "scratch"), "/tmp", read_only=False),
            Bind(str(tmp_path / "config"), "/etc/slotwise"),
            Bind(str(tmp_path / "token"), "/var/run/secrets/kubernetes.io/serviceaccount"),
        ],
        read_only_root=True,
        user=65532,
        group=65532,
        groups=[65532],
        no_new_privileges=True,
        parent=os.getpid(),
    )


def start(spec: ContainerSpec, tmp_path: Path) -> "subprocess.CompletedProcess[str]":
    spec.write(tmp_path / "spec.json")
    command = [sys.executable, "-I", str(container.__file__), str(tmp_path / "spec.json")]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_it_sees_what_it_was_given(spec: ContainerSpec, tmp_path: Path) -> None:
    ended = start(spec, tmp_path)
    assert ended.returncode == 0, ended.stderr
    seen = json.loads(ended.stdout)
    assert (seen["host"], seen["user"]) == ("pod-1", [65532, 65532, [65532]])
    assert (seen["token"], seen["config"]) == ("secret", ["a.yaml"])
    assert "work" not in seen["root"]
    assert "opt" not in seen["root"]
    assert set(seen["variables"]) <= {"A", "PATH", "LC_CTYPE"}
    assert seen["writes"] == {
        "/tmp/a": "written",
        "/etc/slotwise/a": "OSError",
        "/opt-a": "OSError",
        "/usr/a": "OSError",
    }
    assert (tmp_path / "scratch/a").exists()


def test_nothing_of_it_is_seen_outside(spec: ContainerSpec, tmp_path: Path) -> None:
    start(spec, tmp_path)
    assert list((tmp_path / "root").iterdir()) == []
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()


def test_a_command_that_is_not_there_is_told(spec: ContainerSpec, tmp_path: Path) -> None:
    broken = ContainerSpec(**{**spec.__dict__, "command": ["no-such-program"]})
    ended = start(broken, tmp_path)
    assert ended.returncode == 1
    assert ended.stderr.startswith("container pod-1: no-such-program: [Errno 2] No such file or directory")


def test_it_dies_with_whoever_started_it(spec: ContainerSpec, tmp_path: Path) -> None:
    sleeper = "import os, time; print(os.getpid(), flush=True); time.sleep(1000)"
    lines = (
        "import os, subprocess, sys; from pathlib import Path; from tests.cluster.container import ContainerSpec",
        "spec = ContainerSpec.read(Path(sys.argv[1]))",
        "ContainerSpec(**{**spec.__dict__, 'parent': os.getpid()}).write(Path(sys.argv[1]))",
        f"subprocess.run([sys.executable, '-I', {str(container.__file__)!r}, sys.argv[1]])",
    )
    ContainerSpec(**{**spec.__dict__, "command": ["python", "-c", sleeper]}).write(tmp_path / "spec.json")
    with subprocess.Popen(
        [sys.executable, "-c", "\n".join(lines), str(tmp_path / "spec.json")], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        assert parent.stdout.read() == ""  # which ends only with the last one that holds it
    assert not Path(f"/proc/{child}/cmdline").exists() or Path(f"/proc/{child}/cmdline").read_bytes() == b""
