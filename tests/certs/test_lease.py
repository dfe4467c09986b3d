"""Who holds a Lease, on two clocks, against the embedded API server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from certs.lease import LeaseHolder, LeaseTimes
from devices.kube.client import ClientSettings, KubeClient
from devices.kube.config import explicit_access
from lab.apiserver import ApiServer
from tests.certs.replicas import no_wait, until


@dataclass
class Time:
    seconds: float = 0.0

    def __call__(self) -> float:
        return self.seconds


class Pair:
    """Two replicas; `wall` is what their clocks said in the beginning, which may be anything."""

    def __init__(self, api: ApiServer, one: KubeClient, two: KubeClient) -> None:
        self.api = api
        self.time = Time()
        self.told: list[str] = []
        self.failures: list[str] = []
        self.wall = {"one": datetime(2026, 1, 1, tzinfo=UTC), "two": datetime(2026, 1, 1, tzinfo=UTC)}
        self.one, self.two = self.holder("one", one), self.holder("two", two)

    def holder(self, identity: str, client: KubeClient) -> LeaseHolder:
        return LeaseHolder(
            client,
            "ns",
            "lease",
            identity,
            changed=lambda: self.told.append(identity),
            failed=lambda: self.failures.append(identity),
            clock=self.time,
            now=lambda: self.wall[identity] + timedelta(seconds=self.time.seconds),
        )

    def spec(self) -> dict[str, object]:
        lease = self.api.get("leases", "ns", "lease")
        assert lease is not None
        spec = lease["spec"]
        assert isinstance(spec, dict)
        return spec


def holds(holder: LeaseHolder) -> bool:
    """At this moment; a call, since it changes by time alone."""
    return holder.held


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    api = ApiServer()
    await api.start()
    api.put("namespaces", {"metadata": {"name": "ns"}})
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(
                KubeClient(explicit_access(api.url), ClientSettings(user_agent=name, timeout_s=5), sleep=no_wait)
            )
            for name in ("one", "two")
        ]
        yield Pair(api, *clients)
    await api.stop()


async def test_the_first_to_ask_holds_it(pair: Pair) -> None:
    assert await pair.one.attempt()
    assert not await pair.two.attempt()
    assert pair.told == ["one"]
    assert pair.spec() == {
        "holderIdentity": "one",
        "leaseDurationSeconds": 15,
        "acquireTime": "2026-01-01T00:00:00.000000Z",
        "renewTime": "2026-01-01T00:00:00.000000Z",
        "leaseTransitions": 0,
    }


async def test_it_stays_with_who_renews_it(pair: Pair) -> None:
    for second in range(0, 60, 5):
        pair.time.seconds = second
        assert await pair.one.attempt()
        assert not await pair.two.attempt()
    assert pair.spec()["leaseTransitions"] == 0
    assert pair.told == ["one"]


async def test_it_changes_hands_only_after_the_first_has_stopped_holding_it(pair: Pair) -> None:
    await pair.one.attempt()
    await pair.two.attempt()
    pair.time.seconds = 9.9
    assert holds(pair.one)
    pair.time.seconds = 10.0
    assert not holds(pair.one)
    pair.time.seconds = 14.9
    assert not await pair.two.attempt()
    pair.time.seconds = 15.0
    assert await pair.two.attempt()
    assert (pair.spec()["holderIdentity"], pair.spec()["leaseTransitions"]) == ("two", 1)
    assert not await pair.one.attempt()


@pytest.mark.parametrize("year", [2020, 2030])
async def test_clocks_that_differ_do_not_matter(pair: Pair, year: int) -> None:
    pair.wall["two"] = datetime(year, 1, 1, tzinfo=UTC)
    await pair.one.attempt()
    assert not await pair.two.attempt()
    pair.time.seconds = 14.9
    assert not await pair.two.attempt()
    pair.time.seconds = 15.0
    assert await pair.two.attempt()


async def test_a_lease_that_is_given_back_is_free_at_once(pair: Pair) -> None:
    await pair.one.attempt()
    await pair.one.release()
    assert not holds(pair.one)
    assert await pair.two.attempt()


async def test_giving_back_leaves_the_successor_alone(pair: Pair) -> None:
    await pair.one.attempt()
    pair.api.put("leases", {"metadata": {"name": "lease", "namespace": "ns"}, "spec": {"holderIdentity": "two"}})
    await pair.one.release()
    assert pair.spec() == {"holderIdentity": "two"}


async def test_without_the_api_server_it_ends_by_itself(pair: Pair) -> None:
    await pair.one.attempt()
    pair.time.seconds = 5.0
    pair.api.faults.answer(503, count=1000)
    assert await pair.one.attempt()  # a failed renewal alone takes nothing away
    pair.time.seconds = 10.0
    assert not await pair.one.attempt()
    assert pair.failures == ["one", "one"]


async def test_time_counts_from_before_the_request(pair: Pair) -> None:
    """The answer took 4 s: others count from when the server stored it, which was when we asked at the earliest."""
    pair.api.faults.slow(0.05, resource="leases", verb="create")
    asked = asyncio.create_task(pair.one.attempt())
    await until(lambda: bool(pair.api.requests.received))
    pair.time.seconds = 4.0
    assert await asked
    pair.time.seconds = 9.9
    assert holds(pair.one)
    pair.time.seconds = 10.0
    assert not holds(pair.one)


async def test_a_lost_reply_is_not_taken_for_success_and_not_for_another_holder(pair: Pair) -> None:
    pair.api.faults.lose_reply(resource="leases", verb="create")
    assert not await pair.one.attempt()
    assert pair.spec()["holderIdentity"] == "one"
    assert not await pair.two.attempt()
    assert await pair.one.attempt()


async def test_both_at_once(pair: Pair) -> None:
    for _ in range(20):
        held = await asyncio.gather(pair.one.attempt(), pair.two.attempt())
        assert held.count(True) == 1
        pair.time.seconds += 5.0
        for holder in (pair.one, pair.two):
            await holder.attempt()
        pair.time.seconds += 15.0  # whoever holds it has lost it by now, and both may have it


async def test_a_lease_that_somebody_deleted_is_made_again(pair: Pair) -> None:
    await pair.one.attempt()
    pair.api.remove("leases", "ns", "lease")
    assert await pair.one.attempt()
    assert pair.spec()["holderIdentity"] == "one"


@pytest.mark.parametrize("spec", [{}, {"holderIdentity": "two", "leaseDurationSeconds": None}, {"holderIdentity": ""}])
async def test_a_lease_others_left_half_filled_can_be_taken(pair: Pair, spec: dict[str, object]) -> None:
    pair.api.put("leases", {"metadata": {"name": "lease", "namespace": "ns"}, "spec": spec})
    await pair.one.attempt()
    pair.time.seconds = 15.0
    assert await pair.one.attempt()


@pytest.mark.parametrize(("duration", "hold", "retry"), [(10.0, 10.0, 2.0), (15.0, 2.0, 2.0), (15.0, 10.0, 0.0)])
def test_times_that_do_not_fit_are_refused(duration: float, hold: float, retry: float) -> None:
    with pytest.raises(ValueError, match="each must be above the one before"):
        LeaseTimes(duration_s=duration, hold_s=hold, retry_s=retry)
