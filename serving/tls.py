"""Server-side TLS from files, and serving changed files without a restart."""

import asyncio
import enum
import hashlib
import logging
import os
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from prometheus_client import CollectorRegistry, Counter, Gauge

from serving.errors import TlsFilesError

__all__ = ["Reload", "TlsReloader", "server_context"]

logger = logging.getLogger(__name__)


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """A context for a server (TLS 1.2 and later) with the chain in `certificate` and the PEM key in `key`.

    Raises `TlsFilesError`, naming file and cause.
    """
    return _build(_Files.read(certificate, key))


class Reload(enum.Enum):
    """What one look at the files led to; the values are the `outcome` label of `slotwise_tls_reloads_total`."""

    UNCHANGED = "unchanged"
    RELOADED = "reloaded"
    REJECTED = "rejected"


class TlsReloader:
    """Keeps `context` serving what the two files hold.

    New handshakes get the new pair as soon as a check has found it good; open connections keep theirs. A pair that is
    missing, half-written or does not belong together changes nothing: the last good one stays, the cause is logged
    once for as long as it stays the same, and every such check counts.
    """

    def __init__(self, certificate: Path, key: Path, *, registry: CollectorRegistry, interval_s: float = 10.0) -> None:
        """Load the pair for the first time; raises `TlsFilesError`, since there is no older one to stay with."""
        self._certificate = certificate
        self._key = key
        self._interval_s = interval_s
        self._reloads = Counter(
            "slotwise_tls_reloads", "Looks at changed certificate files, by outcome.", ["outcome"], registry=registry
        )
        for outcome in (Reload.RELOADED, Reload.REJECTED):
            self._reloads.labels(outcome.value)
        self._expiry = Gauge(
            "slotwise_tls_certificate_expiry_timestamp_seconds",
            "When the served certificate expires, in seconds since 1970.",
            registry=registry,
        )
        self._rejected_as = ""
        files = _Files.read(certificate, key)
        self._current = self.context = _build(files)
        self._seen = files.digest
        self._expiry.set(files.expiry_s())
        # load_cert_chain on the live context would do as long as the kind of key stays the same: OpenSSL keeps one pair
        # a kind, so after RSA -> EC a client that prefers RSA would still get the old one. A whole context per pair,
        # picked as each handshake starts (also without SNI), has no such rest and cannot be left half changed.
        self.context.sni_callback = self._pick

    def check(self) -> Reload:
        """Look at the files now; never raises for what is in them.

        The content decides, whatever mtime, inode or size say: a swap within one clock tick, of equal length, or by a
        symlink (as mounted Secrets change) is seen, and a touched file is not taken for a new one.
        """
        try:
            files = _Files.read(self._certificate, self._key)
            if files.digest == self._seen:
                self._rejected_as = ""
                return Reload.UNCHANGED
            fresh = _build(files)
        except TlsFilesError as error:
            return self._reject(str(error))
        self._current = fresh
        self._seen = files.digest
        self._rejected_as = ""
        self._expiry.set(files.expiry_s())
        self._reloads.labels(Reload.RELOADED.value).inc()
        logger.info("now serving the certificate of %s: %s", self._certificate, files.described())
        return Reload.RELOADED

    async def watch(self) -> None:
        """Check every `interval_s` seconds until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            self.check()

    def _pick(self, handshake: ssl.SSLSocket | ssl.SSLObject, server_name: str | None, context: ssl.SSLContext) -> None:
        handshake.context = self._current

    def _reject(self, cause: str) -> Reload:
        self._reloads.labels(Reload.REJECTED.value).inc()
        if cause != self._rejected_as:
            self._rejected_as = cause
            logger.warning("still serving the previous certificate: %s", cause)
        return Reload.REJECTED


@dataclass(frozen=True)
class _Files:
    """What both files held at one moment."""

    certificate: Path
    key: Path
    certificate_pem: bytes
    key_pem: bytes

    @classmethod
    def read(cls, certificate: Path, key: Path) -> "_Files":
        return cls(certificate, key, _content(certificate), _content(key))

    @property
    def digest(self) -> bytes:
        # Fixed-length parts, so that moving bytes from one file to the other changes it; no key is kept around.
        return hashlib.sha256(self.certificate_pem).digest() + hashlib.sha256(self.key_pem).digest()

    def leaf(self) -> x509.Certificate:
        try:
            return x509.load_pem_x509_certificates(self.certificate_pem)[0]
        except ValueError as error:
            raise TlsFilesError(f"{self.certificate}: no readable PEM certificate") from error

    def expiry_s(self) -> float:
        return self.leaf().not_valid_after_utc.timestamp()

    def described(self) -> str:
        leaf = self.leaf()
        return f"serial {leaf.serial_number:x}, valid until {leaf.not_valid_after_utc:%Y-%m-%dT%H:%M:%SZ}"


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TlsFilesError(f"{path}: {error.strerror}") from error


def _build(files: _Files) -> ssl.SSLContext:
    files.leaf()  # OpenSSL's own words for broken PEM name neither the file nor what is wrong
    # "BEGIN ENCRYPTED PRIVATE KEY" and, before PKCS8, "Proc-Type: 4,ENCRYPTED".
    if b"ENCRYPTED" in files.key_pem:
        raise TlsFilesError(f"{files.key}: the key is encrypted; an unencrypted PEM key is accepted")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    # load_cert_chain takes paths only. In-memory files make sure that it reads the very bytes that were compared, and
    # that the key touches no disk (the root file system may be read-only anyway).
    certificate_fd = os.memfd_create("certificate")
    key_fd = os.memfd_create("key")
    try:
        for fd, content in ((certificate_fd, files.certificate_pem), (key_fd, files.key_pem)):
            with os.fdopen(fd, "wb", closefd=False) as file:
                file.write(content)
        # A password, because without one OpenSSL asks the terminal for the key's, should it be encrypted after all.
        context.load_cert_chain(f"/proc/self/fd/{certificate_fd}", f"/proc/self/fd/{key_fd}", password="")
    except (ssl.SSLError, ValueError) as error:
        raise TlsFilesError(f"{files.certificate} with {files.key}: {_cause(error)}") from error
    finally:
        os.close(certificate_fd)
        os.close(key_fd)
    return context


def _cause(error: Exception) -> str:
    if isinstance(error, ssl.SSLError) and error.reason in ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"):
        return "the key does not belong to the certificate"
    return f"no usable PEM certificate chain and unencrypted PEM key ({error})"
