"""What the pods' annotations say about the cards, and whether that can be: independent of Slotwise's ledger.

Each pod counts with its `…-allocated` text as long as it is bound and not finished. Containers that run together add up, init
containers run one after another before the others: `sidecars + max(largest init container, apps)` per card, and `sidecars + apps`
once the init containers have ended.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from devices.objects import Container, Node, Pod
from lab.names import ALLOCATED, REGISTRATION

__all__ = ["CardUsage", "Share", "Violation", "audit", "placements", "usage_of"]


@dataclass(frozen=True, order=True)
class Share:
    """What one pod holds of one card."""

    pod: str
    """`namespace/name`."""
    slots: int
    memory_mib: int
    cores: int


@dataclass(frozen=True)
class CardUsage:
    """One registered card with its tenants, ordered by name. Memory is MiB, compute percent."""

    node: str
    uuid: str
    memory_mib: int
    slots: int
    cores: int
    tenants: tuple[Share, ...] = ()

    @property
    def used_memory_mib(self) -> int:
        """What all tenants hold together."""
        return sum(tenant.memory_mib for tenant in self.tenants)

    @property
    def used_slots(self) -> int:
        """What all tenants hold together."""
        return sum(tenant.slots for tenant in self.tenants)

    @property
    def used_cores(self) -> int:
        """What all tenants hold together."""
        return sum(tenant.cores for tenant in self.tenants)


@dataclass(frozen=True, order=True)
class Violation:
    """Something that must never be."""

    node: str
    card: str
    text: str


class _Registered(msgspec.Struct):
    id: str
    count: int = 0
    devmem: int = 0
    devcore: int = 0


_REGISTRATION = msgspec.json.Decoder(list[_Registered])

_Amounts = tuple[int, int, int]
_ZERO: _Amounts = (0, 0, 0)


def _sum(one: _Amounts, other: _Amounts) -> _Amounts:
    return (one[0] + other[0], one[1] + other[1], one[2] + other[2])


def _peak(one: _Amounts, other: _Amounts) -> _Amounts:
    return (max(one[0], other[0]), max(one[1], other[1]), max(one[2], other[2]))


def _pieces(text: str) -> list[list[tuple[str, _Amounts]]]:
    """By container: the card's UUID and (1 slot, MiB, percent). Raises ValueError for a text that cannot be read."""
    containers = []
    for part in text.removesuffix(";").split(";"):
        cards = []
        for piece in part.split(":"):
            if piece:
                uuid, _, memory, cores = piece.split(",")
                cards.append((uuid, (1, int(memory), int(cores))))
        containers.append(cards)
    return containers


def _holds(pod: Pod, text: str) -> dict[str, _Amounts]:
    """What the pod holds of each card now."""
    inits = pod.init_containers
    pieces = _pieces(text)
    if len(pieces) != len(inits) + len(pod.containers):
        raise ValueError(f"{len(pieces)} positions for {len(inits) + len(pod.containers)} containers")
    over = _init_over(pod, inits)
    holds: dict[str, _Amounts] = {}
    for uuid in sorted({uuid for cards in pieces for uuid, _ in cards}):
        together, largest, apps = _ZERO, _ZERO, _ZERO
        for position, cards in enumerate(pieces):
            mine = _ZERO
            for card, amounts in cards:
                if card == uuid:
                    mine = _sum(mine, amounts)
            if position >= len(inits):
                apps = _sum(apps, mine)
            elif inits[position].restart_policy == "Always":
                together = _sum(together, mine)
            else:
                largest = _peak(largest, mine)
        total = _sum(together, apps if over else _peak(largest, apps))
        if total[0]:
            holds[uuid] = total
    return holds


def _init_over(pod: Pod, inits: Sequence[Container]) -> bool:
    ended = {
        status.name
        for status in pod.status.init_container_statuses or ()
        if status.state and status.state.terminated and status.state.terminated.exit_code == 0
    }
    return all(container.name in ended for container in inits if container.restart_policy != "Always")


def _tenants(pods: Iterable[Pod]) -> tuple[dict[tuple[str, str], list[Share]], list[Violation]]:
    tenants: dict[tuple[str, str], list[Share]] = defaultdict(list)
    unreadable = []
    for pod in pods:
        text = pod.annotations.get(ALLOCATED)
        if text is None or not pod.bound_node or pod.is_finished:
            continue
        name = f"{pod.namespace}/{pod.name}"
        try:
            holds = _holds(pod, text)
        except ValueError as error:
            unreadable.append(Violation(pod.bound_node, "", f"{name}: {ALLOCATED} {text!r} cannot be read: {error}"))
            continue
        for uuid, (slots, memory_mib, cores) in holds.items():
            tenants[pod.bound_node, uuid].append(Share(name, slots, memory_mib, cores))
    return tenants, unreadable


def _cards(nodes: Iterable[Node]) -> list[tuple[str, _Registered]]:
    cards = []
    for node in sorted(nodes, key=lambda node: node.name):
        text = node.annotations.get(REGISTRATION)
        if text is not None:
            cards += [(node.name, card) for card in _REGISTRATION.decode(text)]
    return cards


def usage_of(nodes: Iterable[Node], pods: Iterable[Pod]) -> tuple[CardUsage, ...]:
    """Every registered card with its tenants, by node and in the order of registration."""
    tenants, _ = _tenants(pods)
    return tuple(
        CardUsage(node, card.id, card.devmem, card.count, card.devcore, tuple(sorted(tenants.get((node, card.id), ()))))
        for node, card in _cards(nodes)
    )


def placements(pods: Iterable[Pod]) -> dict[str, str]:
    """`node text` of every placed pod by `namespace/name`: equal for two runs that took the same cards."""
    return {
        f"{pod.namespace}/{pod.name}": f"{pod.bound_node} {pod.annotations.get(ALLOCATED, '')}"
        for pod in sorted(pods, key=lambda pod: (pod.namespace, pod.name))
        if pod.bound_node
    }


def audit(nodes: Iterable[Node], pods: Iterable[Pod]) -> tuple[Violation, ...]:
    """Everything that is wrong: a card beyond its memory, compute or slots, a card that is not there, a text nobody can read."""
    tenants, violations = _tenants(pods)
    registered: Mapping[tuple[str, str], _Registered] = {(node, card.id): card for node, card in _cards(nodes)}
    for (node, uuid), shares in tenants.items():
        card = registered.get((node, uuid))
        names = ", ".join(sorted(share.pod for share in shares))
        if card is None:
            violations.append(Violation(node, uuid, f"no such card on this node; given to {names}"))
            continue
        for what, used, limit in (
            ("slots", sum(share.slots for share in shares), card.count),
            ("memory (MiB)", sum(share.memory_mib for share in shares), card.devmem),
            ("cores (percent)", sum(share.cores for share in shares), card.devcore),
        ):
            if used > limit:
                violations.append(Violation(node, uuid, f"{what}: {used} of {limit} given to {names}"))
    return tuple(sorted(violations))
