"""Faults on demand: what a cluster does to its clients on a bad day, one rule at a time."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from .resources import RESOURCES, Resource


@dataclass(frozen=True, slots=True)
class WatchFault:
    """What happens to one change on its way to all watches of its kind. Its place in the history is not touched."""

    drop: bool = False
    duplicate: bool = False
    delay_s: float = 0.0
    """Seconds this and all later lines of a watch are held back."""


@dataclass(slots=True)
class RequestFault:
    """A rule for the next requests that match it. Empty fields match everything."""

    verb: str = ""
    resource: str = ""
    """Plural name, such as `pods`."""
    subresource: str | None = None
    """None matches any; the empty text only the object itself."""
    remaining: int = 1
    """Requests the rule still applies to."""
    answer_code: int | None = None
    retry_after_s: int | None = None
    delay_s: float = 0.0
    lose_reply: bool = False
    """Do the write, then close the connection without an answer."""
    hits: int = field(default=0, init=False)
    """Requests the rule has applied to."""

    def matches(self, verb: str, resource: str, subresource: str) -> bool:
        """Return whether the rule applies to such a request."""
        return (
            self.remaining > 0
            and self.verb in ("", verb)
            and self.resource in ("", resource)
            and self.subresource in (None, subresource)
        )


class Faults:
    """The faults a server is to show.

    Args:
        cut_watches: breaks off the open watches of a kind, or all, and returns how many.
        forget_changes: drops the change history of a kind.
    """

    def __init__(
        self,
        cut_watches: Callable[[Resource | None], int],
        forget_changes: Callable[[Resource], None],
    ) -> None:
        self._cut_watches = cut_watches
        self._forget_changes = forget_changes
        self._requests: list[RequestFault] = []
        self._changes: dict[Resource, deque[WatchFault]] = defaultdict(deque)
        self._expiring: dict[Resource, int] = defaultdict(int)

    def clear(self) -> None:
        """Drop every rule that has not been used up."""
        self._requests.clear()
        self._changes.clear()
        self._expiring.clear()

    def answer(
        self,
        code: int,
        *,
        verb: str = "",
        resource: str = "",
        subresource: str | None = None,
        count: int = 1,
        retry_after_s: int | None = None,
    ) -> RequestFault:
        """Answer the next `count` matching requests with an error instead of handling them.

        Raises:
            ValueError: a code other than 409, 429, 500, 503 or 504.
        """
        if code not in (409, 429, 500, 503, 504):
            raise ValueError(f"code is {code}; accepted: 409, 429, 500, 503, 504")
        return self._add(
            RequestFault(verb, resource, subresource, count, answer_code=code, retry_after_s=retry_after_s)
        )

    def slow(
        self, delay_s: float, *, verb: str = "", resource: str = "", subresource: str | None = None, count: int = 1
    ) -> RequestFault:
        """Hold the next `count` matching requests back before handling them."""
        return self._add(RequestFault(verb, resource, subresource, count, delay_s=delay_s))

    def lose_reply(
        self, *, verb: str = "", resource: str = "", subresource: str | None = None, count: int = 1
    ) -> RequestFault:
        """Handle the next `count` matching requests, then close the connection without an answer."""
        return self._add(RequestFault(verb, resource, subresource, count, lose_reply=True))

    def cut_watches(self, resource: str = "") -> int:
        """Break off all open watches, or those of one kind (plural name); return how many."""
        return self._cut_watches(_named(resource) if resource else None)

    def drop_changes(self, resource: str, count: int = 1) -> None:
        """Keep the next `count` changes of a kind from all open watches."""
        self._changes[_named(resource)].extend((WatchFault(drop=True),) * count)

    def duplicate_changes(self, resource: str, count: int = 1) -> None:
        """Send the next `count` changes of a kind twice."""
        self._changes[_named(resource)].extend((WatchFault(duplicate=True),) * count)

    def delay_changes(self, resource: str, delay_s: float, count: int = 1) -> None:
        """Hold the next `count` changes of a kind, and what follows them, back."""
        self._changes[_named(resource)].extend((WatchFault(delay_s=delay_s),) * count)

    def expire_next_watch(self, resource: str, count: int = 1) -> None:
        """Answer the next `count` watches of a kind that name a resourceVersion with 410."""
        self._expiring[_named(resource)] += count

    def forget_changes(self, resource: str) -> None:
        """Drop the history of a kind: watches and page tokens from before now are answered with 410."""
        self._forget_changes(_named(resource))

    def take_request(self, verb: str, resource: str, subresource: str) -> RequestFault | None:
        """Return the first rule for a request and use it up by one."""
        if not self._requests:
            return None
        for rule in self._requests:
            if rule.matches(verb, resource, subresource):
                rule.remaining -= 1
                rule.hits += 1
                if not rule.remaining:
                    self._requests.remove(rule)
                return rule
        return None

    def take_change(self, resource: Resource) -> WatchFault | None:
        """Return what is to happen to the next change of a kind."""
        planned = self._changes.get(resource)
        return planned.popleft() if planned else None

    def take_expiry(self, resource: Resource) -> bool:
        """Return whether the next watch of a kind is to be answered with 410."""
        if not self._expiring.get(resource):
            return False
        self._expiring[resource] -= 1
        return True

    def _add(self, rule: RequestFault) -> RequestFault:
        if rule.remaining < 1:
            raise ValueError(f"count is {rule.remaining}; at least 1 request has to be meant")
        if rule.resource:
            _named(rule.resource)
        self._requests.append(rule)
        return rule


def _named(plural: str) -> Resource:
    for resource in RESOURCES:
        if resource.plural == plural:
            return resource
    known = ", ".join(resource.plural for resource in RESOURCES)
    raise ValueError(f"resource is {plural!r}; accepted: {known}")
