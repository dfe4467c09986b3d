"""The recorded decisions, one by one, and the replayer held to its own strictness."""

import asyncio
import copy
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.replay.errors import ReplayError
from lab.replay.player import play
from lab.replay.scenario import Json, find, read_scenario

VECTORS = Path(__file__).parents[2] / "vectors"
SCENARIOS = {str(file.relative_to(VECTORS)): scenario for file, _, scenario in find([VECTORS])}


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as made:
        yield made


def test_all_areas_are_here() -> None:
    """A folder that got lost would make the test below pass on nothing."""
    assert Counter(str(Path(name).parent) for name in SCENARIOS) == {
        "bind": 16,
        "containers": 25,
        "fixed": 42,
        "lifecycle": 15,
        "mig": 23,
        "node-choice": 20,
        "numa-topology": 33,
        "nvidia-admission": 49,
        "nvidia-fit": 57,
        "nvidia-policy": 95,
        "quota": 29,
        "vendors/amd": 9,
        "vendors/ascend": 13,
        "vendors/awsneuron": 7,
        "vendors/biren": 4,
        "vendors/cambricon": 7,
        "vendors/enflame-drs": 6,
        "vendors/enflame-gcu": 5,
        "vendors/hygon": 8,
        "vendors/iluvatar": 7,
        "vendors/kunlun": 10,
        "vendors/kunlun-vxpu": 7,
        "vendors/metax-gpu": 5,
        "vendors/metax-sgpu": 9,
        "vendors/mixed": 3,
        "vendors/mthreads": 7,
        "vendors/vastai": 5,
    }


@pytest.mark.parametrize("name", SCENARIOS)
def test_recorded_decision(name: str, runner: asyncio.Runner) -> None:
    assert [d.text for d in play(SCENARIOS[name], runner).differences] == []


CARD = {"id": "GPU-a", "count": 10, "devmem": 15360, "devcore": 100, "type": "NVIDIA-Tesla T4", "health": True}
NODE: Json = {
    "metadata": {"name": "n1", "annotations": {"hami.io/node-nvidia-register": json.dumps([CARD])}},
    "status": {"allocatable": {"nvidia.com/gpu": "10"}},
}


def pod(name: str = "a", memory: int = 1000) -> Json:
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": memory}
    containers = [{"name": "main", "resources": {"limits": limits}}]
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {"containers": containers},
    }


def story() -> Json:
    """One step of every kind that answers, with everything that can be expected of it."""
    mutated = pod()
    assert isinstance(mutated["spec"], dict)
    mutated["spec"]["schedulerName"] = "hami-scheduler"
    text = "GPU-a,NVIDIA,1000,0:;"
    quota: Json = {"metadata": {"name": "q"}, "spec": {"hard": {"limits.nvidia.com/gpumem": 14000}}}
    return {
        "name": "every kind",
        "about": "one of each",
        "area": "test",
        "nodes": [NODE],
        "quotas": [quota],
        "steps": [
            {"admit": {"pod": pod(), "namespace": "default"}, "expect": {"allowed": True, "pod": mutated}},
            {
                "admit": {"pod": pod("big", 15000), "namespace": "default"},
                "expect": {"allowed": False, "message": "exceeding resource quota", "code": 403},
            },
            {
                "filter": {"pod": {"ref": "default/a"}, "nodes": ["n1"]},
                "expect": {
                    "node": "n1",
                    "error": "",
                    "failed": {},
                    "allocation": {"NVIDIA": [[{"uuid": "GPU-a", "memory": 1000, "cores": 0}]]},
                    "annotations": {"hami.io/vgpu-devices-allocated": text, "hami.io/vgpu-mig-allocations": None},
                    "events": [
                        ["Normal", "FilteringSucceed", "find fit node(n1), 0 nodes not fit, 1 nodes fit(n1:0.00)"]
                    ],
                },
            },
            {"usage": {"node": "n1"}, "expect": {"GPU-a": {"used": 1, "memory": 1000, "cores": 0}}},
            {"quota": {"namespace": "default"}, "expect": {"nvidia.com/gpumem": {"used": 1000, "limit": 14000}}},
            {"bind": {"namespace": "default", "name": "a", "uid": "uid-a", "node": "n1"}, "expect": {"error": ""}},
        ],
    }


def set_at(document: Json, path: tuple[str | int, ...], value: object) -> Json:
    changed = copy.deepcopy(document)
    place: Any = changed  # dicts and lists in turn
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return changed


def test_the_story_matches_as_it_is(runner: asyncio.Runner) -> None:
    assert play(read_scenario(story(), "story"), runner).differences == ()


