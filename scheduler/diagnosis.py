"""A decision in words: answers to kube-scheduler and Events on the pod (HAMi v2.10 wire contract, Kubernetes Events)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from devices.reasons import NODE_INSUFFICIENT_DEVICE, NODE_UNREGISTERED, Reason
from scheduler.failed_nodes import FailedNodes
from scheduler.pipeline import Decision
from scheduler.policies import NODE_POLICIES

__all__ = ["EventText", "cut", "failure_events", "shortened", "success_event", "unresolvable"]

NORMAL, WARNING = "Normal", "Warning"
FILTERING_SUCCEED, FILTERING_FAILED = "FilteringSucceed", "FilteringFailed"
BINDING_SUCCEED, BINDING_FAILED = "BindingSucceed", "BindingFailed"
MESSAGE_MAX_BYTES = 1024
"""What the API server takes for an Event's message."""


@dataclass(frozen=True, slots=True)
class EventText:
    """An Event on a pod before it is sent."""

    type: str
    reason: str
    message: str


def cut(head: str, names: Sequence[str], tail: str) -> str:
    """`head` + names joined by commas + `tail`, cut between names: `… and 4961 more`."""
    whole = head + ",".join(names) + tail
    if len(whole.encode()) <= MESSAGE_MAX_BYTES:
        return whole
    kept: list[str] = []
    size = len((head + tail).encode()) + len(f",… and {len(names)} more".encode())
    for name in names:
        size += len(name.encode()) + 1
        if size > MESSAGE_MAX_BYTES:
            break
        kept.append(name)
    return head + ",".join([*kept, f"… and {len(names) - len(kept)} more"]) + tail


def shortened(text: str) -> str:
    """A text as an Event's message may be long: cut at 1,024 bytes, never within a character."""
    encoded = text.encode()
    if len(encoded) <= MESSAGE_MAX_BYTES:
        return text
    return encoded[: MESSAGE_MAX_BYTES - len("…".encode())].decode(errors="ignore") + "…"


def success_event(decision: Decision) -> EventText:
    """`find fit node(n2), 0 nodes not fit, 2 nodes fit(n1:3.00,n2:8.00)`, the winner last; short where not all were evaluated."""
    if decision.node is None:
        raise AssertionError("a success event for a decision without node")
    if decision.evaluated < decision.offered:
        text = f"find fit node({decision.node.name}), evaluated {decision.evaluated} of {decision.offered} offered"
        return EventText(NORMAL, FILTERING_SUCCEED, text)
    factor = NODE_POLICIES[decision.ask.node_policy]
    scores = decision.fitting
    worst_first = sorted(scores, key=lambda name: (factor * scores[name], name), reverse=True)
    listed = [f"{name}:{scores[name]:.2f}" for name in worst_first]
    head = (
        f"find fit node({decision.node.name}), {decision.offered - len(listed)} nodes not fit, {len(listed)} nodes fit("
    )
    return EventText(NORMAL, FILTERING_SUCCEED, cut(head, listed, ")"))


def _by_reason(decision: Decision) -> Mapping[Reason, list[str]]:
    found: dict[Reason, list[str]] = {}
    for verdict, names in decision.refusals:
        for reason in verdict.refusal.counts:
            found.setdefault(reason, []).extend(names)
    return found


def failure_events(decision: Decision, notes: Iterable[str] = ()) -> tuple[EventText, ...]:
    """One Event a reason with its nodes, then how many nodes there were; `notes` say more than the recorded texts do."""
    texts = [
        cut(f"{len(names)} nodes {reason}(", sorted(names), ")")
        for reason, names in sorted(_by_reason(decision).items())
    ]
    bare = sorted(name for verdict, names in decision.refusals if not verdict.refusal.counts for name in names)
    if bare:
        texts.append(cut(f"{len(bare)} nodes {NODE_INSUFFICIENT_DEVICE}(", bare, ")"))
    if decision.unregistered:
        texts.append(
            cut(f"{len(decision.unregistered)} nodes {NODE_UNREGISTERED}(", sorted(decision.unregistered), ")")
        )
    texts.append(f"no available node, {decision.offered} nodes do not meet")
    detail = [*_containers(decision), *_mig_hint(decision), *notes]
    return tuple(EventText(WARNING, FILTERING_FAILED, text) for text in (*texts, *(shortened(text) for text in detail)))


def _containers(decision: Decision) -> Iterable[str]:
    """Which container it was, where a pod has several: `container b: 2/2 CardInsufficientMemory(n1,n2)`."""
    if len(decision.ask.request.containers) <= 1:
        return
    found: dict[tuple[str, str], list[str]] = {}
    for verdict, names in decision.refusals:
        found.setdefault((verdict.container, verdict.text), []).extend(names)
    for (container, text), names in sorted(found.items()):
        yield cut(f"container {container}: {text}(", sorted(names), ")")


def _mig_hint(decision: Decision) -> Iterable[str]:
    """A count alone asks for all of a card, which a MIG card that has tenants never is: say that a size is needed."""
    whole = any(d.wants_whole_memory for c in decision.ask.request.containers for d in c.devices)
    if whole and any(verdict.has_mig for verdict, _ in decision.refusals):
        yield "the pod asks for whole cards; to get a MIG instance, ask for its memory size"


def unresolvable(decision: Decision) -> Mapping[str, str]:
    """Nodes that no freed card would help: unregistered, of a wrong type, or with too few cards."""
    failed = decision.failed
    if isinstance(failed, FailedNodes):
        return failed.unresolvable
    found: dict[str, str] = {}
    for verdict, names in decision.refusals:
        if verdict.is_unresolvable:
            found.update(dict.fromkeys(names, verdict.text))
    found.update(dict.fromkeys(decision.unregistered, NODE_UNREGISTERED))
    return found
