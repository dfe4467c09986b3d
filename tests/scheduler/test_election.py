"""A replica beside a kube-scheduler: when it answers, what it writes, and what the end of its term breaks off."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from devices.kube.protocols import JsonObject
from lab.apiserver import ApiServer
from lab.nodes import CardSpec, NodeSpec, node_document
from tests.scheduler.builders import LOCK, NOW, NOW_S
from tests.scheduler.replica import NAMESPACE, Replica, lease_document, replica, soon, writes
from tests.serving.running import until

HANDSHAKE = "hami.io/node-handshake"


class Held:
    """Delays of the API server last until it is let go."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        await self.go.wait()


@pytest.fixture
def held() -> Held:
    return Held()


@pytest.fixture
async def api(held: Held) -> AsyncIterator[ApiServer]:
    server = ApiServer(now=lambda: datetime.fromtimestamp(NOW_S, UTC), sleep=held.sleep)
    await server.start()
    server.put("namespaces", {"metadata": {"name": NAMESPACE}})
    server.put("nodes", node_document(NodeSpec("n1", (CardSpec("a"),))))
    server.put("nodes", node_document(NodeSpec("n2", (CardSpec("b"),), node_lock=True)))
    yield server
    await server.stop()


@pytest.fixture
async def one(api: ApiServer) -> AsyncIterator[Replica]:
    async with replica(api) as running:
        yield running


async def role(one: Replica, wanted: str) -> None:
    async def holds() -> bool:
        return one.own_pod().labels.get("hami.io/scheduler-role") == wanted

    await until(holds)


async def test_a_follower_says_so_keeps_its_caches_and_writes_nothing_but_its_label(one: Replica) -> None:
    await role(one, "follower")
    await one.hold("other_1")
    pod, document = await one.created()
    asked = asyncio.create_task(one.filter(document))
    await one.clock.until_waiting()
    await one.clock.advance(2)
    text = "this replica does not lead: Lease slotwise-system/slotwise-scheduler is held by other_1"
    assert (await asked)["Error"] == text
    bound = asyncio.create_task(one.bind(pod))
    await soon()
    await one.clock.advance(2)
    assert await bound == text
    assert (await one.get("/readyz"))[0] == 200
    assert one.ledger.pod(pod.uid) is not None
    assert writes(one.api) == {("create", "pods", ""): 2, ("patch", "pods", ""): 1}


async def test_a_call_waits_for_a_lease_that_the_watch_shows_a_moment_later(one: Replica) -> None:
    await one.hold("other_1")
    await one.clock.advance(20)
    _, document = await one.created()
    asked = asyncio.create_task(one.filter(document))
    await one.clock.until_waiting()
    await one.hold(acquired=1)
    assert (await asked)["NodeNames"] == ["n1"]


async def test_after_a_released_lease_nothing_is_answered_before_the_wait_and_the_stamp(one: Replica) -> None:
    await one.hold("other_1")
    await one.hold("")
    await one.hold(acquired=1)
    await role(one, "leader")  # at once: Services select by it
    pod, document = await one.created()
    asked = asyncio.create_task(one.filter(document))
    await soon()
    await one.clock.advance(5.5)
    await one.hold(acquired=1)  # renewed
    assert not asked.done()
    assert "slotwise.io/took-over" not in one.own_pod().annotations
    assert one.election.refusal() == (
        "this replica is taking over: Bindings of the last leader may arrive for 0.5 s more"
    )
    await one.clock.advance(0.5)
    assert (await asked)["NodeNames"] == ["n1"]
    assert " host 1" in one.own_pod().annotations["slotwise.io/took-over"]
    assert await one.bind(pod) == ""


async def test_after_a_lease_that_ran_out_only_the_stamp_is_waited_for(one: Replica, held: Held) -> None:
    await role(one, "follower")
    await one.hold("other_1")
    await one.clock.advance(20)
    one.api.faults.delay_changes("pods", 1, 2)  # label and stamp
    await one.hold(acquired=1)

    async def stamped() -> bool:
        return "slotwise.io/took-over" in one.own_pod().annotations

    await until(stamped)
    await soon()
    assert not one.election.leads
    assert one.election.refusal() == (
        "this replica is taking over: it waits for the pod watch to show everything before that"
    )
    held.go.set()
    await until(one.leads)


