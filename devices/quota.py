"""Namespace quota arithmetic: one place for admission, placing, metrics and people.

Limits are the ResourceQuota keys `limits.` + a vendor's memory, core and count names; every object of a namespace counts and the
smallest limit per key holds. A pod costs its peak: sidecars + max(largest other init container, apps), times cards.

Objects with scopes limit, and count, only the pods they cover; the smallest limit is taken among objects of the same scope.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from devices.errors import QuantityError
from devices.model import NO_CHARGE, Card, Charge
from devices.objects import Quota
from devices.quantity import whole
from devices.requests import ContainerRequest, DeviceRequest, PodRequest
from devices.scopes import EVERY_POD, Scope, scope_of, unknown_scopes
from devices.usage import peak
from devices.vendor import Vendor

__all__ = [
    "PREFIX",
    "Excess",
    "Limit",
    "LimitGroup",
    "Standing",
    "UnplacedCharge",
    "amounts",
    "excesses",
    "limit_groups",
    "limits_of",
    "managed_keys",
    "quota_problems",
    "unplaced_charge",
    "unreadable",
]

PREFIX = "limits."


@dataclass(frozen=True, slots=True)
class Limit:
    """The limit in force for one resource, as written, and the object it stands in."""

    value: int
    quota: str


def managed_keys(vendors: Iterable[Vendor]) -> tuple[str, ...]:
    """Resource names whose limits Slotwise enforces, sorted."""
    names = (name for v in vendors for name in (v.count_resource, v.memory_resource, v.core_resource) if name)
    return tuple(sorted(set(names)))


def _values(quota: Quota, names: Iterable[str]) -> Iterable[tuple[str, int | None]]:
    for name in names:
        value = quota.hard.get(PREFIX + name)
        if value is not None:
            try:
                yield name, whole(value)
            except QuantityError:
                yield name, None


def limits_of(quotas: Iterable[Quota], names: Sequence[str]) -> dict[str, Limit]:
    """The smallest limit per managed resource name over all objects (ties: first object by name)."""
    limits: dict[str, Limit] = {}
    for quota in sorted(quotas, key=lambda q: q.name):
        for name, value in _values(quota, names):
            if value is not None and (name not in limits or value < limits[name].value):
                limits[name] = Limit(value, quota.name)
    return limits


def unreadable(quota: Quota, names: Iterable[str]) -> tuple[str, ...]:
    """What in the object limits nothing because it is no whole number, worded for an administrator."""
    return tuple(
        f"ResourceQuota {quota.namespace}/{quota.name}: {PREFIX}{name}: {quota.hard[PREFIX + name]!r} is not a whole number and limits nothing"
        for name, value in _values(quota, names)
        if value is None
    )


@dataclass(frozen=True, slots=True)
class LimitGroup:
    """The limits in force of all objects of one scope, by resource name."""

    scope: Scope
    limits: Mapping[str, Limit]


def limit_groups(quotas: Iterable[Quota], names: Sequence[str]) -> tuple[LimitGroup, ...]:
    """One group a scope, those that limit every pod first; groups that limit nothing are left out."""
    by_scope: dict[Scope, list[Quota]] = {}
    for quota in quotas:
        by_scope.setdefault(scope_of(quota), []).append(quota)
    groups = (LimitGroup(scope, limits_of(members, names)) for scope, members in sorted(by_scope.items()))
    return tuple(group for group in groups if group.limits)


@dataclass(frozen=True, slots=True)
class Standing:
    """What one pod is up against: the limits of a scope that covers it, and what other pods use of them by vendor key."""

    limits: Mapping[str, Limit]
    used: Mapping[str, Charge]
    scope: Scope = EVERY_POD


def quota_problems(quota: Quota, names: Sequence[str]) -> tuple[str, ...]:
    """Everything in the object that limits nothing although it looks as if it should: values, keys and scopes not understood.

    A key counts as meant for us when it is `limits.` and a resource of a domain we manage: `limits.nvidia.com/gpumen`.
    """
    domains = {name.partition("/")[0] for name in names}
    where = f"ResourceQuota {quota.namespace}/{quota.name}"
    found = list(unreadable(quota, names))
    for key in sorted(quota.hard):
        name = key.removeprefix(PREFIX)
        if key.startswith(PREFIX) and name.partition("/")[0] in domains and name not in names:
            known = ", ".join(PREFIX + n for n in names if n.partition("/")[0] == name.partition("/")[0])
            found.append(f"{where}: {key} is not known and limits nothing; known are {known}")
    found += (f"{where}: {text}" for text in unknown_scopes(scope_of(quota)))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Excess:
    """One key over its limit; memory in MiB after the factor, on both sides."""

    namespace: str
    quota: str
    resource: str
    asked: int
    used: int
    limit: int

    def __str__(self) -> str:
        return (
            f"{self.namespace}/{self.quota} {PREFIX}{self.resource}: asked {self.asked}, used {self.used}, limit {self.limit} "
            f"({self.used + self.asked - self.limit} too many)"
        )


def excesses(
    namespace: str, vendor: Vendor, asked: Charge, used: Charge, limits: Mapping[str, Limit]
) -> tuple[Excess, ...]:
    """Every key of one vendor that `asked` on top of `used` would exceed. Nothing asked of a key exceeds nothing."""
    found = []
    for (name, more, factor), (_, held, _) in zip(amounts(vendor, asked), amounts(vendor, used), strict=True):
        limit = limits.get(name) if name else None
        if limit is not None and more > 0 and held + more > limit.value * factor:
            found.append(Excess(namespace, limit.quota, name, more, held, limit.value * factor))
    return tuple(found)


def amounts(vendor: Vendor, charge: Charge) -> tuple[tuple[str, int, int], ...]:
    """A charge by resource name, each with the factor that a limit of this name is multiplied by; an empty name: it has none."""
    return (
        (vendor.memory_resource, charge.memory_mib, max(vendor.memory_factor, 1)),
        (vendor.core_resource, charge.cores, 1),
        (vendor.count_resource, charge.cards, 1),
    )


@dataclass(frozen=True, slots=True)
class UnplacedCharge:
    """What a pod without cards is charged, what it may cost at most, and whether any registered card is allowed to it."""

    charged: Charge
    at_most: Charge
    has_card: bool


def _container(vendor: Vendor, request: DeviceRequest | None, cards: Sequence[Card], largest: bool) -> Charge:
    if request is None:
        return NO_CHARGE
    if cards:
        prices = [vendor.unplaced_price(request, card) for card in cards]
        pick = max if largest else min
        each = Charge(pick(p.memory_mib for p in prices), pick(p.cores for p in prices), 1)
    else:
        each = Charge(request.memory_mib, vendor.clamped(request.cores), 1)
    return Charge(each.memory_mib * request.count, each.cores * request.count, request.count)


def unplaced_charge(vendor: Vendor, request: PodRequest, cards: Sequence[Card]) -> UnplacedCharge:
    """The charge before placement: percentages and whole cards at the smallest card of `cards` (those the pod's rules allow).

    So no pod that could fit is refused. Without any card explicit memory counts as given and percentages as 0. Worked:
    `gpu: 2, gpumem: 400` costs 800; init containers of 800 and 800 beside an app of 500 cost 800.
    """
    when = [container.role for container in request.containers]

    def total(largest: bool) -> Charge:
        parts = [_container(vendor, _of(container, vendor.key), cards, largest) for container in request.containers]
        return peak(parts, when, NO_CHARGE, released=False)

    return UnplacedCharge(total(largest=False), total(largest=True), bool(cards))


def _of(container: ContainerRequest, vendor: str) -> DeviceRequest | None:
    return next((device for device in container.devices if device.vendor == vendor), None)
