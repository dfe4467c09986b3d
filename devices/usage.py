"""What a pod holds of cards, over its life, and the state of a node's cards that follows from it.

Sidecars and apps run together; the other init containers run one after another before the apps. Hence per card
`sidecars + max(largest other init container, apps)`, and `sidecars + apps` once the other init containers are done. Worked: init
20000 MiB, sidecar 2000, app 10000 on one card hold 22000, then 12000.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

import msgspec

from devices.mig import is_mig
from devices.model import NO_CHARGE, Allocation, Card, CardState, Charge, Entry, MigReservation, Placement, Tenant
from devices.objects import Pod
from devices.requests import Role

__all__ = ["CardKey", "Hold", "Tenancy", "card_states", "charge_of", "holds_of", "init_done", "peak"]

CardKey = tuple[str, str]
"""(vendor key, UUID): what identifies a card on its node."""


class Hold(msgspec.Struct, frozen=True, gc=False):
    """One pod's share of one card."""

    slots: int = 0
    memory_mib: int = 0
    cores: int = 0

    def __add__(self, other: "Hold") -> "Hold":
        return Hold(self.slots + other.slots, self.memory_mib + other.memory_mib, self.cores + other.cores)

    def peak(self, other: "Hold") -> "Hold":
        """The larger of both, each quantity for itself."""
        return Hold(max(self.slots, other.slots), max(self.memory_mib, other.memory_mib), max(self.cores, other.cores))


_NO_FACTS: Mapping[str, Mapping[str, str]] = MappingProxyType({})


def _no_facts() -> Mapping[str, Mapping[str, str]]:
    return _NO_FACTS


class Tenancy(msgspec.Struct, frozen=True):
    """What one pod holds on one node: its shares by card, and its MIG instances (none when their text cannot be read).

    `facts` is what families keep of the pod on its cards, by vendor key; `since_s` (Unix seconds) and `uid` put such tenants in order.
    """

    holds: Mapping[CardKey, Hold]
    reservations: tuple[MigReservation, ...] = ()
    facts: Mapping[str, Mapping[str, str]] = msgspec.field(default_factory=_no_facts)
    since_s: float = 0.0
    uid: str = ""


def init_done(pod: Pod) -> bool:
    """Whether every init container that is no sidecar has ended with exit code 0; false for a pod without such containers."""
    if not pod.spec.init_containers:
        return False
    ended = {
        s.name
        for s in pod.status.init_container_statuses or ()
        if s.state and s.state.terminated and s.state.terminated.exit_code == 0
    }
    waiting = [c.name for c in pod.init_containers if c.restart_policy != "Always"]
    return bool(waiting) and all(name in ended for name in waiting)


T = TypeVar("T", Hold, Charge)


def peak(parts: Sequence[T], when: Sequence[Role], nothing: T, released: bool) -> T:
    """`sidecars + max(largest init container, apps)` over the containers of a pod; without the init part once released."""
    sidecars, apps, largest = nothing, nothing, nothing
    for part, role in zip(parts, when, strict=True):
        if role is Role.SIDECAR:
            sidecars += part
        elif role is Role.APP:
            apps += part
        else:
            largest = largest.peak(part)
    return sidecars + (apps if released else apps.peak(largest))


def holds_of(allocation: Allocation, when: Sequence[Role], released: bool) -> dict[CardKey, Hold]:
    """A pod's share of every card it uses; cards that only finished init containers used are left out once released."""
    sole = _sole_entry(allocation, when)
    if sole is not None:
        return {(sole.vendor, sole.uuid): Hold(sole.slots, sole.memory_mib, sole.cores)} if sole.slots else {}
    cards = {(entry.vendor, entry.uuid) for entries in allocation for entry in entries}
    found = {}
    for key in sorted(cards):
        parts = [_on_card(entries, key) for entries in allocation]
        hold = peak(parts, when, Hold(), released)
        if hold.slots:
            found[key] = hold
    return found


