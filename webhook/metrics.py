"""What the webhook counts."""

from prometheus_client import CollectorRegistry, Counter, Histogram

from devices.quota import PREFIX, Excess
from serving.metrics import REQUEST_BUCKETS_S
from webhook.quota_service import QuotaAsk
from webhook.validators import RefusalReason

__all__ = ["AdmissionMetrics"]


class AdmissionMetrics:
    """Admissions by path and outcome, refusals by reason; build it once a registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._seconds = Histogram(
            "slotwise_admission_seconds",
            "Seconds from a decoded review to its answer.",
            ["path", "outcome"],
            registry=registry,
            buckets=REQUEST_BUCKETS_S,
        )
        self._denials = Counter(
            "slotwise_admission_denials", "Pods refused, by reason.", ["path", "reason"], registry=registry
        )
        self._by_answer: dict[tuple[str, str], Histogram] = {}
        """Looking a series up by its labels costs more than counting in it."""
        labels = ["namespace", "key"]
        self._quota_admissions = Counter(
            "slotwise_quota_admissions", "Pods that a limit of this key let in.", labels, registry=registry
        )
        self._quota_denials = Counter(
            "slotwise_quota_denials", "Pods refused because this key would be over.", labels, registry=registry
        )

    def answered(self, path: str, outcome: str, seconds: float) -> None:
        """Count one answer; `outcome` is allowed, patched, denied or error (a fault of ours)."""
        timed = self._by_answer.get((path, outcome))
        if timed is None:
            timed = self._by_answer[path, outcome] = self._seconds.labels(path, outcome)
        timed.observe(seconds)

    def denied(self, path: str, reason: RefusalReason) -> None:
        """Count one refusal."""
        self._denials.labels(path, reason.value).inc()

    def quota_answered(self, ask: QuotaAsk, allowed: bool, excesses: tuple[Excess, ...]) -> None:
        """Count a pod under limits by every key it asks of, or by those that are over."""
        if allowed:
            for name in ask.keys:
                self._quota_admissions.labels(ask.namespace, PREFIX + name).inc()
        for name in sorted({excess.resource for excess in excesses}):
            self._quota_denials.labels(ask.namespace, PREFIX + name).inc()