async def test_a_renewal_while_the_stamp_is_on_its_way_does_not_break_it_off(one: Replica, held: Held) -> None:
    await role(one, "follower")
    await one.hold("other_1")
    await one.clock.advance(20)
    one.api.faults.delay_changes("pods", 1, 2)  # label and stamp
    await one.hold(acquired=1)
    await one.clock.advance(1)
    await one.hold(acquired=1)  # renewed
    await soon()
    assert one.election.refusal() == (
        "this replica is taking over: it waits for the pod watch to show everything before that"
    )
    held.go.set()
    await until(one.leads)


async def test_another_host_whose_name_begins_alike_is_another(one: Replica) -> None:
    await one.hold("host-2_1")
    await one.clock.advance(20)
    assert one.election.refusal() == (
        "this replica does not lead: Lease slotwise-system/slotwise-scheduler is held by host-2_1"
    )


async def test_a_patch_of_our_own_pod_that_fails_is_tried_again(one: Replica) -> None:
    await role(one, "follower")
    await one.hold("other_1")
    await one.clock.advance(20)
    one.api.faults.answer(500, verb="patch", resource="pods", count=2)  # label and stamp
    await one.hold(acquired=1)
    await soon()
    assert not one.election.leads
    await one.clock.advance(1)
    await until(one.leads)
    await role(one, "leader")


async def test_reservations_of_an_earlier_term_are_dropped(one: Replica) -> None:
    await one.lead()
    _, document = await one.created()
    assert (await one.filter(document))["NodeNames"] == ["n1"]
    assert one.used() == 1
    await one.hold("other_2", acquired=2)
    assert one.used() == 0
    assert one.service.not_ready() == []


async def test_the_end_of_a_term_breaks_off_a_bind_that_waits_and_gives_back_what_it_took(one: Replica) -> None:
    await one.lead()
    foreign: JsonObject = {"metadata": {"annotations": {LOCK: f"{NOW},default,other"}}}
    await one.created("other")
    await one.client.patch_node("n2", foreign)
    pod, document = await one.created()
    assert (await one.filter(document, "n2"))["NodeNames"] == ["n2"]
    bound = asyncio.create_task(one.bind(pod, "n2"))

    async def waits() -> bool:
        reservation = one.ledger.reservation(pod.uid)
        return reservation is not None and reservation.phase.name == "BINDING"

    await until(waits)
    await soon()
    await one.hold("other_2", acquired=2)
    assert "does not lead" in await bound
    assert one.used("n2") == 0
    found = one.api.get("nodes", "", "n2")
    assert found is not None
    assert found["metadata"]["annotations"][LOCK] == f"{NOW},default,other"
    assert ("create", "pods", "binding") not in writes(one.api)


async def test_no_binding_goes_out_when_too_little_of_the_lease_is_left(one: Replica) -> None:
    await one.lead()
    pod, document = await one.created()
    assert (await one.filter(document))["NodeNames"] == ["n1"]
    await one.clock.advance(9.5)
    text = "only 5.5 s of Lease slotwise-system/slotwise-scheduler are left, and a Binding needs 6 s"
    assert await one.bind(pod) == text
    assert (one.used(), ("create", "pods", "binding") in writes(one.api)) == (0, False)
    await one.hold(acquired=1)
    assert await one.bind(pod) == ""


async def test_a_renewal_that_comes_late_counts_from_when_it_was_made(one: Replica) -> None:
    await one.lead()
    renewed_s = one.clock.now()
    await one.clock.advance(8)
    stored = one.api.put("leases", lease_at(one, renewed_s))
    await one.shown(stored)
    assert "slotwise_lease_left_seconds 7.0" in (await one.get("/metrics"))[1]


