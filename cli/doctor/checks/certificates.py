"""Does the API server trust what the webhook serves, and for how long?"""

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from certs.errors import CertError
from certs.pki import hosts_of, read_certificates
from cli.doctor.facts import INSTALLATION, WEBHOOK, Facts
from cli.doctor.findings import Finding, problem, unknown, warning, well
from cli.doctor.objects import Webhook

__all__ = ["ca_bundle", "expiry"]

_SOON: Final = timedelta(days=7)
_RENEW: Final = "is the keeper at work? look at the webhook's log and at slotwise_tls_certificate_expiry_timestamp_seconds; by hand: slotwise certs --help"


def _ours(facts: Facts) -> Sequence[Webhook]:
    found = [c for c in (*facts.mutating, *facts.validating) if c.name == INSTALLATION]
    return [webhook for configuration in found for webhook in configuration.webhooks or ()]


def _served(facts: Facts) -> tuple[Sequence[x509.Certificate], str]:
    """What is served, its own certificate first, and where we have that from."""
    if facts.served_pem:
        return read_certificates(facts.served_pem, "the connection"), "served"
    pem = facts.certificates_pem.get("tls.crt")
    return (read_certificates(pem, "the Secret"), "in the Secret") if pem else ((), "")


def _signed_by(certificate: x509.Certificate, authorities: Sequence[x509.Certificate]) -> bool:
    for authority in authorities:
        try:
            certificate.verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature):
            continue
        return True
    return False


def ca_bundle(facts: Facts) -> Iterator[Finding]:
    """Is the served certificate signed by a CA in every caBundle, and does it name the host that is called?"""
    check = "ca-bundle"
    webhooks = _ours(facts)
    if not webhooks:
        yield unknown(check, "there is no webhook to look at", "repair mutating-webhook and validating-webhook")
        return
    try:
        served, where = _served(facts)
    except CertError as error:
        yield problem(check, str(error), _RENEW)
        return
    if not served:
        why = facts.unread["secrets"].why if "secrets" in facts.unread else "the Secret has no tls.crt yet"
        yield unknown(
            check, f"the served certificate is not known: {why}", "run the doctor as somebody who may read the Secret"
        )
        return
    sound = True
    for webhook in webhooks:
        bundle = webhook.client_config.ca_bundle
        try:
            authorities = read_certificates(b64decode(bundle or ""), "caBundle") if bundle else ()
        except (CertError, Base64Error, ValueError) as error:
            sound = False
            yield problem(check, f"the caBundle of {webhook.name} cannot be read: {error}", _BUNDLE)
            continue
        if not authorities:
            sound = False
            yield problem(
                check, f"{webhook.name} has no caBundle: the API server trusts no certificate of ours", _BUNDLE
            )
        elif not any(_signed_by(one, authorities) for one in served):
            sound = False
            yield problem(
                check, f"the certificate {where} is not signed by any CA in the caBundle of {webhook.name}", _BUNDLE
            )
        host = _host(webhook, facts.namespace)
        if host and host not in hosts_of(served[0]):
            sound = False
            yield problem(
                check,
                f"the certificate {where} names {', '.join(map(str, hosts_of(served[0])))} and not {host}, by which {webhook.name} is called",
                "give the webhook --cert-hosts, or name the host with slotwise certs create --host",
            )
    if sound:
        yield well(check, f"the certificate {where} is trusted by both webhook configurations")


_BUNDLE: Final = (
    "the keeper writes it within seconds: look at the webhook's log (may it patch webhook configurations?);"
    " by hand: slotwise certs patch --help"
)


def _host(webhook: Webhook, namespace: str) -> str:
    config = webhook.client_config
    if config.service is not None:
        return f"{config.service.name}.{config.service.namespace or namespace}.svc"
    host = (config.url or "").partition("://")[2].partition("/")[0]
    return host.rpartition(":")[0] if ":" in host else host


def expiry(facts: Facts) -> Iterator[Finding]:
    """Will the certificates last?"""
    check = "expiry"
    try:
        served, _ = _served(facts)
        ca = facts.certificates_pem.get("ca.crt")
        named = [(f"the certificate of {WEBHOOK}", one) for one in served[:1]]
        named += [("its CA", one) for one in (read_certificates(ca, "ca.crt") if ca else ())]
    except CertError as error:
        yield problem(check, str(error), _RENEW)
        return
    if not named:
        yield unknown(check, "no certificate could be read", "see ca-bundle")
        return
    sound = True
    for what, certificate in named:
        left = certificate.not_valid_after_utc - facts.now
        life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
        day = f"{certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
        if left <= timedelta(0):
            sound = False
            yield problem(check, f"{what} expired at {day}", _RENEW)
        elif certificate.not_valid_before_utc > facts.now:
            sound = False
            yield problem(
                check, f"{what} is not valid before {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC", "see clock"
            )
        elif left < min(_SOON, life / 4):
            sound = False
            yield warning(check, f"{what} expires at {day} and has not been renewed", _RENEW)
    if sound:
        first = min(certificate.not_valid_after_utc for _, certificate in named)
        yield well(check, f"the first certificate to expire does so at {first:%Y-%m-%d %H:%M} UTC")
