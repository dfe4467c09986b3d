"""What the nodes say of their cards, who else hands them out, and locks that nobody will release."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from cli.doctor.facts import Facts
from cli.doctor.findings import Finding, problem, unknown, warning, well
from cli.doctor.objects import Workload
from devices.errors import LockError
from devices.node_lock import parse
from devices.objects import Node

__all__ = ["device_plugins", "node_locks", "registrations"]

_SHOWN: Final = 3
_STALE_S: Final = 300.0
_AHEAD_S: Final = 60.0
_RIVALS: Final = (
    "nvidia/k8s-device-plugin",
    "amdgpu-device-plugin",
    "rocm/k8s-device-plugin",
    "gcr.io/gke-release/nvidia-gpu-device-plugin",
)
"""Images of plugins that offer whole cards under the names that shares are asked for by."""


def _some(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def registrations(facts: Facts) -> Iterator[Finding]:
    """Does any node offer cards, and can all that nodes say of them be read?"""
    check = "registrations"
    if "nodes" in facts.unread:
        yield unknown(check, f"nodes cannot be read: {facts.unread['nodes'].why}", "run the doctor as somebody who may")
        return
    ledger = facts.ledger
    names = sorted(ledger.node_names())
    states = {name: ledger.state(name) for name in names}
    with_cards = [name for name, state in states.items() if state is not None and state.cards]
    sound = True
    for name in [name for name in names if ledger.problems_of(name)][:_SHOWN]:
        sound = False
        yield problem(
            check,
            f"node {name}: {'; '.join(ledger.problems_of(name))}",
            "look at the device plugin's log on that node; the annotation is its own",
        )
    idle = [name for name in names if name not in with_cards and _counts(facts, name)]
    if idle:
        sound = False
        yield problem(
            check,
            f"{_some(idle)} offer{'s' if len(idle) == 1 else ''} devices to the kubelet but no registration that we can use:"
            " their cards are not given to anybody",
            "install HAMi's device plugin there (another plugin offers whole cards only), and see the node's annotations",
        )
    unhealthy = [
        f"{name}/{card.card.uuid}"
        for name, state in states.items()
        if state is not None
        for card in state.cards
        if not card.healthy
    ]
    if unhealthy:
        sound = False
        yield warning(
            check, f"cards reported unhealthy: {_some(unhealthy)}", "look at the device plugin's log on that node"
        )
    if not with_cards:
        yield problem(
            check,
            "no node offers a card: every device pod waits",
            "install HAMi's device plugin, or that of the family, and label the nodes it asks for",
        )
    elif sound:
        cards = sum(len(state.cards) for state in states.values() if state is not None)
        yield well(check, f"{cards} cards on {len(with_cards)} of {len(names)} nodes")


def _counts(facts: Facts, name: str) -> bool:
    node = facts.ledger.node_object(name)
    config = facts.ledger.config
    return node is not None and any(_amount(node, vendor.count_resource) > 0 for vendor in config.vendors)


def _amount(node: Node, resource: str) -> int:
    quantity = node.allocatable.get(resource)
    return int(quantity) if quantity is not None else 0


def device_plugins(facts: Facts) -> Iterator[Finding]:
    """Does another plugin hand out the same cards, or another scheduler give them away?"""
    check = "device-plugins"
    if "daemonsets" in facts.unread:
        yield unknown(
            check, f"DaemonSets cannot be read: {facts.unread['daemonsets'].why}", "run the doctor as somebody who may"
        )
        return
    rivals = [_place(found) for found in facts.daemon_sets if _runs(found, _RIVALS) and not _is_idle(found)]
    schedulers = [_place(found) for found in facts.other_deployments if _runs(found, ("/hami:", "projecthami/hami"))]
    if rivals:
        yield problem(
            check,
            f"{_some(rivals)} also hand{'s' if len(rivals) == 1 else ''} out cards: the kubelet gets two truths about the same ones",
            "remove that DaemonSet from nodes where shares are given (a nodeSelector, or delete it)",
        )
    if schedulers:
        yield warning(
            check,
            f"HAMi's scheduler still runs: {_some(schedulers)}; pods that name its scheduler get cards behind our back",
            "scale it to 0 once Slotwise serves (docs/from-hami.md)",
        )
    if not rivals and not schedulers:
        yield well(check, "nobody else hands out cards")


def _place(workload: Workload) -> str:
    return f"{workload.metadata.namespace}/{workload.name}"


def _runs(workload: Workload, images: Sequence[str]) -> bool:
    return any(image in container.image for container in workload.spec.template.spec.containers for image in images)


def _is_idle(workload: Workload) -> bool:
    return workload.status.desired_number_scheduled == 0


def node_locks(facts: Facts) -> Iterator[Finding]:
    """Is any node locked for longer than a device plugin can need it?"""
    check = "node-locks"
    if "nodes" in facts.unread:
        yield unknown(check, f"nodes cannot be read: {facts.unread['nodes'].why}", "run the doctor as somebody who may")
        return
    found = [*_old_locks(facts)]
    yield from found[:_SHOWN]
    if not found:
        yield well(check, "no lock is older than its work can take")


def _old_locks(facts: Facts) -> Iterator[Finding]:
    check = "node-locks"
    keys = {vendor.node_lock: vendor for vendor in facts.ledger.config.vendors if vendor.node_lock}
    now: datetime = facts.server_time or facts.now
    for name in sorted(facts.ledger.node_names()):
        node = facts.ledger.node_object(name)
        for key in sorted(keys) if node is not None else ():
            text = node.annotations.get(key, "") if node is not None else ""
            if not text:
                continue
            release = f"kubectl annotate node {name} {key}-"
            try:
                lock = parse(text)
            except LockError as error:
                yield problem(check, f"node {name}: {key}: {error}", release)
                continue
            age_s = now.timestamp() - lock.at_s
            owner = f"{lock.namespace}/{lock.name}" if lock.names_owner else "an owner that is not named"
            if age_s < -_AHEAD_S:
                yield warning(check, f"node {name} is locked by {owner} from {-age_s:.0f} s in the future", "see clock")
            elif age_s > _STALE_S:
                yield problem(
                    check,
                    f"node {name} has been locked by {owner} for {age_s:.0f} s: its device plugin has not consumed the allocation",
                    f"look at the device plugin's log on {name}; then {release}",
                )
