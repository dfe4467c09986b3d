"""What namespaces are charged, and what they may be: costs of pods by scope, and the limits of all ResourceQuota objects."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from devices.config import DeviceConfig
from devices.ledger.values import Charged
from devices.model import NO_CHARGE, Charge
from devices.objects import Quota
from devices.quota import Limit, LimitGroup, Standing, limit_groups, managed_keys, quota_problems
from devices.scopes import EVERY_POD, Scope, ScopeFacts, covers

__all__ = ["CostBooks"]


class CostBooks:
    """The part of the ledger that knows namespaces; what pods cost is entered by the part that knows pods."""

    def __init__(self, config: DeviceConfig) -> None:
        self.quota_names = managed_keys(config.vendors)
        self._used: dict[str, dict[str, Charge]] = {}
        self._used_by_facts: dict[str, dict[ScopeFacts, dict[str, Charge]]] = {}
        self._charged: dict[str, dict[str, Charged]] = {}
        self._quotas: dict[str, dict[str, Quota]] = {}
        self._limits: dict[str, tuple[LimitGroup, ...]] = {}

    def _reprice(self) -> None:
        """Bring costs up to date before they are read; the part that knows pods hooks in here."""

    def _set_charged(self, uid: str, namespace: str, before: Charged | None, after: Charged | None) -> None:
        pods = self._charged.setdefault(namespace, {})
        for charged, sign in ((before, -1), (after, 1)):
            if charged is not None:
                self._charge(namespace, charged, sign)
        if after is not None:
            pods[uid] = after
        else:
            pods.pop(uid, None)
        if not pods:
            del self._charged[namespace]

    def _charge(self, namespace: str, charged: Charged, sign: int) -> None:
        by_facts = self._used_by_facts.setdefault(namespace, {})
        alike = by_facts.setdefault(charged.facts, {})
        everything = self._used.setdefault(namespace, {})
        for used in (everything, alike):
            for vendor, charge in charged.charges.items():
                total = used.get(vendor, NO_CHARGE)
                total = total + charge if sign > 0 else total - charge
                if total == NO_CHARGE:
                    used.pop(vendor, None)
                else:
                    used[vendor] = total
        if not alike:
            del by_facts[charged.facts]
        if not everything:
            del self._used[namespace]
            del self._used_by_facts[namespace]

    def charged_in(self, namespace: str) -> Mapping[str, Charged]:
        """Every pod that costs the namespace anything, by UID."""
        self._reprice()
        return self._charged.get(namespace, {})

    def put_quota(self, quota: Quota) -> None:
        """A ResourceQuota as it is now."""
        self._quotas.setdefault(quota.namespace, {})[quota.name] = quota
        self._limits.pop(quota.namespace, None)

    def delete_quota(self, namespace: str, name: str) -> None:
        """A ResourceQuota that is gone."""
        quotas = self._quotas.get(namespace, {})
        quotas.pop(name, None)
        if not quotas:
            self._quotas.pop(namespace, None)
        self._limits.pop(namespace, None)

    def quotas(self) -> Iterable[Quota]:
        """Every ResourceQuota known."""
        return (quota for quotas in self._quotas.values() for quota in quotas.values())

    def quota_problems(self) -> tuple[str, ...]:
        """What limits nothing although it looks as if it should."""
        return tuple(text for quota in self.quotas() for text in quota_problems(quota, self.quota_names))

    def quotas_of(self, namespace: str) -> tuple[Quota, ...]:
        """The namespace's ResourceQuotas by name."""
        return tuple(quota for _, quota in sorted(self._quotas.get(namespace, {}).items()))

    def limit_groups(self, namespace: str) -> tuple[LimitGroup, ...]:
        """The limits in force by scope; empty where no object limits anything of ours."""
        groups = self._limits.get(namespace)
        if groups is None:
            groups = limit_groups(self._quotas.get(namespace, {}).values(), self.quota_names)
            if namespace in self._quotas:
                self._limits[namespace] = groups
        return groups

    def limits(self, namespace: str) -> Mapping[str, Limit]:
        """The limits that every pod is under, by resource name."""
        return next((group.limits for group in self.limit_groups(namespace) if group.scope == EVERY_POD), _NO_LIMITS)

    def used(self, namespace: str, scope: Scope = EVERY_POD) -> Mapping[str, Charge]:
        """What the namespace's pods, or those that a scope covers, cost, by vendor key."""
        self._reprice()
        if scope == EVERY_POD:
            return self._used.get(namespace, _NOTHING)
        total: dict[str, Charge] = {}
        for facts, used in self._used_by_facts.get(namespace, {}).items():
            if covers(scope, facts):
                for vendor, charge in used.items():
                    total[vendor] = total.get(vendor, NO_CHARGE) + charge
        return total

    def standings(self, namespace: str, facts: ScopeFacts, without: str = "") -> tuple[Standing, ...]:
        """What a pod like this is up against; pod `without` (the one that is judged) does not count as another."""
        groups = [group for group in self.limit_groups(namespace) if covers(group.scope, facts)]
        if not groups:
            return ()
        own = self.charged_in(namespace).get(without) if without else None
        found = []
        for group in groups:
            used = self.used(namespace, group.scope)
            if own is not None and covers(group.scope, own.facts):
                used = {key: charge - own.charges.get(key, NO_CHARGE) for key, charge in used.items()}
            found.append(Standing(group.limits, used, group.scope))
        return tuple(found)

    def namespaces(self) -> tuple[str, ...]:
        """Namespaces that hold or limit anything, sorted."""
        self._reprice()
        return tuple(sorted({*self._used, *self._quotas}))


_NOTHING: Mapping[str, Charge] = MappingProxyType({})
_NO_LIMITS: Mapping[str, Limit] = MappingProxyType({})
