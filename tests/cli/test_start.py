"""The command as it is installed."""

import os
import signal
import subprocess
import sys
from importlib.metadata import version

from typer.testing import CliRunner

from cli.__main__ import app

LOADING = """
import importlib.abc, os, signal, sys
class Interrupting(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "lab.cluster":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
from cli.start import main
main()
"""


def test_ctrl_c_while_everything_is_loaded_ended_in_a_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADING, "lab", "list"],
        capture_output=True,
        check=False,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_its_version_is_the_installed_one() -> None:
    done = CliRunner().invoke(app, ["--version"])
    assert (done.exit_code, done.output) == (0, f"slotwise {version('slotwise')}\n")
