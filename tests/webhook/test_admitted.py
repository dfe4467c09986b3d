"""Quota that counts every admitted pod, over several replicas: never over, whatever the watches, writes and processes do."""

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest

from devices.objects import pod_of
from tests.builders import nvidia_config
from tests.webhook.replicas import FAST, TEAM, World, a_pod, world
from webhook.admitted.record import decode


async def burst(made: World, pods: int, rng: random.Random) -> list[str]:
    """Pods created at once, each through any replica."""
    return await asyncio.gather(*(made.create(a_pod(f"burst-{n}"), rng.choice(made.replicas)) for n in range(pods)))


async def test_thirty_at_once_against_room_for_ten() -> None:
    async with world() as made:
        await made.quota(gpumem=10_000)
        answers = await burst(made, 30, random.Random(7))
        assert answers.count("") == len(made.created) == 10
        assert set(answers) == {
            "",
            "team/q limits.nvidia.com/gpumem: asked 1000, used 10000, limit 10000 (1000 too many)",
        }
        await made.seen()
        # Two admissions at a time are written in one call, so thirty take fewer than thirty.
        assert made.calls("patch", "configmaps") + made.calls("create", "configmaps") < 30


@pytest.mark.parametrize("first", range(0, 50, 10))
async def test_never_over_on_bad_days_and_never_refused_with_room_after_them(first: int) -> None:
    """Fifty bad days, ten at a time since they mostly wait."""
    await asyncio.gather(*(bad_day(seed) for seed in range(first, first + 10)))


async def bad_day(seed: int) -> None:
    """Lag, lost and late events, conflicts on every write, lost replies, a replica killed half way.

    Times are a hundredth of real ones: a lag of up to 50 ms stands for 5 s, a catch-up of 20 ms for 2 s, a life of 0.4 s for 40 s.
    """
    rng = random.Random(seed)
    settings = replace(FAST, entry_life_s=0.4)
    async with world(lag_s=lambda: rng.random() * 0.05, settings=settings) as made:
        await made.quota(gpumem=10_000)
        faults = made.api.faults
        # On every fifth day literally every write meets a conflict, until the faults end.
        faults.answer(
            409, verb="patch", resource="configmaps", count=100_000 if seed % 5 == 0 else 1 + rng.randrange(12)
        )
        faults.lose_reply(verb="patch", resource="configmaps", count=1 + rng.randrange(3))
        faults.lose_reply(verb="create", resource="configmaps")
        made.api.faults.drop_changes("pods", 1 + rng.randrange(3))
        made.api.faults.duplicate_changes("pods", 1 + rng.randrange(3))
        first = asyncio.create_task(burst(made, 30, rng))
        await asyncio.sleep(rng.random() * 0.05)
        victim = made.replicas[0]
        victim.task.cancel()
        await victim.admissions.stop()  # those that waited on it are refused
        await victim.feed.stop()
        made.replicas.remove(victim)
        answers = await first
        assert answers.count("") == len(made.created) <= 10
        if rng.random() < 0.5:
            faults.cut_watches("pods")
        for uid in rng.sample(sorted(made.created), min(3, len(made.created))):
            made.end(uid)
        again = await asyncio.gather(*(made.create(a_pod(f"again-{n}"), rng.choice(made.replicas)) for n in range(12)))
        assert len(made.created) <= 10, again
        faults.clear()
        for r in made.replicas:  # what was lost for good comes with the next full list
            r.feed.resync_pods()
        await made.seen()
        await made.until(lambda: not decode(made.record()).entries)
        for n in range(12):
            await made.create(a_pod(f"last-{n}"), rng.choice(made.replicas))
            await made.seen()
        assert len(made.created) == 10


async def test_no_device_quota_no_call() -> None:
    async with world(1) as made:
        for kind in ("pods", "nodes", "resourcequotas"):
            await made.api.until_watches(kind, 1)
        before = sum(made.api.requests.received.values())
        assert await made.create(a_pod("free"), made.replicas[0]) == ""
        assert sum(made.api.requests.received.values()) == before
        made.api.put("resourcequotas", {"metadata": {"name": "cpu", "namespace": TEAM}, "spec": {"hard": {"cpu": "1"}}})
        await made.until(lambda: any(q.name == "cpu" for q in made.replicas[0].ledger.quotas()))
        assert await made.create(a_pod("also-free"), made.replicas[0]) == ""
        assert sum(made.api.requests.received.values()) == before


