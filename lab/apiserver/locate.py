"""From method, path and query to what a request means."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from . import errors
from .operations import Target
from .resources import find

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_NAMESPACE_SUBRESOURCES = frozenset({"status", "finalize"})


@dataclass(frozen=True, slots=True)
class Meaning:
    """A request's verb, as RBAC and audit name it, and its target."""

    verb: str
    target: Target


def meaning(method: str, path: str, query: Mapping[str, str]) -> Meaning:
    """Return what a request to the API means.

    Raises:
        ApiError: 404 for a path that is not served, 405 for a verb the path does not offer.
    """
    target = locate(path)
    verb = _verb(method, target, query)
    resource, sub = target.resource, target.subresource
    offered = resource.verbs if not sub else resource.subresource_verbs(sub)
    if verb not in offered or (verb in ("create", "list", "deletecollection") and not sub and target.name):
        raise errors.method_not_allowed()
    if verb in ("create", "deletecollection") and resource.namespaced and not target.namespace:
        raise errors.method_not_allowed()
    return Meaning(verb, target)


def locate(path: str) -> Target:
    """Return the target a path names.

    Raises:
        ApiError: 404 for a path that is not served.
    """
    parts = path.strip("/").split("/")
    if parts[0] == "api" and len(parts) >= 3:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) >= 4:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        raise errors.no_such_path()
    namespace = ""
    if rest[0] == "namespaces" and len(rest) >= 3 and rest[2] not in _NAMESPACE_SUBRESOURCES:
        namespace, rest = rest[1], rest[2:]
    resource = find(group, version, rest[0])
    if resource is None or len(rest) > 3 or (namespace and not resource.namespaced):
        raise errors.no_such_path()
    name = rest[1] if len(rest) > 1 else ""
    subresource = rest[2] if len(rest) > 2 else ""
    if subresource and subresource not in resource.subresources:
        raise errors.no_such_path()
    if name and resource.namespaced and not namespace:
        raise errors.no_such_path()
    return Target(resource, namespace, name, subresource)


def is_watch(query: Mapping[str, str]) -> bool:
    """Return whether a list was asked for as a watch."""
    return query.get("watch", "") in ("true", "1", "True", "TRUE", "t", "T")


def dry_run(query: Mapping[str, str], options_kind: str, listed: list[str]) -> bool:
    """Return whether nothing is to be stored.

    Args:
        query: the query; its dryRun may be there.
        options_kind: the kind of options, for the error text.
        listed: further values, from the body of a DELETE.

    Raises:
        ApiError: 422 for a value other than All.
    """
    values = [*([query["dryRun"]] if "dryRun" in query else []), *listed]
    if any(value != "All" for value in values):
        raise errors.invalid_kind(
            "meta.k8s.io", options_kind, "", [errors.FieldError.unsupported("dryRun", values, ("All",))]
        )
    return bool(values)


def whole_number(query: Mapping[str, str], name: str) -> int | None:
    """Return a query parameter as a whole number, or None when it is absent.

    Raises:
        ApiError: 400 for anything else.
    """
    value = query.get(name, "")
    if not value:
        return None
    try:
        return int(value)
    except ValueError as error:
        raise errors.bad_request(f'{name}: strconv.ParseInt: parsing "{value}": invalid syntax') from error


def duration_s(query: Mapping[str, str], name: str) -> float | None:
    """Return a query parameter such as `5s` in seconds, or None when it is absent.

    Raises:
        ApiError: 400 for what is no duration.
    """
    value = query.get(name, "")
    if not value:
        return None
    found = _DURATION.fullmatch(value)
    if found is None:
        raise errors.bad_request(f'invalid timeout specified in the request URL: time: invalid duration "{value}"')
    return float(found[1]) * _SECONDS[found[2]]


def _verb(method: str, target: Target, query: Mapping[str, str]) -> str:
    if method in ("GET", "HEAD"):
        if target.name:
            return "get"
        return "watch" if is_watch(query) else "list"
    if method == "DELETE":
        return "delete" if target.name else "deletecollection"
    verb = {"POST": "create", "PUT": "update", "PATCH": "patch"}.get(method)
    if verb is None or (verb != "create" and not target.name):
        raise errors.method_not_allowed()
    return verb
