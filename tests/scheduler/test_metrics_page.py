"""The page made in slices is the page made anew, all of one moment, and gives way to others."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Mapping
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from devices.ledger import Ledger
from lab.bench.anew_page import AnewPage
from scheduler.ask import Defaults
from scheduler.engine import Engine
from scheduler.metric_lines import node_lines
from scheduler.metrics_page import LedgerPage
from serving.page import Block, packed, page
from tests.builders import allocated, card, entry, node, nvidia_config, pod, quota
from tests.scheduler.histories import Step, steps

LEFT_OUT = "slotwise_metrics_series_left_out"


async def text_of(source: LedgerPage, accept: str = "", names: tuple[str, ...] = ()) -> str:
    return b"".join([piece async for piece in page(CollectorRegistry(), accept, names, source.blocks)]).decode()


def anew(ledger: Ledger, legacy: bool) -> list[str]:
    registry = CollectorRegistry()
    made = AnewPage(ledger, registry, legacy)
    made.refresh()
    return sorted(generate_latest(registry).decode().splitlines())


def without_own(text: str) -> list[str]:
    return sorted(line for line in text.splitlines() if LEFT_OUT not in line)


class History:
    """A ledger to which things happen."""

    def __init__(self) -> None:
        self.ledger = Ledger(nvidia_config())
        self._engine = Engine(self.ledger, Defaults())
        self._now_s = 0.0

    def happen(self, step: Step) -> None:
        self._now_s += step.seconds
        if step.what == "node":
            self.ledger.put_node(step.node)
        elif step.what == "no node":
            self.ledger.delete_node(step.node.name)
        elif step.what == "quota":
            self.ledger.put_quota(quota("q", step.pod.namespace, gpumem=step.limit))
        elif step.what == "bound":
            carried = allocated(((entry(f"{step.names[0]}-0", 700, 7),),), node=step.names[0])
            self.ledger.put_pod(
                pod(name=step.pod.name, uid=step.pod.uid, node=step.names[0], annotations=carried), self._now_s
            )
        elif step.what == "gone":
            self.ledger.delete_pod(step.pod.uid)
        else:
            self._engine.filter(step.pod, step.names, self._now_s)


WHATS = ("node", "node", "filter", "filter", "bound", "gone", "no node", "quota", "page")


@given(history=st.lists(steps(WHATS), min_size=5, max_size=30), legacy=st.booleans())
@settings(max_examples=60, deadline=None)
def test_the_page_is_the_one_made_anew(history: list[Step], legacy: bool) -> None:
    happening = History()

    async def plays() -> None:
        source = LedgerPage(happening.ledger, legacy=legacy)
        for step in history:
            if step.what == "page":
                assert without_own(await text_of(source)) == anew(happening.ledger, legacy)
            else:
                happening.happen(step)
        assert without_own(await text_of(source)) == anew(happening.ledger, legacy)

    asyncio.run(plays())


def test_labels_with_quotes_are_escaped_as_the_library_does() -> None:
    ledger = Ledger(nvidia_config())
    ledger.put_node(node("n1", card('a"b\\c\nd', model='NVIDIA "T4"')))
    text = asyncio.run(text_of(LedgerPage(ledger)))
    assert without_own(text) == anew(ledger, legacy=False)
    assert 'device_type="NVIDIA \\"T4\\""' in text


class Ticking:
    """A clock that a slice ends with every look."""

    def __init__(self, step_s: float) -> None:
        self._now_s, self._step_s = 0.0, step_s

    def __call__(self) -> float:
        self._now_s += self._step_s
        return self._now_s


def many_nodes(count: int) -> Ledger:
    ledger = Ledger(nvidia_config())
    for number in range(count):
        ledger.put_node(node(f"n{number:03d}", card(f"c{number}")))
    return ledger


def held(ledger: Ledger, name: str, uid: str) -> None:
    uuid = f"c{int(name[1:])}"
    carried = allocated(((entry(uuid, 1000, 10),),), node=name)
    ledger.put_pod(pod(name=uid, uid=uid, node=name, annotations=carried), 0.0)


async def test_others_run_while_a_page_is_made() -> None:
    ledger = many_nodes(50)
    task = asyncio.create_task(text_of(LedgerPage(ledger, clock=Ticking(0.003))))
    turns = 0
    while not task.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns > 50
    assert (await task).count("hami_gpu_shared_count{") == 50


async def test_what_changes_meanwhile_is_on_the_page_as_of_one_moment() -> None:
    """A pod that moves while the page is made is on one node, not on both or none."""
    ledger = many_nodes(50)
    held(ledger, "n001", "a")
    task = asyncio.create_task(text_of(LedgerPage(ledger, clock=Ticking(0.0009))))
    for turn in range(12):
        await asyncio.sleep(0)
        assert not task.done()
        ledger.delete_pod("a" if turn == 0 else f"a{turn - 1}")
        held(ledger, f"n{turn * 4:03d}", f"a{turn}")
    text = await task
    assert text.count("hami_vgpu_memory_allocated_bytes{") == 1
    assert sum("} 1.0\n" in f"{line}\n" for line in text.splitlines() if line.startswith("hami_gpu_shared_count{")) == 1


async def test_a_page_that_never_comes_to_rest_is_finished_without_holding_up_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rest in one go was seconds on a large cluster, and that when there was most to do."""
    ledger = many_nodes(50)
    turns = [0]

    def noted(of: Ledger, name: str, legacy: bool) -> Mapping[str, list[str]]:
        turns[-1] += 1
        return node_lines(of, name, legacy)

    monkeypatch.setattr("scheduler.metrics_page.node_lines", noted)
    source = LedgerPage(ledger, clock=Ticking(0.0015))
    task = asyncio.create_task(text_of(source))
    number = 0
    while not task.done() and number < 20_000:
        for _ in range(4):
            held(ledger, f"n{number % 50:03d}", f"p{number}")
            number += 1
        turns.append(0)
        await asyncio.sleep(0)
    assert (await task).count("hami_gpu_memory_limit_bytes{") == 50
    assert max(turns) == 2
    assert without_own(await text_of(source)) == anew(ledger, legacy=False)  # the next page has the rest


