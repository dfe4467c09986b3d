"""Builds etcd and Kubernetes' control plane from their Go modules, once, into a cache outside the tree.

`python -m tests.cluster.build [MINOR]…` builds and prints the folders. Exit status 0: they are there; 1: a build failed;
2: no such minor; 3: there is no Go.

The cache is `$SLOTWISE_CACHE`, else `$XDG_CACHE_HOME/slotwise`, else `~/.cache/slotwise`. A folder's name holds whatever its content
depends on, so that one never has to be thrown away. The versions stand in the go.mod files beside this one.
"""

import fcntl
import hashlib
import os
import re
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lab.control_plane import Programs, cache_folder
from tests.cluster.switch import chosen_minor

__all__ = [
    "DEFAULT_MINOR",
    "BuildError",
    "Component",
    "NoGoError",
    "build",
    "etcd",
    "kubectl",
    "kubernetes",
    "minors",
]

DEFAULT_MINOR: Final = "1.37"
HERE: Final = Path(__file__).parent
_COMMANDS: Final = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
_KUBERNETES: Final = "k8s.io/kubernetes"
_VERSION_PACKAGE: Final = "k8s.io/component-base/version"
_TELL_EVERY_S: Final = 10.0
_LINES_KEPT: Final = 30
_FAILED, _BAD_INPUT, _NO_GO = 1, 2, 3


class BuildError(Exception):
    """A build failed; the text ends with what Go said."""


class NoGoError(BuildError):
    """There is no Go, so nothing can be built."""


@dataclass(frozen=True)
class Component:
    """One Go module of ours, and what is built from it."""

    name: str
    """Of its folder in the cache."""
    module: Path
    """Folder of its go.mod."""
    required: str
    """The module whose version counts."""
    programs: Mapping[str, str]
    """Package by the name of the program."""

    @property
    def version(self) -> str:
        """As in `1.37.2`, read from go.mod. Raises `BuildError` if it is not there."""
        text = (self.module / "go.mod").read_text()
        found = re.search(rf"^(?:require )?\s*{re.escape(self.required)} v(\S+)", text, re.MULTILINE)
        if found is None:
            raise BuildError(f"{self.module / 'go.mod'} requires no {self.required}")
        return found[1]

    @property
    def ldflags(self) -> str:
        """Without the version Kubernetes calls itself v0.0.0, and clients take it for older than any they know."""
        if self.required != _KUBERNETES:
            return "-s -w"
        major, minor, _ = self.version.split(".", 2)
        stamps = {"gitVersion": f"v{self.version}", "gitMajor": major, "gitMinor": minor}
        return " ".join(("-s -w", *(f"-X {_VERSION_PACKAGE}.{field}={value}" for field, value in stamps.items())))

    def folder(self, go: str) -> str:
        """Name of its folder in the cache, for this Go (`go1.26.8-linux-amd64`)."""
        content = b"".join((self.module / name).read_bytes() for name in ("go.mod", "go.sum"))
        digest = hashlib.sha256(content + self.ldflags.encode()).hexdigest()[:8]
        return f"{self.name}-{self.version}-{go}-{digest}"


def etcd() -> Component:
    """etcd's server."""
    package = "go.etcd.io/etcd/server/v3"
    return Component("etcd", HERE / "etcd", package, {"etcd": package})


def kubernetes(minor: str) -> Component:
    """The control plane of a Kubernetes minor. Raises `BuildError` naming those there are."""
    _require_minor(minor)
    return Component(
        "kubernetes",
        HERE / "kubernetes" / minor,
        _KUBERNETES,
        {command: f"{_KUBERNETES}/cmd/{command}" for command in _COMMANDS},
    )


def kubectl(minor: str) -> Component:
    """The command-line client of a Kubernetes minor, of a go.mod of its own since it needs modules that the rest does not.

    Raises `BuildError` naming those there are.
    """
    _require_minor(minor)
    return Component("kubectl", HERE / "kubectl" / minor, _KUBERNETES, {"kubectl": f"{_KUBERNETES}/cmd/kubectl"})


