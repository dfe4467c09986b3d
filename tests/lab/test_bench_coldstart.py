"""A start in ratios to what was measured beside it; processor time, since the machine may have other work."""

import pytest

from lab.bench.coldstart import ColdStartBench, bench_coldstart
from lab.bench.pages import pages_of
from lab.bench.synthetic import Size


def _number(figures: dict[str, object], key: str) -> float:
    return float(str(figures[key]))


def test_a_start_costs_a_fraction_of_the_plain_way_in_memory() -> None:
    figures = bench_coldstart(ColdStartBench(Size(300, 8, 6000), page_size=500))
    assert (figures["pods"], figures["nodes"], figures["rounds"]) == (6000, 300, 1)
    # Beside what the interpreter and the libraries hold, which the download shows.
    floor = _number(figures, "floor_rss_mib")
    kept, whole = _number(figures, "rss_mib") - floor, _number(figures, "plain_rss_mib") - floor
    assert whole > 1.5 * kept
    for key in ("seconds", "floor_seconds", "plain_seconds", "cpu_s", "floor_cpu_s", "page_mib"):
        assert _number(figures, key) > 0


def test_pages_name_the_next_one_but_for_the_last() -> None:
    pages = pages_of("PodList", ({"metadata": {"name": str(n)}} for n in range(5)), 2)
    assert [b'"continue":"%d"' % number in page for number, page in enumerate(pages, 1)] == [True, True, False]
    assert [page.count(b'"name"') for page in pages] == [2, 2, 1]
    assert len(pages_of("PodList", (), 2)) == 1


def test_more_pods_than_fit_are_an_error_before_anything_starts() -> None:
    with pytest.raises(ValueError, match="5000 pods do not fit on 1 nodes of 1 cards"):
        bench_coldstart(ColdStartBench(Size(1, 1, 5000)))
