"""Counters and gauges of certificates that are kept in a Secret."""

from collections.abc import Callable, Iterable

from cryptography import x509
from prometheus_client import CollectorRegistry, Counter, Gauge

__all__ = ["CertificateMetrics"]


class CertificateMetrics:
    """Made once a process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.keeper = Gauge(
            "slotwise_certificates_keeper",
            "1 on the replica that makes and renews the certificates.",
            registry=registry,
        )
        self.failures = Counter(
            "slotwise_certificates_failures_total",
            "Attempts to read or write what the certificates need that failed, by resource.",
            ("resource",),
            registry=registry,
        )
        self.writes = Counter(
            "slotwise_certificates_writes_total",
            "Writes of Secret and webhook configurations that succeeded, by resource.",
            ("resource",),
            registry=registry,
        )
        self._ca_expiry = Gauge(
            "slotwise_certificates_ca_expiry_timestamp_seconds",
            "When each CA in the Secret expires, in seconds since 1970.",
            ("serial",),
            registry=registry,
        )

    def show_keeper(self, held: Callable[[], bool]) -> None:
        """Read who keeps the certificates when the metrics are."""
        self.keeper.set_function(lambda: float(held()))

    def show_authorities(self, trusted: Iterable[x509.Certificate]) -> None:
        """The CAs there are now, and no others."""
        self._ca_expiry.clear()
        for certificate in trusted:
            self._ca_expiry.labels(f"{certificate.serial_number:x}").set(certificate.not_valid_after_utc.timestamp())