def _require_minor(minor: str) -> None:
    if minor not in minors():
        raise BuildError(f"no Kubernetes {minor!r} here: there are {', '.join(minors())}")


def minors() -> Sequence[str]:
    """Kubernetes minors that can be built, the newest first."""
    found = [path.parent.name for path in (HERE / "kubernetes").glob("*/go.mod")]
    return sorted(found, key=lambda minor: [int(part) for part in minor.split(".")], reverse=True)


def build(minor: str, cache: Path) -> Programs:
    """Build what is not in the cache yet; returns at once where all of it is.

    Raises `NoGoError` only where something has to be built, `BuildError` with Go's words where that fails.
    """
    go = _go_version()
    server, cluster, client = components = (etcd(), kubernetes(minor), kubectl(minor))
    folders = {component.name: cache / component.folder(go) for component in components}
    for component in components:
        folder = folders[component.name]
        if not all((folder / program).exists() for program in component.programs):
            with _locked(cache):
                _build_missing(component, folder)
    kube = folders[cluster.name]
    return Programs(
        etcd=folders[server.name] / "etcd",
        apiserver=kube / "kube-apiserver",
        controllers=kube / "kube-controller-manager",
        scheduler=kube / "kube-scheduler",
        kubectl=folders[client.name] / "kubectl",
        version=cluster.version,
    )


def _go_version() -> str:
    try:
        asked = subprocess.run(
            ["go", "env", "GOVERSION", "GOOS", "GOARCH"], cwd=HERE / "etcd", capture_output=True, text=True, check=True
        )
    except FileNotFoundError as error:
        raise NoGoError(
            "the tests on a real control plane need Go on PATH (https://go.dev/dl), which builds etcd and Kubernetes"
        ) from error
    except subprocess.CalledProcessError as error:
        raise BuildError(f"go env: {error.stderr.strip()}") from error
    return "-".join(asked.stdout.split())


@contextmanager
def _locked(cache: Path) -> Iterator[None]:
    """One build at a time on this machine: two would only slow each other down."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "build.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(f"another build is under way, waiting for {lock.name}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build_missing(component: Component, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for program, package in component.programs.items():
        if (folder / program).exists():
            continue  # by whoever had the lock before us
        # Under its own name only once it is whole, so that a broken-off build leaves nothing that looks finished.
        unfinished = folder / f".{program}.unfinished"
        _compile(component, program, package, unfinished)
        unfinished.replace(folder / program)


def _compile(component: Component, program: str, package: str, into: Path) -> None:
    began = told = time.monotonic()
    title = f"{program} {component.version}"
    _say(f"{title}: building (minutes the first time)")
    command = [
        "nice",
        "-n",
        "19",
        "go",
        "build",
        "-v",
        "-trimpath",
        "-ldflags",
        component.ldflags,
        "-o",
        str(into),
        package,
    ]
    compiled, last = 0, deque[str](maxlen=_LINES_KEPT)
    with subprocess.Popen(
        command,
        cwd=component.module,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            last.append(line)
            compiled += 1
            if time.monotonic() - told >= _TELL_EVERY_S:
                told = time.monotonic()
                _say(f"{title}: {compiled} packages compiled after {told - began:.0f} s")
    if process.returncode != 0:
        raise BuildError(f"{title} does not build: go ended with {process.returncode}\n{''.join(last).rstrip()}")
    _say(f"{title}: built in {time.monotonic() - began:.0f} s")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str]) -> int:
    """Build the minors named, else the one that `SLOTWISE_CLUSTER` names, else the newest."""
    wanted = arguments or [chosen_minor() or DEFAULT_MINOR]
    try:
        for minor in wanted:
            kubernetes(minor)
    except BuildError as error:
        _say(str(error))
        return _BAD_INPUT
    try:
        for minor in wanted:
            print(build(minor, cache_folder(os.environ)).apiserver.parent)
    except NoGoError as error:
        _say(str(error))
        return _NO_GO
    except BuildError as error:
        _say(str(error))
        return _FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
