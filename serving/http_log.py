"""What aiohttp itself has to say about requests that never reach a handler."""

import logging
from collections.abc import Mapping

from aiohttp.http_exceptions import HttpProcessingError

__all__ = ["HttpLog"]


class HttpLog(logging.LoggerAdapter[logging.Logger]):
    """A logger for aiohttp's server that takes broken HTTP for what it is: one line, not a fault with a traceback.

    Such requests are answered 400 before any middleware sees them, so this is their line in the log.
    """

    def exception(  # type: ignore[override]  # exc_info as aiohttp calls it; the base class takes anything
        self,
        msg: object,
        *args: object,
        exc_info: BaseException | bool | None = True,
        stack_info: bool = False,
        stacklevel: int = 1,
        extra: Mapping[str, object] | None = None,
    ) -> None:
        """Log a fault with its traceback, and a caller's broken HTTP at INFO without."""
        if isinstance(exc_info, HttpProcessingError):
            self.info("broken HTTP: " + str(msg) + ": %s", *args, " ".join(exc_info.message.split()))
            return
        super().exception(msg, *args, exc_info=exc_info, stack_info=stack_info, stacklevel=stacklevel + 1, extra=extra)
