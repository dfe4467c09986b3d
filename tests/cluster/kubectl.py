"""kubectl, built beside the control plane, as the administrator."""

import json
import subprocess
from pathlib import Path
from typing import Final

__all__ = ["Kubectl", "KubectlError"]

_TIMEOUT_S: Final = 180.0


class KubectlError(Exception):
    """kubectl failed; the text has its arguments and its words."""


class Kubectl:
    """Runs one command after the other."""

    def __init__(self, program: Path, kubeconfig: Path) -> None:
        self._start = (str(program), f"--kubeconfig={kubeconfig}")

    def run(self, *arguments: str, text: str | None = None) -> str:
        """Run it with `text` as its input; returns what it printed. Raises `KubectlError`."""
        ended = subprocess.run(
            [*self._start, *arguments], input=text, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
        )
        if ended.returncode != 0:
            raise KubectlError(f"kubectl {' '.join(arguments)}: {ended.returncode}\n{ended.stdout}{ended.stderr}")
        return ended.stdout

    def get(self, *arguments: str) -> dict[str, object]:
        """What `kubectl get … -o json` prints. Raises `KubectlError`."""
        found: dict[str, object] = json.loads(self.run("get", *arguments, "-o", "json"))
        return found