async def test_a_page_whose_caller_hangs_up_leaves_the_rest_to_the_next() -> None:
    ledger = many_nodes(50)
    source = LedgerPage(ledger, clock=Ticking(0.0015))
    await text_of(source)
    for number in range(50):
        held(ledger, f"n{number:03d}", f"p{number}")
    task = asyncio.create_task(source.blocks())
    for _ in range(5):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert without_own(await text_of(source)) == anew(ledger, legacy=False)


async def test_a_page_that_fails_midway_leaves_the_rest_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = many_nodes(50)
    written = count()

    def failing(of: Ledger, name: str, legacy: bool) -> Mapping[str, list[str]]:
        if next(written) == 20:
            raise RuntimeError("as if a label could not be written")
        return node_lines(of, name, legacy)

    monkeypatch.setattr("scheduler.metrics_page.node_lines", failing)
    source = LedgerPage(ledger)
    with pytest.raises(RuntimeError):
        await source.prepare()
    assert without_own(await text_of(source)) == anew(ledger, legacy=False)


async def test_only_what_changed_is_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = many_nodes(20)
    source = LedgerPage(ledger)
    await text_of(source)
    written: list[str] = []

    def noted(of: Ledger, name: str, legacy: bool) -> Mapping[str, list[str]]:
        written.append(name)
        return node_lines(of, name, legacy)

    monkeypatch.setattr("scheduler.metrics_page.node_lines", noted)
    held(ledger, "n007", "a")
    await text_of(source)
    assert written == ["n007"]


