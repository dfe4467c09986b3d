"""Server-side TLS: which certificate is served, and serving another one without a restart."""

import asyncio
import enum
import hashlib
import logging
import os
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from prometheus_client import CollectorRegistry, Counter, Gauge

from serving.errors import TlsFilesError

__all__ = ["PemPair", "Reload", "ServedCertificate", "TlsReloader", "server_context"]

logger = logging.getLogger(__name__)


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """A context for a server (TLS 1.2 and later) with the chain in `certificate` and the PEM key in `key`.

    Raises `TlsFilesError`, naming file and cause.
    """
    return _build(PemPair.read(certificate, key))


class Reload(enum.Enum):
    """What one look at a pair led to; the values are the `outcome` label of `slotwise_tls_reloads_total`."""

    UNCHANGED = "unchanged"
    RELOADED = "reloaded"
    REJECTED = "rejected"


@dataclass(frozen=True)
class PemPair:
    """A certificate chain and its key as PEM, wherever they come from; the sources are what errors and the log name."""

    certificate_source: str
    key_source: str
    certificate_pem: bytes
    key_pem: bytes = field(repr=False)

    @classmethod
    def read(cls, certificate: Path, key: Path) -> "PemPair":
        """What both files hold at this moment; raises `TlsFilesError`."""
        return cls(str(certificate), str(key), _content(certificate), _content(key))

    @property
    def digest(self) -> bytes:
        """Differs where either part does; nothing of the key can be read from it."""
        # Fixed-length parts, so that moving bytes from one part to the other changes it.
        return hashlib.sha256(self.certificate_pem).digest() + hashlib.sha256(self.key_pem).digest()

    def leaf(self) -> x509.Certificate:
        """The certificate itself; raises `TlsFilesError`."""
        try:
            return x509.load_pem_x509_certificates(self.certificate_pem)[0]
        except ValueError as error:
            raise TlsFilesError(f"{self.certificate_source}: no readable PEM certificate") from error


