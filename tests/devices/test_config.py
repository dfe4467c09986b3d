"""The device configuration: defaults, and errors that name line and key."""

from pathlib import Path
from types import MappingProxyType

import pytest

from devices import config
from devices.config import default_config, load, read
from devices.errors import ConfigError
from devices.requests import DeviceRequest
from devices.vendor import Family, FamilySettings, Hooks, Vendor
from devices.vendors import families

NVIDIA = tuple(family for family in families() if family.section == "nvidia")


@pytest.fixture(autouse=True)
def nvidia_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other families read is theirs to test."""
    monkeypatch.setattr(config, "families", lambda: NVIDIA)


FULL = """
nvidia:
  resourceCountName: nvidia.com/gpu
  resourceMemoryName: nvidia.com/gpumem
  resourceMemoryPercentageName: nvidia.com/gpumem-percentage
  resourceCoreName: nvidia.com/gpucores
  resourcePriorityName: nvidia.com/priority
  overwriteEnv: false
  defaultMemory: 0
  defaultCores: 0
  defaultGPUNum: 1
  memoryFactor: 1
  gpuCorePolicy: default
  runtimeClassName: ""
  migProfileAllowlist:
  - models: ["A100-SXM4-40GB"]
    profiles: ["1g.5gb", "2g.10gb", "3g.20gb", "7g.40gb", "1g.5gb+me"]
  deviceSplitCount: 10
  deviceMemoryScaling: 1
  deviceCoreScaling: 1.5
  preConfiguredDeviceMemory: 0
  enableNumaTopology: false
  libCudaLogLevel: 1
