"""What the pods' annotations say about the cards, and whether that can be: independent of Slotwise's ledger.

Each pod counts with the `…-allocated` text of every family as long as it is bound and not finished. Containers that run together add up, init
containers run one after another before the others: `sidecars + max(largest init container, apps)` per card, and `sidecars + apps`
once the init containers have ended.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from devices.model import Card, Entry
from devices.objects import Container, Node, Pod
from devices.vendor import Bound, Vendor
from lab.families import allocations, registered
from lab.plugins import plugin_of

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


_Amounts = tuple[int, int, int]
_Key = tuple[str, str, str]
"""Node, vendor key, UUID: two families may use one name."""
_Cards = Mapping[_Key, tuple[Vendor, Card]]
_ZERO: _Amounts = (0, 0, 0)


def _sum(one: _Amounts, other: _Amounts) -> _Amounts:
    return (one[0] + other[0], one[1] + other[1], one[2] + other[2])


def _peak(one: _Amounts, other: _Amounts) -> _Amounts:
    return (max(one[0], other[0]), max(one[1], other[1]), max(one[2], other[2]))


def _pieces(text: str) -> list[list[tuple[str, int, int]]]:
    """By container: the card's UUID, MiB and compute. Raises ValueError for a text that cannot be read."""
    containers = []
    for part in text.removesuffix(";").split(";"):
        cards = []
        for piece in part.split(":"):
            if piece:
                uuid, _, memory, cores = piece.split(",")
                cards.append((uuid, int(memory), int(cores)))
        containers.append(cards)
    return containers


def _amounts(vendor: Vendor, card: Card | None, piece: tuple[str, int, int]) -> _Amounts:
    """Slots, MiB and compute; how many slots a share stands for is the family's own affair."""
    uuid, memory_mib, cores = piece
    return (vendor.restored(Entry(uuid, vendor.key, memory_mib, cores), card).slots, memory_mib, cores)


def _holds(pod: Pod, vendor: Vendor, text: str, cards_there: _Cards) -> dict[str, _Amounts]:
    """What the pod holds of each card now."""
    inits = pod.init_containers
    pieces = _pieces(text)
    if len(pieces) != len(inits) + len(pod.containers):
        raise ValueError(f"{len(pieces)} positions for {len(inits) + len(pod.containers)} containers")
    over = _init_over(pod, inits)
    holds: dict[str, _Amounts] = {}
    for uuid in sorted({piece[0] for cards in pieces for piece in cards}):
        _, card = cards_there.get((pod.bound_node, vendor.key, uuid), (vendor, None))
        together, largest, apps = _ZERO, _ZERO, _ZERO
        for position, cards in enumerate(pieces):
            mine = _ZERO
            for piece in cards:
                if piece[0] == uuid:
                    mine = _sum(mine, _amounts(vendor, card, piece))
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


def _tenants(
    pods: Iterable[Pod], vendors: Sequence[Vendor], cards: _Cards
) -> tuple[dict[_Key, list[tuple[Share, Pod]]], list[Violation]]:
    tenants: dict[_Key, list[tuple[Share, Pod]]] = defaultdict(list)
    unreadable = []
    for pod in pods:
        if not pod.bound_node or pod.is_finished:
            continue
        name = f"{pod.namespace}/{pod.name}"
        for vendor, text in allocations(pod, vendors):
            try:
                holds = _holds(pod, vendor, text, cards)
            except ValueError as error:
                told = f"{name}: {vendor.allocated} {text!r} cannot be read: {error}"
                unreadable.append(Violation(pod.bound_node, "", told))
                continue
            for uuid, (slots, memory_mib, cores) in holds.items():
                share = Share(name, slots, memory_mib, cores)
                tenants[pod.bound_node, vendor.key, uuid].append((share, pod))
    return tenants, unreadable


def _cards(nodes: Iterable[Node], vendors: Sequence[Vendor]) -> _Cards:
    return {
        (node.name, vendor.key, card.uuid): (vendor, card)
        for node in sorted(nodes, key=lambda node: node.name)
        for vendor, card in registered(node, vendors)
    }


def usage_of(nodes: Iterable[Node], pods: Iterable[Pod], vendors: Sequence[Vendor]) -> tuple[CardUsage, ...]:
    """Every registered card with its tenants, by node, family and index."""
    cards = _cards(nodes, vendors)
    tenants, _ = _tenants(pods, vendors, cards)
    return tuple(
        CardUsage(
            key[0],
            card.uuid,
            card.memory_mib,
            card.slots,
            card.cores,
            tuple(sorted(share for share, _ in tenants.get(key, ()))),
        )
        for key, (_, card) in cards.items()
    )


def placements(pods: Iterable[Pod], vendors: Sequence[Vendor]) -> dict[str, str]:
    """`node text` of every placed pod by `namespace/name`: equal for two runs that took the same cards."""
    return {
        f"{pod.namespace}/{pod.name}": " ".join((pod.bound_node, *(text for _, text in allocations(pod, vendors))))
        for pod in sorted(pods, key=lambda pod: (pod.namespace, pod.name))
        if pod.bound_node
    }


def audit(nodes: Iterable[Node], pods: Iterable[Pod], vendors: Sequence[Vendor]) -> tuple[Violation, ...]:
    """Everything that is wrong: a card beyond what its family bounds, a card that is not there, a text nobody can read."""
    cards = _cards(nodes, vendors)
    tenants, violations = _tenants(pods, vendors, cards)
    for key, holders in tenants.items():
        node, _, uuid = key
        names = ", ".join(sorted(share.pod for share, _ in holders))
        if key not in cards:
            violations.append(Violation(node, uuid, f"no such card on this node; given to {names}"))
            continue
        told = _beyond(*cards[key], holders)
        violations += (Violation(node, uuid, f"{text} given to {names}") for text in told)
    return tuple(sorted(violations))


def _beyond(vendor: Vendor, card: Card, holders: Sequence[tuple[Share, Pod]]) -> list[str]:
    """What the tenants of a card have together beyond what it has."""
    shares = [share for share, _ in holders]
    # Some cards count their compute in another way for pods that split them otherwise.
    cores = max(vendor.total_cores(card, vendor.selection(pod.annotations)) for _, pod in holders)
    told = [
        f"{what}: {used} of {limit}"
        for bound, what, used, limit in (
            (Bound.SLOTS, "slots", sum(share.slots for share in shares), card.slots),
            (Bound.MEMORY, "memory (MiB)", sum(share.memory_mib for share in shares), card.memory_mib),
            (Bound.CORES, "cores (percent)", sum(share.cores for share in shares), cores),
        )
        if bound in vendor.bounds and used > limit
    ]
    if plugin_of(vendor.key).has_core_masks:
        taken = 0
        for share in shares:
            if taken & share.cores:
                told.append(f"cores: mask {taken & share.cores} more than once")
            taken |= share.cores
    return told
