"""JSON Patch (RFC 6902) and JSON Merge Patch (RFC 7386) on documents nobody else holds."""

from __future__ import annotations

from typing import Any, cast

import jsonpatch
import jsonpointer
import orjson

from .documents import JsonObject
from .errors import ApiError, bad_request, unsupported_media_type

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
PATCH_TYPES = (JSON_PATCH, MERGE_PATCH)
MAX_OPERATIONS = 10_000


def apply_patch(content_type: str, body: bytes, current: bytes) -> JsonObject:
    """Return the patched object as a new document.

    Args:
        content_type: one of PATCH_TYPES. Strategic merge and apply are not offered.
        body: the patch as sent.
        current: the stored object as JSON.

    Raises:
        ApiError: 415, 400 for a patch that is none, 413, 422 for one that cannot be applied.
    """
    if content_type not in PATCH_TYPES:
        raise unsupported_media_type(PATCH_TYPES)
    try:
        patch = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise bad_request(f"error decoding patch: {error}") from error
    document = orjson.loads(current)
    if content_type == MERGE_PATCH:
        if not isinstance(patch, dict):
            raise bad_request("error decoding patch: a merge patch has to be a JSON object")
        return merge(document, patch)
    if not isinstance(patch, list):
        raise bad_request("error decoding patch: a JSON patch has to be a list of operations")
    if len(patch) > MAX_OPERATIONS:
        message = f"The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {len(patch)}"
        raise ApiError(413, "RequestEntityTooLarge", f"Request entity too large: {message}")
    try:
        return json_patch(document, patch)
    except ValueError as error:
        message = "the server rejected our request due to an error in our request"
        raise ApiError(
            422, "Invalid", message, {"causes": [{"reason": "UnexpectedServerResponse", "message": str(error)}]}
        ) from error


def json_patch(document: JsonObject, operations: list[JsonObject]) -> JsonObject:
    """Apply operations in place and return the document.

    Raises:
        ValueError: an operation that is malformed or does not apply; the document is then half changed.
    """
    try:
        patched = jsonpatch.JsonPatch(cast(Any, operations)).apply(document, in_place=True)
    except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException, AttributeError, TypeError) as error:
        raise ValueError(str(error)) from error
    if not isinstance(patched, dict):
        raise ValueError("the patched document is no JSON object")
    return patched


def merge(document: JsonObject, patch: JsonObject) -> JsonObject:
    """Apply a merge patch in place and return the document: null removes, objects merge, anything else replaces."""
    for key, value in patch.items():
        if value is None:
            document.pop(key, None)
        elif isinstance(value, dict):
            old = document.get(key)
            document[key] = merge(old if isinstance(old, dict) else {}, value)
        else:
            document[key] = value
    return document