def _sole_entry(allocation: Allocation, when: Sequence[Role]) -> Entry | None:
    """The entry of a pod that has a single one, and for an app: what most pods hold, at all times of their life."""
    position = 0
    if len(allocation) > 1:
        taking = [position for position, entries in enumerate(allocation) if entries]
        if len(taking) != 1:
            return None
        position = taking[0]
    if not allocation or len(allocation[position]) != 1 or when[position] is not Role.APP:
        return None
    (entry,) = allocation[position]
    return entry if entry.slots >= 0 and entry.memory_mib >= 0 and entry.cores >= 0 else None


def _on_card(entries: Iterable[Entry], key: CardKey) -> Hold:
    mine = [entry for entry in entries if (entry.vendor, entry.uuid) == key]
    return Hold(sum(e.slots for e in mine), sum(e.memory_mib for e in mine), sum(e.cores for e in mine))


def charge_of(
    allocation: Allocation, when: Sequence[Role], released: bool, price: Callable[[Entry], Charge]
) -> dict[str, Charge]:
    """What the pod costs its namespace, by vendor key: its peak over all cards together."""
    sole = _sole_entry(allocation, when)
    if sole is not None:
        return {sole.vendor: price(sole).peak(NO_CHARGE) if not released else price(sole)}
    vendors = sorted({entry.vendor for entries in allocation for entry in entries})
    return {
        vendor: peak(
            [_sum(price(e) for e in entries if e.vendor == vendor) for entries in allocation], when, NO_CHARGE, released
        )
        for vendor in vendors
    }


def _sum(charges: Iterable[Charge]) -> Charge:
    total = NO_CHARGE
    for charge in charges:
        total += charge
    return total


def card_states(cards: Iterable[Card], cordoned: frozenset[str], tenants: Iterable[Tenancy]) -> tuple[CardState, ...]:
    """The cards with all tenants on them.

    MIG fails closed: a MIG card held without a readable reservation, and any other card that a reservation names, takes nobody
    until that is settled; a reservation that names an unknown card closes every MIG card of the node.
    """
    known = {(card.vendor, card.uuid): card for card in cards}
    by_uuid = {card.uuid: card for card in known.values()}
    handing_out = {key for key, card in known.items() if is_mig(card)}
    total: dict[CardKey, tuple[int, int, int]] = {}
    placements: dict[str, list[Placement]] = {}
    closed: set[str] = set()
    named: dict[CardKey, list[tuple[float, Tenant]]] = {}
    for tenant in tenants:
        for key, hold in tenant.holds.items():
            if key not in known:
                continue
            slots, memory_mib, cores = total.get(key, _NOTHING)
            total[key] = (slots + hold.slots, memory_mib + hold.memory_mib, cores + hold.cores)
            if tenant.facts and key[0] in tenant.facts:
                named.setdefault(key, []).append((tenant.since_s, Tenant(tenant.uid, tenant.facts[key[0]], hold.cores)))
            if key in handing_out and all(key[1] != reservation.uuid for reservation in tenant.reservations):
                closed.add(key[1])
        for reservation in tenant.reservations:
            card = by_uuid.get(reservation.uuid)
            if card is None:
                closed.update(uuid for _, uuid in handing_out)
            elif is_mig(card):
                placements.setdefault(card.uuid, []).append(reservation.placement)
            else:
                closed.add(card.uuid)
    states = []
    for key, card in known.items():
        slots, memory_mib, cores = total.get(key, _NOTHING)
        states.append(
            CardState(
                card,
                slots,
                memory_mib,
                cores,
                tuple(sorted(placements[card.uuid])) if card.uuid in placements else (),
                card.healthy and card.uuid not in closed,
                card.uuid in cordoned,
                _oldest_first(named[key]) if key in named else (),
            )
        )
    return tuple(states)


def _oldest_first(tenants: Iterable[tuple[float, Tenant]]) -> tuple[Tenant, ...]:
    return tuple(tenant for _, tenant in sorted(tenants, key=lambda found: (found[0], found[1].uid)))


_NOTHING = (0, 0, 0)
