"""What the webhook counts."""

from prometheus_client import CollectorRegistry, Counter, Histogram

from serving.metrics import REQUEST_BUCKETS_S
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

    def answered(self, path: str, outcome: str, seconds: float) -> None:
        """Count one answer; `outcome` is allowed, patched, denied or error (a fault of ours)."""
        self._seconds.labels(path, outcome).observe(seconds)

    def denied(self, path: str, reason: RefusalReason) -> None:
        """Count one refusal."""
        self._denials.labels(path, reason.value).inc()
