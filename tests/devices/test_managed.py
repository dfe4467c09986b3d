"""What Kubernetes' own configuration has to name because of the families."""

import json
import re

import yaml
from typer.testing import CliRunner

from cli.__main__ import app
from devices.config import default_config, optional_families, read
from devices.managed import asks_condition, managed_resources, protected_keys

EVERY = default_config(optional_families())


def test_kube_scheduler_is_told_of_every_resource_of_every_family() -> None:
    named = [row["name"] for row in managed_resources(EVERY)]
    assert len(named) == len(set(named))
    assert set(named) == EVERY.resources
    assert all(row["ignoredByScheduler"] is True for row in managed_resources(EVERY))


def test_the_condition_asks_for_every_resource_in_limits_and_requests_of_both_lists() -> None:
    text = asks_condition(EVERY)
    lists = [json.loads(found) for found in re.findall(r"k in (\[.*?\])", text)]
    assert len(lists) == 4
    assert all(set(names) == EVERY.resources for names in lists)
    for path in ("object.spec.containers", "object.spec.initContainers", "c.resources.limits", "c.resources.requests"):
        assert f"has({path})" in text


def test_renamed_resources_are_named_as_they_are() -> None:
    config = read("nvidia: {resourceCountName: example.com/gpu}")
    assert "example.com/gpu" in [row["name"] for row in managed_resources(config)]
    assert '"nvidia.com/gpu"' not in asks_condition(config)


def test_every_output_of_every_vendor_is_protected() -> None:
    keys = protected_keys(EVERY)
    assert len(keys) == len(set(keys))
    for vendor in EVERY.vendors:
        assert set(vendor.protected_annotations) <= set(keys)
    assert {"hami.io/vgpu-node", "hami.io/vgpu-time", "hami.io/bind-phase", "hami.io/bind-time"} <= set(keys)


def test_the_command_prints_it_as_yaml() -> None:
    result = CliRunner().invoke(app, ["vendors", "--kubernetes"])
    assert result.exit_code == 0
    printed = yaml.safe_load(result.stdout)
    assert printed["managedResources"] == managed_resources(EVERY)
    assert printed["matchConditions"][0]["expression"] == asks_condition(EVERY)
    assert printed["protectedAnnotations"] == protected_keys(EVERY)


def test_the_command_refuses_what_does_not_go_together() -> None:
    for arguments in (
        ["--kubernetes", "--json"],
        ["--device-config-file", "x.yaml"],
        ["--kubernetes", "--device-config-file", "none"],
    ):
        assert CliRunner().invoke(app, ["vendors", *arguments]).exit_code == 2
