"""What is odd about Moore Threads: totals over the cards, one card for all containers of a pod."""

from collections.abc import Mapping

import pytest

from tests.devices.vendors.driver import admitted, filtered, pod, refusal, registered, resources_of, text_of, world
from tests.devices.vendors.samples import VENDORS
from tests.scheduler.builders import World, uuids

MT = VENDORS["Mthreads"]
GPU, MEMORY, CORES = MT.count_resource, MT.memory_resource, MT.core_resource
NUMBER = "mthreads.com/request-gpu-num"


def cards(count: int = 8) -> World:
    return world(registered(capacity={GPU: "100", CORES: str(16 * count), MEMORY: str(96 * count)}))


ADMITTED = {
    "whole card": ({GPU: 1}, {}, {GPU: "1", CORES: "16", MEMORY: "96"}),
    "a share keeps its compute, absent as it is": ({GPU: 1, MEMORY: 16}, {}, {GPU: "1", MEMORY: "16"}),
    "compute alone was overwritten": ({GPU: 1, CORES: 4}, {}, {GPU: "1", CORES: "4", MEMORY: "96"}),
    "several cards": ({GPU: 3}, {}, {GPU: "3", CORES: "48", MEMORY: "288"}),
    "several cards with their compute were overwritten": (
        {GPU: 2, CORES: 8},
        {},
        {GPU: "2", CORES: "8", MEMORY: "192"},
    ),
    "several cards with all given": ({GPU: 2, CORES: 8, MEMORY: 32}, {}, {GPU: "2", CORES: "8", MEMORY: "32"}),
    "a request for the missing is kept": ({GPU: 1}, {CORES: 4}, {GPU: "1", MEMORY: "96"}),
}


@pytest.mark.parametrize(("limits", "requests", "expected"), ADMITTED.values(), ids=ADMITTED)
def test_only_what_is_missing_is_added(
    limits: Mapping[str, object], requests: Mapping[str, object], expected: Mapping[str, str]
) -> None:
    """MTH-1: limits that the user gave were overwritten, and the API server refused the pod."""
    verdict = admitted(limits, requests)
    assert resources_of(verdict) == (expected, {name: str(value) for name, value in requests.items()})
    annotations = verdict.pod["metadata"].get("annotations", {})  # type: ignore[attr-defined] # a JSON object, whose values have no type of their own
    assert annotations == ({NUMBER: str(limits[GPU])} if limits[GPU] != 1 else {})


DENIED = {
    "no card": ({GPU: 0}, "mthreads.com/vgpu must be greater than 0"),
    "a size that one card does not have": (
        {GPU: 1, MEMORY: 3},
        "sGPU memory request value is invalid, valid values are [2, 4, 8, 16, 32, 64, 96]",
    ),
}


@pytest.mark.parametrize(("limits", "text"), DENIED.values(), ids=DENIED)
def test_denied(limits: Mapping[str, object], text: str) -> None:
    verdict = admitted(limits)
    assert not verdict.allowed
    assert verdict.message == text


SHARES = {
    "a share": ({GPU: 1, MEMORY: 16, CORES: 4}, ["7,8192,4"]),
    "two whole cards": ({GPU: 2, MEMORY: 192, CORES: 32}, ["7,49152,16", "6,49152,16"]),
    "totals that do not divide are rounded down": (
        {GPU: 3, MEMORY: 100, CORES: 10},
        ["7,17066,3", "6,17066,3", "5,17066,3"],
    ),
}


@pytest.mark.parametrize(("limits", "expected"), SHARES.values(), ids=SHARES)
def test_totals_are_split_over_the_cards(limits: Mapping[str, object], expected: list[str]) -> None:
    here = cards()
    text = text_of(here, filtered(here, limits), MT.allocated)
    assert text == "".join(f"n1-mthreads-{entry.replace(',', ',Mthreads,', 1)}:" for entry in expected) + ";"


def test_containers_of_a_pod_share_one_card() -> None:
    """MTH-4, as the vendor wants it."""
    share = {GPU: 1, MEMORY: 32, CORES: 4}
    here = cards(2)
    found = filtered(here, [share, share])
    assert uuids(found) == ["n1-mthreads-1", "n1-mthreads-1"]
    assert refusal(filtered(cards(2), [{GPU: 1, MEMORY: 96, CORES: 16}] * 2)) == (
        "1/2 CardInsufficientMemory, 1/2 CardNotFoundCustomFilterRule"
    )


def test_the_plugin_reads_the_cards_of_the_last_container_that_has_any() -> None:
    here, one = cards(), pod([{GPU: 1, MEMORY: 16, CORES: 4}, {GPU: 1, MEMORY: 16, CORES: 4}, {}])
    found = here.filter(one)
    assert [text_of(here, found, key, one) for key in MT.outputs[:3]] == ["7", "7000000000", "n1"]
    here, one = cards(), pod([{}, {GPU: 2, MEMORY: 192, CORES: 32}])
    assert text_of(here, here.filter(one), "mthreads.com/gpu-index", one) == "7,6"
