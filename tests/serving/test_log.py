"""The lines of a process's log are those that `logging` itself would write."""

import logging
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.log import line_format

TOLD = "%(asctime)s %(levelname)s %(name)s %(message)s"


def record(text: str, arguments: tuple[object, ...], created: float, fault: bool) -> logging.LogRecord:
    try:
        raise KeyError("x")
    except KeyError:
        seen = sys.exc_info() if fault else None
    made = logging.LogRecord("webhook.access", logging.INFO, "", 0, text, arguments, seen)
    made.created, made.msecs = created, (created - int(created)) * 1000
    return made


@given(
    st.lists(
        st.tuples(
            st.sampled_from([("a line", ()), ("%s of %d", ("one", 2)), ("100 %", ())]),
            st.floats(0, 4e9),
            st.booleans(),
        ),
        max_size=5,
    )
)
def test_lines(lines: list[tuple[tuple[str, tuple[object, ...]], float, bool]]) -> None:
    ours, theirs = line_format(), logging.Formatter(TOLD)
    for (text, arguments), created, fault in lines:
        made = record(text, arguments, created, fault)
        assert ours.format(made) == theirs.format(made)


def test_the_time_of_a_second_ends_with_it() -> None:
    ours = line_format()
    shown = [ours.format(record("x", (), created, False)).split()[1][-6:] for created in (10.25, 10.75, 11.0)]
    assert shown == ["10,250", "10,750", "11,000"]


@pytest.mark.parametrize("level", [logging.INFO, logging.DEBUG])
def test_stack_information_is_kept(level: int) -> None:
    made = record("x", (), 1.0, False)
    made.stack_info, made.levelno = "Stack", level
    assert line_format().format(made).endswith("x\nStack")
