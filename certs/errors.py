"""Everything `certs` can object to; each text names the file or field, the value, and what is accepted."""

__all__ = ["CertError", "ExpiredCaError", "KeyMismatchError", "PemError", "SanError", "ValidityError"]


class CertError(Exception):
    """Root of this package's errors."""


class PemError(CertError):
    """A file or text that is not the PEM it should be."""


class KeyMismatchError(CertError):
    """A private key that does not belong to the certificate beside it."""


class SanError(CertError):
    """A host that cannot stand in a certificate: no DNS name and no IP address."""


class ValidityError(CertError):
    """A lifetime that makes no certificate."""


class ExpiredCaError(CertError):
    """A CA that can sign nothing any more."""
