"""Answering device plugins' handshakes."""

import re
import time
from collections.abc import AsyncIterator, Callable

import pytest

from devices.kube.errors import Forbidden
from scheduler.handshake import Handshake, answer_to
from tests.builders import card, node
from tests.scheduler.builders import CONFIG, NOW_S, World, settle

KEY = "hami.io/node-handshake"
OURS = re.compile(r"Requesting_\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}")

ROWS: dict[str, tuple[str | None, str, bool]] = {
    "a plugin that reports": ("Reported 2026-05-28 20:00:00", "auto", True),
    "our own request": ("Requesting_2026-05-28 20:00:00", "auto", False),
    "absent": (None, "auto", False),
    "empty": ("", "auto", False),
    "deleted": ("Deleted_2026-05-28 20:00:00", "auto", False),
    "always: a report": ("Reported x", "always", True),
    "always: absent": (None, "always", True),
    "always: deleted": ("Deleted_x", "always", True),
    "always: our own request": ("Requesting_x", "always", False),
    "always: a request of another form": ("xRequesting", "always", False),
    "never": ("Reported x", "never", False),
}


@pytest.mark.parametrize(("value", "mode", "answered"), ROWS.values(), ids=ROWS)
def test_what_is_answered(value: str | None, mode: str, answered: bool) -> None:
    answer = answer_to(value, mode, NOW_S)
    assert (answer is not None) is answered
    assert answer is None or OURS.fullmatch(answer)


@pytest.mark.parametrize(("zone", "shown"), [("UTC", "2026-05-28 20:26:40"), ("Asia/Shanghai", "2026-05-29 04:26:40")])
def test_the_time_is_local_as_plugins_read_it(zone: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert answer_to("Reported", "auto", NOW_S) == f"Requesting_{shown}"
    finally:
        monkeypatch.undo()
        time.tzset()


class Answering:
    def __init__(self, mode: str) -> None:
        self.world = World()
        self.handshake = Handshake(self.world.ledger, self.world.api, self.world.clock, CONFIG.vendors, mode)

    def seen(self, name: str, value: str | None) -> None:
        self.world.put_node(node(name, card(name), annotations={} if value is None else {KEY: value}))
        self.handshake.node_changed(name)

    def value(self, name: str) -> str | None:
        return self.world.api.lock(name, KEY)


@pytest.fixture
async def answering() -> AsyncIterator[Callable[[str], Answering]]:
    made: list[Answering] = []

    def make(mode: str) -> Answering:
        made.append(Answering(mode))
        made[-1].handshake.start()
        return made[-1]

    yield make
    for one in made:
        await one.handshake.stop()
        await one.handshake.stop()


async def test_every_change_is_answered_once(answering: Callable[[str], Answering]) -> None:
    one = answering("auto")
    one.seen("n1", "Reported 1")
    one.handshake.node_changed("n1")
    one.seen("n2", None)
    await settle()
    assert OURS.fullmatch(one.value("n1") or "")
    assert one.value("n2") is None
    assert one.world.api.calls == ["patch_node"]
    one.seen("n1", one.value("n1"))
    await settle()
    assert one.world.api.calls == ["patch_node"]
    one.seen("n1", "Reported 2")
    await settle()
    assert OURS.fullmatch(one.value("n1") or "")


async def test_a_failure_is_said_and_the_others_still_answered(
    answering: Callable[[str], Answering], caplog: pytest.LogCaptureFixture
) -> None:
    one = answering("always")
    one.world.api.meets("patch_node", Forbidden(403, "Forbidden", "no"))
    one.seen("n1", "Reported")
    one.seen("n2", None)
    await settle()
    assert (one.value("n1"), bool(OURS.fullmatch(one.value("n2") or ""))) == ("Reported", True)
    assert "node n1: its plugin's handshake was not answered: no (403 Forbidden)" in caplog.text


async def test_a_node_that_is_gone_or_answered_by_then(answering: Callable[[str], Answering]) -> None:
    one = answering("auto")
    one.seen("n1", "Reported")
    one.world.ledger.delete_node("n1")
    one.handshake.node_changed("unknown")
    await settle()
    assert one.world.api.calls == []


async def test_never(answering: Callable[[str], Answering]) -> None:
    one = answering("never")
    one.seen("n1", "Reported")
    await settle()
    assert (one.value("n1"), one.world.api.calls) == ("Reported", [])
