"""The bench of placements gives its figures, and every pod costs one write and as much work in a large cluster as in a small one."""

import json
import sys
from types import FrameType

import pytest
from typer.testing import CliRunner

from cli.bench import app
from devices.objects import pod_of
from lab.bench.burst import PlacementBench, bench_burst
from lab.bench.synthetic import Size, fill, node_name, pod_document
from tests.scheduler.builders import World


def test_the_bench_gives_its_figures_and_every_pod_costs_one_write() -> None:
    figures = bench_burst(PlacementBench(Size(60, 8, 200), placements=40))
    for key in ("p50_ms", "p95_ms", "p99_ms", "max_ms", "per_second", "filter_p50_ms", "seconds", "rss_mib"):
        assert float(str(figures[key])) > 0, key
    assert figures["writes_per_pod"] == 1.0
    assert (figures["placements"], figures["nodes"]) == (40, 60)


async def work_of_placements(nodes: int) -> int:
    """Function calls, Python's and C's, of 20 pods filtered and bound one after the other in a cluster with half of its slots in use."""
    one = World()
    fill(one.ledger, Size(nodes, 8, nodes * 4))
    names = [node_name(number) for number in range(nodes)]
    counted = 0

    async def place(number: int) -> None:
        pod = one.put_pod(pod_of(pod_document(f"p{number}", 1000)))
        (node,) = one.engine.filter(pod, names, one.clock.now()).nodes or ()
        assert await one.bind(pod, node) == ""

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    await place(0)
    sys.setprofile(count)
    try:
        for number in range(1, 21):
            await place(number)
    finally:
        sys.setprofile(None)
    return counted


async def test_a_placement_does_not_grow_with_the_cluster() -> None:
    small, large = await work_of_placements(60), await work_of_placements(600)
    assert large < 1.5 * small, (small, large)


def test_more_than_there_is_room_for_is_an_error() -> None:
    with pytest.raises(ValueError, match="100 placements beside 0 pods: 1 nodes of 1 cards have 10 slots"):
        bench_burst(PlacementBench(Size(1, 1, 0), placements=100))


def test_a_pod_that_fits_nowhere_is_named() -> None:
    """The cards have slots for all of them, but not memory."""
    result = CliRunner().invoke(
        app, ["burst", "--nodes", "2", "--cards", "4", "--pods", "0", "--placements", "20", "--json"]
    )
    assert result.exit_code == 1
    assert "error: pod burst-" in result.output
    assert "fits nowhere" in result.output


def test_the_command() -> None:
    arguments = [
        "burst",
        "--nodes",
        "60",
        "--cards",
        "4",
        "--pods",
        "0",
        "--placements",
        "5",
        "--api-ms",
        "0",
        "--json",
    ]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["bench"] == "burst"
