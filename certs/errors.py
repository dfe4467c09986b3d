"""Everything `certs` can object to; each text names the file or field, the value, and what is accepted."""

__all__ = [
    "CertError",
    "ExpiredCaError",
    "ForeignSecretError",
    "KeyMismatchError",
    "PemError",
    "SanError",
    "SettingsError",
    "ValidityError",
]


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


class SettingsError(CertError):
    """Values that do not go together; the text names field, value and what is accepted."""


class ForeignSecretError(CertError):
    """A Secret that somebody else keeps, so that we must not write it."""
