"""Answers that are not objects: Status documents with the codes, reasons and words of the real API server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from .documents import JsonObject
from .resources import Resource

OPTIMISTIC_LOCK = "the object has been modified; please apply your changes to the latest version and try again"


class ApiError(Exception):
    """A request that ends with a Status of status Failure."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        details: JsonObject | None = None,
        *,
        list_metadata: JsonObject | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.status: JsonObject = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": list_metadata or {},
            "status": "Failure",
            "message": message,
        }
        if reason:
            self.status["reason"] = reason
        if details:
            self.status["details"] = details
        self.status["code"] = code

    @property
    def retry_after_s(self) -> int | None:
        """Seconds the client should wait, or None."""
        seconds = self.status.get("details", {}).get("retryAfterSeconds")
        return seconds if isinstance(seconds, int) else None


@dataclass(frozen=True, slots=True)
class FieldError:
    """One thing wrong with one field of an object."""

    type: str
    """The cause's type, such as `FieldValueInvalid`."""
    field: str
    body: str

    @classmethod
    def invalid(cls, field: str, value: object, why: str) -> FieldError:
        """Return the error for a value that breaks a rule."""
        return cls("FieldValueInvalid", field, f"Invalid value: {orjson.dumps(value).decode()}: {why}")

    @classmethod
    def required(cls, field: str, why: str = "") -> FieldError:
        """Return the error for a value that is missing."""
        return cls("FieldValueRequired", field, f"Required value: {why}" if why else "Required value")

    @classmethod
    def forbidden(cls, field: str, why: str) -> FieldError:
        """Return the error for a change or value that is not allowed."""
        return cls("FieldValueForbidden", field, f"Forbidden: {why}")

    @classmethod
    def unsupported(cls, field: str, value: object, accepted: Sequence[str]) -> FieldError:
        """Return the error for a value outside a closed set."""
        listed = ", ".join(f'"{word}"' for word in accepted)
        shown = orjson.dumps(value).decode()
        return cls("FieldValueNotSupported", field, f"Unsupported value: {shown}: supported values: {listed}")

    @classmethod
    def too_long(cls, field: str, limit: int) -> FieldError:
        """Return the error for a value above its size limit in bytes."""
        return cls("FieldValueTooLong", field, f"Too long: may not be more than {limit} bytes")

    def __str__(self) -> str:
        return f"{self.field}: {self.body}"


def aggregate(errors: Sequence[FieldError]) -> str:
    """Return the errors as one text, each once, in brackets when there are several."""
    texts = list(dict.fromkeys(str(error) for error in errors))
    return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"


def _about(resource: Resource, name: str) -> JsonObject:
    details: JsonObject = {"name": name} if name else {}
    if resource.group:
        details["group"] = resource.group
    return {**details, "kind": resource.plural}


def not_found(resource: Resource, name: str) -> ApiError:
    """404 for an object that does not exist."""
    return ApiError(404, "NotFound", f'{resource.qualified} "{name}" not found', _about(resource, name))


def no_such_path() -> ApiError:
    """404 for a path the server does not serve."""
    return ApiError(404, "NotFound", "the server could not find the requested resource", {})


def already_exists(resource: Resource, name: str) -> ApiError:
    """409 for a create of a name in use."""
    return ApiError(409, "AlreadyExists", f'{resource.qualified} "{name}" already exists', _about(resource, name))


def conflict(resource: Resource, name: str, why: str, *, subresource: str = "") -> ApiError:
    """409 for a write that rests on an older state."""
    suffix = f"/{subresource}" if subresource else ""
    details = {**_about(resource, name), "kind": resource.plural + suffix}
    message = f'Operation cannot be fulfilled on {resource.qualified}{suffix} "{name}": {why}'
    return ApiError(409, "Conflict", message, details)


def precondition_failed(resource: Resource, namespace: str, name: str, what: str, wanted: str, is_: str) -> ApiError:
    """409 for a UID or resourceVersion that is not the stored one."""
    where = f"/registry/{resource.plural}/{resource.key(namespace, name)}"
    why = (
        f"StorageError: invalid object, Code: 4, Key: {where}, ResourceVersion: 0, AdditionalErrorMsg: "
        f"Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {is_}"
    )
    return conflict(resource, name, why)


def invalid(resource: Resource, name: str, errors: Sequence[FieldError]) -> ApiError:
    """422 with one cause for each field error."""
    return invalid_kind(resource.group, resource.kind, name, errors)


def invalid_kind(group: str, kind: str, name: str, errors: Sequence[FieldError]) -> ApiError:
    """422 for a kind that is no stored resource, such as DeleteOptions."""
    details: JsonObject = {"name": name} if name else {}
    if group:
        details["group"] = group
    details["kind"] = kind
    details["causes"] = [{"reason": e.type, "message": e.body, "field": e.field} for e in errors]
    shown = f"{kind}.{group}" if group else kind
    return ApiError(422, "Invalid", f'{shown} "{name}" is invalid: {aggregate(errors)}', details)


def bad_request(message: str) -> ApiError:
    """400 with this text."""
    return ApiError(400, "BadRequest", message)


def unsupported_media_type(accepted: Sequence[str]) -> ApiError:
    """415 that lists the accepted content types."""
    listed = ", ".join(accepted)
    message = f"the body of the request was in an unknown format - accepted media types include: {listed}"
    return ApiError(415, "UnsupportedMediaType", message)


def method_not_allowed() -> ApiError:
    """405 for a verb the path does not offer."""
    return ApiError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource", {})


def unauthorized() -> ApiError:
    """401 for a missing or unknown token."""
    return ApiError(401, "Unauthorized", "Unauthorized")


def forbidden(resource: Resource, name: str, why: str) -> ApiError:
    """403 by a rule of the server itself."""
    message = f'{resource.qualified} "{name}" is forbidden: {why}'
    return ApiError(403, "Forbidden", message, _about(resource, name))


def expired(message: str, *, continue_token: str | None = None) -> ApiError:
    """410 for a version that lies outside the kept history."""
    return ApiError(
        410, "Expired", message, list_metadata={"continue": continue_token} if continue_token is not None else None
    )


def too_large_version(asked: int, current: int) -> ApiError:
    """504 for a resourceVersion the server has not reached."""
    details: JsonObject = {
        "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
        "retryAfterSeconds": 1,
    }
    return ApiError(504, "Timeout", f"Timeout: Too large resource version: {asked}, current: {current}", details)


def internal(message: str) -> ApiError:
    """500 that wraps a fault's text."""
    return ApiError(500, "InternalError", f"Internal error occurred: {message}", {"causes": [{"message": message}]})


def too_large_body(limit_bytes: int) -> ApiError:
    """413 for a body above the limit."""
    return ApiError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {limit_bytes}")


def plain(code: int, message: str) -> ApiError:
    """Return an error the real server sends without a reason."""
    return ApiError(code, "", message)
