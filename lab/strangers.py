"""Nodes of a borrowed cluster that are not the lab's: closed to its pods, left alone, and left out of what kube-scheduler says."""

import re
from typing import Final

import msgspec

__all__ = ["NodeAsFound", "field_selector", "without_strangers"]

_CLOSING: Final = frozenset({"NoSchedule", "NoExecute"})
_CLOSED: Final = r"\d+ node\(s\) (?:had untolerated taint(?:\(s\)| \{[^}]*\})|were unschedulable)"
_REASON: Final = re.compile(rf", {_CLOSED}|{_CLOSED}(?:, )?")
_TOTAL: Final = re.compile(r"(?<=0/)\d+(?= nodes are available)")
_NO_CLAIMS: Final = " no new claims to deallocate,"
"""kube-scheduler 1.34 puts this before `preemption:`, about every pod."""
_NOT_HELPFUL: Final = re.compile(r"(?:, )?(?P<count>\d+) Preemption is not helpful for scheduling")


class _Taint(msgspec.Struct):
    effect: str


class _Spec(msgspec.Struct):
    unschedulable: bool = False
    taints: list[_Taint] = []


class _Metadata(msgspec.Struct):
    name: str


class NodeAsFound(msgspec.Struct):
    """A node that was there before the lab."""

    metadata: _Metadata
    spec: _Spec = msgspec.field(default_factory=_Spec)

    @property
    def is_closed(self) -> bool:
        """Whether kube-scheduler keeps the lab's pods, which tolerate nothing, away from it."""
        return self.spec.unschedulable or any(taint.effect in _CLOSING for taint in self.spec.taints)


def field_selector(field: str, strangers: tuple[str, ...]) -> str | None:
    """Leaves out objects whose field names one of them; None where there are none."""
    return ",".join(f"{field}!={name}" for name in strangers) or None


def without_strangers(message: str, strangers: int) -> str:
    """kube-scheduler's message about a pod, as it would be without so many nodes that are closed to it.

    `0/3 nodes are available: 1 a, 2 node(s) had untolerated taint(s).` becomes, without two, `0/1 nodes are available: 1 a.`
    What one minor of Kubernetes alone says about every pod is left out as well.
    """
    message = message.replace(_NO_CLAIMS, "")
    if not strangers:
        return message
    fewer = _TOTAL.sub(lambda found: str(int(found[0]) - strangers), _REASON.sub("", message))

    def not_helpful(found: re.Match[str]) -> str:
        left = int(found["count"]) - strangers
        return found[0].replace(found["count"], str(left), 1) if left else ""

    return _NOT_HELPFUL.sub(not_helpful, fewer)
