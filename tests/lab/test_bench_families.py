"""With all families in the cluster an NVIDIA pod costs what it costs without them. Counted in calls, which no clock disturbs."""

import json
import sys
from types import FrameType

import pytest
from typer.testing import CliRunner

from cli.bench import app
from devices.vendor import Vendor
from lab.bench.families import FamiliesBench, Placer, bench_families, clusters
from lab.bench.synthetic import Size
from lab.families import every_family

SMALL = Size(60, 4, 200)
CALLS = 64


def work(placer: Placer) -> int:
    """Calls of functions, Python's and C's, for as many placements; the first ones only fill what is remembered."""
    counted = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    for number in range(CALLS):
        placer.place(number)
    sys.setprofile(count)
    try:
        for number in range(CALLS):
            placer.place(number)
    finally:
        sys.setprofile(None)
    return counted


def test_the_work_for_a_pod_is_that_without_the_others() -> None:
    both = clusters(SMALL)
    alone, among_all = work(both["nvidia"]), work(both["all"])
    assert alone > 0
    assert among_all / alone <= 1.1


def test_all_families_are_there() -> None:
    ledger = clusters(Size(100, 1, 0))["all"].ledger
    states = [ledger.state(name) for name in ledger.node_names()]
    there = {found.card.vendor for state in states if state is not None for found in state.cards}
    assert there == {vendor.key for vendor in every_family().vendors}


def test_no_other_family_is_asked_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    found = clusters(SMALL)["all"]
    asked = set()
    for name in ("request", "gate", "total_cores", "entry", "choose", "score", "selection", "collects_all", "price"):
        plain = getattr(Vendor, name)

        def noted(vendor: Vendor, *arguments: object, _plain: object = plain) -> object:
            asked.add(vendor.key)
            assert callable(_plain)
            return _plain(vendor, *arguments)

        monkeypatch.setattr(Vendor, name, noted)
    assert all(found.place(number) for number in range(CALLS))
    assert asked == {"NVIDIA"}


def test_the_command() -> None:
    arguments = ["families", "--nodes", "40", "--cards", "2", "--pods", "20", "--calls", "5", "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout)
    assert figures["families_ratio"] > 0
    assert (figures["nodes"], figures["calls"]) == (40, 5)


def test_pods_that_do_not_fit_are_an_error() -> None:
    with pytest.raises(ValueError, match="200 pods do not fit on 1 nodes"):
        bench_families(FamiliesBench(Size(1, 1, 200), 1))
