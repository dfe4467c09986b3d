"""The books kept the slow way: after any history, usage and quota are counted again from the objects.

It shares no code with the ledger but the objects themselves: texts are taken apart here, sums are made by loops over everything, and
nothing is remembered of a pod but the facts that the rules name. It knows NVIDIA's keys only.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from devices.model import Allocation
from devices.objects import Container, Node, Pod, Quota

TIMEOUT_S = 660.0
ANNOTATION = "hami.io/vgpu-devices-allocated"

Share = tuple[str, int, int]
"""UUID, MiB, percent."""
Instance = tuple[str, int, int]
"""UUID, start, size."""


@dataclass
class Decided:
    """A reservation."""

    node: str
    allocation: Allocation
    at_s: float
    version: int
    said: list[tuple[str, str | None, str | None]]
    phase: str = "held"


@dataclass
class Facts:
    """What the rules ask of a pod."""

    pod: Pod
    first_seen_s: float
    watched: bool = False
    answered: bool = False
    expired: bool = False
    init_over: bool = False
    decided: Decided | None = None


@dataclass
class Held:
    """What a pod holds: lists by container, MIG instances, the node."""

    node: str
    lists: list[list[Share]]
    instances: list[Instance]


@dataclass
class Recount:
    """Takes the same events as the ledger and counts from scratch whenever asked."""

    nodes: dict[str, Node] = field(default_factory=dict)
    pods: dict[str, Facts] = field(default_factory=dict)
    quotas: dict[tuple[str, str], Quota] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)

    # Events

    def put_node(self, node: Node) -> None:
        self.nodes[node.name] = node

    def delete_node(self, name: str) -> None:
        self.nodes.pop(name, None)

    def put_quota(self, quota: Quota) -> None:
        self.quotas[quota.namespace, quota.name] = quota

    def delete_quota(self, namespace: str, name: str) -> None:
        self.quotas.pop((namespace, name), None)

    def put_pod(self, pod: Pod, now_s: float) -> None:
        facts = self.pods.get(pod.uid)
        if pod.uid in self.gone or (facts and version_of(pod) < version_of(facts.pod)):
            return
        if pod.status.phase in ("Succeeded", "Failed"):
            self.pods.pop(pod.uid, None)
            return
        if facts is None:
            facts = self.pods[pod.uid] = Facts(pod, now_s)
        facts.pod, facts.watched = pod, True
        decided = facts.decided
        if decided and (
            pod.spec.node_name
            or (
                decided.phase == "held"
                and says_unschedulable(pod)
                and version_of(pod) > decided.version
                and said_of_scheduling(pod) != decided.said
            )
        ):
            facts.decided = None
        self._note(facts)

    def delete_pod(self, uid: str) -> None:
        self.gone.add(uid)
        self.pods.pop(uid, None)

    def reserve(self, pod: Pod, node: str, allocation: Allocation, now_s: float) -> None:
        facts = self.pods.setdefault(pod.uid, Facts(pod, now_s))
        facts.answered = True
        facts.decided = Decided(node, allocation, now_s, version_of(pod), said_of_scheduling(pod))
        self._note(facts)

    def answer(self, pod: Pod, now_s: float) -> None:
        facts = self.pods.setdefault(pod.uid, Facts(pod, now_s))
        facts.answered, facts.decided = True, None
        self._note(facts)

    def release(self, uid: str) -> None:
        if uid in self.pods:
            self.pods[uid].decided = None

    def set_phase(self, uid: str, phase: Any) -> None:
        facts = self.pods.get(uid)
        if facts and facts.decided:
            facts.decided.phase = phase.value

    def expire(self, now_s: float) -> None:
        for facts in self.pods.values():
            decided = facts.decided
            if decided:
                if decided.phase == "held" and now_s - decided.at_s > TIMEOUT_S:
                    facts.decided, facts.expired = None, True
            elif not facts.pod.spec.node_name and self._held(facts):
                text = facts.pod.annotations.get("hami.io/vgpu-time", "")
                written = float(text) if text.isdigit() and float(text) <= now_s else 0.0
                if now_s - max(written, facts.first_seen_s) > TIMEOUT_S:
                    facts.expired = True
        for uid, facts in list(self.pods.items()):
            if not facts.watched and not facts.decided and now_s - facts.first_seen_s > TIMEOUT_S:
                del self.pods[uid]

    def _note(self, facts: Facts) -> None:
        ended = {
            status.name
            for status in facts.pod.status.init_container_statuses or []
            if status.state and status.state.terminated and status.state.terminated.exit_code == 0
        }
        plain = [c.name for c in facts.pod.spec.init_containers or [] if c.restart_policy != "Always"]
        if plain and set(plain) <= ended:
            facts.init_over = True

    # Counting

    def _held(self, facts: Facts) -> Held | None:
        pod, decided = facts.pod, facts.decided
        if decided:
            entries = [entry for entries in decided.allocation for entry in entries]
            return Held(
                decided.node,
                [[(e.uuid, e.memory_mib, e.cores) for e in entries] for entries in decided.allocation],
                [(e.uuid, e.placement.start, e.placement.size) for e in entries if e.placement],
            )
        if not pod.spec.node_name and (facts.answered or facts.expired):
            return None
        node, text = pod.annotations.get("hami.io/vgpu-node"), pod.annotations.get(ANNOTATION)
        lists = read_lists(text, containers_of(pod)) if node and text else None
        if not node or not lists or not any(lists):
            return None
        return Held(node, lists, read_instances(pod.annotations.get("hami.io/vgpu-mig-allocations", "")))

    def usage(self, name: str) -> dict[str, tuple[int, int, int]]:
        """(slots, MiB, percent) of every card that somebody holds on the node, registered or not."""
        total: dict[str, tuple[int, int, int]] = {}
        for facts in self.pods.values():
            held = self._held(facts)
            if held is None or held.node != name:
                continue
            for uuid in {share[0] for shares in held.lists for share in shares}:
                mine = [[share for share in shares if share[0] == uuid] for shares in held.lists]
                amounts = peak_of(facts, [sums(shares) for shares in mine])
                if amounts[0]:
                    before = total.get(uuid, (0, 0, 0))
                    total[uuid] = (before[0] + amounts[0], before[1] + amounts[1], before[2] + amounts[2])
        return total

    def used(self, namespace: str) -> tuple[int, int, int]:
        """(cards, MiB, percent) that the namespace pays for."""
        total = (0, 0, 0)
        for facts in self.pods.values():
            held = self._held(facts)
            if held is not None and facts.pod.namespace == namespace:
                amounts = peak_of(facts, [sums(shares) for shares in held.lists])
                total = (total[0] + amounts[0], total[1] + amounts[1], total[2] + amounts[2])
        return total

    def placements(self, name: str, uuid: str) -> list[tuple[int, int]]:
        """(start, size) of the instances that pods hold on a MIG card, sorted."""
        held = [held for facts in self.pods.values() if (held := self._held(facts)) and held.node == name]
        return sorted((start, size) for one in held for of, start, size in one.instances if of == uuid)

    def limit(self, namespace: str, resource: str) -> int | None:
        """The smallest limit that any object of the namespace sets."""
        values = [
            int(quota.spec.hard[f"limits.{resource}"])
            for (of, _), quota in self.quotas.items()
            if of == namespace and quota.spec.hard and f"limits.{resource}" in quota.spec.hard
        ]
        return min(values, default=None)


def version_of(pod: Pod) -> int:
    return int(pod.metadata.resource_version)


def says_unschedulable(pod: Pod) -> bool:
    return any(c.type == "PodScheduled" and c.status == "False" for c in pod.status.conditions or [])


def said_of_scheduling(pod: Pod) -> list[tuple[str, str | None, str | None]]:
    """What kube-scheduler last said: the same words in a newer pod are no new word of its."""
    return [(c.status, c.reason, c.message) for c in pod.status.conditions or [] if c.type == "PodScheduled"]


def containers_of(pod: Pod) -> list[Container]:
    return [*(pod.spec.init_containers or []), *(pod.spec.containers or [])]


def sums(shares: list[Share]) -> tuple[int, int, int]:
    return len(shares), sum(share[1] for share in shares), sum(share[2] for share in shares)


def peak_of(facts: Facts, parts: list[tuple[int, int, int]]) -> tuple[int, int, int]:
    """sidecars + max(largest other init container, apps), each amount for itself; without the init part once it is over."""
    init = facts.pod.spec.init_containers or []
    amounts = []
    for kind in range(3):
        sidecars = sum(parts[n][kind] for n, c in enumerate(init) if c.restart_policy == "Always")
        others = [parts[n][kind] for n, c in enumerate(init) if c.restart_policy != "Always"]
        apps = sum(part[kind] for part in parts[len(init) :])
        amounts.append(sidecars + (apps if facts.init_over else max([apps, *others])))
    return amounts[0], amounts[1], amounts[2]


def read_lists(text: str, containers: list[Container]) -> list[list[Share]] | None:
    """The lists by container of a text without any surprise but lost positions; None when it cannot be read."""
    found: list[list[Share]] = []
    for part in text.removesuffix(";").split(";"):
        shares: list[Share] = []
        for piece in part.split(":"):
            if piece:
                try:
                    uuid, _, memory, cores = piece.split(",")
                    shares.append((uuid, int(memory), int(cores)))
                except ValueError:
                    return None
        found.append(shares)
    if len(found) == len(containers):
        return found
    lists: list[list[Share]] = [[] for _ in containers]
    asking = [n for n, c in enumerate(containers) if "nvidia.com/gpu" in ((c.resources and c.resources.limits) or {})]
    for shares in found:
        if shares:
            lists[asking.pop(0) if asking else -1] += shares
    return lists


def read_instances(text: str) -> list[Instance]:
    try:
        entries = json.loads(text) if text else []
    except ValueError:
        return []
    return [(one["gpuUUID"], one["placement"]["start"], one["placement"]["size"]) for one in entries]
