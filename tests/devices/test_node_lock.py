"""The value of a node lock."""

import pytest

from devices.errors import LockError
from devices.node_lock import LockValue, parse, rfc3339, seconds_of

AT_S = 1785564000.0
"""2026-08-01T06:00:00Z."""

VALUES = {
    "time, namespace, pod": ("2026-08-01T06:00:00Z,team-a,train-0", LockValue(AT_S, "team-a", "train-0")),
    "the older form": ("2026-08-01T06:00:00Z", LockValue(AT_S)),
}


@pytest.mark.parametrize(("text", "value"), VALUES.values(), ids=VALUES)
def test_value(text: str, value: LockValue) -> None:
    assert parse(text) == value
    assert value.text() == text


TIMES = {
    "with offset": ("2026-08-01T08:00:00+02:00", AT_S),
    "negative offset": ("2026-08-01T05:30:00-00:30", AT_S),
    "fraction": ("2026-08-01T06:00:00.5Z", AT_S + 0.5),
    "nanoseconds": ("2026-08-01T06:00:00.250000000Z", AT_S + 0.25),
    "before Unix time": ("1969-12-31T23:59:59Z", -1.0),
}


@pytest.mark.parametrize(("text", "seconds"), TIMES.values(), ids=TIMES)
def test_times(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


def test_written_times_are_whole_seconds() -> None:
    assert rfc3339(AT_S + 0.9) == "2026-08-01T06:00:00Z"


PARTS = "malformed lock annotation: expected 3 parts, got {} from {}"
TIME = "malformed lock time {!r}: expected a time such as 2026-08-01T06:00:00Z"
MALFORMED = {
    "empty": ("", TIME.format("")),
    "words": ("yesterday", TIME.format("yesterday")),
    "two parts": ("2026-08-01T06:00:00Z,a", PARTS.format(2, "2026-08-01T06:00:00Z,a")),
    "four parts": ("t,a,b,c", PARTS.format(4, "t,a,b,c")),
    "no time": (",a,b", TIME.format("")),
    "no zone": ("2026-08-01T06:00:00,a,b", TIME.format("2026-08-01T06:00:00")),
    "blank instead of T": ("2026-08-01 06:00:00Z", TIME.format("2026-08-01 06:00:00Z")),
    "a line after it": ("2026-08-01T06:00:00Z\n", TIME.format("2026-08-01T06:00:00Z\n")),
}


@pytest.mark.parametrize(("text", "problem"), MALFORMED.values(), ids=MALFORMED)
def test_malformed(text: str, problem: str) -> None:
    with pytest.raises(LockError) as error:
        parse(text)
    assert str(error.value) == problem


@pytest.mark.parametrize(
    "text",
    [
        "2026-13-01T06:00:00Z",
        "2026-02-30T06:00:00Z",
        "2026-08-01T25:00:00Z",
        "2026-08-01T06:00:60Z",
        "2026-08-01T06:00:00+99:99",
        "0000-01-01T00:00:00Z",
    ],
)
def test_times_that_no_calendar_has(text: str) -> None:
    with pytest.raises(LockError, match=r"^malformed lock time"):
        parse(text)


def test_ownership_is_by_namespace_and_name() -> None:
    value = LockValue(AT_S, "team-a", "train-0")
    assert value.is_of("team-a", "train-0")
    assert not value.is_of("team-b", "train-0")
    assert not value.is_of("team-a", "train-01")
    assert value.names_owner


def test_the_older_form_is_nobodys() -> None:
    assert not LockValue(AT_S).names_owner
    assert not LockValue(AT_S).is_of("", "")
