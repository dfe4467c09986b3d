"""`slotwise manifests hami-drop-in`: one image in an installed HAMi, and nothing else."""

from copy import deepcopy
from typing import Any

import pytest

from manifests.families import Families
from manifests.kustomize import render
from manifests.strategic import merged
from tests.drop_in.chart import EXTENDER, Values, deployment


def image_of(document: Any, container: str) -> str:
    (found,) = [c for c in document["spec"]["template"]["spec"]["containers"] if c["name"] == container]
    return str(found["image"])


@pytest.mark.parametrize(
    "values", [Values(), Values(webhook=False, leader_elect=False)], ids=["webhook on", "webhook off"]
)
def test_nothing_but_the_extender_s_image_changes(values: Values) -> None:
    (patch,) = render("hami-drop-in", Families())
    installed = deployment(values)
    changed: Any = merged(deepcopy(installed), patch, "test")
    assert image_of(changed, EXTENDER).startswith("slotwise:")
    assert image_of(changed, "kube-scheduler") == image_of(installed, "kube-scheduler")
    for container in changed["spec"]["template"]["spec"]["containers"]:
        if container["name"] == EXTENDER:
            container["image"] = image_of(installed, EXTENDER)
    assert changed == installed
