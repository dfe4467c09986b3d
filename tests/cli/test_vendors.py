"""`slotwise vendors` as a user runs it, and the page of the documentation that comes from it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.__main__ import app
from devices.config import default_config, optional_families

run = CliRunner().invoke
CONFIG = default_config(optional_families())
PAGE = Path(__file__).parents[2] / "docs" / "vendors.md"


def test_the_page_is_what_the_command_writes() -> None:
    """Made anew by `slotwise vendors --markdown > docs/vendors.md`."""
    result = run(app, ["vendors", "--markdown"])
    assert result.exit_code == 0
    assert result.stdout == PAGE.read_text(encoding="utf-8")


def test_programs_read_every_vendor_with_all_its_names() -> None:
    listed = json.loads(run(app, ["vendors", "--json"]).stdout)
    found = {vendor["key"]: vendor for family in listed for vendor in family["vendors"]}
    assert found.keys() == {vendor.key for vendor in CONFIG.vendors}
    for vendor in CONFIG.vendors:
        said = found[vendor.key]
        assert [name for name, _ in said["resources"]] == list(vendor.resources)
        assert said["system_annotations"] == list(vendor.protected_annotations)
        assert said["node_annotations"] == [*vendor.registration, *vendor.node_inputs]
        assert said["node_lock"] == vendor.node_lock


FEATURES = {
    "MIG": ("NVIDIA", "instances (MIG)", True),
    "no MIG": ("MLU", "instances (MIG)", False),
    "type lists": ("AMD", "type lists", True),
    "no lists at all": ("GCU", "UUID lists", False),
    "links": ("kunlun", "choice among linked or similar cards", True),
    "mutex, where it is asked of single devices only": ("AWSNeuron", "exclusive cards (mutex)", True),
    "a score": ("Metax-GPU", "a score for nodes", True),
    "tenants": ("Metax-SGPU", "watches what shares its cards", True),
    "no score": ("Ascend310P", "a score for nodes", False),
    "admission looks on": ("Vastai", "changes pods at admission", False),
}


@pytest.mark.parametrize(("key", "feature", "has"), FEATURES.values(), ids=FEATURES)
def test_features_follow_from_the_data(key: str, feature: str, has: bool) -> None:
    listed = json.loads(run(app, ["vendors", "--json"]).stdout)
    (features,) = (vendor["features"] for family in listed for vendor in family["vendors"] if vendor["key"] == key)
    assert (feature in features) is has


DEFAULTS = {
    "all of a card": ("DCU", ["memory: the whole card", "compute: 100"]),
    "no compute": ("NVIDIA", ["memory: the whole card", "compute: no share of its own"]),
    "a size of its own": ("XPU", ["memory: 98304 MiB"]),
    "as the cards are": ("AWSNeuron", []),
}


@pytest.mark.parametrize(("key", "defaults"), DEFAULTS.values(), ids=DEFAULTS)
def test_what_a_count_alone_gets(key: str, defaults: list[str]) -> None:
    listed = json.loads(run(app, ["vendors", "--json"]).stdout)
    assert [v["defaults"] for family in listed for v in family["vendors"] if v["key"] == key] == [defaults]


def test_people_read_units_and_switches() -> None:
    lines = run(app, ["vendors"]).stdout.splitlines()
    assert "Ascend310P (section vnpus, off unless --enable-ascend)" in lines
    assert any(line.endswith("metax-tech.com/vmemory (memory of a card, GiB)") for line in lines)
    assert any(line.endswith("aws.amazon.com/neuroncore (compute, cores of a device)") for line in lines)


def test_one_form_at_a_time() -> None:
    result = run(app, ["vendors", "--json", "--markdown"])
    assert result.exit_code == 2
    assert "exclude each other" in result.output
