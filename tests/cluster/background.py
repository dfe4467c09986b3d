"""An event loop in a thread of its own, for whatever goes on beside tests that have loops of their own."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Final, Self, TypeVar

__all__ = ["Background"]

_T = TypeVar("_T")
_STOP_S: Final = 60.0


class Background:
    """A context manager. Processes started in it die with it, since they die with the thread that started them."""

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fixture", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_S)
        self._loop.close()

    def run(self, coroutine: Coroutine[Any, Any, _T], timeout_s: float | None = None) -> _T:
        """Run it there, wait for it here. Raises what it raises, and TimeoutError."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout_s)
