"""A small form of the filter bench: it fails on lost ratios, in time that the server's process ran, never on absolute times."""

import pytest

from lab.bench.filter import FilterBench, bench_filter, bench_growth
from lab.bench.synthetic import Size

SMALL = Size(nodes=1000, cards=8, pods=8000)


def number(figures: dict[str, object], key: str) -> float:
    return float(str(figures[key]))


def test_seen_shapes_stay_near_the_floor_and_do_not_grow_with_the_cluster() -> None:
    figures = bench_growth(FilterBench(SMALL, calls=120, case="seen"))
    # Here 3, 70 and 1.3: half of that is lost before this fails.
    assert number(figures, "cpu_times_floor") < 8
    assert number(figures, "plain_cpu_times") > 20
    assert number(figures, "cpu_growth") < 3


@pytest.mark.parametrize(("case", "times"), [("new", 15), ("chain", 10), ("nofit", 5), ("nofit-retried", 10)])
def test_other_cases_cost_a_fraction_of_looking_at_every_node(case: str, times: int) -> None:
    figures = bench_filter(FilterBench(SMALL, calls=60, case=case))
    assert number(figures, "plain_cpu_times") > times


def test_an_unknown_case_is_named_with_what_there_is() -> None:
    with pytest.raises(ValueError, match="case 'fits': expected one of seen, new, chain, nofit, nofit-retried"):
        bench_filter(FilterBench(SMALL, 1, "fits"))
