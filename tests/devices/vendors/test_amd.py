"""What is odd about AMD GPUs: compute in units of the card, quota in percent, the model in the text, limits alone."""

import pytest

from devices.model import Charge, Entry
from devices.objects import quota_of
from tests.devices.vendors.driver import (
    admitted,
    filtered,
    pod,
    refusal,
    registered,
    resources_of,
    restarted,
    text_of,
    world,
)
from tests.devices.vendors.samples import VENDORS
from tests.scheduler.builders import World

AMD = VENDORS["AMD"]
GPU, MEMORY, CORES = AMD.count_resource, AMD.memory_resource, AMD.core_resource


def mi210(cores: int = 104) -> World:
    card = {"id": "mi-0", "count": 10, "devmem": 65536, "devcore": cores, "type": "AMD Instinct MI210", "health": True}
    return world(registered({AMD.registration[0]: [card]}))


UNITS = {
    "30 % of 104 were 31.2": (104, 30, 31, 30),
    "one percent of 64 is one unit, which is two percent": (64, 1, 1, 2),
    "all of them": (104, 100, 104, 100),
    "a small card": (3, 50, 1, 34),
}


@pytest.mark.parametrize(("total", "percent", "units", "charged"), UNITS.values(), ids=UNITS)
def test_units_are_placed_and_percent_is_charged(total: int, percent: int, units: int, charged: int) -> None:
    """AMD-2: admission charged percent and accounting units."""
    here = mi210(total)
    found = filtered(here, {GPU: 1, MEMORY: 1000, CORES: percent})
    assert text_of(here, found, AMD.allocated) == f"mi-0,AMD Instinct MI210,1000,{units}:;"
    assert here.held() == {"mi-0": (1, 1000, units)}
    assert here.ledger.used("default") == {"AMD": Charge(1000, charged, 1)}


def test_a_type_that_the_text_cannot_hold_gave_its_memory_away_twice() -> None:
    """Its allocation could not be read back, so a bound pod held nothing."""
    cards = [
        {
            "id": f"mi-{index}",
            "index": index,
            "count": 10,
            "devmem": 65536,
            "devcore": 104,
            "type": model,
            "health": True,
        }
        for index, model in enumerate(("AMD MI,300", "AMD MI300:X", "AMD;MI300", "AMD MI300"))
    ]
    here = world(registered({AMD.registration[0]: cards}))
    assert [card.uuid for card in here.ledger.kinds("AMD")] == ["mi-3"]
    assert here.ledger.problems_of("n1")[0] == "card mi-0: type 'AMD MI,300' must not contain ',', ':' or ';'"
    assert len(here.ledger.problems_of("n1")) == 3


def test_after_a_restart_the_percent_is_known_once_the_card_is() -> None:
    here, one = mi210(), pod({GPU: 1, MEMORY: 1000, CORES: 30})
    here.filter(one)
    anew = restarted(here, [one])
    assert anew.held() == here.held()
    assert anew.ledger.used("default") == here.ledger.used("default") == {"AMD": Charge(1000, 30, 1)}
    # The register annotation goes and comes as plugins restart; what is charged stays.
    anew.put_node(registered())
    assert anew.ledger.used("default") == {"AMD": Charge(1000, 30, 1)}


def test_units_of_an_unknown_card_count_as_percent_up_to_all() -> None:
    assert AMD.restored(Entry("x", "AMD", 5, 31), None).quota_cores == 31
    assert AMD.restored(Entry("x", "AMD", 5, 304), None).quota_cores == 100


def test_a_core_quota_counts_what_users_write() -> None:
    here = mi210()
    hard = {"limits.amd.com/gpucores": "60"}
    here.ledger.put_quota(quota_of({"metadata": {"name": "q", "namespace": "default"}, "spec": {"hard": hard}}))
    for name in ("a", "b"):
        assert filtered(here, {GPU: 1, MEMORY: 1, CORES: 30}, name).nodes == ("n1",)
    assert refusal(filtered(here, {GPU: 1, MEMORY: 1, CORES: 1}, "c")) == "1/1 ResourceQuotaNotFit"


def test_a_card_without_compute_units_takes_nobody() -> None:
    assert refusal(filtered(mi210(0), {GPU: 1, MEMORY: 1, CORES: 1})) == "1/1 CardInsufficientCore"


def test_requests_alone_ask_for_nothing() -> None:
    """Every number is read from limits."""
    verdict = admitted({GPU: 1}, {MEMORY: 4000, CORES: 5})
    assert verdict.allowed, verdict.message
    here = mi210()
    found = here.filter(pod({GPU: 1}))
    assert text_of(here, found, AMD.allocated) == "mi-0,AMD Instinct MI210,65536,104:;"


def test_shares_without_a_count_come_to_us_and_get_no_card() -> None:
    """AMD-1."""
    verdict = admitted({MEMORY: 4000})
    assert resources_of(verdict) == ({MEMORY: "4000"}, {})
    assert verdict.pod["spec"]["schedulerName"] == "hami-scheduler"  # type: ignore[index] # a JSON object, whose values have no type of their own
    assert filtered(mi210(), {MEMORY: 4000}).outcome == "plain"


@pytest.mark.parametrize("value", [0, 101, -3, "1500m"])
def test_compute_out_of_range(value: object) -> None:
    verdict = admitted({GPU: 1, CORES: value})
    assert not verdict.allowed
    assert verdict.message == "amd.com/gpucores must be an integer percentage between 1 and 100"