async def test_a_page_prepared_beforehand_writes_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, written, leads = many_nodes(20), [], False

    def counted(ledger: Ledger, name: str, legacy: bool) -> Mapping[str, list[str]]:
        written.append(name)
        return node_lines(ledger, name, legacy)

    monkeypatch.setattr("scheduler.metrics_page.node_lines", counted)
    source = LedgerPage(ledger, leads=lambda: leads)
    await source.prepare()
    assert written == []  # who does not lead shows none
    leads = True
    await source.prepare()
    assert len(written) == 20
    held(ledger, "n003", "a")
    assert without_own(await text_of(source)) == anew(ledger, legacy=False)
    assert written[20:] == ["n003"]


async def test_pages_prepared_without_a_pause_held_up_every_decision_after_a_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr("scheduler.metrics_page.asyncio.sleep", noted)
    source = LedgerPage(many_nodes(30), clock=count().__next__)  # every slice is over at once
    preparing = asyncio.create_task(source.prepare())
    while len(pauses) < 5 and not preparing.done():
        await sleep(0)
    assert set(pauses) == {0.0025}
    asked = asyncio.create_task(source.blocks())  # from now on somebody waits
    await asyncio.wait({preparing, asked})
    assert set(pauses[7:]) == {0.0}
    assert len(pauses) > 20


async def test_pages_prepared_for_longer_than_the_ledger_remembers_were_begun_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("devices.ledger.nodes._CHANGES_KEPT", 10)
    ledger, written, sleep, number = many_nodes(30), list[str](), asyncio.sleep, count()

    def noted(of: Ledger, name: str, legacy: bool) -> Mapping[str, list[str]]:
        written.append(name)
        return node_lines(of, name, legacy)

    async def changing(_: float) -> None:
        for _ in range(5):
            held(ledger, "n003", f"p{next(number)}")
        await sleep(0)

    monkeypatch.setattr("scheduler.metrics_page.node_lines", noted)
    monkeypatch.setattr("scheduler.metrics_page.asyncio.sleep", changing)
    source = LedgerPage(ledger, clock=count().__next__)  # every slice is over at once
    await source.prepare()
    assert len(written) == len(set(written)) == 30
    monkeypatch.setattr("scheduler.metrics_page.asyncio.sleep", sleep)
    assert without_own(await text_of(source)) == anew(ledger, legacy=False)
    assert written[30:] == ["n003"]


async def test_above_the_limit_whole_gauges_are_left_out_and_named() -> None:
    text = await text_of(LedgerPage(many_nodes(10), max_series=45))
    assert text.count("hami_gpu_shared_count{") == 0
    assert text.count("hami_gpu_memory_limit_bytes{") == 10
    assert f"{LEFT_OUT} 30.0\n" in text
    assert "hami_node_gpu_overview." in text
    unlimited = await text_of(LedgerPage(many_nodes(10), max_series=70))
    assert f"{LEFT_OUT} 0.0\n" in unlimited


async def test_names_and_formats() -> None:
    source = LedgerPage(many_nodes(3))
    one = await text_of(source, names=("hami_gpu_shared_count",))
    assert {line.partition("{")[0] for line in one.splitlines() if line[0] != "#"} == {"hami_gpu_shared_count"}
    opened = await text_of(source, "application/openmetrics-text; version=1.0.0")
    assert opened.endswith("# EOF\n")
    assert opened.count("# EOF") == 1
    plain = await text_of(source)
    assert "# EOF" not in plain
    assert opened.removesuffix("# EOF\n") == plain


async def test_a_packed_page_unpacks_to_itself() -> None:
    pieces = [bytes([number % 251]) * 70_000 for number in range(40)]

    async def given() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    found = [piece async for piece in packed(given())]
    assert gzip.decompress(b"".join(found)) == b"".join(pieces)


@pytest.mark.parametrize("size", [1000, 250_000, 300_000])
async def test_a_packed_page_gives_way_between_any_two_gauges(size: int) -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def blocks() -> list[Block]:
        return [Block(f"gauge{number}", "Text.", (b"x" * size,), 1) for number in range(20)]

    others = asyncio.create_task(count_turns())
    assert [piece async for piece in packed(page(CollectorRegistry(), "", (), blocks))]
    others.cancel()
    assert turns >= 20
