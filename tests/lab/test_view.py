import io
import json

import pytest
from rich.console import Console

from lab.audit import CardUsage, Share
from lab.records import (
    BurstProgress,
    BurstResult,
    ScenarioBegan,
    ScenarioDone,
    StepDone,
)
from lab.view import JsonView, PlainView, TerminalView, View, card_bar, card_line

SHARED = CardUsage("n1", "GPU-A", 16000, 10, 100, (Share("default/a", 1, 4000, 30), Share("team/b", 1, 8000, 0)))
IDLE = CardUsage("n1", "GPU-B", 16000, 10, 100)
BURST = BurstResult(5, 8, 100, 99, 1, 0.5, 198.0, 1.0, ("n1 GPU-A: slots: 11 of 10 given to default/a",))


def records() -> list[ScenarioBegan | StepDone]:
    return [
        ScenarioBegan("demo", "What it shows", 1, 2),
        StepDone("demo", 1, "first", "a → n1 GPU-A [x]", (), (SHARED, IDLE), True),
        StepDone("demo", 2, "", "b is pending: no", ("pending: expected 'x', got 'no'",), (SHARED, IDLE), True),
    ]


def done(*problems: str) -> ScenarioDone:
    return ScenarioDone("demo", "What it shows", 2, 1, 1, 0, problems, 1.25)


def shown(
    kind: "type[PlainView] | type[TerminalView] | type[JsonView]", *, terminal: bool = False
) -> tuple[View, io.StringIO]:
    out = io.StringIO()
    return kind(Console(file=out, width=110, force_terminal=terminal, color_system=None)), out


def test_plain_lines() -> None:
    view, out = shown(PlainView)
    for record in records():
        view.show(record)
    view.show(done("step 2: pending"))
    view.end([done("step 2: pending")])
    assert out.getvalue().splitlines() == [
        "== demo: What it shows (round 1 of 2)",
        "  -- first",
        "  ok  a → n1 GPU-A [x]",
        "       n1 GPU-A  12000/16000 MiB  2/10 slots  30/100 %  a 4000, team/b 8000",
        "       n1 GPU-B  0/16000 MiB  0/10 slots  idle",
        "  NO  b is pending: no",
        "       pending: expected 'x', got 'no'",
        "== demo: FAILED in 1.2 s",
        "FAILED demo: step 2: pending",
        "FAILED  demo         2 steps, 1 placed, 1 refused, 0 denied, 1.2 s",
        "1 scenario, 0 passed, 1 failed, 1.2 s",
    ]


def test_plain_burst_is_told_every_two_seconds() -> None:
    view, out = shown(PlainView)
    for seconds in (0.1, 2.1, 2.2, 4.3):
        view.show(BurstProgress(int(seconds * 10), 100, seconds))
    view.show(BURST)
    assert out.getvalue().splitlines() == [
        "     21 of 100 pods placed after 2 s",
        "     43 of 100 pods placed after 4 s",
        "99 of 100 pods placed on 5 nodes of 8 cards in 0.5 s: 198 a second, 1 writes a pod, 1 VIOLATIONS",
        "     violation: n1 GPU-A: slots: 11 of 10 given to default/a",
    ]


@pytest.mark.parametrize(
    ("card", "bar"),
    [
        (SHARED, "a     team/b      ······"),
        (IDLE, "························"),
        (CardUsage("n", "C", 16000, 10, 100, (Share("default/long-name", 1, 2000, 0),)), "███·····················"),
        (CardUsage("n", "C", 1000, 10, 100, (Share("default/a", 1, 900, 0), Share("default/b", 1, 900, 0))), None),
    ],
)
def test_bar_has_a_piece_per_tenant(card: CardUsage, bar: str | None) -> None:
    drawn = card_bar(card, {}, 24).plain
    assert len(drawn) == 24
    assert bar is None or drawn == bar


def test_tenant_keeps_its_colour() -> None:
    colours: dict[str, str] = {}
    card_bar(SHARED, colours)
    kept = dict(colours)
    card_bar(SHARED, colours)
    assert colours == kept
    assert len(set(kept.values())) == 2


def test_idle_card_line() -> None:
    assert card_line(IDLE) == "n1 GPU-B  0/16000 MiB  0/10 slots  idle"


def test_terminal_shows_steps_bars_and_table() -> None:
    view, out = shown(TerminalView, terminal=True)
    for record in records():
        view.show(record)
    view.show(done())
    view.end([done()])
    text = out.getvalue()
    for part in (
        "✓ a → n1 GPU-A [x]",
        "✗ b is pending: no",
        "12000/16000 MiB",
        "team/b",
        "passed",
        "1 scenario, 1 passed",
    ):
        assert part in text


def test_terminal_shows_a_burst() -> None:
    view, out = shown(TerminalView, terminal=True)
    view.show(BurstProgress(50, 100, 0.5))
    view.show(BURST)
    assert "50 of 100 pods placed, 100 a second" in out.getvalue()
    assert "violation: n1 GPU-A" in out.getvalue()


def test_json_is_one_document() -> None:
    view, out = shown(JsonView)
    for record in records():
        view.show(record)
    view.show(done())
    view.end([done()])
    document = json.loads(out.getvalue())
    assert document["passed"] is True
    played = document["scenarios"][0]["played"]
    assert [(step["round"], step["number"], step["problems"]) for step in played] == [
        (1, 1, []),
        (1, 2, ["pending: expected 'x', got 'no'"]),
    ]
    assert played[0]["cards"][0]["tenants"][0] == {"pod": "default/a", "slots": 1, "memory_mib": 4000, "cores": 30}


def test_json_of_a_burst_has_the_keys_scripts_read() -> None:
    view, out = shown(JsonView)
    view.show(BURST)
    document = json.loads(out.getvalue())
    assert {"placed", "lost", "seconds", "per_second", "writes_per_pod", "violations"} <= set(document)
