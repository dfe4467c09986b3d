"""The flags of a serving certificate that is kept in a Secret, by the webhook's replicas themselves."""

import argparse

from certs.errors import SettingsError as CertSettingsError
from certs.settings import DEFAULT_CONFIGURATION, DEFAULT_LEASE, KeptCertificates, service_hosts
from serving.flags import duration, value
from webhook.errors import SettingsError

__all__ = ["add_certificate_flags", "kept_certificates"]

SERVICE = "slotwise-webhook"
_ONLY_WITH_SECRET = (
    "cert_lease",
    "cert_hosts",
    "webhook_configuration",
    "cert_days",
    "ca_days",
    "cert_renew_before",
    "cert_overlap",
)


def _hosts(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in (part.strip() for part in text.split(",")) if name))


def add_certificate_flags(parser: argparse.ArgumentParser) -> None:
    """`--cert-secret` and what goes with it."""
    group = parser.add_argument_group("certificate kept in a Secret")
    group.add_argument(
        "--cert-secret",
        metavar="NAME",
        help="serve the certificate in this Secret of --own-namespace. The replicas agree on one of them that makes and renews it and"
        " its CA, and writes caBundle. Instead of --cert-file and --key-file",
    )
    group.add_argument(
        "--cert-lease", metavar="NAME", help=f"by this Lease the replicas agree who does that (default {DEFAULT_LEASE})"
    )
    group.add_argument(
        "--cert-hosts",
        type=_hosts,
        metavar="HOST,HOST",
        help=f"what the certificate is good for (default {SERVICE}.<own namespace>.svc, its other DNS names)",
    )
    group.add_argument(
        "--webhook-configuration",
        metavar="NAME",
        help="mutating and validating webhook configuration whose caBundle is written, in webhooks that are called under one of"
        f" the hosts (default {DEFAULT_CONFIGURATION})",
    )
    group.add_argument("--cert-days", type=float, metavar="DAYS", help="life of the certificate (default 90)")
    group.add_argument("--ca-days", type=float, metavar="DAYS", help="life of the CA (default 730)")
    group.add_argument(
        "--cert-renew-before",
        type=value(duration),
        metavar="DURATION",
        help="replace the certificate so long before its end (default a third of its life)",
    )
    group.add_argument(
        "--cert-overlap",
        type=value(duration),
        metavar="DURATION",
        help="how long a new CA is in every caBundle before it signs, and an old one after nothing of it is served (default 10m)",
    )


def kept_certificates(given: argparse.Namespace, namespace: str) -> KeptCertificates | None:
    """What the flags say; None without `--cert-secret`. Raises `SettingsError`."""
    if given.cert_secret is None:
        for name in _ONLY_WITH_SECRET:
            if getattr(given, name) is not None:
                raise SettingsError(f"--{name.replace('_', '-')} goes with --cert-secret, which is not given")
        return None
    if given.cert_file is not None or given.key_file is not None:
        raise SettingsError(
            "--cert-secret and --cert-file, --key-file exclude each other: the certificate comes from one place"
        )
    default = KeptCertificates(secret=given.cert_secret or "-", namespace=namespace, hosts=("localhost",))
    try:
        return KeptCertificates(
            secret=given.cert_secret,
            namespace=namespace,
            hosts=service_hosts(SERVICE, namespace) if given.cert_hosts is None else given.cert_hosts,
            lease=default.lease if given.cert_lease is None else given.cert_lease,
            configuration=default.configuration if given.webhook_configuration is None else given.webhook_configuration,
            cert_days=default.cert_days if given.cert_days is None else given.cert_days,
            ca_days=default.ca_days if given.ca_days is None else given.ca_days,
            renew_before_s=given.cert_renew_before,
            overlap_s=default.overlap_s if given.cert_overlap is None else given.cert_overlap,
        )
    except CertSettingsError as error:
        raise SettingsError(f"--cert-secret: {error}") from error