class ServedCertificate:
    """What `context` serves: the last good pair that `take` was given.

    New handshakes get a new pair as soon as it is taken; open connections keep theirs. A pair that is broken or does not
    belong together changes nothing: the last good one stays, the cause is logged once for as long as it stays the
    same, and every such pair counts. Before the first one every handshake is refused.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._reloads = Counter(
            "slotwise_tls_reloads", "Looks at changed certificates, by outcome.", ["outcome"], registry=registry
        )
        for outcome in (Reload.RELOADED, Reload.REJECTED):
            self._reloads.labels(outcome.value)
        self._expiry = Gauge(
            "slotwise_tls_certificate_expiry_timestamp_seconds",
            "When the served certificate expires, in seconds since 1970; 0 while there is none.",
            registry=registry,
        )
        self._rejected_as = ""
        self._seen = b""
        self._current: ssl.SSLContext | None = None
        # load_cert_chain on the live context would do as long as the kind of key stays the same: OpenSSL keeps one pair
        # a kind, so after RSA -> EC a client that prefers RSA would still get the old one. A whole context per pair,
        # picked as each handshake starts (also without SNI), has no such rest and cannot be left half changed.
        self.context = _context()
        self.context.sni_callback = self._pick

    @property
    def loaded(self) -> bool:
        """Whether there is a certificate to serve."""
        return self._current is not None

    def start_with(self, pair: PemPair) -> None:
        """Serve `pair` from the beginning; raises `TlsFilesError`, since there is no older one to stay with."""
        self._serve(pair)

    def take(self, pair: PemPair) -> Reload:
        """Serve `pair` from now on, if it is another one than before and good; never raises for what is in it."""
        if pair.digest == self._seen:
            self._rejected_as = ""
            return Reload.UNCHANGED
        try:
            self._serve(pair)
        except TlsFilesError as error:
            return self.reject(str(error))
        self._reloads.labels(Reload.RELOADED.value).inc()
        leaf = pair.leaf()
        logger.info(
            "now serving the certificate of %s: serial %x, valid until %s",
            pair.certificate_source,
            leaf.serial_number,
            leaf.not_valid_after_utc.strftime("%Y-%m-%dT%H:%M:%SZ"),
        )
        return Reload.RELOADED

    def reject(self, cause: str) -> Reload:
        """Take note that there is something new which cannot be served."""
        self._reloads.labels(Reload.REJECTED.value).inc()
        if cause != self._rejected_as:
            self._rejected_as = cause
            logger.warning(
                "%s: %s", "still serving the previous certificate" if self.loaded else "no certificate yet", cause
            )
        return Reload.REJECTED

    def _serve(self, pair: PemPair) -> None:
        self._current = _build(pair)
        self._seen = pair.digest
        self._rejected_as = ""
        self._expiry.set(pair.leaf().not_valid_after_utc.timestamp())

    def _pick(
        self, handshake: ssl.SSLSocket | ssl.SSLObject, server_name: str | None, context: ssl.SSLContext
    ) -> int | None:
        if self._current is None:
            return ssl.ALERT_DESCRIPTION_INTERNAL_ERROR
        handshake.context = self._current
        return None


class TlsReloader:
    """Keeps `context` serving what two files hold; what is in them when they change counts as for `ServedCertificate`."""

    def __init__(self, certificate: Path, key: Path, *, registry: CollectorRegistry, interval_s: float = 10.0) -> None:
        """Load the pair for the first time; raises `TlsFilesError`, since there is no older one to stay with."""
        self._certificate = certificate
        self._key = key
        self._interval_s = interval_s
        self._served = ServedCertificate(registry)
        self._served.start_with(PemPair.read(certificate, key))
        self.context = self._served.context

    def check(self) -> Reload:
        """Look at the files now; never raises for what is in them.

        The content decides, whatever mtime, inode or size say: a swap within one clock tick, of equal length, or by a
        symlink (as mounted Secrets change) is seen, and a touched file is not taken for a new one.
        """
        try:
            return self._served.take(PemPair.read(self._certificate, self._key))
        except TlsFilesError as error:
            return self._served.reject(str(error))

    async def watch(self) -> None:
        """Check every `interval_s` seconds until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            self.check()


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TlsFilesError(f"{path}: {error.strerror}") from error


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def _build(pair: PemPair) -> ssl.SSLContext:
    pair.leaf()  # OpenSSL's own words for broken PEM name neither the file nor what is wrong
    # "BEGIN ENCRYPTED PRIVATE KEY" and, before PKCS8, "Proc-Type: 4,ENCRYPTED".
    if b"ENCRYPTED" in pair.key_pem:
        raise TlsFilesError(f"{pair.key_source}: the key is encrypted; an unencrypted PEM key is accepted")
    context = _context()
    # load_cert_chain takes paths only. In-memory files make sure that it reads the very bytes that were compared, and
    # that the key touches no disk (the root file system may be read-only anyway).
    certificate_fd = os.memfd_create("certificate")
    key_fd = os.memfd_create("key")
    try:
        for fd, content in ((certificate_fd, pair.certificate_pem), (key_fd, pair.key_pem)):
            with os.fdopen(fd, "wb", closefd=False) as file:
                file.write(content)
        # A password, because without one OpenSSL asks the terminal for the key's, should it be encrypted after all.
        context.load_cert_chain(f"/proc/self/fd/{certificate_fd}", f"/proc/self/fd/{key_fd}", password="")
    except (ssl.SSLError, ValueError) as error:
        raise TlsFilesError(f"{pair.certificate_source} with {pair.key_source}: {_cause(error)}") from error
    finally:
        os.close(certificate_fd)
        os.close(key_fd)
    return context


def _cause(error: Exception) -> str:
    if isinstance(error, ssl.SSLError) and error.reason in ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"):
        return "the key does not belong to the certificate"
    return f"no usable PEM certificate chain and unencrypted PEM key ({error})"
