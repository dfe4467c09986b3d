"""Whether a namespace's quota allows a pod, and what its author should know about the arithmetic."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from devices.ledger import Ledger
from devices.model import NO_CHARGE, Charge
from devices.objects import Pod
from devices.quota import PREFIX, Excess, Standing, UnplacedCharge, amounts, excesses
from devices.requests import PodRequest
from devices.scopes import ScopeFacts, facts_of
from devices.vendor import Vendor

__all__ = ["QuotaAsk", "QuotaJudgement", "QuotaService"]


@dataclass(frozen=True, slots=True)
class QuotaAsk:
    """What a pod would cost its namespace, where any limit covers it."""

    namespace: str
    uid: str
    pod: str
    """Its name, for people."""
    facts: ScopeFacts
    asked: Mapping[str, UnplacedCharge]
    by_percentage: frozenset[str] = frozenset()
    """Vendors some of whose memory is asked as a share, which costs 0 while no card matches."""
    keys: tuple[str, ...] = ()
    """The limited resource names it asks of, sorted."""

    @property
    def charges(self) -> Mapping[str, Charge]:
        """What it is charged until it has cards, by vendor key."""
        return {key: asked.charged for key, asked in self.asked.items()}


@dataclass(frozen=True, slots=True)
class QuotaJudgement:
    """Every key the pod would exceed, and warnings for one that is allowed."""

    excesses: tuple[Excess, ...] = ()
    warnings: tuple[str, ...] = ()


class QuotaService:
    """Judges pods against the ledger's books; judging records nothing."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def ask(self, pod: Pod, request: PodRequest, namespace: str) -> QuotaAsk | None:
        """What there is to judge of a pod in `namespace` (that of the request: the pod itself may name none yet).

        None where no limit covers the pod. Raises `MalformedValue`.
        """
        if not self._ledger.limit_groups(namespace) or not request.asks:
            return None
        facts = facts_of(pod)
        standings = self._ledger.standings(namespace, facts)
        if not standings:
            return None
        asked = self._ledger.unplaced(pod, request)
        shares = frozenset(
            d.vendor
            for container in request.containers
            for d in container.devices
            if d.memory_mib == 0 and d.percentage is not None
        )
        limited = {name for standing in standings for name in standing.limits}
        keys = {
            name
            for vendor in self._ledger.config.vendors
            if vendor.key in asked
            for name, amount, _ in amounts(vendor, asked[vendor.key].charged)
            if amount > 0 and name in limited
        }
        name = pod.name or pod.metadata.generate_name or ""
        return QuotaAsk(namespace, pod.uid, name, facts, asked, shares, tuple(sorted(keys)))

    def judge(self, ask: QuotaAsk) -> QuotaJudgement:
        """The judgement by what the ledger shows; a pod that is judged again after it got its cards is not counted twice."""
        return self.judge_against(ask, self._ledger.standings(ask.namespace, ask.facts, without=ask.uid))

    def judge_against(self, ask: QuotaAsk, standings: Sequence[Standing]) -> QuotaJudgement:
        """The judgement by what others use according to `standings`."""
        found: list[Excess] = []
        warnings: list[str] = []
        for key, asked in ask.asked.items():
            vendor = self._ledger.config.vendor(key)
            if vendor is None:
                raise AssertionError(f"a request for unknown vendor {key}")
            limited = False
            for standing in standings:
                used = standing.used.get(key, NO_CHARGE)
                limited = limited or vendor.memory_resource in standing.limits
                over = excesses(ask.namespace, vendor, asked.charged, used, standing.limits)
                found += over
                if not over:
                    warnings += _warnings(ask.namespace, vendor, asked, used, standing)
            if not asked.has_card and key in ask.by_percentage and limited:
                warnings.append(
                    f"no registered card matches this pod: shares of {key} memory count 0 in quota {ask.namespace} for now"
                )
        return QuotaJudgement(tuple(found), tuple(warnings))


def _warnings(namespace: str, vendor: Vendor, asked: UnplacedCharge, used: Charge, standing: Standing) -> Iterable[str]:
    """An allowed pod may still exceed its quota on a larger card than the smallest it may have."""
    for excess in excesses(namespace, vendor, asked.at_most, used, standing.limits):
        yield (
            f"fits quota {namespace}/{excess.quota} on the smallest card only: {PREFIX}{excess.resource} {excess.limit}, "
            f"up to {excess.asked} asked, {excess.used} used"
        )