async def test_dry_run_records_nothing_and_is_judged() -> None:
    async with world(1) as made:
        await made.quota(gpumem=1500)
        (replica,) = made.replicas
        assert await replica.admit(a_pod("dry"), dry_run=True) == ()
        assert made.record() == {}
        assert await made.create(a_pod("wet"), replica) == ""
        (over,) = await replica.admit(a_pod("dry"), dry_run=True)
        assert str(over) == "team/q limits.nvidia.com/gpumem: asked 1000, used 1000, limit 1500 (500 too many)"
        assert "uid-dry" not in made.record()["entries"]


async def test_an_entry_goes_when_any_replica_has_seen_the_pod_and_leaves_its_revision() -> None:
    async with world(2) as made:
        await made.quota(gpumem=9000)
        assert await made.create(a_pod("a"), made.replicas[0]) == ""
        revision = int(made.created["uid-a"]["metadata"]["resourceVersion"])  # type: ignore[index] # a JSON object, whose values have no type of their own
        await made.replicas[0].admissions.stop()  # the writer is gone; the other one tidies up
        made.replicas[0].task.cancel()
        await made.seen()
        await made.until(lambda: not decode(made.record()).entries)
        assert decode(made.record()).seen_through >= revision


async def test_the_same_pod_asked_twice_counts_once() -> None:
    async with world(2) as made:
        await made.quota(gpumem=1000)
        for replica in made.replicas * 2:
            assert await replica.admit(a_pod("a")) == ()
        assert list(decode(made.record()).entries) == ["uid-a"]


async def test_an_admission_that_never_became_a_pod_expires() -> None:
    async with world(2, settings=replace(FAST, entry_life_s=0.3)) as made:
        await made.quota(gpumem=1000)
        assert await made.replicas[0].admit(a_pod("ghost")) == ()
        assert await made.replicas[1].admit(a_pod("b")) != ()
        await made.until(lambda: not decode(made.record()).entries)
        assert await made.replicas[1].admit(a_pod("b")) == ()


async def test_a_missing_record_begins_with_a_list() -> None:
    async with world(1) as made:
        await made.quota(gpumem=1500)
        (replica,) = made.replicas
        made.put(a_pod("old"))
        revision = int(made.created["uid-old"]["metadata"]["resourceVersion"])  # type: ignore[index] # a JSON object, whose values have no type of their own
        lists = made.calls("list", "pods")
        assert await replica.admit(a_pod("new")) != ()
        made.end("uid-old")
        await made.seen()
        assert await replica.admit(a_pod("new")) == ()
        assert made.calls("list", "pods") > lists
        assert decode(made.record()).seen_through >= revision


async def test_out_of_reach_is_refused_with_words() -> None:
    async with world(1, settings=replace(FAST, deadline_s=0.3)) as made:
        await made.quota(gpumem=1500)
        made.api.faults.answer(503, resource="configmaps", count=1000)
        text = await made.create(a_pod("a"), made.replicas[0])
        assert text.startswith("quota of namespace team cannot be checked: ")
        made.api.faults.clear()
        assert await made.create(a_pod("a"), made.replicas[0]) == ""


async def test_a_full_record_refuses_with_words() -> None:
    async with world(1, settings=replace(FAST, record_bytes=80)) as made:
        await made.quota(gpumem=90_000)
        (replica,) = made.replicas
        answers = await asyncio.gather(*(replica.admit(a_pod(f"p{n}")) for n in range(5)), return_exceptions=True)
        assert answers[:2] == [(), ()]
        assert all("admissions are under way at once, try again" in str(answer) for answer in answers[2:])


async def test_a_record_that_cannot_be_read_is_named() -> None:
    async with world(1) as made:
        await made.quota(gpumem=1500)
        made.api.put(
            "configmaps",
            {
                "metadata": {"name": "slotwise-quota-team", "namespace": "slotwise-system"},
                "data": {"entries": "what\n"},
            },
        )
        text = await made.create(a_pod("a"), made.replicas[0])
        assert "ConfigMap slotwise-system/slotwise-quota-team cannot be read" in text
        assert "repair or delete it" in text


