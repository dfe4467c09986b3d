"""The server under load as a process of its own, and the core it gets."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

__all__ = ["BenchError", "Served", "apart", "first_of", "served"]

_END_S = 10


class BenchError(Exception):
    """The measurement could not be made, or measured something else than it says."""


def first_of(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error in a group, however deep it is in it."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


@dataclass(frozen=True, slots=True)
class Served:
    """A server that listens: its ports by name, as its one line said, and its process id."""

    ports: dict[str, int]
    pid: int


@contextmanager
def served(module: str, *arguments: object, log: bool = True) -> Iterator[Served]:
    """Run `python -m module` while the block lasts; it says its ports in one line of JSON and ends with its standard input.

    What it logs goes where our standard error does, or with `log` false nowhere: it is written all the same.
    Raises `BenchError` when it ends before it listens.
    """
    command = [sys.executable, "-m", module, *map(str, arguments)]
    errors = None if log else subprocess.DEVNULL
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise BenchError(f"{module}: the process ended with status {process.wait()} before it listened")
            yield Served(json.loads(line), process.pid)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(timeout=_END_S)
            except subprocess.TimeoutExpired:
                process.kill()


@contextmanager
def apart(pid: int, *beside: int) -> Iterator[bool]:
    """Server and client on a core each, so that neither waits for the other; `beside` share the client's. On one core all share it."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        yield False
        return
    os.sched_setaffinity(pid, {cores[0]})
    for other in (0, *beside):
        os.sched_setaffinity(other, {cores[1]})
    try:
        yield True
    finally:
        os.sched_setaffinity(0, set(cores))
