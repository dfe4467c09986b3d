"""What is odd about Cambricon: a lock of its own that names nobody, and a profile of one card."""

import pytest

from scheduler.errors import LockContentionError
from tests.devices.vendors.driver import filtered, pod, registered, text_of, world
from tests.devices.vendors.samples import VENDORS
from tests.scheduler.builders import NOW, World

MLU = VENDORS["MLU"]
LOCK = "cambricon.com/dsmlu.lock"
SHARE = {MLU.count_resource: 1, MLU.memory_resource: 1, MLU.core_resource: 1}


def cards(count: int = 2) -> World:
    capacity = {MLU.count_resource: "200", MLU.core_resource: str(100 * count), MLU.memory_resource: str(96 * count)}
    return world(registered(capacity=capacity))


def lock(here: World) -> str | None:
    return here.api.lock("n1", LOCK)


async def test_one_pod_at_a_time_until_its_plugin_gives_the_lock_back() -> None:
    here = cards()
    first, second = here.filtered(pod(SHARE, "a")), here.filtered(pod(SHARE, "b"))
    assert await here.bind(first) == ""
    assert lock(here) == NOW
    with pytest.raises(LockContentionError, match=r"^node n1 has been locked within 2 minutes$"):
        await here.locks.acquire(second, "n1", LOCK, gang=False, caller_until_s=here.clock.now())
    assert lock(here) == NOW


async def test_another_pods_lock_is_not_given_back() -> None:
    """MLU-1: any failing bind on the node freed it."""
    here = cards()
    first, second = here.filtered(pod(SHARE, "a")), here.filtered(pod(SHARE, "b"))
    await here.locks.acquire(first, "n1", LOCK, gang=False)
    await here.locks.release(second, "n1", LOCK)
    assert lock(here) == NOW
    await here.locks.release(first, "n1", LOCK)
    assert not lock(here)


async def test_the_same_second_makes_no_lock_ones_own() -> None:
    """The value is the time alone: two pods of one second would write the same."""
    here = cards()
    first, second = here.filtered(pod(SHARE, "a")), here.filtered(pod(SHARE, "b"))
    await here.locks.acquire(first, "n1", LOCK, gang=False)
    await here.locks.acquire(first, "n1", LOCK, gang=False)
    with pytest.raises(LockContentionError):
        await here.locks.acquire(second, "n1", LOCK, gang=False, caller_until_s=here.clock.now())


PROFILES = {
    "the first container that has a card": ([{}, SHARE, {**SHARE, MLU.core_resource: 7}], "1_1_1"),
    "the first of several cards": ([{**SHARE, MLU.count_resource: 2}], "1_1_1"),
    "a whole card": ([{MLU.count_resource: 1}], "1_100_96"),
}


@pytest.mark.parametrize(("limits", "expected"), PROFILES.values(), ids=PROFILES)
def test_the_profile(limits: list[dict[str, object]], expected: str) -> None:
    """MLU-3: one card of one container, as the plugin reads it."""
    here = cards()
    found = filtered(here, limits)
    assert text_of(here, found, "CAMBRICON_DSMLU_PROFILE") == expected
    assert text_of(here, found, "CAMBRICON_DSMLU_ASSIGNED") == "false"


def test_capacity_makes_the_cards() -> None:
    listed = MLU.read_node(registered(capacity={MLU.core_resource: "400", MLU.memory_resource: "384"}))
    assert [(card.uuid, card.slots, card.memory_mib, card.cores) for card in listed.cards] == [
        (f"n1-cambricon-mlu-{index}", 100, 24576, 100) for index in range(4)
    ]


def test_a_node_that_lost_its_capacity_keeps_no_cards() -> None:
    """BUG-REG1: they stayed until the scheduler restarted."""
    here = cards()
    here.put_node(registered(capacity={}))
    assert here.ledger.state("n1") is None
