"""A short history: memory is counted in Python's own blocks, which nothing else on the machine changes."""

import pytest

from lab.bench.history import TENTHS, HistoryBench, bench_history


async def test_a_long_history_leaves_nothing_behind() -> None:
    figures = await bench_history(HistoryBench(pods=1500, nodes=24, cards=8, warm_up=200))
    assert len(list(figures["blocks_tenths"])) == TENTHS  # type: ignore[call-overload]  # figures are objects; this one is a list
    assert (figures["pods"], figures["nodes_replaced"]) == (1500, 7)
    blocks = [int(number) for number in list(figures["blocks_tenths"])]  # type: ignore[call-overload]  # figures are objects; this one is a list
    # What is bounded still fills here: at most a fifth more, and no more a pod than remembering its end takes.
    assert blocks[-1] < 1.25 * blocks[0]
    assert float(str(figures["rss_mib"])) > 0


async def test_a_history_without_ten_parts_is_refused() -> None:
    with pytest.raises(ValueError, match="pods is 9: a history has ten parts, so at least 10"):
        await bench_history(HistoryBench(pods=9))
