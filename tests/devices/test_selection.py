"""Which cards a pod's own annotations allow."""

import pytest

from devices.selection import selection_of
from tests.builders import card, mig_card, nvidia

CARDS = (
    card("GPU-a"),
    card("GPU-b", model="NVIDIA A10"),
    card("GPU-c", model="NVIDIA H100", mode="mps"),
    mig_card("GPU-m", model="NVIDIA A100"),
    card("GPU-x", model="", mode=""),
)

USE_TYPE, NOUSE_TYPE = "nvidia.com/use-gputype", "nvidia.com/nouse-gputype"
USE_UUID, NOUSE_UUID = "nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid"
MODE = "nvidia.com/vgpu-mode"

ALLOWED = {
    "no lists": ({}, "abcmx"),
    "use type, part of the name in any case": ({USE_TYPE: "tesla"}, "a"),
    "use types, trimmed": ({USE_TYPE: "H100, t4 ,V100"}, "ac"),
    "a type that several have": ({USE_TYPE: "A10"}, "bm"),
    "blank use list is no constraint": ({USE_TYPE: "  "}, "abcmx"),
    "use list of commas matches nothing": ({USE_TYPE: ", ,"}, ""),
    "nouse type": ({NOUSE_TYPE: "a10,T4"}, "cx"),
    "nouse list of commas": ({NOUSE_TYPE: ","}, "abcmx"),
    "nouse after use": ({USE_TYPE: "nvidia", NOUSE_TYPE: "a100"}, "abc"),
    "a card without model matches no use list": ({USE_TYPE: "NVIDIA"}, "abcm"),
    "use uuid exactly": ({USE_UUID: " GPU-a ,GPU-c"}, "ac"),
    "a part of a uuid is none": ({USE_UUID: "GPU"}, ""),
    "uuids in another case": ({USE_UUID: "gpu-a"}, ""),
    "blank uuid list": ({USE_UUID: " "}, "abcmx"),
    "uuid list of commas": ({USE_UUID: ","}, ""),
    "nouse uuid": ({NOUSE_UUID: "GPU-a, GPU-b,"}, "cmx"),
    "nouse uuid after use": ({USE_UUID: "GPU-a,GPU-b", NOUSE_UUID: "GPU-b"}, "a"),
    "mode": ({MODE: "mig"}, "mx"),
    "several modes in one text": ({MODE: "hami-core,mps"}, "abcx"),
    "empty mode leaves cards without mode": ({MODE: ""}, "x"),
    "all rules together": ({USE_TYPE: "nvidia", NOUSE_UUID: "GPU-b", MODE: "hami-core"}, "a"),
}


@pytest.mark.parametrize(("annotations", "expected"), ALLOWED.values(), ids=ALLOWED)
def test_allowed(annotations: dict[str, str], expected: str) -> None:
    vendor = nvidia()
    selection = vendor.selection(annotations)
    assert "".join(one.uuid[-1] for one in CARDS if vendor.selects(selection, one)) == expected


def test_several_uuid_pairs_all_hold() -> None:
    keys = (("use-a", "no-a"), ("use-b", "no-b"))
    selection = selection_of({"use-a": "x,y,z", "use-b": "y,z", "no-b": "z"}, keys, None)
    assert [uuid for uuid in "xyz" if selection.allows_uuid(card(uuid))] == ["y"]
    assert selection.allows_type(card())


def test_without_type_keys_no_type_is_refused() -> None:
    assert selection_of({USE_TYPE: "none"}, (), None).allows_type(card())


def test_values_of_annotations() -> None:
    assert nvidia().selection({MODE: "mig"}).value(MODE) == "mig"
    assert nvidia().selection({}).value(MODE) == ""
    assert type(nvidia().selection({}))().value(MODE) == ""


NUMA = {"true": True, "1": True, "T": True, "false": False, "yes": False, "": False, " true": False}


@pytest.mark.parametrize(("text", "on"), NUMA.items(), ids=NUMA)
def test_numa_bind(text: str, on: bool) -> None:
    vendor = nvidia()
    assert vendor.groups_by_numa(vendor.selection({"nvidia.com/numa-bind": text})) is on
