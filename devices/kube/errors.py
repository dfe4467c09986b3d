"""What can go wrong between us and the API server, as a tree.

The split that matters to callers is definite or not: an `ApiStatusError` or `Unreachable` says that a write was not
done, `OutcomeUnknown` says that nobody can tell before the object has been read again.
"""

from email.utils import parsedate_to_datetime
from typing import Final

import msgspec

__all__ = [
    "AlreadyExists",
    "ApiStatusError",
    "BadRequest",
    "ConfigError",
    "Conflict",
    "Forbidden",
    "Gone",
    "Invalid",
    "KubeError",
    "MalformedReply",
    "NotFound",
    "NotSent",
    "OutcomeUnknown",
    "ServerError",
    "TooManyRequests",
    "Unauthorized",
    "Unreachable",
    "retry_after_s",
    "status_error",
]

_QUOTED_BODY_CHARS: Final = 300


class KubeError(Exception):
    """Anything that kept a request to the API server from doing what was asked."""


class ConfigError(KubeError):
    """No usable address or credentials: a kubeconfig, service account or argument is missing or malformed."""


class Unreachable(KubeError):
    """No answer: connection, TLS, DNS or time-out. A write that ends so was not sent."""


class NotSent(Unreachable):
    """Our own rate limit held the request until its time was up; the API server never saw it."""


class MalformedReply(KubeError):
    """The answer to a read is not what an API server sends."""


class OutcomeUnknown(KubeError):
    """A write whose reply was lost, timed out or was a server fault: it may have happened.

    Read the object again, after the write's own time-out has run out, before deciding anything.
    """


class ApiStatusError(KubeError):
    """The API server answered with a failure: HTTP `code`, machine-readable `reason`, `message` for people.

    `retry_after_s` is what the server asked us to wait, where it did.
    """

    def __init__(self, code: int, reason: str, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return f"{self.message} ({self.code} {self.reason})" if self.reason else f"{self.message} ({self.code})"


class BadRequest(ApiStatusError):
    """400."""


class Unauthorized(ApiStatusError):
    """401: the credentials are not, or no longer, accepted."""


class Forbidden(ApiStatusError):
    """403."""


class NotFound(ApiStatusError):
    """404."""


class Conflict(ApiStatusError):
    """409: a precondition (resourceVersion, UID, state) does not hold."""


class AlreadyExists(Conflict):
    """409 of a create: there is an object of that name."""


class Gone(ApiStatusError):
    """410: the resourceVersion or continue token is too old; list again."""


class Invalid(ApiStatusError):
    """422: the object does not pass validation."""


class TooManyRequests(ApiStatusError):
    """429: not done; come back after `retry_after_s`."""


class ServerError(ApiStatusError):
    """5xx."""


_BY_CODE: Final[dict[int, type[ApiStatusError]]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: TooManyRequests,
}


class _Details(msgspec.Struct):
    retry_after_seconds: float = msgspec.field(default=0.0, name="retryAfterSeconds")


class _Status(msgspec.Struct):
    """The fields of a metav1.Status that we use."""

    code: int = 0
    reason: str | None = ""
    message: str | None = ""
    details: _Details | None = None


def status_error(code: int, body: bytes, retry_after: float | None = None) -> ApiStatusError:
    """The error for an HTTP answer or a watch's ERROR object; any body is accepted, a Status is read.

    `code` 0 (a watch's ERROR) means that the Status inside knows it.
    """
    try:
        status = msgspec.json.decode(body, type=_Status)
    except msgspec.MsgspecError:
        text = body[:_QUOTED_BODY_CHARS].decode("utf-8", "replace").strip()
        status = _Status(message=text or "no explanation given")
    reason = status.reason or ""
    code = code or status.code or (410 if reason in {"Expired", "Gone"} else 0)
    wait = retry_after
    if wait is None and status.details is not None and status.details.retry_after_seconds > 0:
        wait = status.details.retry_after_seconds
    kind = _BY_CODE.get(code, ServerError if code >= 500 else ApiStatusError)
    if kind is Conflict and reason == "AlreadyExists":
        kind = AlreadyExists
    return kind(code, reason, status.message or "no explanation given", wait)


def retry_after_s(header: str | None, now_unix_s: float) -> float | None:
    """Seconds to wait as a Retry-After header says, in either of its forms; None for absent or unreadable."""
    if header is None:
        return None
    text = header.strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now_unix_s)
    except ValueError:
        return None
