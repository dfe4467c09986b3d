"""AdmissionReview as the API server sends and reads it (admission.k8s.io v1 and v1beta1), as far as Slotwise uses it."""

from typing import Literal, NotRequired, TypeAlias, TypedDict

__all__ = [
    "KNOWN_VERSIONS",
    "AdmissionResponse",
    "AdmissionReview",
    "JsonObject",
    "Operation",
    "Status",
]

JsonObject: TypeAlias = dict[str, object]
"""A decoded JSON object as it came: unknown fields survive."""

KNOWN_VERSIONS = ("admission.k8s.io/v1", "admission.k8s.io/v1beta1")
"""Both are answered in kind; their fields used here are the same."""


class Operation(TypedDict):
    """One operation of a JSON Patch (RFC 6902); `remove` alone has no value."""

    op: Literal["add", "remove", "replace", "test"]
    path: str
    value: NotRequired[object]


class Status(TypedDict):
    """metav1.Status: why a request was refused, or the word that goes with an allowed one."""

    code: int
    message: str
    reason: NotRequired[str]
    status: NotRequired[Literal["Failure"]]


class AdmissionResponse(TypedDict):
    """The answer. Without changes there is neither `patch` nor `patchType`."""

    uid: str
    allowed: bool
    status: NotRequired[Status]
    patch: NotRequired[str]
    """JSON Patch, base64."""
    patchType: NotRequired[Literal["JSONPatch"]]
    warnings: NotRequired[list[str]]


class AdmissionReview(TypedDict):
    """What goes back: the caller's own version, with the answer."""

    apiVersion: str
    kind: Literal["AdmissionReview"]
    response: AdmissionResponse
