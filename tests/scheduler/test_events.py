"""Events go out in the background: bounded, budgeted, and no trouble of theirs reaches anybody."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

import pytest
from prometheus_client import CollectorRegistry

from devices.kube.errors import Forbidden
from scheduler.diagnosis import EventText, cut, shortened
from scheduler.events import EventBudget, Events, event_object
from tests.builders import pod
from tests.scheduler.builders import NOW, NOW_S, Api, Clock, Hitch, settle

COUNTER = "slotwise_events_total"


class Sending:
    def __init__(self, budget: EventBudget | None = None) -> None:
        self.api, self.clock, self.registry = Api(), Clock(), CollectorRegistry()
        self.events = Events(self.api, self.clock, "hami-scheduler", budget or EventBudget(), self.registry)

    def emit(self, *messages: str, uid: str = "uid-a") -> None:
        for message in messages:
            self.events.emit(pod(uid=uid), EventText("Normal", "FilteringSucceed", message))

    def sent(self) -> list[object]:
        return [event["message"] for event in self.api.events]

    def counted(self, outcome: str) -> float:
        return self.registry.get_sample_value(COUNTER, {"outcome": outcome}) or 0.0


@pytest.fixture
async def sending() -> AsyncIterator[Callable[..., Sending]]:
    made: list[Sending] = []

    def make(budget: EventBudget | None = None, *, start: bool = True) -> Sending:
        made.append(Sending(budget))
        if start:
            made[-1].events.start()
        return made[-1]

    yield make
    for one in made:
        await one.events.stop()


def test_the_object() -> None:
    event = event_object(pod(version=7), EventText("Warning", "BindingFailed", "no"), "src", 31, NOW_S)
    assert event == {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"a.{int(NOW_S * 1e6):x}1f", "namespace": "default"},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": "default",
            "name": "a",
            "uid": "uid-a",
            "resourceVersion": "7",
        },
        "reason": "BindingFailed",
        "message": "no",
        "type": "Warning",
        "source": {"component": "src"},
        "reportingComponent": "src",
        "firstTimestamp": NOW,
        "lastTimestamp": NOW,
        "count": 1,
    }


def test_a_long_name_leaves_room_for_what_makes_it_unique() -> None:
    name = event_object(pod(name="p" * 253), EventText("", "", ""), "s", 2**30, NOW_S)["metadata"]["name"]  # type: ignore[index] # a JSON object, whose values have no type of their own
    assert len(name) <= 253


LONG: dict[str, tuple[str, str]] = {
    "as long as it may be": ("x" * 1024, "x" * 1024),
    "one byte more": ("x" * 1025, "x" * 1021 + "…"),
    "few characters of many bytes": ("€" * 400, "€" * 340 + "…"),
    "never within a character": ("x" + "€" * 400, "x" + "€" * 340 + "…"),
}


@pytest.mark.parametrize(("text", "shown"), LONG.values(), ids=LONG)
def test_a_single_long_text_is_cut_and_not_replaced_by_a_count(text: str, shown: str) -> None:
    assert shortened(text) == shown
    assert len(shown.encode()) <= 1024
    assert event_object(pod(), EventText("", "", text), "s", 1, NOW_S)["message"] == shown


def test_lists_are_cut_between_names() -> None:
    names = [f"node-{number:04}" for number in range(5000)]
    text = cut("5000 nodes X(", names, ")")
    assert len(text.encode()) <= 1024
    kept, _, rest = text.removeprefix("5000 nodes X(").partition(",… and ")
    listed = kept.split(",")
    assert listed == names[: len(listed)]
    assert rest == f"{5000 - len(listed)} more)"
    assert len(listed) > 90
    assert cut("a(", ["b", "c"], ")") == "a(b,c)"
    assert cut("", ["x" * 1023, "y"], "") == "… and 2 more"
    assert cut("", ["x" * 1022, "y"], "") == "x" * 1022 + ",y"


async def test_they_are_sent_in_order(sending: Callable[..., Sending]) -> None:
    one = sending()
    one.emit("1", "2")
    await settle()
    one.emit("3")
    await settle()
    assert (one.sent(), one.counted("sent")) == (["1", "2", "3"], 3)
    assert len({event["metadata"]["name"] for event in one.api.events}) == 3  # type: ignore[index] # a JSON object, whose values have no type of their own


async def test_the_same_again_within_a_minute_goes_once(sending: Callable[..., Sending]) -> None:
    one = sending()
    one.emit("1", "1")
    one.emit("1", uid="uid-b")
    await settle()
    one.clock.now_s += 59
    one.emit("1")
    await settle()
    assert (one.sent(), one.counted("repeated")) == (["1", "1"], 2)
    one.clock.now_s += 1
    one.emit("1")
    await settle()
    assert one.counted("sent") == 3


async def test_what_is_remembered_of_repeats_is_bounded(
    sending: Callable[..., Sending], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Events, "_REMEMBERED", 2)
    one = sending()
    one.emit("1", "2", "3", "1", "3")
    await settle()
    assert (one.sent(), one.counted("repeated")) == (["1", "2", "3", "1"], 1)


async def test_a_full_queue_drops_and_counts(sending: Callable[..., Sending]) -> None:
    one = sending(EventBudget(queue=2), start=False)
    one.emit("1", "2", "3")
    for _ in range(3):
        one.events.later(lambda: None)
    assert one.counted("dropped") == 2
    one.events.start()
    await settle()
    one.emit("3")  # it was not sent, so it is no repeat
    await settle()
    assert one.sent() == ["1", "2", "3"]


async def test_the_budget_spaces_them(sending: Callable[..., Sending]) -> None:
    one = sending(EventBudget(per_second=2, burst=2))
    one.emit(*"12345")
    await settle()
    assert one.sent() == ["1", "2"]
    assert one.clock.waits == [0.5]
    await one.clock.advance(0.5)
    assert one.sent() == ["1", "2", "3"]
    await one.clock.advance(1)
    assert one.sent() == ["1", "2", "3", "4", "5"]
    await one.clock.advance(100)
    one.emit(*"6789")
    await settle()
    assert one.sent()[5:] == ["6", "7"]  # no more than the burst is saved up


async def test_failures_are_counted_and_reach_nobody(
    sending: Callable[..., Sending], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    one = sending()
    one.api.meets("create_event", Forbidden(403, "Forbidden", "no"))
    one.emit("1", "2")
    await settle()
    assert (one.sent(), one.counted("failed"), one.counted("sent")) == (["2"], 1, 1)
    assert "event FilteringSucceed for default/a was not written: no (403 Forbidden)" in caplog.text


async def test_work_for_later_runs_after_the_answer_and_its_faults_stay_there(
    sending: Callable[..., Sending], caplog: pytest.LogCaptureFixture
) -> None:
    one = sending()
    order: list[str] = []

    def work(name: str) -> None:
        order.append(name)
        one.emit(name)
        if name == "a":
            raise KeyError(name)

    for name in "ab":
        one.events.later(lambda name=name: work(name))  # type: ignore[misc]  # a lambda's default has no type
    order.append("answered")
    await settle()
    assert (order, one.sent(), one.counted("failed")) == (["answered", "a", "b"], ["a", "b"], 1)
    assert "the text of an Event could not be made" in caplog.text


async def test_stopping_counts_what_still_waits(sending: Callable[..., Sending]) -> None:
    one = sending()
    hold = asyncio.Event()
    one.api.meets("create_event", Hitch(hold=hold))
    one.emit("1", "2", "3")
    await settle()
    await one.events.stop()
    await one.events.stop()
    assert (one.sent(), one.counted("dropped")) == ([], 2)
