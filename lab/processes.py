"""Child processes: each with a log file, ended with whoever started it whatever happens, and dead when that process is."""

import ctypes
import http.client
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

__all__ = ["LOOPBACK", "Child", "HeldPort", "StartError", "answers"]

LOOPBACK: Final = "127.0.0.1"
_PR_SET_PDEATHSIG: Final = 1
_LOOK_S: Final = 0.05
_STOP_S: Final = 10.0
_LOG_LINES: Final = 15
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class StartError(Exception):
    """A process did not come up; the text ends with the last lines of its log."""


class HeldPort:
    """A free port on loopback that stays ours until `release`, for servers that cannot be told to take any.

    Bound but not listened on: the server that gets the number has to set SO_REUSEPORT, and nobody else can take it meanwhile.
    """

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._socket.bind((LOOPBACK, 0))
        self.number: int = self._socket.getsockname()[1]

    def release(self) -> None:
        """Give it back."""
        self._socket.close()


class Child:
    """A running process. `log` holds what it said."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.log = log
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=None if environment is None else dict(environment),
                start_new_session=True,  # Ctrl-C is ours to pass on: etcd must not end before those that use it
                preexec_fn=_die_with_parent,  # noqa: PLW1509 # one call into libc, no lock taken
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def wait_until(self, holds: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Return once `holds`. Raises `StartError` when the process ends before, or time does."""
        deadline = time.monotonic() + timeout_s
        while not holds():
            if (status := self._process.poll()) is not None:
                raise StartError(f"{self.name} ended with {status} before {what}\n{self.tail()}")
            if time.monotonic() > deadline:
                raise StartError(f"{self.name}: after {timeout_s:g} s it is still not so that {what}\n{self.tail()}")
            time.sleep(_LOOK_S)  # there is nothing to wait for but the answer of the next try

    def tail(self, lines: int = _LOG_LINES) -> str:
        """The last lines of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def kill(self) -> int:
        """End it by force; returns its exit status."""
        self._process.kill()
        return self._process.wait()

    def stop(self) -> int:
        """End it, by force where asking does not help; returns its exit status."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        return self._process.wait()


def _die_with_parent() -> None:
    """In the child: SIGKILL as soon as the thread that started it is gone, however it went."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def answers(port: int, path: str, tls: ssl.SSLContext | None = None) -> bool:
    """Whether a server on loopback answers 200 there."""
    connection = (
        http.client.HTTPConnection(LOOPBACK, port, timeout=5.0)
        if tls is None
        else http.client.HTTPSConnection(LOOPBACK, port, timeout=5.0, context=tls)
    )
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
