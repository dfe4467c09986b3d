"""Whether a namespace's quota allows a pod, and what its author should know about the arithmetic."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from devices.ledger import Ledger
from devices.model import NO_CHARGE, Charge
from devices.objects import Pod
from devices.quota import PREFIX, Excess, Limit, UnplacedCharge, excesses, unplaced_charge
from devices.requests import PodRequest
from devices.vendor import Vendor

__all__ = ["QuotaJudgement", "QuotaService"]


@dataclass(frozen=True, slots=True)
class QuotaJudgement:
    """Every key the pod would exceed, and warnings for one that is allowed."""

    excesses: tuple[Excess, ...] = ()
    warnings: tuple[str, ...] = ()


class QuotaService:
    """Judges pods against the ledger's books. Used are the pods that hold cards; judging records nothing."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def judge(self, pod: Pod, request: PodRequest, namespace: str) -> QuotaJudgement:
        """The judgement on a pod in `namespace` (that of the request: the pod itself may name none yet)."""
        limits = self._ledger.limits(namespace)
        if not limits or not request.asks:
            return QuotaJudgement()
        found: list[Excess] = []
        warnings: list[str] = []
        for vendor in self._ledger.config.vendors:
            if vendor.key in request.vendors:
                cards = self._ledger.cards_for(vendor, vendor.selection(pod.annotations))
                asked = unplaced_charge(vendor, request, cards)
                used = self._used_by_others(pod, namespace, vendor.key)
                over = excesses(namespace, vendor, asked.charged, used, limits)
                found += over
                if not over:
                    warnings += _warnings(namespace, vendor, asked, used, limits)
                if not asked.has_card and _by_percentage(vendor, request) and vendor.memory_resource in limits:
                    warnings.append(
                        f"no registered card matches this pod: shares of {vendor.key} memory count 0 in quota {namespace} for now"
                    )
        return QuotaJudgement(tuple(found), tuple(warnings))

    def _used_by_others(self, pod: Pod, namespace: str, vendor: str) -> Charge:
        """What the namespace uses; a pod that is judged again after it got its cards is not counted twice."""
        used = self._ledger.used(namespace).get(vendor, NO_CHARGE)
        known = self._ledger.pod(pod.uid) if pod.uid else None
        holding = self._ledger.holding(pod.uid) if known is not None and known.namespace == namespace else None
        return used - holding.charges.get(vendor, NO_CHARGE) if holding is not None else used


def _by_percentage(vendor: Vendor, request: PodRequest) -> bool:
    devices = (
        device for container in request.containers for device in container.devices if device.vendor == vendor.key
    )
    return any(device.memory_mib == 0 and device.percentage is not None for device in devices)


def _warnings(
    namespace: str, vendor: Vendor, asked: UnplacedCharge, used: Charge, limits: Mapping[str, Limit]
) -> Iterable[str]:
    """An allowed pod may still exceed its quota on a larger card than the smallest it may have."""
    for excess in excesses(namespace, vendor, asked.at_most, used, limits):
        yield (
            f"fits quota {namespace}/{excess.quota} on the smallest card only: {PREFIX}{excess.resource} {excess.limit}, "
            f"up to {excess.asked} asked, {excess.used} used"
        )
