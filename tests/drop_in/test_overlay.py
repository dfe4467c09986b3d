"""`slotwise manifests hami-drop-in`: one image in an installed HAMi, and nothing else."""

from copy import deepcopy
from typing import Any

import pytest

from manifests.errors import ManifestError
from manifests.families import Families
from manifests.kustomize import render
from manifests.settings import given, rendered
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


def test_an_image_of_one_s_own_and_what_does_not_belong_here() -> None:
    (patch,) = rendered("hami-drop-in", given(["image=registry.example.com/slotwise:1"])).documents
    assert image_of(patch, EXTENDER) == "registry.example.com/slotwise:1"
    for setting, problem in {
        "namespace=gpu": r"--set namespace=gpu: nothing in this overlay is in slotwise-system; what it changes stays where",
        "log-level=debug": "overlay hami-drop-in has no Deployment slotwise-",
        "kube-version=1.36.3": "overlay hami-drop-in has no Deployment slotwise-scheduler",
    }.items():
        with pytest.raises(ManifestError, match=problem):
            rendered("hami-drop-in", given([setting]))
