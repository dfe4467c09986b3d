"""Everything `serving` can refuse or fail at.

`RequestError` and its children are answers to a caller (a status and one line of text); `TlsFilesError` and
`BindError` are faults of the installation and stop the process from starting.
"""

__all__ = [
    "BadBodyError",
    "BindError",
    "BodyTimeoutError",
    "BodyTooLargeError",
    "RequestError",
    "ServingError",
    "TlsFilesError",
    "UnsupportedMediaTypeError",
]


class ServingError(Exception):
    """Root of this package's errors."""


class RequestError(ServingError):
    """A request that is refused; `str()` is the one line the caller is shown."""

    status = 400


class BadBodyError(RequestError):
    """The body could not be read as HTTP says it must be sent (broken chunks, broken compression)."""


class BodyTimeoutError(RequestError):
    """The body did not arrive in time."""

    status = 408


class BodyTooLargeError(RequestError):
    """The body is larger than this path accepts."""

    status = 413


class UnsupportedMediaTypeError(RequestError):
    """The body is not of the kind this path reads."""

    status = 415


class TlsFilesError(ServingError):
    """A certificate or key file is missing, unreadable, broken, or the two do not belong together."""


class BindError(ServingError):
    """A listening socket could not be opened."""