"""


@pytest.mark.parametrize("text", ["", "# nothing\n", "nvidia:\n", "nvidia: {}\n", "{}", FULL])
def test_the_shipped_defaults(text: str) -> None:
    found = read(text)
    assert found.warnings == ()
    (vendor,) = found.vendors
    assert vendor.key == "NVIDIA"
    assert vendor.resources == (
        "nvidia.com/gpu",
        "nvidia.com/gpumem",
        "nvidia.com/gpumem-percentage",
        "nvidia.com/gpucores",
        "nvidia.com/priority",
    )
    assert found.resources == set(vendor.resources)
    assert vendor.memory_factor == 1


def test_vendors_by_key() -> None:
    found = default_config()
    assert found.vendor("NVIDIA") is found.vendors[0]
    assert found.vendor("nvidia") is None


def test_empty_names_are_no_resources() -> None:
    found = read("nvidia: {resourceMemoryName: '', resourcePriorityName: '', memoryFactor: 0}")
    assert found.resources == {"nvidia.com/gpu", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores"}
    assert found.vendors[0].memory_factor == 1


def test_keys_of_a_vendor() -> None:
    (vendor,) = default_config().vendors
    assert vendor.protected_annotations == (
        "hami.io/vgpu-devices-to-allocate",
        "hami.io/vgpu-devices-allocated",
        "hami.io/vgpu-mig-allocations",
    )
    assert vendor.pod_annotations == (
        "nvidia.com/use-gpuuuid",
        "nvidia.com/nouse-gpuuuid",
        "nvidia.com/use-gputype",
        "nvidia.com/nouse-gputype",
        "nvidia.com/numa-bind",
        "nvidia.com/vgpu-mode",
    )


WARNINGS = {
    "a misspelt key": (
        "nvidia:\n  defaultmemory: 5\n",
        "line 2: unknown key nvidia.defaultmemory has no effect; known are ",
    ),
    "a misspelt section": (
        "\nnvidai: {}\n",
        "line 2: section nvidai has no effect: no accelerator family reads it; known are nvidia",
    ),
    "a key with a point": ("nvidia: {a.b: 1}", "line 1: unknown key nvidia.a.b has no effect"),
    "a key merged in had no line and ended in another error": (
        "base: &base\n  odd: 1\nnvidia:\n  <<: *base\n",
        "line 3: unknown key nvidia.odd has no effect",
    ),
}


@pytest.mark.parametrize(("text", "warning"), WARNINGS.values(), ids=WARNINGS)
def test_what_has_no_effect_is_said(text: str, warning: str) -> None:
    assert any(one.startswith(warning) for one in read(text).warnings)


ERRORS = {
    "not YAML": ("a: 1\n\tb: 2", "the device configuration is not YAML: while scanning"),
    "a control character": ("\a", "the device configuration is not YAML: unacceptable character"),
    "two documents": ("a: 1\n---\nb: 2", "the device configuration is not YAML: expected a single document"),
    "an impossible date ended in another error": (
        "nvidia:\n  runtimeClassName: 2024-13-45\n",
        "the device configuration is not YAML: month must be in 1..12",
    ),
    "an anchor inside itself ended in another error": (
        "nvidia: &a {x: *a}",
        "the device configuration is not YAML: maximum recursion depth",
    ),
    "a list": ("- nvidia", "the device configuration must be a mapping of sections such as 'nvidia:'"),
    "text": ("nvidia", "the device configuration must be a mapping of sections such as 'nvidia:'"),
    "sections that are no text": ("1: {}", "the device configuration must be a mapping of sections"),
    "a section that is no mapping": ("\nnvidia: 3", "line 2: nvidia: Expected `object`, got `int`"),
    "a key that YAML reads as a boolean ended in another error": (
        "nvidia:\n  true: 1\n",
        "line 1: nvidia: key True must be text, such as 'memoryFactor'",
    ),
    "a wrong type": ("nvidia:\n\n  defaultMemory: x\n", "line 3: nvidia.defaultMemory: Expected `int`, got `str`"),
    "null": ("nvidia:\n  defaultMemory:\n", "line 2: nvidia.defaultMemory: Expected `int`, got `null`"),
    "a fraction": ("nvidia:\n  memoryFactor: 1.5\n", "line 2: nvidia.memoryFactor: Expected `int`, got `float`"),
    "a number for text": ("nvidia:\n  runtimeClassName: 5\n", "line 2: nvidia.runtimeClassName: Expected `str`"),
    "negative": (
        "nvidia:\n  memoryFactor: -1\n",
        "line 2: nvidia.memoryFactor: -1 is out of range, accepted are 0 to 2147483647",
    ),
    "too large": (
        "nvidia:\n  overwriteEnv: true\n  defaultGPUNum: 2147483648\n",
        "line 3: nvidia.defaultGPUNum: 2147483648 is out of range, accepted are 0 to 2147483647",
    ),
    "an unknown policy did not say what is accepted": (
        "nvidia:\n  gpuCorePolicy: forced\n",
        "line 2: nvidia.gpuCorePolicy: 'forced' is unknown, accepted are default, force, disable or empty text",
    ),
    "no count resource": (
        "nvidia:\n  resourceCountName: ''\n",
        "line 2: nvidia.resourceCountName: must not be empty",
    ),
    "a key given twice was taken the last time silently": (
        "nvidia:\n  memoryFactor: 1\n  memoryFactor: 2\n",
        "line 3: nvidia.memoryFactor stands twice",
    ),
    "a section given twice": ("nvidia: {}\nnvidia: {}\n", "line 2: nvidia stands twice"),
    "one resource for two meanings was taken silently": (
        "nvidia:\n  resourceMemoryName: nvidia.com/gpu\n",
        "line 2: nvidia.resourceMemoryName: nvidia.com/gpu is resourceCountName already",
    ),
    "a name that is another one's default": (
        "nvidia:\n  resourceCountName: nvidia.com/gpucores\n",
        "line 1: nvidia.resourceCoreName: nvidia.com/gpucores is resourceCountName already",
    ),
    "an allowlist entry without profiles": (
        "nvidia:\n  migProfileAllowlist:\n  - models: [a]\n",
        "line 3: nvidia.migProfileAllowlist[0]: Object missing required field `profiles`",
    ),
    "an allowlist entry with an empty list": (
        "nvidia:\n  migProfileAllowlist:\n  - {models: [], profiles: [1g.5gb]}\n",
        "line 2: nvidia.migProfileAllowlist: every entry needs at least one model and one profile",
    ),
    "an allowlist model that is a number": (
        "nvidia:\n  migProfileAllowlist:\n  - models:\n    - a\n    - 1\n    profiles: [1g.5gb]\n",
        "line 5: nvidia.migProfileAllowlist[0].models[1]: Expected `str`, got `int`",
    ),
    **{
        f"profile {profile!r}": (
            f"nvidia:\n  migProfileAllowlist:\n  - {{models: [a], profiles: ['{profile}']}}\n",
            f"line 2: nvidia.migProfileAllowlist: profile {profile!r} must look like 1g.5gb",
        )
        for profile in ("1g", "1g.", "g.5gb", "xg.5gb", "1.5gb", "")
    },
}


@pytest.mark.parametrize(("text", "problem"), ERRORS.values(), ids=ERRORS)
def test_errors_name_line_and_key(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        read(text)
    assert str(error.value).startswith(problem)


class OtherSettings(FamilySettings, frozen=True):
    """A family beside NVIDIA."""

    resource_name: str = "example.com/card"


def other(settings: OtherSettings) -> tuple[Vendor, ...]:
    if settings.resource_name == "none":
        raise ConfigError("there are no cards")
    hooks = Hooks(request=lambda vendor, container, cluster: DeviceRequest(vendor.key, 1))
    return (Vendor(key="Other", hooks=hooks, count_resource=settings.resource_name),)


@pytest.fixture
def two_families(nvidia_alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    both = (*NVIDIA, Family("other", OtherSettings, other))
    monkeypatch.setattr(config, "families", lambda: both)


@pytest.mark.usefixtures("two_families")
def test_vendors_come_by_key_whatever_their_sections() -> None:
    assert [vendor.key for vendor in read("other: {}\n").vendors] == ["NVIDIA", "Other"]


@pytest.mark.usefixtures("two_families")
def test_one_resource_for_two_families() -> None:
    with pytest.raises(ConfigError) as error:
        read("nvidia: {}\nother:\n  resourceName: nvidia.com/gpu\n")
    assert str(error.value) == "line 2: other: resource nvidia.com/gpu is used by both NVIDIA and Other"


class Chip(FamilySettings, frozen=True):
    """One entry of a section that is a list."""

    resource_name: str


class Chips(FamilySettings, frozen=True):
    """A section that is a list."""

    chips: list[Chip] = []


@pytest.fixture
def a_list_family(nvidia_alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(settings: Chips) -> tuple[Vendor, ...]:
        return tuple(Vendor(key=chip.resource_name, count_resource=chip.resource_name) for chip in settings.chips)

    monkeypatch.setattr(
        config, "families", lambda: (Family("chips", Chips, build, list_field="chips", flag="chips"), *NVIDIA)
    )


@pytest.mark.usefixtures("a_list_family")
def test_an_optional_family_is_built_where_it_is_enabled() -> None:
    text = "chips:\n- resourceName: example.com/a\n- resourceName: example.com/b\n"
    assert config.optional_families() == ("chips",)
    assert [vendor.key for vendor in read(text).vendors] == ["NVIDIA"]
    assert [vendor.key for vendor in read(text, ["chips"]).vendors] == ["NVIDIA", "example.com/a", "example.com/b"]
    assert [vendor.key for vendor in read("chips:\n", ["chips"]).vendors] == ["NVIDIA"]


@pytest.mark.usefixtures("a_list_family")
def test_lines_and_keys_of_a_section_that_is_a_list() -> None:
    found = read("chips:\n- resourceName: a\n  odd: 1\n")
    assert found.warnings == ("line 3: unknown key chips[0].odd has no effect; known are resourceName",)
    for text, problem in {
        "chips:\n- resourceName: a\n- {}\n": "line 3: chips[1]: Object missing required field `resourceName`",
        "chips:\n- 5\n": "line 2: chips[0]: Expected `object`, got `int`",
        "chips: 5\n": "line 1: chips: Expected `array`, got `int`",
        "chips:\n- resourceName: 5\n": "line 2: chips[0].resourceName: Expected `str`, got `int`",
        "chips:\n- true: 5\n": "line 2: chips[0]: key True must be text, such as 'memoryFactor'",
    }.items():
        with pytest.raises(ConfigError) as error:
            read(text)
        assert str(error.value) == problem


@pytest.mark.usefixtures("two_families")
def test_a_familys_error_without_a_key_names_its_section() -> None:
    with pytest.raises(ConfigError, match=r"^line 1: other\.there are no cards$"):
        read("other: {resourceName: none}")


def test_the_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "device-config.yaml"
    with pytest.raises(ConfigError, match=f"^cannot read the device configuration {file}: "):
        load(str(file))
    file.write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(ConfigError, match=f"^cannot read the device configuration {file}: "):
        load(str(file))
    file.write_text("nvidia: 1\n")
    with pytest.raises(ConfigError, match=f"^{file}: line 1: nvidia: "):
        load(str(file))
    file.write_text(FULL)
    assert load(str(file)).resources == default_config().resources


def test_a_plain_vendor_has_plain_hooks() -> None:
    (vendor,) = other(OtherSettings())
    assert vendor.protected_annotations == ()
    assert vendor.pod_annotations == ()
    assert vendor.clamped(150) == 100
    assert vendor.reservations(MappingProxyType({})) == ()
