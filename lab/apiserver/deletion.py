"""Deleting: preconditions, how long a pod stays, and what is answered."""

from __future__ import annotations

from . import errors
from .documents import JsonObject, mapping, metadata
from .operations import DeleteOptions, Target
from .resources import PODS, Resource
from .store import Version


def require_preconditions(target: Target, current: Version, options: DeleteOptions) -> None:
    """Refuse to delete an object other than the one meant.

    Raises:
        ApiError: 409.
    """
    meta = metadata(current.obj)
    if options.uid is not None and options.uid != meta["uid"]:
        raise errors.conflict(
            target.resource,
            target.name,
            f"the UID in the precondition ({options.uid}) does not match the UID in record ({meta['uid']}). "
            "The object might have been deleted and then recreated",
        )
    if options.resource_version is not None and options.resource_version != meta["resourceVersion"]:
        raise errors.conflict(
            target.resource,
            target.name,
            f"the ResourceVersion in the precondition ({options.resource_version}) does not match the "
            f"ResourceVersion in record ({meta['resourceVersion']}). The object might have been modified",
        )


def grace_period_s(resource: Resource, obj: JsonObject, options: DeleteOptions) -> int:
    """Return the seconds a pod stays after DELETE; other kinds, unbound and finished pods go at once."""
    spec = mapping(obj.get("spec"))
    if resource is not PODS or not spec.get("nodeName"):
        return 0
    if mapping(obj.get("status")).get("phase") in ("Succeeded", "Failed"):
        return 0
    candidates = (
        options.grace_period_s,
        metadata(obj).get("deletionGracePeriodSeconds"),
        spec.get("terminationGracePeriodSeconds"),
    )
    asked = next((seconds for seconds in candidates if seconds is not None), 0)
    return 1 if asked < 0 else asked


def is_marked_first(resource: Resource, obj: JsonObject, options: DeleteOptions) -> bool:
    """Return whether an object is marked as being deleted, with no grace, before it goes: so it is with pods."""
    meta = metadata(obj)
    if resource is not PODS or meta.get("finalizers") or grace_period_s(resource, obj, options):
        return False
    return not meta.get("deletionTimestamp") or bool(meta.get("deletionGracePeriodSeconds"))


def deleted_status(resource: Resource, version: Version) -> JsonObject:
    """Return the Status that answers the deletion of most kinds."""
    meta = metadata(version.obj)
    details = {"name": meta["name"], "kind": resource.plural, "uid": meta["uid"]}
    if resource.group:
        details["group"] = resource.group
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
