"""From container to request: defaults, the memory factor, malformed values with their exact texts, roles."""

from typing import Any

import pytest

from devices.errors import MalformedValue
from devices.requests import (
    ContainerRequest,
    DeviceRequest,
    PodRequest,
    Role,
    optional_whole,
    pod_request,
    read_resources,
    roles,
)
from devices.vendor import Hooks, Vendor
from tests.builders import container, container_document, nvidia, nvidia_config, pod, request


def asked(limits: dict[str, Any], **settings: object) -> tuple[int, int, int | None, int] | None:
    """(count, memory, percentage, cores) of a container with these limits."""
    found = nvidia(**settings).request(container(**limits))
    return None if found is None else (found.count, found.memory_mib, found.percentage, found.cores)


REQUESTS: dict[str, tuple[dict[str, Any], dict[str, object], Any]] = {
    "a card and no word more is a whole one": ({"gpu": 1}, {}, (1, 0, 100, 0)),
    "a card after admission": ({"gpu": 1, "gpucores": 100}, {}, (1, 0, 100, 100)),
    "several cards with a size": ({"gpu": 2, "gpumem": 6000, "gpucores": 25}, {}, (2, 6000, None, 25)),
    "a percentage": ({"gpu": 1, "percentage": 33, "gpucores": 30}, {}, (1, 0, 33, 30)),
    "memory beside a percentage": ({"gpu": 1, "gpumem": 5000, "percentage": 50}, {}, (1, 5000, 50, 0)),
    "memory 0 counts as absent": ({"gpu": 1, "gpumem": 0}, {}, (1, 0, 100, 0)),
    "percentage 0 counts as absent": ({"gpu": 1, "percentage": 0}, {}, (1, 0, 100, 0)),
    "percentage 0 beside memory": ({"gpu": 1, "gpumem": 10, "percentage": 0}, {}, (1, 10, None, 0)),
    "percentage above 100 is 100 once admitted": ({"gpu": 1, "percentage": 250}, {}, (1, 0, 100, 0)),
    "cores above 100 stay as asked": ({"gpu": 1, "gpumem": 1, "gpucores": 150}, {}, (1, 1, None, 150)),
    "count 0 asks for nothing": ({"gpu": 0, "gpumem": 100}, {}, None),
    "memory without a card asks for nothing": ({"gpumem": 100}, {}, None),
    "no device at all": ({"cpu": "1"}, {}, None),
    "suffixes": ({"gpu": "1", "gpumem": "2k"}, {}, (1, 2000, None, 0)),
    "binary suffix": ({"gpu": 1, "gpumem": "1Ki"}, {}, (1, 1024, None, 0)),
    "most memory there is": ({"gpu": 1, "gpumem": 2147483647}, {}, (1, 2147483647, None, 0)),
    "factor": ({"gpu": 1, "gpumem": 1500}, {"memoryFactor": 2}, (1, 3000, None, 0)),
    "factor 0 is 1": ({"gpu": 1, "gpumem": 1500}, {"memoryFactor": 0}, (1, 1500, None, 0)),
    "most memory with a factor": ({"gpu": 1, "gpumem": 1073741823}, {"memoryFactor": 2}, (1, 2147483646, None, 0)),
    "default memory": ({"gpu": 1}, {"defaultMemory": 4000}, (1, 4000, None, 0)),
    "default memory knows no factor": ({"gpu": 1}, {"defaultMemory": 4000, "memoryFactor": 2}, (1, 4000, None, 0)),
    "default memory yields to a percentage": ({"gpu": 1, "percentage": 5}, {"defaultMemory": 4000}, (1, 0, 5, 0)),
    "default memory instead of memory 0": ({"gpu": 1, "gpumem": 0}, {"defaultMemory": 4000}, (1, 4000, None, 0)),
    "default cores": ({"gpu": 1}, {"defaultCores": 30}, (1, 0, 100, 30)),
    "cores 0 are no default": ({"gpu": 1, "gpucores": 0}, {"defaultCores": 30}, (1, 0, 100, 0)),
    "a resource without name is not read": (
        {"gpu": 1, "gpumem": 7},
        {"resourceMemoryName": ""},
        (1, 0, 100, 0),
    ),
    "renamed count": ({"example.com/card": 1, "gpu": 5}, {"resourceCountName": "example.com/card"}, (1, 0, 100, 0)),
}


