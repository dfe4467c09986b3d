"""What the rest of the extender asks about leadership, and the answer of a replica that is the only one."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from scheduler.errors import NotLeadingError

__all__ = ["AlwaysLeads", "Lead", "Term"]

Listener = Callable[[], None]


class Term:
    """One term of leadership. `refusal` says why no Binding of this term may go out now, None while one may."""

    def __init__(self, refusal: Callable[[], str | None]) -> None:
        self.refusal = refusal
        self._limits: set[asyncio.Timeout] = set()

    @asynccontextmanager
    async def in_force(self) -> AsyncIterator[None]:
        """Whatever waits inside is broken off when the term ends, with `NotLeadingError`."""
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._limits.add(limit)
                try:
                    yield
                finally:
                    self._limits.discard(limit)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise NotLeadingError(self.refusal() or "the term has ended") from error

    def end(self) -> None:
        """The term is over."""
        for limit in self._limits:
            limit.reschedule(asyncio.get_running_loop().time())


class Lead(Protocol):
    """Whether this replica is the one that decides and binds."""

    promoted: list[Listener]
    """Called when a term's first call may be answered, before it is."""
    demoted: list[Listener]
    """Called when a term is over."""

    @property
    def leads(self) -> bool:
        """Whether filter and bind are answered now."""
        ...

    @property
    def term(self) -> Term | None:
        """The present term, None while this replica does not lead."""
        ...

    async def within(self, seconds: float) -> str | None:
        """None as soon as this replica leads, else why it does not after at most `seconds`."""
        ...

    def unready(self) -> Sequence[str]:
        """Why this replica could not take over truthfully; nothing means that it could."""
        ...

    async def start(self) -> None:
        """Begin to look."""
        ...

    async def stop(self) -> None:
        """Stop looking."""
        ...


class AlwaysLeads:
    """(Lead) The only replica, from its start to its end."""

    leads = True

    def __init__(self) -> None:
        self.promoted: list[Listener] = []
        self.demoted: list[Listener] = []
        self.term: Term | None = Term(lambda: None)

    async def within(self, seconds: float) -> str | None:
        """(Lead)"""
        return None

    def unready(self) -> Sequence[str]:
        """(Lead)"""
        return ()

    async def start(self) -> None:
        """(Lead)"""
        for listener in self.promoted:
            listener()

    async def stop(self) -> None:
        """(Lead)"""
