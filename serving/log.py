"""The log of a process: lines to standard error."""

import logging
import time

__all__ = ["line_format", "start_log"]


class _Lines(logging.Formatter):
    """Time, level, logger, text; the time is made into words once a second."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")
        self._second = -1
        self._words = ""

    def format(self, record: logging.LogRecord) -> str:
        """As the format says; the usual line, without a traceback, in a third of the time."""
        if record.exc_info or record.exc_text or record.stack_info:
            return super().format(record)
        return f"{self.formatTime(record)} {record.levelname} {record.name} {record.getMessage()}"

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 - logging's name
        """As `logging.Formatter` gives it, for example `2026-01-31 06:00:00,123`."""
        second = int(record.created)
        if second != self._second:
            self._second, self._words = second, time.strftime(self.default_time_format, self.converter(second))
        return f"{self._words},{int(record.msecs):03d}"


def line_format() -> logging.Formatter:
    """Of the lines: time, level, logger, text."""
    return _Lines()


def start_log(level: int) -> None:
    """Log to standard error from `level` on, unless the root logger has somewhere to log to already."""
    # No line of ours shows them, and looking for them takes a third of making a record.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = logging.StreamHandler()
    handler.setFormatter(line_format())
    logging.basicConfig(level=level, handlers=[handler])