@pytest.mark.parametrize(("limits", "settings", "expected"), REQUESTS.values(), ids=REQUESTS)
def test_request(limits: dict[str, Any], settings: dict[str, object], expected: Any) -> None:
    assert asked(limits, **settings) == expected


def test_limits_come_before_requests_each_name_for_itself() -> None:
    both = container(requests={"gpu": 3, "gpumem": 10, "gpucores": 7}, gpu=1, gpumem=20)
    assert nvidia().request(both) == DeviceRequest("NVIDIA", 1, 20, None, 7)
    assert nvidia().request(container(requests={"gpu": 2})) == DeviceRequest("NVIDIA", 2, 0, 100, 0)


MALFORMED: dict[str, tuple[dict[str, Any], dict[str, object], str]] = {
    "memory with a unit that is too large": (
        {"gpu": 1, "gpumem": "16Gi"},
        {},
        "invalid nvidia.com/gpumem value 16Gi in container main: must be an integer between 0 and 2147483647",
    ),
    "memory as a fraction": (
        {"gpu": 1, "gpumem": "1500m"},
        {},
        "invalid nvidia.com/gpumem value 1500m in container main: must be an integer between 0 and 2147483647",
    ),
    "memory beyond what the factor leaves": (
        {"gpu": 1, "gpumem": 1073741824},
        {"memoryFactor": 2},
        "invalid nvidia.com/gpumem value 1073741824 in container main: must be an integer between 0 and 1073741823",
    ),
    "negative memory": (
        {"gpu": 1, "gpumem": -1},
        {},
        "invalid nvidia.com/gpumem value -1 in container main: must be an integer between 0 and 2147483647",
    ),
    "malformed memory without a card": (
        {"gpumem": "x"},
        {},
        "invalid nvidia.com/gpumem value x in container main: must be an integer between 0 and 2147483647",
    ),
    "half a card": (
        {"gpu": "1.5"},
        {},
        "invalid nvidia.com/gpu value 1.5 in container main: must be an integer between 0 and 2147483647",
    ),
    "a fraction in milli was shown as the whole number it comes to": (
        {"gpu": "2000m"},
        {},
        "invalid nvidia.com/gpu value 2000m in container main: must be an integer between 0 and 2147483647",
    ),
    "negative count": (
        {"gpu": "-1"},
        {},
        "invalid nvidia.com/gpu value -1 in container main: must be an integer between 0 and 2147483647",
    ),
    "negative percentage": (
        {"gpu": 1, "percentage": -5},
        {},
        "invalid nvidia.com/gpumem-percentage value -5 in container main: must be an integer between 0 and 2147483647",
    ),
    "negative cores were taken as they are": (
        {"gpu": 1, "gpucores": -50},
        {},
        "invalid nvidia.com/gpucores value -50 in container main: must be an integer between 0 and 2147483647",
    ),
    "cores as a fraction": (
        {"gpu": 1, "gpucores": "0.5"},
        {},
        "invalid nvidia.com/gpucores value 0.5 in container main: must be an integer between 0 and 2147483647",
    ),
}


@pytest.mark.parametrize(("limits", "settings", "text"), MALFORMED.values(), ids=MALFORMED)
def test_malformed(limits: dict[str, Any], settings: dict[str, object], text: str) -> None:
    with pytest.raises(MalformedValue) as error:
        asked(limits, **settings)
    assert str(error.value) == text


def test_small_values_are_shown_without_the_suffix_the_api_server_gives_them() -> None:
    with pytest.raises(MalformedValue, match="value 200 in"):
        optional_whole(container(gpu="0.2k"), "nvidia.com/gpu", 0, 100)


WANTED = {
    "explicit memory": (request(memory_mib=3000), 15360, 3000),
    "33 % rounded down": (request(percentage=33), 15360, 5068),
    "50 % of an odd size": (request(percentage=50), 11441, 5720),
    "memory beats percentage": (request(memory_mib=5000, percentage=50), 15360, 5000),
    "33 % of an A10": (request(percentage=33), 24576, 8110),
    "whole card": (request(), 15360, 15360),
}