async def test_raising_a_limit_lets_the_next_pod_in_and_0_refuses_everything() -> None:
    async with world(2) as made:
        await made.quota("a", gpumem=0)
        assert await made.create(a_pod("p"), made.replicas[0]) != ""
        await made.quota("a", gpumem=1000)
        assert await made.create(a_pod("p"), made.replicas[0]) == ""
        await made.quota("b", gpumem=1500)
        assert "team/a" in await made.create(a_pod("q"), made.replicas[1])
        await made.quota("a", gpumem=9000)
        text = await made.create(a_pod("q"), made.replicas[1])
        assert text == "team/b limits.nvidia.com/gpumem: asked 1000, used 1000, limit 1500 (500 too many)"
        made.api.remove("resourcequotas", TEAM, "b")
        await made.until(lambda: all(len(list(r.ledger.quotas())) == 1 for r in made.replicas))
        assert await made.create(a_pod("q"), made.replicas[1]) == ""


async def test_a_watch_that_is_behind_the_record_catches_up_before_it_decides() -> None:
    lag = {"s": 0.0}
    async with world(2, lag_s=lambda: lag["s"]) as made:
        await made.quota(gpumem=1500)
        fast, slow = made.replicas
        lag["s"] = 0.3  # from the next event on
        assert await made.create(a_pod("a"), fast) == ""
        # Somebody has seen the pod and taken its entry out.
        fast.ledger.put_pod(pod_of(made.created["uid-a"]), 0.0)
        await made.until(lambda: not decode(made.record()).entries)
        assert "uid-a" not in slow.ledger.charged_in(TEAM)
        assert await made.create(a_pod("b"), slow) != ""


STEPS = ("create", "create", "create", "finish", "delete", "quota", "restart")


def slow_recount(made: World) -> int:
    """What the pods of the namespace cost, counted from the objects alone: memory of the largest phase."""
    return sum(
        int(c["resources"]["limits"]["nvidia.com/gpumem"])
        for pod in made.api.objects("pods", TEAM)
        if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
        for c in pod["spec"]["containers"]
    )


async def test_a_long_history_against_a_recount_from_the_pods() -> None:
    rng = random.Random(4)
    async with world(3) as made:
        await made.quota(gpumem=40_000)
        for number in range(2000):
            what = rng.choice(STEPS)
            if what == "create":
                await made.create(a_pod(f"p{number}", rng.randrange(1, 9) * 500), rng.choice(made.replicas))
            elif what == "quota" and number % 7 == 0:
                await made.quota(gpumem=rng.choice((20_000, 40_000, 60_000)))
            elif what == "restart" and number % 50 == 0:
                gone = made.replicas.pop(0)
                gone.task.cancel()
                await gone.admissions.stop()
                await gone.feed.stop()
                await made.add_replica()
            elif made.created and what == "delete":
                made.end(rng.choice(sorted(made.created)))
            elif made.created and what == "finish":
                pod: Any = made.created.pop(rng.choice(sorted(made.created)))
                made.api.put("pods", {**pod, "status": {"phase": "Succeeded"}})
            assert slow_recount(made) <= 60_000
            if number % 100 == 0:
                await made.seen()
                used = {r.ledger.used(TEAM).get("NVIDIA") for r in made.replicas}
                assert {u.memory_mib if u else 0 for u in used} == {slow_recount(made)}


async def test_memory_factor_counts_on_both_sides() -> None:
    async with world(2, config=nvidia_config(memoryFactor=2)) as made:
        await made.quota(gpumem=4000)  # 8000 MiB
        assert await made.create(a_pod("a", gpu=2, gpumem=1500), made.replicas[0]) == ""  # 6000 MiB
        text = await made.create(a_pod("b", gpumem=1500, gpu=1), made.replicas[1])
        assert text == "team/q limits.nvidia.com/gpumem: asked 3000, used 6000, limit 8000 (1000 too many)"
