"""The image: everything that is installed goes in, nothing builds in its last stage, and its user is the manifests' own."""

import re
import subprocess
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from manifests.families import Families
from manifests.kustomize import render
from tests.test_package import packages, setup

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "Containerfile").read_text().replace("\\\n", " ")
LINES = [line for line in TEXT.splitlines() if line and not line.startswith("#")]
BIN = "/opt/slotwise/bin"
BASE = "docker.io/library/python:3.11-slim@${PYTHON_DIGEST}"


def stages() -> Sequence[Sequence[str]]:
    starts = [number for number, line in enumerate(LINES) if line.startswith("FROM ")]
    return [LINES[start:end] for start, end in zip(starts, [*starts[1:], len(LINES)], strict=True)]


def test_every_stage_begins_with_a_base_pinned_by_its_digest() -> None:
    assert [stage[0].split()[1] for stage in stages()] == [BASE, BASE]
    assert LINES[0] == "ARG PYTHON_DIGEST", "a default would be used by those who have not looked"


def test_everything_installed_goes_in() -> None:
    copied = {word for line in stages()[0] if line.startswith("COPY ") for word in line.split()[1:-1]}
    assert copied == {name.partition(".")[0] for name in packages()} | {
        "pyproject.toml",
        "setup.cfg",
        "README.md",
        "LICENSE",
    }
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert allowed == copied
    assert all((ROOT / name).exists() for name in copied)
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]


def test_the_last_stage_builds_nothing_and_has_no_root() -> None:
    last = stages()[-1]
    assert not [line for line in last if re.search(r"apt-get|pip install|gcc|setcap", line)]
    assert [line for line in last if line.startswith("COPY ")] == ["COPY --from=build /opt/slotwise /opt/slotwise"]
    [user] = [line.split()[1] for line in last if line.startswith("USER ")]
    deployments = [document for document in render("ha", Families()) if document["kind"] == "Deployment"]
    assert len(deployments) == 2
    for document in deployments:
        context = yaml.safe_load(yaml.safe_dump(document))["spec"]["template"]["spec"]["securityContext"]
        assert user == f"{context['runAsUser']}:{context['runAsGroup']}" != "0:0"


def test_only_the_drop_in_s_interpreter_has_a_capability() -> None:
    """Our own pods drop all capabilities, and the kernel refuses to start a file that carries one of them there."""
    [capable] = re.findall(r"setcap cap_net_bind_service=\+ep (\S+)", TEXT)
    assert capable == f"{BIN}/python-low-ports"
    assert (ROOT / "cli" / "hami.py").exists()


@pytest.mark.parametrize("started", ["python-low-ports", "python"])
def test_scheduler_takes_the_interpreter_that_may_be_started(started: str, tmp_path: Path) -> None:
    """The one that may bind port 443, unless the kernel refuses to start it."""
    [written] = re.findall(r"printf .*? > \S+/scheduler(?=\s)", TEXT)
    subprocess.run(["sh", "-c", written.replace(BIN, str(tmp_path))], check=True)
    for name in ("python-low-ports", "python"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho {name} "$@"\n')
        # What cannot be started ends with status 126 in a shell, whatever the reason.
        (tmp_path / name).chmod(0o755 if name in ("python", started) else 0o644)
    ran = subprocess.run(
        ["sh", str(tmp_path / "scheduler"), "--scheduler-name=a b", "-v=4"], capture_output=True, text=True, check=True
    )
    assert (ran.stdout, ran.stderr) == (f"{started} -m cli.hami --scheduler-name=a b -v=4\n", "")


def test_what_the_manifests_start_is_in_the_image() -> None:
    commands = set()
    for document in yaml.safe_load_all("---\n".join(yaml.safe_dump(d) for d in render("ha", Families()))):
        if document["kind"] == "Deployment":
            for container in document["spec"]["template"]["spec"]["containers"]:
                if container["image"].startswith("slotwise:"):
                    commands.add((container["image"], *container["command"]))
    image = f"slotwise:{setup()['metadata']['version']}"
    assert commands == {(image, "python", "-m", "webhook"), (image, "python", "-m", "scheduler")}
    assert any("PATH=/opt/slotwise/bin:$PATH" in line for line in stages()[-1])
