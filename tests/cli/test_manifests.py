"""`slotwise manifests` from the outside."""

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from cli.__main__ import app
from cli.manifests import settings_markdown
from manifests.settings import SETTINGS


def invoke(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["manifests", *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_an_overlay_comes_out_as_a_stream() -> None:
    status, text, _ = invoke("ha")
    assert status == 0
    documents = list(yaml.safe_load_all(text))
    assert documents[0]["kind"] == "Namespace"
    deployments = {d["metadata"]["name"]: d["spec"]["replicas"] for d in documents if d["kind"] == "Deployment"}
    assert deployments == {"slotwise-scheduler": 2, "slotwise-webhook": 2}


def test_base_is_the_default() -> None:
    assert invoke() == invoke("base")
    assert invoke()[1] != invoke("ha")[1]


def test_the_list_names_every_overlay() -> None:
    status, text, _ = invoke("--list", "--json")
    assert status == 0
    listed = json.loads(text)
    assert {"base", "ha"} <= listed["overlays"].keys()
    assert [row["name"] for row in listed["settings"]] == list(SETTINGS)
    plain = invoke("--list")[1]
    assert all(f"  {name} " in plain for name in listed["overlays"])
    assert all(f"  {name}={setting.default}\n" in plain for name, setting in SETTINGS.items())


def test_an_unknown_overlay_is_refused() -> None:
    status, text, errors = invoke("haa")
    assert (status, text) == (2, "")
    assert "no overlay 'haa': there are base" in errors


def test_settings_change_what_is_printed() -> None:
    status, text, _ = invoke("ha", "--set", "scheduler-replicas=3", "--set", "namespace=gpu")
    assert status == 0
    documents = list(yaml.safe_load_all(text))
    assert documents[0]["metadata"]["name"] == "gpu"
    [scheduler] = [d for d in documents if d["kind"] == "Deployment" and d["metadata"]["name"] == "slotwise-scheduler"]
    assert (scheduler["metadata"]["namespace"], scheduler["spec"]["replicas"]) == ("gpu", 3)


def test_a_bad_setting_is_refused_before_anything_is_printed() -> None:
    status, text, errors = invoke("ha", "--set", "scheduler-replicas=none")
    assert (status, text) == (2, "")
    assert "--set scheduler-replicas=none: expected a whole number of 1 or more" in errors


def test_what_has_no_effect_is_said(tmp_path: Path) -> None:
    file = tmp_path / "devices.yaml"
    file.write_text("nvidia: {memoryFacter: 2}\n")
    status, text, errors = invoke("--set", f"device-config={file}")
    assert status == 0
    assert "unknown key nvidia.memoryFacter has no effect" in errors
    assert text.startswith("---")


def test_check_says_that_nothing_is_wrong() -> None:
    status, text, _ = invoke("hami-drop-in", "--check")
    assert (status, text.startswith("1 objects, nothing wrong (Kubernetes 1.")) == (0, True)


CHECKED_AS = {
    "the newest": ([], "1.37"),
    "that of the version that is set": (["--set", "kube-version=1.34.4"], "1.34"),
    "the newest for a version that is not kept": (["--set", "kube-version=1.30.1"], "1.37"),
    "the one named": (["--set", "kube-version=1.34.4", "--kubernetes", "1.36"], "1.36"),
}


@pytest.mark.parametrize(("flags", "minor"), CHECKED_AS.values(), ids=CHECKED_AS)
def test_check_names_the_kubernetes(flags: list[str], minor: str) -> None:
    status, text, _ = invoke("ha", "--check", *flags)
    assert (status, f"nothing wrong (Kubernetes {minor}." in text) == (0, True)


def test_check_takes_a_stream_that_was_edited(tmp_path: Path) -> None:
    file = tmp_path / "edited.yaml"
    file.write_text(
        invoke("ha")[1].replace("replicas: 2", "replica: 2", 1).replace("leader-elect=true", "leader-elect=false")
    )
    expected = "Deployment slotwise-system/slotwise-scheduler: spec.replica: unknown field (did you mean replicas?)\n"
    status, text, errors = invoke(str(file), "--check")
    assert (status, text) == (1, expected)
    assert "objects, 1 problem (Kubernetes 1." in errors
    piped = CliRunner().invoke(app, ["manifests", "--check", "-"], input=file.read_text())
    assert (piped.exit_code, piped.stdout) == (1, expected)
    found = json.loads(invoke(str(file), "--check", "--json")[1])
    assert [row["path"] for row in found["problems"]] == ["spec.replica"]


def test_the_page_of_the_documentation_has_every_setting() -> None:
    """Made anew by `slotwise manifests --list --markdown`."""
    page = (Path(__file__).parents[2] / "docs" / "install.md").read_text()
    assert invoke("--list", "--markdown") == (0, settings_markdown(), "")
    assert "\n## Settings\n" in page
    assert settings_markdown() in page


REFUSED = {
    "tables of what": (["--markdown"], "--markdown goes with --list"),
    "settings of a stream": (["FILE", "--check", "--set", "image=x"], "--set goes with an overlay"),
    "no such minor": (["--check", "--kubernetes", "1.2"], "no schemas of Kubernetes '1.2' here"),
    "a minor alone": (["--kubernetes", "1.37"], "--kubernetes goes with --check"),
    "two at a time": (["--check", "--list"], "exclude each other"),
    "nothing to check": (["EMPTY", "--check"], "no objects there"),
    "no YAML": (["BROKEN", "--check"], "not YAML"),
}


@pytest.mark.parametrize(("arguments", "text"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_go_together_is_refused(tmp_path: Path, arguments: list[str], text: str) -> None:
    files = {"FILE": "apiVersion: v1\nkind: Namespace\nmetadata: {name: x}\n", "EMPTY": "---\n", "BROKEN": "a: ["}
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    status, _, errors = invoke(*(str(tmp_path / word) if word in files else word for word in arguments))
    assert status == 2
    assert text in errors
