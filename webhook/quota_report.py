"""What a namespace may use, uses and is about to use, as one JSON document for people and programs."""

from collections.abc import Mapping
from typing import TypedDict

from devices.ledger import ADMITTED, Ledger
from devices.model import NO_CHARGE, Charge
from devices.quota import PREFIX, amounts, limits_of, quota_problems
from devices.scopes import Scope, covers, scope_of
from webhook.admitted.record import Entry

__all__ = ["ChargeJson", "LimitJson", "NamespaceJson", "PodJson", "namespace_report"]


class ChargeJson(TypedDict):
    """A charge: MiB after the memory factor, percent of a card, cards."""

    memory_mib: int
    cores: int
    cards: int


class LimitJson(TypedDict):
    """One key of one ResourceQuota; amounts in the unit of `used`."""

    key: str
    quota: str
    vendor: str
    scope: list[str]
    limit: int
    used: int
    recorded: int
    """Of pods that are admitted and not yet seen."""
    in_force: bool
    """No other object of the same scope allows less."""


class PodJson(TypedDict):
    """One pod's share of what is used."""

    pod: str
    uid: str
    node: str
    """Empty until it has cards."""
    charges: dict[str, ChargeJson]


class NamespaceJson(TypedDict):
    """Everything about one namespace."""

    namespace: str
    counts: str
    limits: list[LimitJson]
    used: dict[str, ChargeJson]
    recorded: list[PodJson] | None
    """Admitted, not yet seen; null where only pods with cards count."""
    pods: list[PodJson]
    problems: list[str]


def _charge(charge: Charge) -> ChargeJson:
    return {"memory_mib": charge.memory_mib, "cores": charge.cores, "cards": charge.cards}


def _charges(charges: Mapping[str, Charge]) -> dict[str, ChargeJson]:
    return {key: _charge(charge) for key, charge in sorted(charges.items())}


def _scope_words(scope: Scope) -> list[str]:
    return [" ".join((r.scope, r.operator, *r.values)) for r in scope]


def namespace_report(ledger: Ledger, namespace: str, entries: Mapping[str, Entry]) -> NamespaceJson:
    """The document; `entries` are admissions that the ledger does not count yet."""
    pods: list[PodJson] = []
    for uid, charged in ledger.charged_in(namespace).items():
        pod, holding = ledger.pod(uid), ledger.holding(uid)
        pods.append(
            {
                "pod": pod.name if pod is not None else "",
                "uid": uid,
                "node": holding.node if holding is not None else "",
                "charges": _charges(charged.charges),
            }
        )
    recorded: list[PodJson] = [
        {"pod": entry.pod, "uid": uid, "node": "", "charges": _charges(entry.charges)} for uid, entry in entries.items()
    ]
    return {
        "namespace": namespace,
        "counts": ledger.quota_counts,
        "limits": _limits(ledger, namespace, entries),
        "used": _charges(ledger.used(namespace)),
        "recorded": recorded if ledger.quota_counts == ADMITTED else None,
        "pods": sorted(pods, key=lambda p: (p["pod"], p["uid"])),
        "problems": [
            text for quota in ledger.quotas_of(namespace) for text in quota_problems(quota, ledger.quota_names)
        ],
    }


def _limits(ledger: Ledger, namespace: str, entries: Mapping[str, Entry]) -> list[LimitJson]:
    in_force = {group.scope: group.limits for group in ledger.limit_groups(namespace)}
    found: list[LimitJson] = []
    for quota in ledger.quotas_of(namespace):
        scope = scope_of(quota)
        own = limits_of((quota,), ledger.quota_names)
        used = ledger.used(namespace, scope)
        for vendor in ledger.config.vendors:
            waiting = NO_CHARGE
            for entry in entries.values():
                if covers(scope, entry.facts):
                    waiting += entry.charges.get(vendor.key, NO_CHARGE)
            rows = zip(amounts(vendor, used.get(vendor.key, NO_CHARGE)), amounts(vendor, waiting), strict=True)
            for (name, held, factor), (_, more, _) in rows:
                if name in own:
                    found.append(
                        {
                            "key": PREFIX + name,
                            "quota": quota.name,
                            "vendor": vendor.key,
                            "scope": _scope_words(scope),
                            "limit": own[name].value * factor,
                            "used": held,
                            "recorded": more,
                            "in_force": in_force[scope][name].value == own[name].value,
                        }
                    )
    return found
