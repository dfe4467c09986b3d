"""The numbers behind `ResourceQuotaNotFit`: the reason alone tells nobody what to ask less of."""

from collections.abc import Iterator

from devices.ledger import Ledger
from devices.model import NO_CHARGE
from devices.objects import Pod
from devices.quota import PREFIX, excesses, unplaced_charge
from devices.reasons import Reason
from scheduler.evaluate import NotFit
from scheduler.pipeline import Decision

__all__ = ["quota_notes"]


def quota_notes(ledger: Ledger, pod: Pod, decision: Decision) -> Iterator[str]:
    """One text a vendor: what the pod would cost, what the namespace uses and where the limits are."""
    verdicts = decision.verdicts.values()
    if not any(isinstance(v, NotFit) and Reason.QUOTA_NOT_FIT in v.refusal.counts for v in verdicts):
        return
    limits, used = ledger.limits(pod.namespace), ledger.used(pod.namespace)
    for key in decision.ask.request.vendors:
        vendor = ledger.config.vendor(key)
        if vendor is None:
            continue
        cards = ledger.cards_for(vendor, decision.ask.selections[key])
        asked = unplaced_charge(vendor, decision.ask.request, cards).at_most
        held = used.get(key, NO_CHARGE)
        over = excesses(pod.namespace, vendor, asked, held, limits)
        if over:
            yield "exceeding resource quota: " + "; ".join(str(excess) for excess in over)
        else:
            names = (vendor.memory_resource, vendor.core_resource, vendor.count_resource)
            shown = (f"{PREFIX}{name} {limits[name].value} in {limits[name].quota}" for name in names if name in limits)
            used_up = f"{held.memory_mib} MiB, {held.cores} % compute, {held.cards} cards"
            yield f"exceeding resource quota of namespace {pod.namespace}: used {used_up}; limits {', '.join(shown)}"
