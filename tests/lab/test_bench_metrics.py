"""What a scrape costs, as counts of function calls, which no clock disturbs; and that the bench measures what it says."""

import asyncio
import json

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from typer.testing import CliRunner

from cli.bench import app
from devices.config import default_config
from devices.ledger import Ledger
from devices.objects import pod_of
from lab.bench.anew_page import AnewPage
from lab.bench.metrics import MetricsBench, bench_metrics
from lab.bench.synthetic import Size, fill, pod_document
from scheduler.ask import Defaults
from scheduler.engine import Engine
from scheduler.metrics_page import LedgerPage
from tests.lab.test_bench_filter import calls_of


def test_a_scrape_costs_what_changed_and_a_fraction_of_a_page_made_anew() -> None:
    ledger = Ledger(default_config())
    fill(ledger, Size(100, 8, 800))
    source, engine = LedgerPage(ledger), Engine(ledger, Defaults())
    loop = asyncio.new_event_loop()
    try:
        first = calls_of(lambda: loop.run_until_complete(source.blocks()))
        engine.filter(pod_of(pod_document("new", 1000)), list(ledger.node_names()), 0.0)
        later = calls_of(lambda: loop.run_until_complete(source.blocks()))
    finally:
        loop.close()

    def anew() -> None:
        made = AnewPage(ledger, CollectorRegistry())
        made.refresh()
        generate_latest(made)

    cost_anew = calls_of(anew)
    assert 20 * later < cost_anew
    assert 5 * later < first
    assert 1.5 * first < cost_anew


def test_the_bench_gives_its_figures() -> None:
    figures = bench_metrics(MetricsBench(Size(30, 4, 60), scrapes=2))
    for key in ("seconds", "first_seconds", "p50_ms", "p99_ms", "max_ms", "without_p99_ms", "floor_p50_ms", "bytes"):
        assert float(str(figures[key])) > 0, key
    # Seven gauges a card, two a pod; a few of ours.
    series, anew = figures["series"], figures["anew_series"]
    assert isinstance(series, int)
    assert isinstance(anew, int)
    assert 30 * 4 * 7 + 60 * 2 <= anew <= series


def test_more_pods_than_fit_are_an_error() -> None:
    with pytest.raises(ValueError, match="5000 pods do not fit on 1 nodes of 1 cards"):
        bench_metrics(MetricsBench(Size(1, 1, 5000)))


def test_the_command() -> None:
    arguments = ["metrics", "--nodes", "20", "--cards", "2", "--pods", "20", "--scrapes", "1", "--no-packed", "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["bench"] == "metrics"