def lease_at(one: Replica, renewed_s: float) -> dict[str, object]:
    return lease_document(f"{one.host}_1", renewed_s + 0.001, acquired=1)


async def test_a_lease_that_is_not_renewed_ends_the_term_by_our_own_clock(one: Replica) -> None:
    await one.lead()
    await one.clock.advance(15)
    assert not one.election.leads
    await role(one, "follower")
    assert (await one.get("/readyz"))[0] == 200


async def test_a_lease_that_is_deleted_ends_the_term(one: Replica) -> None:
    await one.lead()
    one.api.remove("leases", NAMESPACE, "slotwise-scheduler")
    await role(one, "follower")
    assert one.election.refusal() == (
        "this replica does not lead: Lease slotwise-system/slotwise-scheduler is held by nobody"
    )


async def test_a_renewal_that_is_overdue_is_asked_for(one: Replica) -> None:
    await one.lead()
    one.api.faults.drop_changes("leases", 1)
    stored = one.api.put("leases", lease_at(one, one.clock.now() + 7))
    await one.clock.advance(7.5)
    await one.shown(stored)
    assert one.election._standing.left_s(one.clock.now()) == pytest.approx(14.5, abs=0.1)


async def test_an_extender_that_starts_beside_a_leading_kube_scheduler_waits(api: ApiServer) -> None:
    async with replica(api) as first:
        await first.lead()
    async with replica(api) as second:
        assert not second.election.leads
        await second.clock.advance(30)
        assert second.election.refusal() == (
            "this replica is taking over: it waits for Lease slotwise-system/slotwise-scheduler to be renewed"
        )
        await second.hold(acquired=1)
        await until(second.leads)


async def test_metrics_tell_who_leads_and_a_follower_shows_no_cards(one: Replica) -> None:
    before = (await one.get("/metrics"))[1]
    assert "slotwise_leader 0.0" in before
    assert "hami_gpu_memory_limit_bytes{" not in before
    await one.lead()
    during = (await one.get("/metrics"))[1]
    assert "slotwise_leader 1.0" in during
    assert "slotwise_leader_terms_total 1.0" in during
    assert "hami_gpu_memory_limit_bytes{" in during
    await one.hold("other_2", acquired=2)
    after = (await one.get("/metrics"))[1]
    assert "slotwise_leader 0.0" in after
    assert "hami_gpu_memory_limit_bytes{" not in after
    assert "hami_build_info{" in after


async def test_handshakes_are_answered_by_the_leader_alone(one: Replica) -> None:
    await one.hold("other_1")
    await one.client.patch_node("n1", {"metadata": {"annotations": {HANDSHAKE: "Reported x"}}})

    def answer() -> str:
        found = one.api.get("nodes", "", "n1")
        assert found is not None
        return str(found["metadata"]["annotations"][HANDSHAKE])

    async def shown() -> bool:
        node = one.ledger.node_object("n1")
        return node is not None and node.annotations.get(HANDSHAKE) == "Reported x"

    async def answered() -> bool:
        return answer().startswith("Requesting_")

    await until(shown)
    await soon()
    assert answer() == "Reported x"
    await one.lead()  # what was reported before is answered too
    await until(answered)


async def test_a_lease_of_ours_in_which_no_binding_fits_is_no_readiness(api: ApiServer) -> None:
    async with replica(api) as long, replica(api, "second", bind_timeout_s=2) as short:
        await short.hold(duration_s=6)
        assert short.service.not_ready() == []
        await long.hold(duration_s=6)
        assert long.service.not_ready() == [
            "Lease slotwise-system/slotwise-scheduler lasts 6 s, and no Binding goes out with less than 6 s left of it"
            " (--bind-timeout 5s + --leader-elect-margin 1s): shorten the former, or lengthen leaseDuration in"
            " kube-scheduler's configuration"
        ]


async def test_a_replica_with_a_longer_lease_never_became_ready_beside_the_one_it_was_to_replace(
    api: ApiServer,
) -> None:
    async with replica(api) as longer:
        await longer.hold("other_1", duration_s=6)
        assert longer.service.not_ready() == []
