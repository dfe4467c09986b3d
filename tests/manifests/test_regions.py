"""Parts of the YAML that follow from the accelerator families."""

import difflib
from pathlib import Path

import pytest
import yaml

from devices.config import default_config, optional_families, read
from devices.managed import managed_resources
from manifests.errors import RegionError
from manifests.families import Families, shipped_document
from manifests.regions import REGIONS, filled, generated

FOLDER = Path(__file__).parents[2] / "manifests"
FILES = sorted(FOLDER.rglob("*.yaml"))
RENAMED = Families({"nvidia": {"resourceCountName": "example.com/gpu"}})


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(FOLDER)) for path in FILES])
def test_what_is_written_is_what_the_families_say(path: Path) -> None:
    written, made = path.read_text(), generated(path, Families())
    difference = "".join(difflib.unified_diff(written.splitlines(True), made.splitlines(True), "written", "made"))
    assert not difference, "run `slotwise manifests --regenerate`"


def test_files_without_generated_parts_stay_as_they_are() -> None:
    text = "a: 1\n# a comment\n\nb: |\n  text\n"
    assert filled(text, Families(), "x.yaml") == text


@pytest.mark.parametrize("name", sorted(REGIONS))
def test_a_generated_part_follows_the_families(name: str) -> None:
    text = f"a:\n  # generated: {name}\n  old: true\n  # end of generated\n"
    shipped, ascend = filled(text, Families(), "x.yaml"), filled(text, Families(enabled=("ascend",)), "x.yaml")
    assert "old" not in shipped
    assert filled(shipped, Families(), "x.yaml") == shipped
    if name == "device-config":
        assert filled(text, RENAMED, "x.yaml") != shipped
    else:
        assert len(ascend) > len(shipped)
        assert all(line.startswith("  ") for line in ascend.splitlines()[1:])


def test_admission_files_follow_the_families_as_a_whole() -> None:
    path = FOLDER / "base" / "admission" / "policy.yaml"
    assert "example.com/gpu" in generated(path, RENAMED)
    assert generated(path, Families(enabled=("ascend",))) != path.read_text()


def test_kube_scheduler_is_told_of_every_resource() -> None:
    document = yaml.safe_load((FOLDER / "base" / "kube-scheduler-config.yaml").read_text())
    configuration = yaml.safe_load(document["data"]["kube-scheduler.yaml"])
    assert configuration["extenders"][0]["managedResources"] == managed_resources(default_config())


@pytest.mark.parametrize("enabled", [(), optional_families()], ids=["shipped", "all"])
def test_the_device_configuration_says_what_is_shipped(enabled: tuple[str, ...]) -> None:
    document = yaml.safe_load((FOLDER / "base" / "device-config.yaml").read_text())
    written = read(document["data"]["device-config.yaml"], enabled)
    assert not written.warnings
    assert managed_resources(written) == managed_resources(default_config(enabled))
    assert yaml.safe_load(document["data"]["device-config.yaml"]) == shipped_document()


BROKEN = {
    "unknown name": ("a: 1\n# generated: nothing\n# end of generated\n", "line 2: no generated part 'nothing'"),
    "no end": ("# generated: managed-resources\n- a\n", "line 1: the generated part has no end"),
    "one inside another": (
        "# generated: managed-resources\n# generated: managed-resources\n# end of generated\n",
        "line 2: a generated part begins inside that of line 1",
    ),
    "an end alone": ("a: 1\n# end of generated\n", "line 2: the end of a generated part that has no beginning"),
}


@pytest.mark.parametrize(("text", "problem"), BROKEN.values(), ids=BROKEN)
def test_a_broken_generated_part_is_an_error(text: str, problem: str) -> None:
    with pytest.raises(RegionError) as caught:
        filled(text, Families(), "x.yaml")
    assert str(caught.value).startswith("x.yaml: ")
    assert problem in str(caught.value)