@pytest.mark.parametrize(("of", "size", "wanted"), WANTED.values(), ids=WANTED)
def test_memory_wanted_of_a_card(of: DeviceRequest, size: int, wanted: int) -> None:
    assert of.memory_on(size) == wanted


def test_whole_memory_is_asked_by_percentage_alone() -> None:
    assert request().wants_whole_memory
    assert not request(percentage=99).wants_whole_memory
    assert not request(memory_mib=40960, percentage=100).wants_whole_memory


# The pod


def test_a_position_for_every_container_and_its_role() -> None:
    init = [
        container_document("plain"),
        container_document("side", sidecar=True, gpu=1),
        container_document("i", gpu=2),
    ]
    found = pod_request(
        pod(container_document("app", gpu=1, gpumem=5), container_document("log"), init=init), [nvidia()]
    )
    assert found == PodRequest(
        (
            ContainerRequest("plain", Role.INIT),
            ContainerRequest("side", Role.SIDECAR, (request(),)),
            ContainerRequest("i", Role.INIT, (request(2),)),
            ContainerRequest("app", Role.APP, (request(memory_mib=5),)),
            ContainerRequest("log", Role.APP),
        )
    )
    assert found.asks
    assert found.vendors == ("NVIDIA",)


def test_an_app_is_no_sidecar_whatever_its_restart_policy_says() -> None:
    assert roles(pod(container_document(sidecar=True))) == (Role.APP,)


def test_a_pod_without_devices_asks_for_nothing() -> None:
    found = pod_request(pod(container_document(cpu=1)), nvidia_config().vendors)
    assert not found.asks
    assert found.vendors == ()


def test_requests_of_several_vendors_come_by_key_and_a_count_of_zero_is_none() -> None:
    def vendor(key: str, count: int) -> Vendor:
        hooks = Hooks(request=lambda vendor, container, cluster: DeviceRequest(vendor.key, count))
        return Vendor(key=key, hooks=hooks, count_resource=f"example.com/{key}")

    names: dict[str, Any] = dict.fromkeys(("example.com/a", "example.com/b", "example.com/none"), 1)
    asking = container_document(**names)
    vendors = [vendor("b", 1), vendor("a", 2), vendor("none", 0), vendor("unnamed", 3)]
    found = pod_request(pod(asking), vendors)
    assert [(device.vendor, device.count) for device in found.containers[0].devices] == [("a", 2), ("b", 1)]
    assert found.vendors == ("a", "b")


# The raw form at admission


def test_resources_of_a_raw_container() -> None:
    raw = {"name": "x", "resources": {"limits": {"nvidia.com/gpu": 1}, "requests": None}}
    resources = read_resources(raw)
    assert (resources.name, resources.limits, resources.requests) == ("x", {"nvidia.com/gpu": 1}, {})


@pytest.mark.parametrize("raw", [{}, {"resources": None}, {"name": None, "resources": {}}])
def test_a_raw_container_without_resources(raw: dict[str, object]) -> None:
    resources = read_resources(raw)
    assert (resources.name, resources.limits, resources.requests) == ("", {}, {})


WRONG_SHAPES = {
    "resources": ({"name": "x", "resources": [1]}, "resources of container x must be an object"),
    "limits": ({"name": "x", "resources": {"limits": "1"}}, "resources.limits of container x must be an object"),
    "requests": ({"name": "x", "resources": {"requests": [1]}}, "resources.requests of container x must be an object"),
}


@pytest.mark.parametrize(("raw", "text"), WRONG_SHAPES.values(), ids=WRONG_SHAPES)
def test_raw_containers_of_a_wrong_shape(raw: dict[str, object], text: str) -> None:
    with pytest.raises(MalformedValue, match=text):
        read_resources(raw)


@pytest.mark.parametrize("value", [[1], {"a": 1}, True, None, "१"])
def test_a_raw_value_of_any_kind_is_malformed_or_absent(value: Any) -> None:
    resources = read_resources({"name": "x", "resources": {"limits": {"nvidia.com/gpu": value}}})
    if value is None:
        assert nvidia().request(resources) is None
    else:
        with pytest.raises(MalformedValue, match=r"invalid nvidia.com/gpu value .* in container x"):
            nvidia().request(resources)
