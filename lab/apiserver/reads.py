"""Reads: one object, pages of a list, and the start of a watch."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping

import orjson

from . import errors
from .errors import ApiError
from .faults import Faults
from .locate import whole_number
from .operations import Target
from .resources import Resource
from .selectors import Selection, parse
from .store import Store, Version, watch_line
from .watch import Watcher, bookmark_line, error_line, seen_line

_CONTINUE_EXPIRED = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or "
    "deleted between the time the first chunk was returned and now may show up in the list."
)
_LIST_EXPIRED = "The resourceVersion for the provided list is too old."


class Reader:
    """Answers reads from the store."""

    def __init__(self, store: Store, faults: Faults) -> None:
        self._store = store
        self._faults = faults

    def get(self, target: Target) -> bytes:
        """Return an object as JSON.

        Raises:
            ApiError: 404.
        """
        version = self._store.get(target.resource, target.resource.key(target.namespace, target.name))
        if version is None:
            raise errors.not_found(target.resource, target.name)
        return version.raw

    def list_page(self, target: Target, query: Mapping[str, str]) -> bytes:
        """Return a list as JSON: all of it, or the page that `limit` and `continue` ask for.

        Raises:
            ApiError: 400 for selectors and tokens that are none, 410 for a state no longer kept, 422, 504.
        """
        resource = target.resource
        selection = selection_of(target, query)
        limit = whole_number(query, "limit") or 0
        revision, start = self._place(resource, query)
        try:
            versions = self._store.ordered(resource) if revision is None else self._store.ordered_at(resource, revision)
        except ApiError as error:
            if error.code != 410:
                raise
            if not start:
                raise errors.expired(_LIST_EXPIRED) from error
            raise errors.expired(_CONTINUE_EXPIRED, continue_token=_token(-1, start)) from error
        if start:
            versions = [version for version in versions if version.key > start]
        if not selection.everything:
            versions = [version for version in versions if selection.matches(version.obj)]
        if query.get("resourceVersion") == "0" and not start:
            limit = 0  # a list "from any version" is answered whole from the cache
        shown = self._store.revision if revision is None else revision
        page, meta = _page(versions, limit, shown, selection)
        return list_body(resource, meta, page)

    def select(self, target: Target, query: Mapping[str, str]) -> list[Version]:
        """Return the objects a deletecollection covers."""
        selection = selection_of(target, query)
        return [version for version in self._store.ordered(target.resource) if selection.matches(version.obj)]

    def watcher(self, target: Target, query: Mapping[str, str]) -> Watcher:
        """Return a watch with everything it has to be sent first already in it.

        Nothing may be awaited between this call and its stream.

        Raises:
            ApiError: 400 for selectors or versions that are none, 422 for options that contradict each other.
        """
        resource = target.resource
        selection = selection_of(target, query)
        watcher = Watcher(resource, selection, bookmarks=query.get("allowWatchBookmarks") in ("true", "1"))
        initial = query.get("sendInitialEvents") in ("true", "1")
        _require_watch_options(query, initial)
        revision = whole_number(query, "resourceVersion")
        if initial or not revision:
            for version in self._store.ordered(resource):
                if selection.matches(version.obj):
                    watcher.push(watch_line("ADDED", version.raw))
            if initial and watcher.bookmarks:
                watcher.push(bookmark_line(resource, self._store.revision, initial_events_end=True))
            return watcher
        try:
            if self._faults.take_expiry(resource):
                raise errors.expired(f"too old resource version: {revision} ({self._store.revision})")
            for change in self._store.changes_after(resource, revision):
                line = seen_line(change, selection)
                if line is not None:
                    watcher.push(line)
        except ApiError as error:
            watcher.push(error_line(error))
            watcher.end()
        return watcher

    def _place(self, resource: Resource, query: Mapping[str, str]) -> tuple[int | None, str]:
        """Return the revision to show (None: the newest) and the key after which the page begins."""
        token = query.get("continue", "")
        asked = whole_number(query, "resourceVersion")
        match = query.get("resourceVersionMatch", "")
        _require_list_options(match, asked, token)
        if token:
            if asked:
                raise errors.bad_request("specifying resource version is not allowed when using continue")
            revision, start = _read_token(token)
            return (None if revision < 0 else revision), start
        if asked and asked > self._store.revision:
            raise errors.too_large_version(asked, self._store.revision)
        if match == "Exact" and asked:
            return asked, ""
        return None, ""


def selection_of(target: Target, query: Mapping[str, str]) -> Selection:
    """Return what the selectors and the namespace of a request leave."""
    namespace = target.namespace if target.resource.namespaced and target.namespace else None
    return parse(target.resource, namespace, query.get("labelSelector", ""), query.get("fieldSelector", ""))


def list_body(resource: Resource, meta: Mapping[str, object], versions: list[Version]) -> bytes:
    """Return a list document; its items leave out kind and apiVersion, as the real server's do."""
    skip = len(resource.raw_prefix)
    items = b",".join([b"{" + version.raw[skip:] for version in versions])
    opening = orjson.dumps({"kind": f"{resource.kind}List", "apiVersion": resource.api_version, "metadata": meta})
    return b'%s,"items":[%s]}' % (opening[:-1], items)


def _page(
    versions: list[Version], limit: int, revision: int, selection: Selection
) -> tuple[list[Version], dict[str, object]]:
    meta: dict[str, object] = {"resourceVersion": str(revision)}
    if 0 < limit < len(versions):
        if not selection.label_tests and not selection.field_tests:
            meta["remainingItemCount"] = len(versions) - limit
        versions = versions[:limit]
        meta["continue"] = _token(revision, versions[-1].key)
    return versions, meta


def _token(revision: int, after: str) -> str:
    document = {"v": "meta.k8s.io/v1", "rv": revision, "start": after}
    return base64.urlsafe_b64encode(orjson.dumps(document)).decode().rstrip("=")


def _read_token(token: str) -> tuple[int, str]:
    try:
        document = orjson.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        revision, start = document["rv"], document["start"]
    except (binascii.Error, ValueError, KeyError, TypeError) as error:
        raise errors.bad_request(f"continue key is not valid: {error}") from error
    if not isinstance(revision, int) or not isinstance(start, str) or not start or not revision:
        raise errors.bad_request("continue key is not valid")
    return revision, start


def _require_list_options(match: str, asked: int | None, token: str) -> None:
    if not match:
        return
    field = "resourceVersionMatch"
    found = []
    if asked is None:
        found.append(
            errors.FieldError.forbidden(field, "resourceVersionMatch is forbidden unless resourceVersion is provided")
        )
    if token:
        found.append(errors.FieldError.forbidden(field, "resourceVersionMatch is forbidden when continue is provided"))
    if match not in ("Exact", "NotOlderThan"):
        found.append(errors.FieldError.unsupported(field, match, ("Exact", "NotOlderThan", "")))
    if match == "Exact" and asked == 0:
        found.append(
            errors.FieldError.forbidden(field, 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"')
        )
    if found:
        raise errors.invalid_kind("meta.k8s.io", "ListOptions", "", found)


def _require_watch_options(query: Mapping[str, str], initial: bool) -> None:
    match = query.get("resourceVersionMatch", "")
    field = "resourceVersionMatch"
    if initial and match != "NotOlderThan":
        why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
    elif match and "sendInitialEvents" not in query:
        why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
    else:
        return
    raise errors.invalid_kind("meta.k8s.io", "ListOptions", "", [errors.FieldError.forbidden(field, why)])
