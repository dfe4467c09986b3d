"""aiohttp's own log: a caller's broken HTTP is one line, a fault keeps its traceback."""

import logging

import pytest
from aiohttp.http_exceptions import BadHttpMessage

from serving.http_log import HttpLog


@pytest.mark.parametrize(
    ("error", "level", "text", "traceback"),
    [
        (BadHttpMessage("no\n  colon"), logging.INFO, "broken HTTP: from 10.0.0.9: no colon", False),
        (KeyError("x"), logging.ERROR, "from 10.0.0.9", True),
    ],
    ids=["broken HTTP", "fault"],
)
def test_level_and_traceback(
    error: Exception, level: int, text: str, traceback: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        HttpLog(logging.getLogger("tests.http")).exception("from %s", "10.0.0.9", exc_info=error)
    (record,) = caplog.records
    assert (record.levelno, record.getMessage(), bool(record.exc_info)) == (level, text, traceback)
