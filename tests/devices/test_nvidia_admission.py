"""What NVIDIA does to one container at admission (HAMi v2.10 wire contract, admission, with its corrections)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from devices.errors import MalformedValue
from devices.quantity import Quantity
from devices.requests import NO_CLUSTER, Cluster, Resources, read_resources
from tests.builders import Document, container_document, nvidia


@dataclass
class Changed:
    """A container that notes what is done to it."""

    document: Document
    env: list[tuple[str, str]] = field(default_factory=list)
    runtime_classes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def resources(self) -> Resources:
        return read_resources(self.document)

    @property
    def cluster(self) -> Cluster:
        return NO_CLUSTER

    def set_limit(self, resource: str, value: Quantity) -> None:
        self.document.setdefault("resources", {}).setdefault("limits", {})[resource] = value

    def append_env(self, name: str, value: str) -> None:
        self.env.append((name, value))

    def default_runtime_class(self, name: str) -> None:
        self.runtime_classes.append(name)

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"NVIDIA has no business with {name}")


def admitted(settings: Mapping[str, object], document: Document) -> tuple[bool, Changed]:
    changed = Changed(document)
    found = nvidia(**settings).admit(changed)
    return found, changed


def limits_of(changed: Changed) -> dict[str, object]:
    return {name.removeprefix("nvidia.com/"): value for name, value in changed.resources.limits.items()}


LIMITS: dict[str, tuple[dict[str, Any], dict[str, object], dict[str, object], bool]] = {
    "a whole card is one's own": ({"gpu": 1}, {}, {"gpu": 1, "gpucores": 100}, True),
    "a size is shared": ({"gpu": 1, "gpumem": 3000}, {}, {"gpu": 1, "gpumem": 3000}, True),
    "a percentage is shared": ({"gpu": 2, "percentage": 50}, {}, {"gpu": 2, "gpumem-percentage": 50}, True),
    "memory alone asks for one card": ({"gpumem": 3000}, {}, {"gpu": 1, "gpumem": 3000}, True),
    "cores alone ask for one card": ({"gpucores": 30}, {}, {"gpu": 1, "gpucores": 30}, True),
    "another default count": ({"gpumem": 1}, {"defaultGPUNum": 3}, {"gpu": 3, "gpumem": 1}, True),
    "no default count": ({"gpumem": 1}, {"defaultGPUNum": 0}, {"gpumem": 1}, False),
    "100 % is a whole card": (
        {"gpu": 1, "percentage": 100},
        {},
        {"gpu": 1, "gpumem-percentage": 100, "gpucores": 100},
        True,
    ),
    "memory 0 shared compute unexpectedly": (
        {"gpu": 1, "gpumem": 0},
        {},
        {"gpu": 1, "gpumem": 0, "gpucores": 100},
        True,
    ),
    "a default size still got all compute": ({"gpu": 1}, {"defaultMemory": 4000}, {"gpu": 1}, True),
    "a default compute does not make a whole card shared": (
        {"gpu": 1},
        {"defaultCores": 30},
        {"gpu": 1, "gpucores": 100},
        True,
    ),
    "cores given stay": ({"gpu": 1, "gpucores": 30}, {}, {"gpu": 1, "gpucores": 30}, True),
    "without a core resource": ({"gpu": 1}, {"resourceCoreName": ""}, {"gpu": 1}, True),
    "a count of requests alone gets its compute": ({"requests": {"gpu": 2}}, {}, {"gpucores": 100}, True),
    "a count of requests was overridden by the default": (
        {"requests": {"gpu": 2}, "gpumem": 5},
        {},
        {"gpumem": 5},
        True,
    ),
    "no device": ({"cpu": 1}, {}, {"cpu": 1}, False),
}


@pytest.mark.parametrize(("asked", "settings", "limits", "found"), LIMITS.values(), ids=LIMITS)
def test_limits(asked: dict[str, Any], settings: dict[str, object], limits: dict[str, object], found: bool) -> None:
    result, changed = admitted(settings, container_document(**asked))
    assert (result, limits_of(changed)) == (found, limits)
    # A second run finds everything done.
    again, changed = admitted(settings, changed.document)
    assert (again or not found, limits_of(changed)) == (True, limits)


EXTRAS: dict[str, tuple[dict[str, Any], dict[str, object], list[tuple[str, str]], list[str]]] = {
    "priority": ({"gpu": 1, "gpumem": 1, "nvidia.com/priority": "1"}, {}, [("CUDA_TASK_PRIORITY", "1")], []),
    "priority without a name for it": ({"gpu": 1, "gpumem": 1}, {"resourcePriorityName": ""}, [], []),
    "core policy": (
        {"gpu": 1, "gpumem": 1},
        {"gpuCorePolicy": "force"},
        [("GPU_CORE_UTILIZATION_POLICY", "force")],
        [],
    ),
    "core policy of a container without devices was set too": ({"cpu": 1}, {"gpuCorePolicy": "force"}, [], []),
    "default core policy": ({"gpu": 1, "gpumem": 1}, {"gpuCorePolicy": "default"}, [], []),
    "runtime class": ({"gpu": 1, "gpumem": 1}, {"runtimeClassName": "nvidia"}, [], ["nvidia"]),
    "runtime class of a container without devices": ({"cpu": 1}, {"runtimeClassName": "nvidia"}, [], []),
    "cards are hidden from those who ask for none": (
        {"cpu": 1},
        {"overwriteEnv": True},
        [("NVIDIA_VISIBLE_DEVICES", "none")],
        [],
    ),
    "and not from those who do": ({"gpu": 1, "gpumem": 1}, {"overwriteEnv": True}, [], []),
}


@pytest.mark.parametrize(("asked", "settings", "env", "runtime_classes"), EXTRAS.values(), ids=EXTRAS)
def test_environment_and_runtime_class(
    asked: dict[str, Any], settings: dict[str, object], env: list[tuple[str, str]], runtime_classes: list[str]
) -> None:
    _, changed = admitted(settings, container_document(**asked))
    assert (changed.env, changed.runtime_classes) == (env, runtime_classes)


WARNINGS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "nothing to say": ({"gpu": 1, "gpumem": 1}, []),
    "memory 0": (
        {"gpu": 1, "gpumem": 0, "gpucores": 5},
        ["container main: nvidia.com/gpumem 0 counts as not given"],
    ),
    "percentage 0": (
        {"gpu": 1, "percentage": 0, "gpucores": 5},
        ["container main: nvidia.com/gpumem-percentage 0 counts as not given"],
    ),
    "clamped cores": (
        {"gpu": 1, "gpumem": 1, "gpucores": 150},
        ["container main: nvidia.com/gpucores 150 counts as 100, one whole card"],
    ),
}


@pytest.mark.parametrize(("asked", "warnings"), WARNINGS.values(), ids=WARNINGS)
def test_warnings(asked: dict[str, Any], warnings: list[str]) -> None:
    _, changed = admitted({}, container_document(**asked))
    assert changed.warnings == warnings


DENIED = {
    "percentage above 100": (
        {"gpu": 1, "percentage": 101},
        "invalid nvidia.com/gpumem-percentage value 101 in container main: must be an integer between 0 and 100",
    ),
    "negative percentage": (
        {"gpu": 1, "percentage": -1},
        "invalid nvidia.com/gpumem-percentage value -1 in container main: must be an integer between 0 and 100",
    ),
    "malformed memory": (
        {"gpu": 1, "gpumem": "16Gi"},
        "invalid nvidia.com/gpumem value 16Gi in container main: must be an integer between 0 and 2147483647",
    ),
    "malformed priority": (
        {"gpu": 1, "nvidia.com/priority": "high"},
        "invalid nvidia.com/priority value high in container main: must be an integer between 0 and 2147483647",
    ),
}


@pytest.mark.parametrize(("asked", "text"), DENIED.values(), ids=DENIED)
def test_denied(asked: dict[str, Any], text: str) -> None:
    with pytest.raises(MalformedValue) as error:
        admitted({}, container_document(**asked))
    assert str(error.value) == text
