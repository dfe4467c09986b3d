"""`slotwise rbac-check` as a user meets it: overlays, files, standard input, and what is no manifest."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.__main__ import app
from manifests.documents import as_yaml
from manifests.families import Families
from manifests.kustomize import render


def rendered() -> str:
    return as_yaml(render("base", Families()))


def test_an_overlay_fits() -> None:
    result = CliRunner().invoke(app, ["rbac-check", "base"])
    assert result.exit_code == 0, result.output
    assert "slotwise-system/slotwise-webhook (slotwise-webhook/webhook): may make its" in result.stdout


def test_differences_are_named_and_fail(tmp_path: Path) -> None:
    path = tmp_path / "all.yaml"
    path.write_text(rendered().replace("- pods/binding\n", "- pods/eviction\n"))
    result = CliRunner().invoke(app, ["rbac-check", str(path)])
    assert result.exit_code == 1
    assert "  missing: create pods/binding" in result.stdout
    assert "  too much: create pods/eviction" in result.stdout
    answer = json.loads(CliRunner().invoke(app, ["rbac-check", str(path), "--json"]).stdout)
    assert [account["missing"] for account in answer] == [["create pods/binding"], []]


def test_standard_input_is_read() -> None:
    result = CliRunner().invoke(app, ["rbac-check", "-"], input=rendered())
    assert result.exit_code == 0, result.output


REFUSED = {
    "neither overlay nor file": (["rbac-check", "haa"], "", "neither an overlay (base"),
    "no YAML": (["rbac-check", "-"], "a: [b", "standard input"),
    "nothing that runs": (["rbac-check", "-"], "kind: Role\nmetadata: {name: x}\napiVersion: v1\n", "no Deployment"),
}


@pytest.mark.parametrize(("arguments", "given", "text"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_used_is_named(arguments: list[str], given: str, text: str) -> None:
    result = CliRunner().invoke(app, arguments, input=given)
    assert (result.exit_code, text in result.stderr) == (2, True), result.output
