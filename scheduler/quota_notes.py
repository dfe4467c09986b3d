"""The numbers behind `ResourceQuotaNotFit`: the reason alone tells nobody what to ask less of."""

from collections.abc import Iterator

from devices.ledger import Ledger
from devices.model import NO_CHARGE
from devices.objects import Pod
from devices.quota import PREFIX, Standing, excesses
from devices.reasons import Reason
from devices.scopes import facts_of
from devices.vendor import Vendor
from scheduler.pipeline import Decision

__all__ = ["quota_notes"]


def quota_notes(ledger: Ledger, pod: Pod, decision: Decision) -> Iterator[str]:
    """One text a vendor: what the pod would cost, what others use and where the limits are."""
    if not any(Reason.QUOTA_NOT_FIT in verdict.refusal.counts for verdict, _ in decision.verdict_counts):
        return
    standings = ledger.standings(pod.namespace, facts_of(pod), without=pod.uid)
    for key, asked in ledger.unplaced(pod, decision.ask.request).items():
        vendor = ledger.config.vendor(key)
        if vendor is None:
            continue
        over = [
            excess
            for standing in standings
            for excess in excesses(
                pod.namespace, vendor, asked.at_most, standing.used.get(key, NO_CHARGE), standing.limits
            )
        ]
        if over:
            yield "exceeding resource quota: " + "; ".join(str(excess) for excess in over)
            continue
        shown = [text for standing in standings if (text := _shown(vendor, standing))]
        if shown:
            yield f"exceeding resource quota of namespace {pod.namespace}: {'; '.join(shown)}"


def _shown(vendor: Vendor, standing: Standing) -> str:
    """What of the vendor is used under which limits; empty where none of its resources is limited."""
    names = (vendor.memory_resource, vendor.core_resource, vendor.count_resource)
    limits = [(n, standing.limits[n]) for n in names if n in standing.limits]
    if not limits:
        return ""
    held = standing.used.get(vendor.key, NO_CHARGE)
    listed = ", ".join(f"{PREFIX}{name} {limit.value} in {limit.quota}" for name, limit in limits)
    return f"used {held.memory_mib} MiB, {held.cores} % compute, {held.cards} cards; limits {listed}"
