"""What is written about and to ResourceQuota objects: warnings once, and what is used."""

import asyncio
import json
import time
from contextlib import suppress
from typing import Any

from tests.webhook.replicas import TEAM, a_pod, world
from webhook.quota_objects import USED_ANNOTATION, QuotaAnnotations, QuotaEvents


async def test_what_is_not_understood_is_a_warning_on_the_object_once_over_all_replicas() -> None:
    async with world(2) as made:
        tasks = []
        for replica in made.replicas:
            events = QuotaEvents(replica.client, replica.ledger, time.time)
            replica.feed.quota_changed.append(events.changed)
            tasks.append(asyncio.create_task(events.run()))
        try:
            await made.quota(gpumem="1.5", gpumen=3)
            await made.until(lambda: len(made.api.objects("events", TEAM)) == 2)
            await made.until(lambda: made.calls("create", "events") == 4)  # both tried, one was faster
            await made.quota(gpumem="1.5", gpumen=3, gpu=4)  # the same is said again, and not written again
            await made.quota("other", gpumem=5)
            found: list[Any] = made.api.objects("events", TEAM)
            assert sorted(e["message"] for e in found) == [
                "ResourceQuota team/q: limits.nvidia.com/gpumem: '1.5' is not a whole number and limits nothing",
                "ResourceQuota team/q: limits.nvidia.com/gpumen is not known and limits nothing; known are"
                " limits.nvidia.com/gpu, limits.nvidia.com/gpucores, limits.nvidia.com/gpumem",
            ]
            assert {
                (e["type"], e["reason"], e["involvedObject"]["kind"], e["involvedObject"]["name"]) for e in found
            } == {("Warning", "QuotaNotUnderstood", "ResourceQuota", "q")}
            assert made.calls("create", "events") == 4
        finally:
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task


async def test_what_is_used_is_annotated_when_it_changed() -> None:
    async with world(1) as made:
        await made.quota(gpumem=5000, gpu=4)
        (replica,) = made.replicas
        annotations = QuotaAnnotations(replica.client, replica.ledger)

        def annotated() -> Any:
            stored: Any = made.api.get("resourcequotas", TEAM, "q")
            return json.loads((stored["metadata"].get("annotations") or {}).get(USED_ANNOTATION, "null"))

        assert await annotations.round() == 1
        assert annotated() == {"limits.nvidia.com/gpu": 0, "limits.nvidia.com/gpumem": 0}
        await made.until(
            lambda: any(USED_ANNOTATION in (q.metadata.annotations or {}) for q in replica.ledger.quotas())
        )
        assert await annotations.round() == 0
        assert await made.create(a_pod("a", 1500), replica) == ""
        await made.seen()
        assert await annotations.round() == 1
        assert annotated() == {"limits.nvidia.com/gpu": 1, "limits.nvidia.com/gpumem": 1500}
