"""Child processes end with the test, whatever happens to it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab.processes import Child, StartError

LINGER = """
import subprocess, sys, time
from pathlib import Path
from lab.processes import Child
child = Child("sleeper", ["sleep", "1000"], Path(sys.argv[1]))
print(child.pid, flush=True)
time.sleep(1000)
"""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_children_die_with_a_test_process_that_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LINGER, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    deadline = time.monotonic() + 10
    while is_running(pid):
        assert time.monotonic() < deadline, "it lives on"


def test_a_child_that_ends_early_is_told_with_its_words(tmp_path: Path) -> None:
    child = Child(
        "liar", [sys.executable, "-c", "print('no such luck'); raise SystemExit(4)"], tmp_path / "log", os.environ
    )
    with pytest.raises(StartError, match="liar ended with 4 before it serves\nno such luck"):
        child.wait_until(lambda: False, 30.0, "it serves")


def test_a_child_that_never_comes_up_is_given_up_and_ended(tmp_path: Path) -> None:
    child = Child("sleeper", ["sleep", "1000"], tmp_path / "log")
    with pytest.raises(StartError, match=r"sleeper: after 0\.1 s it is still not so that it serves"):
        child.wait_until(lambda: False, 0.1, "it serves")
    assert child.stop() == -signal.SIGTERM
