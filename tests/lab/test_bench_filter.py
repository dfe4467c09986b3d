"""What a decision costs, as counts of function calls, which no clock disturbs; and that the bench measures what it says."""

import sys
from collections.abc import Callable
from types import FrameType

import pytest

from devices.config import default_config
from devices.ledger import Ledger
from devices.objects import Pod, pod_of
from lab.bench.filter import CASES, FilterBench, bench_filter, probe
from lab.bench.synthetic import Size, fill, node_name
from scheduler.ask import Defaults, ask_of
from scheduler.engine import Engine
from scheduler.evaluate import evaluate

CALLS = 24


def calls_of(work: Callable[[], object]) -> int:
    """Calls of functions, Python's and C's."""
    counted = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return counted


class Cluster:
    """An engine over the bench's cluster; a case's pods are asked in turn, as the bench does."""

    def __init__(self, nodes: int) -> None:
        self.ledger = Ledger(default_config())
        fill(self.ledger, Size(nodes, 8, nodes * 8))
        self.engine = Engine(self.ledger, Defaults())
        self.names = [node_name(number) for number in range(nodes)]

    def ask(self, case: str, first: int = 0) -> None:
        for number in range(first, first + CALLS):
            self.engine.filter(self.pod(case, number), self.names, 0.0)

    def cost(self, case: str) -> int:
        """Of as many calls, once the pods of the case have been asked."""
        self.ask(case)
        return calls_of(lambda: self.ask(case, CALLS))

    def plain(self, case: str) -> int:
        """Of looking at every node in every call."""
        states = [state for name in self.names if (state := self.ledger.state(name)) is not None]

        def every(pod: Pod) -> None:
            ask = ask_of(pod, self.ledger.config, Defaults())
            for state in states:
                evaluate(state, ask, self.ledger.config, {})

        return calls_of(lambda: every(self.pod(case, 0))) * CALLS

    @staticmethod
    def pod(case: str, number: int) -> Pod:
        return pod_of(probe(case, number))


@pytest.mark.parametrize("case", ["seen", "new", "chain"])
def test_a_decision_does_not_grow_with_the_cluster(case: str) -> None:
    small, large = Cluster(60).cost(case), Cluster(600).cost(case)
    assert large < 1.5 * small


@pytest.mark.parametrize(
    ("case", "times"),
    [
        ("seen", 20),
        ("new", 20),
        ("chain", 20),
        ("nofit", 5),
        ("nofit-retried", 5),
        ("nofit-quota", 5),
        ("nofit-containers", 5),
        ("nofit-numa", 5),
    ],
)
def test_a_decision_costs_a_fraction_of_looking_at_every_node(case: str, times: int) -> None:
    cluster = Cluster(300)
    assert cluster.plain(case) > times * cluster.cost(case)


@pytest.mark.parametrize("case", CASES)
def test_the_bench_runs_every_case_and_gives_its_figures(case: str) -> None:
    figures = bench_filter(FilterBench(Size(200, 8, 400), calls=5, case=case))
    for key in ("p50_ms", "p95_ms", "p99_ms", "max_ms", "per_second", "floor_p50_ms", "plain_p50_ms", "rss_mib"):
        assert float(str(figures[key])) > 0
    assert (figures["case"], figures["nodes"], figures["calls"]) == (case, 200, 5)


def test_an_unknown_case_is_named_with_what_there_is() -> None:
    with pytest.raises(
        ValueError,
        match="case 'fits': expected one of seen, shuffled, new, chain, nofit, nofit-retried, nofit-quota, nofit-containers, nofit-numa",
    ):
        bench_filter(FilterBench(Size(30, 4, 60), 1, "fits"))


def test_more_pods_than_fit_are_an_error_before_anything_starts() -> None:
    with pytest.raises(ValueError, match="5000 pods do not fit on 1 nodes of 1 cards"):
        bench_filter(FilterBench(Size(1, 1, 5000), 1))
