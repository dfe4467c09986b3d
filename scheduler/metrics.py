"""What the scheduler counts: how fast it answers, and what it refuses. Cards, pods and quotas are in `scheduler.metrics_page`."""

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

__all__ = ["DecisionMetrics", "show_build"]

_SECONDS: Final = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class DecisionMetrics:
    """Times of filter and bind by outcome, and refusals by reason."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.filter_seconds = Histogram(
            "slotwise_filter_seconds", "Filter calls by outcome.", ["outcome"], registry=registry, buckets=_SECONDS
        )
        self.bind_seconds = Histogram(
            "slotwise_bind_seconds", "Bind calls by outcome.", ["outcome"], registry=registry, buckets=_SECONDS
        )
        self.refusals = Counter(
            "slotwise_card_refusals_total",
            "Cards refused in unsuccessful filters, by reason.",
            ["reason"],
            registry=registry,
        )


def show_build(registry: CollectorRegistry) -> None:
    """HAMi's gauge of build data."""
    try:
        release = version("slotwise")
    except PackageNotFoundError:
        release = "unknown"
    labels = ["version", "revision", "build_date", "go_version", "compiler", "platform"]
    gauge = Gauge("hami_build_info", "Build data; there is no Go in it.", labels, registry=registry)
    gauge.labels(release, "", "", "", platform.python_implementation(), platform.platform()).set(1)
