"""Building the control plane: what is in the cache is not built again, and without Go one line says so."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lab.control_plane import cache_folder
from tests.cluster.build import (
    BuildError,
    build,
    etcd,
    kubectl,
    kubernetes,
    minors,
)

FAKE_GO = """\
#!/bin/sh
if [ "$1" = env ]; then printf 'go9.9\\nlinux\\nriscv64\\n'; exit; fi
echo "$@" >> "$FAKE_GO_CALLS"
[ -z "$FAKE_GO_FAILS" ] || { echo 'main.go:1: no such thing' >&2; exit 1; }
while [ "$1" != -o ]; do shift; done
sleep 0.05
echo a program > "$2"
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Go is a script that notes how it was called."""
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text(FAKE_GO)
    go.chmod(0o755)
    noted = tmp_path / "calls"
    noted.touch()
    monkeypatch.setenv("PATH", f"{go.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_GO_CALLS", str(noted))
    return noted


def test_everything_is_built_once(calls: Path, tmp_path: Path) -> None:
    first = build("1.37", tmp_path / "cache")
    assert first.apiserver.read_text() == "a program\n"
    assert first.version == "1.37.2"
    assert len(calls.read_text().splitlines()) == 5
    assert build("1.37", tmp_path / "cache") == first
    assert len(calls.read_text().splitlines()) == 5


def test_the_version_is_stamped_into_kubernetes(calls: Path, tmp_path: Path) -> None:
    build("1.37", tmp_path / "cache")
    server, apiserver, *_, client = calls.read_text().splitlines()
    assert "go.etcd.io/etcd/server/v3" in server
    assert "-X k8s.io/component-base/version.gitVersion=v1.37.2" in apiserver
    assert "version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=37" in apiserver
    assert "version.gitVersion=v1.37.2" in client


def test_two_builds_at_once_share_the_work(calls: Path, tmp_path: Path) -> None:
    threads = [threading.Thread(target=build, args=("1.37", tmp_path / "cache")) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls.read_text().splitlines()) == 5


def test_a_build_that_fails_leaves_nothing_that_looks_finished(
    calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_GO_FAILS", "yes")
    with pytest.raises(BuildError, match=r"etcd 3\.7\.3 does not build: go ended with 1\nmain\.go:1: no such thing"):
        build("1.37", tmp_path / "cache")
    monkeypatch.setenv("FAKE_GO_FAILS", "")
    assert build("1.37", tmp_path / "cache").etcd.exists()


def test_another_minor_has_a_folder_of_its_own(calls: Path, tmp_path: Path) -> None:
    newest, oldest = build("1.37", tmp_path / "cache"), build("1.34", tmp_path / "cache")
    assert newest.etcd == oldest.etcd
    assert newest.scheduler != oldest.scheduler


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"SLOTWISE_CACHE": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/a"),
        ({"XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/slotwise"),
        ({"HOME": "/c"}, "/c/.cache/slotwise"),
    ],
)
def test_where_the_cache_is(environment: dict[str, str], folder: str) -> None:
    assert cache_folder(environment) == Path(folder)


def test_all_minors_that_are_served_can_be_built() -> None:
    assert list(minors()) == ["1.37", "1.36", "1.35", "1.34"]
    assert [kubernetes(minor).version for minor in minors()] == ["1.37.2", "1.36.3", "1.35.4", "1.34.4"]
    assert [kubectl(minor).version for minor in minors()] == [kubernetes(minor).version for minor in minors()]
    assert etcd().version == "3.7.3"


def test_staging_modules_have_the_version_of_kubernetes() -> None:
    for component in (make(minor) for make in (kubernetes, kubectl) for minor in minors()):
        lines = (component.module / "go.mod").read_text().splitlines()
        replaced = [line.split() for line in lines if " => " in line]
        assert len(replaced) > 25
        assert {version for _, _, _, version in replaced} == {f"v0.{component.version.removeprefix('1.')}"}


def command(tmp_path: Path, path: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "tests.cluster.build", *arguments],
        env={"PATH": path, "SLOTWISE_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_go_one_line_says_so(tmp_path: Path) -> None:
    ended = command(tmp_path, str(tmp_path))
    assert (ended.returncode, ended.stdout) == (3, "")
    assert ended.stderr.splitlines() == [
        "the tests on a real control plane need Go on PATH (https://go.dev/dl), which builds etcd and Kubernetes"
    ]


def test_a_minor_that_is_not_there_is_refused(tmp_path: Path) -> None:
    ended = command(tmp_path, str(tmp_path), "1.12")
    assert ended.returncode == 2
    assert ended.stderr == "no Kubernetes '1.12' here: there are 1.37, 1.36, 1.35, 1.34\n"
