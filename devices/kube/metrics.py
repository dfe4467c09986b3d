"""Counters of what goes between us and the API server."""

from prometheus_client import CollectorRegistry, Counter, Histogram

__all__ = ["KubeMetrics", "ReflectorMetrics"]


class KubeMetrics:
    """Requests by verb, resource and code; without a registry they are counted and shown to nobody."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        registry = registry or CollectorRegistry()
        self.requests = Counter(
            "slotwise_kube_requests_total",
            "Requests to the API server; code is the HTTP status, or unreachable, not_sent or unknown (reply lost).",
            ("verb", "resource", "code"),
            registry=registry,
        )
        self.seconds = Histogram(
            "slotwise_kube_request_seconds",
            "Time of one request to the API server, watches left out.",
            ("verb", "resource"),
            registry=registry,
        )
        self.retries = Counter(
            "slotwise_kube_retries_total", "Reads tried again.", ("resource", "code"), registry=registry
        )


class ReflectorMetrics:
    """What the reflectors of a process have seen, by resource; make one and pass it to all of them."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        registry = registry or CollectorRegistry()
        labels = ("resource",)
        self.lists = Counter(
            "slotwise_watch_lists_total", "Full lists, by cause.", ("resource", "cause"), registry=registry
        )
        self.events = Counter(
            "slotwise_watch_events_total", "Watch events, by type.", ("resource", "type"), registry=registry
        )
        self.ignored = Counter(
            "slotwise_watch_events_ignored_total",
            "Duplicated or late watch events that changed nothing.",
            labels,
            registry=registry,
        )
        self.malformed = Counter(
            "slotwise_watch_malformed_total",
            "Objects that could not be read and were skipped.",
            labels,
            registry=registry,
        )
        self.faults = Counter(
            "slotwise_watch_consumer_faults_total",
            "Objects that our own code failed to take in; each is offered again by the next full list.",
            labels,
            registry=registry,
        )
        self.failures = Counter(
            "slotwise_watch_failures_total", "Lists and watches that ended with an error.", labels, registry=registry
        )
        self.differences = Counter(
            "slotwise_watch_resync_differences_total",
            "Objects that a full list showed otherwise than the watch had left them.",
            ("resource", "cause", "kind"),
            registry=registry,
        )