CHANGED = {
    "admit: allowed": (("steps", 0, "expect", "allowed"), False),
    "admit: a field of the pod": (("steps", 0, "expect", "pod", "spec", "schedulerName"), "other"),
    "admit: a field of the pod too many": (("steps", 0, "expect", "pod", "spec", "priority"), 1),
    "admit: message": (("steps", 1, "expect", "message"), "no"),
    "admit: code": (("steps", 1, "expect", "code"), 500),
    "filter: node": (("steps", 2, "expect", "node"), None),
    "filter: error": (("steps", 2, "expect", "error"), "x"),
    "filter: failed": (("steps", 2, "expect", "failed"), {"n1": "x"}),
    "filter: a card's memory": (("steps", 2, "expect", "allocation", "NVIDIA", 0, 0, "memory"), 999),
    "filter: an annotation": (("steps", 2, "expect", "annotations", "hami.io/vgpu-devices-allocated"), ";"),
    "filter: an annotation that must be absent": (("steps", 2, "expect", "annotations", "hami.io/vgpu-node"), None),
    "filter: an event": (("steps", 2, "expect", "events", 0, 2), "x"),
    "usage": (("steps", 3, "expect", "GPU-a", "memory"), 1001),
    "usage: a card that is not there": (("steps", 3, "expect", "GPU-z"), {"used": 0}),
    "quota: used": (("steps", 4, "expect", "nvidia.com/gpumem", "used"), 1),
    "quota: limit": (("steps", 4, "expect", "nvidia.com/gpumem", "limit"), None),
    "bind": (("steps", 5, "expect", "error"), "x"),
}


@pytest.mark.parametrize(("path", "value"), CHANGED.values(), ids=CHANGED)
def test_one_changed_expectation_is_one_difference(
    path: tuple[str | int, ...], value: object, runner: asyncio.Runner
) -> None:
    found = play(read_scenario(set_at(story(), path, value), "story"), runner).differences
    assert [difference.step for difference in found] == [path[1]]
    assert "expected" in found[0].text
    assert "came" in found[0].text


FAULTS = {
    "unknown key of the scenario": (("extra",), 1, "unknown key extra"),
    "unknown flag": (("flags",), {"colour": "red"}, "unknown key colour"),
    "unknown section": (("device_config",), {"gpus": {}}, "section gpus has no effect"),
    "unknown key of a section": (("device_config",), {"nvidia": {"x": 1}}, "unknown key nvidia.x"),
    "unreadable duration": (("flags",), {"node-lock-timeout": "soon"}, "is not a duration"),
    "unknown step": (("steps", 0), {"reboot": {}}, "unknown step reboot"),
    "two kinds in a step": (("steps", 0), {"put_pod": pod(), "put_node": NODE}, "unknown step put_pod, put_node"),
    "expectation missing": (("steps", 0), {"admit": {"pod": pod(), "namespace": "d"}}, "expect is missing"),
    "expectation where nothing is answered": (
        ("steps", 0),
        {"put_pod": pod(), "expect": {}},
        "expect is not for this step",
    ),
    "unknown expectation of admit": (("steps", 0, "expect", "patch"), [], "unknown key patch"),
    "unknown expectation of filter": (("steps", 2, "expect", "score"), 1, "unknown key score"),
    "unknown expectation of usage": (("steps", 3, "expect", "GPU-a", "free"), 1, "unknown key free"),
    "unknown expectation of quota": (("steps", 4, "expect", "nvidia.com/gpumem", "free"), 1, "unknown key free"),
    "unknown expectation of bind": (("steps", 5, "expect", "code"), 1, "unknown key code"),
    "unknown key of a value": (("steps", 5, "bind", "force"), True, "unknown key force"),
    "no step": (("steps",), [], "no step"),
    "nameless node": (("nodes",), [{"metadata": {}}], "metadata.name missing"),
    "reference to nothing": (("steps", 2, "filter", "pod"), {"ref": "default/z"}, "no such object"),
    "resource of a family not built": (
        ("steps", 0, "admit", "pod", "spec", "containers", 0, "resources"),
        {"limits": {"example.com/npu": 1}},
        "belongs to no accelerator family",
    ),
}


@pytest.mark.parametrize(("path", "value", "text"), FAULTS.values(), ids=FAULTS)
def test_what_cannot_be_played_is_an_error(
    path: tuple[str | int, ...], value: object, text: str, runner: asyncio.Runner
) -> None:
    with pytest.raises(ReplayError, match=text):
        play(read_scenario(set_at(story(), path, value), "story"), runner)


def test_a_flag_of_a_family_that_is_not_built_is_an_error(
    monkeypatch: pytest.MonkeyPatch, runner: asyncio.Runner
) -> None:
    monkeypatch.setattr("lab.replay.player.optional_families", lambda: ())
    with pytest.raises(ReplayError, match="family is not in this version"):
        play(read_scenario(set_at(story(), ("flags",), {"enable-ascend": True}), "story"), runner)


def test_the_recording_holds_what_came(runner: asyncio.Runner) -> None:
    came = play(read_scenario(set_at(story(), ("steps", 3, "expect", "GPU-a", "memory"), 5), "story"), runner).came
    steps = came["steps"]
    assert isinstance(steps, list)
    assert steps[3]["expect"] == {"GPU-a": {"used": 1, "memory": 1000, "cores": 0}}
    assert play(read_scenario(came, "again"), runner).differences == ()
