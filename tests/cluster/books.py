"""The books of the leading scheduler, read from its metrics page (a follower shows none), beside a recount from the objects that the API server has."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from lab.cluster import Cluster
from tests.cluster.slotwise import Slotwise
from tests.recount import Recount

__all__ = ["leader_agrees", "recounted"]

_MIB: Final = 1024 * 1024
_LOOK_S: Final = 0.2
_AMOUNTS: Final = {
    "hami_gpu_shared_count": (0, 1),
    "hami_gpu_memory_allocated_bytes": (1, _MIB),
    "hami_gpu_core_allocated_ratio": (2, 1),
}
Books = Mapping[tuple[str, str], Sequence[int]]
"""(slots, MiB, percent) by (node, card); a card that nobody holds is left out."""


def recounted(cluster: Cluster) -> Books:
    """What the lab's watch shows on nodes and pods, counted from scratch."""
    count = Recount()
    for node in cluster.nodes.objects.values():
        count.put_node(node.node)
    for pod in cluster.all_pods():
        count.put_pod(pod, 0.0)
    return {(node, uuid): list(held) for node in count.nodes for uuid, held in count.usage(node).items()}


async def leader_agrees(cluster: Cluster, slotwise: Slotwise) -> str:
    """Empty once the books of the leading scheduler equal the recount; else, when the time for that is over, what differs."""
    told = "nobody was asked"

    async def differing() -> str:
        expected = recounted(cluster)
        held = await _read(slotwise.views)
        return "" if held == expected else f"the leader has {held}, the objects say {expected}"

    for _ in range(round(cluster.settings.settle_s / _LOOK_S)):
        if not (told := await differing()):
            return ""
        await asyncio.sleep(_LOOK_S)
    return told


async def _read(address: str) -> Books:
    async with aiohttp.ClientSession() as session, session.get(f"{address}/metrics") as response:
        page = await response.text()
    books: dict[tuple[str, str], list[int]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name in _AMOUNTS:
                place, unit = _AMOUNTS[sample.name]
                key = sample.labels["node"], sample.labels["device_uuid"]
                books.setdefault(key, [0, 0, 0])[place] = round(sample.value / unit)
    return {key: held for key, held in books.items() if any(held)}
