"""What is odd about Iluvatar: several cards give their compute as a total, and the container's name goes into a variable."""

from collections.abc import Mapping

import pytest

from devices.config import read
from devices.errors import ConfigError
from devices.objects import quota_of
from tests.devices.vendors.driver import admitted, filtered, registered, resources_of, text_of, world
from tests.devices.vendors.samples import VENDORS
from tests.scheduler.builders import World

CHIP = VENDORS["BI-V150"]
GPU, MEMORY, CORES = CHIP.count_resource, CHIP.memory_resource, CHIP.core_resource
NAME = "SOL_CONTINER_NAME"


def cards(count: int = 2) -> World:
    text = "".join(f"GPU-{n},100,32768,100,BI-V150,0,true,{n},hami-core:" for n in range(count))
    return world(registered({CHIP.registration[0]: text}))


CORE_TOTALS = {
    "added": ({GPU: 2}, {}, {GPU: "2", CORES: "200"}, {}),
    "limit and request differed": ({GPU: 2, CORES: 50}, {CORES: 50}, {GPU: "2", CORES: "200"}, {CORES: "200"}),
    "one card keeps its own": ({GPU: 1, CORES: 50}, {CORES: 50}, {GPU: "1", CORES: "50"}, {CORES: "50"}),
}


@pytest.mark.parametrize(("limits", "requests", "new", "new_requests"), CORE_TOTALS.values(), ids=CORE_TOTALS)
def test_compute_of_several_cards(
    limits: Mapping[str, object],
    requests: Mapping[str, object],
    new: Mapping[str, str],
    new_requests: Mapping[str, str],
) -> None:
    """ILU-2: the limit alone was overwritten, and the API server refused the pod."""
    assert resources_of(admitted(limits, requests)) == (new, new_requests)


def test_a_total_is_all_of_every_card() -> None:
    """ILU-1: the total counted for each card, so quota counted it count times."""
    here = cards()
    hard = {f"limits.{CORES}": "200"}
    here.ledger.put_quota(quota_of({"metadata": {"name": "q", "namespace": "default"}, "spec": {"hard": hard}}))
    assert admitted({GPU: 2}, here=here).allowed
    found = filtered(here, {GPU: 2, CORES: 200, MEMORY: 40})
    assert text_of(here, found, CHIP.allocated) == "GPU-1,BI-V150,10240,100:GPU-0,BI-V150,10240,100:;"
    assert here.ledger.used("default")["BI-V150"].cores == 200


def test_the_variable_is_the_users_where_it_is_there() -> None:
    own = [{"name": NAME, "value": "mine"}]
    verdict = admitted({GPU: 1}, env=own)
    assert verdict.pod["spec"]["containers"][0]["env"] == own  # type: ignore[index] # a JSON object, whose values have no type of their own
    assert NAME not in str(admitted({"iluvatar.ai/BI-V150.vMem": 1}).pod)


def test_an_overwritten_value_is_told() -> None:
    assert "container main: iluvatar.ai/BI-V150.vCore of several cards is 200" in admitted({GPU: 2, CORES: 50}).warnings


def test_off_unless_switched_on() -> None:
    assert read("").vendor("BI-V150") is None
    assert not any(name.startswith("iluvatar.ai/") for name in read("iluvatars: []").resources)


def test_a_list_of_ones_own_replaces_the_shipped_chips() -> None:
    text = "iluvatars:\n- {commonWord: X1, resourceCountName: iluvatar.ai/x1}\n"
    found = read(text, ["iluvatar"])
    assert found.warnings == ()
    assert found.vendor("X1") is not None
    assert found.vendor("BI-V150") is None


FAULTS = {
    "a key that nothing reads": ("iluvatars:\n- {commonWord: X, resourceCountName: y, colour: red}\n", "warning"),
    "no name": ("iluvatars:\n- {commonWord: '', resourceCountName: y}\n", "commonWord"),
    "a name twice": (
        "iluvatars:\n- {commonWord: X, resourceCountName: y}\n- {commonWord: X, resourceCountName: z}\n",
        "commonWord",
    ),
    "no count": ("iluvatars:\n- {commonWord: X}\n", "resourceCountName"),
    "no list": ("iluvatars: {commonWord: X}\n", "Expected `array`"),
}


@pytest.mark.parametrize(("text", "expected"), FAULTS.values(), ids=FAULTS)
def test_faults_of_the_section(text: str, expected: str) -> None:
    if expected == "warning":
        (warning,) = read(text, ["iluvatar"]).warnings
        assert warning.startswith("line 2: unknown key iluvatars[0].colour has no effect")
        return
    with pytest.raises(ConfigError, match=expected):
        read(text, ["iluvatar"])
