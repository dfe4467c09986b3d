"""What is kept where, and for how long: the settings of certificates that live in a Secret."""

from dataclasses import dataclass
from datetime import timedelta

from certs.errors import SanError, SettingsError
from certs.pki import san_of

__all__ = ["DEFAULT_CONFIGURATION", "DEFAULT_LEASE", "KeptCertificates", "service_hosts"]

DEFAULT_LEASE = "slotwise-webhook-certificates"
DEFAULT_CONFIGURATION = "slotwise"
_CA_SHARE = 3
"""A CA is replaced when this part of its life is left."""


def service_hosts(service: str, namespace: str) -> tuple[str, ...]:
    """The DNS names under which pods and the API server call a Service, the one webhooks are called by first."""
    name = f"{service}.{namespace}"
    return (f"{name}.svc", f"{name}.svc.cluster.local", name, service)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptCertificates:
    """A CA and a serving certificate kept in one Secret. Raises `SettingsError` for values that are not accepted."""

    secret: str
    namespace: str
    """Of the Secret and the Lease."""
    hosts: tuple[str, ...]
    """What the serving certificate is good for; webhooks called under other names are left alone."""
    lease: str = DEFAULT_LEASE
    """By which replicas agree who of them writes."""
    configuration: str = DEFAULT_CONFIGURATION
    """Name of the mutating and of the validating webhook configuration whose `caBundle` is written."""
    cert_days: float = 90.0
    """Life of the serving certificate."""
    ca_days: float = 730.0
    renew_before_s: float | None = None
    """How long before its end the serving certificate is replaced; None: a third of its life."""
    overlap_s: float = 600.0
    """How long a new CA is in every `caBundle` before it signs, and an old one after nothing signed by it is served."""

    def __post_init__(self) -> None:
        for field, text in (("secret", self.secret), ("lease", self.lease), ("configuration", self.configuration)):
            if not text or "/" in text or "%" in text:
                raise SettingsError(f"{field}: {text!r} is no name of an object")
        if not self.hosts:
            raise SettingsError("hosts: none given; at least one DNS name or IP address is needed")
        for host in self.hosts:
            try:
                san_of(host)
            except SanError as error:
                raise SettingsError(f"hosts: {error}") from error
        if not self.cert_days > 0:
            raise SettingsError(f"cert days: {self.cert_days:g} is not accepted: expected more than 0")
        if not self.ca_days >= self.cert_days:
            raise SettingsError(
                f"CA days: {self.ca_days:g} is not accepted: expected at least the {self.cert_days:g} days of the serving"
                " certificate"
            )
        life_s = timedelta(days=self.cert_days).total_seconds()
        if self.renew_before_s is not None and not 0 < self.renew_before_s < life_s:
            raise SettingsError(
                f"renew before: {self.renew_before_s:g} s is not accepted: expected above 0 and below the certificate's life"
                f" of {life_s:g} s"
            )
        longest_s = timedelta(days=self.ca_days).total_seconds() / (2 * _CA_SHARE)
        if not 0 <= self.overlap_s <= longest_s:
            raise SettingsError(
                f"overlap: {self.overlap_s:g} s is not accepted: expected 0 to {longest_s:g} s, a sixth of the CA's life,"
                " so that two of them fit before the old CA ends"
            )

    @property
    def renew_before(self) -> timedelta:
        """How long before its end the serving certificate is replaced."""
        if self.renew_before_s is None:
            return timedelta(days=self.cert_days) / 3
        return timedelta(seconds=self.renew_before_s)

    @property
    def renew_ca_before(self) -> timedelta:
        """How long before its end the CA is replaced."""
        return timedelta(days=self.ca_days) / _CA_SHARE
