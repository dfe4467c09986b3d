"""Making and reading a CA and the serving certificates it signs: EC P-256 throughout, PEM in and out.

No function reads a clock: `now` is passed in, with a time zone. Certificates are valid from five minutes earlier, for
the sake of hosts whose clocks lag.
"""

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from certs.errors import ExpiredCaError, KeyMismatchError, PemError, SanError, ValidityError

__all__ = [
    "BACKDATED",
    "Pair",
    "create_ca",
    "hosts_of",
    "issue_serving",
    "read_ca",
    "read_certificates",
    "read_pair",
    "san_of",
]

BACKDATED = timedelta(minutes=5)

_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")


@dataclass(frozen=True)
class Pair:
    """A certificate and the private key that belongs to it; two are equal where their certificates are."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(repr=False, compare=False)

    def certificate_pem(self) -> bytes:
        """The certificate alone, as PEM."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def key_pem(self) -> bytes:
        """The key as unencrypted PKCS8 PEM."""
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )


def create_ca(common_name: str, *, now: datetime, days: float) -> Pair:
    """A new self-signed CA that may sign serving certificates, but no further CAs, for `days` days from `now`.

    Raises `ValidityError` for a lifetime that is none.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        _builder(name, name, key.public_key(), now, _end(now, days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    return Pair(certificate, key)


def issue_serving(ca: Pair, hosts: Sequence[str], *, now: datetime, days: float) -> Pair:
    """A certificate for a server reached under `hosts` (DNS names, `*.` allowed in front, and IP addresses).

    It is good for `days` days from `now`, or as long as `ca` if that ends earlier. Raises `SanError` naming the host,
    `ValidityError`, or `ExpiredCaError`.
    """
    if not hosts:
        raise SanError("hosts: none given; a serving certificate needs at least one DNS name or IP address")
    ca_end = ca.certificate.not_valid_after_utc
    if ca_end <= now:
        raise ExpiredCaError(f"the CA expired at {ca_end:%Y-%m-%dT%H:%M:%SZ}: create a new one")
    sans = list(dict.fromkeys(san_of(host) for host in hosts))
    key = ec.generate_private_key(ec.SECP256R1())
    # Clients look at the names in the extension only; a common name holds 64 characters, so a longer host stays out.
    shown = hosts[0] if len(hosts[0]) <= 64 else "slotwise"
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, shown)])
    try:
        ca_key_id = ca.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        authority = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(ca_key_id)
    except x509.ExtensionNotFound:  # a CA made elsewhere
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca.key.public_key())
    certificate = (
        _builder(name, ca.certificate.subject, key.public_key(), now, min(_end(now, days), ca_end))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(sans), critical=False)
        .add_extension(authority, critical=False)
        .sign(ca.key, hashes.SHA256())
    )
    return Pair(certificate, key)


def san_of(host: str) -> x509.GeneralName:
    """`host` as it stands in a certificate; raises `SanError` for what is neither a DNS name nor an IP address."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        name = host.lower()
    else:
        if getattr(address, "scope_id", None) is not None:
            raise SanError(f"host {host!r}: an IP address without a zone is accepted")
        return x509.IPAddress(address)
    labels = name.removeprefix("*.").split(".")
    # 1.2.3.400 is no address, and no name either: the last label of a DNS name is never a number.
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in labels) or labels[-1].isdigit():
        raise SanError(f"host {host!r}: neither a DNS name (as scheduler.default.svc) nor an IP address")
    return x509.DNSName(name)


def hosts_of(certificate: x509.Certificate) -> tuple[str, ...]:
    """The DNS names and IP addresses `certificate` is good for, in its own order; none if it names none.

    Raises `PemError` if its extensions cannot be read.
    """
    try:
        sans = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    except ValueError as error:
        raise PemError(f"certificate with serial {certificate.serial_number:x}: unreadable extensions") from error
    return tuple(str(san.value) for san in sans if isinstance(san, x509.DNSName | x509.IPAddress))


def read_certificates(pem: bytes, source: str) -> tuple[x509.Certificate, ...]:
    """Every certificate in `pem`, at least one; `source` (a file name) is what a `PemError` names."""
    try:
        return tuple(x509.load_pem_x509_certificates(pem))
    except ValueError as error:
        raise PemError(f"{source}: no readable PEM certificate (it starts with {_start(pem)}): {error}") from error


def read_pair(certificate_pem: bytes, key_pem: bytes, *, certificate_source: str, key_source: str) -> Pair:
    """The first certificate of `certificate_pem` with its key.

    Raises `PemError` for what is no PEM, is encrypted or is no EC key, and `KeyMismatchError` if they do not belong
    together.
    """
    certificate = read_certificates(certificate_pem, certificate_source)[0]
    try:
        key = serialization.load_pem_private_key(key_pem, password=None)
    except TypeError as error:
        raise PemError(f"{key_source}: the key is encrypted; an unencrypted PEM key is accepted") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        # Nothing of the content: it may be a key after all.
        raise PemError(f"{key_source}: no readable PEM private key") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise PemError(f"{key_source}: a key of type {type(key).__name__}; an EC key is accepted")
    if key.public_key() != certificate.public_key():
        raise KeyMismatchError(f"{key_source}: the key does not belong to the certificate in {certificate_source}")
    return Pair(certificate, key)


def read_ca(pem: bytes, source: str) -> x509.Certificate:
    """The first certificate of `pem`; raises `PemError` if there is none or it may not sign others."""
    certificate = read_certificates(pem, source)[0]
    try:
        may_sign = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        may_sign = False
    if not may_sign:
        subject = certificate.subject.rfc4514_string()
        raise PemError(f"{source}: {subject} is no CA certificate (basicConstraints CA is not set)")
    return certificate


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey, now: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _end(now: datetime, days: float) -> datetime:
    if not days > 0:
        raise ValidityError(f"days: {days}; more than 0 is needed")
    try:
        return now + timedelta(days=days)
    except OverflowError as error:
        raise ValidityError(f"days: {days}; the end must lie before the year 10000") from error


def _start(pem: bytes) -> str:
    return repr(pem[:27].decode("ascii", "replace")) if pem else "nothing: it is empty"
