"""Writes: create, update, patch, delete and bind, each from decoded request to stored version.

Everything between reading the current version and storing the next one happens without an await, except admission;
after admission the version is compared again, so that a write never rests on a state that has changed meanwhile.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta

import orjson

from . import defaults, errors, validation
from .admission import Admission
from .binding import binding_errors, bound_pod, require_bindable
from .deletion import (
    deleted_status,
    grace_period_s,
    is_marked_first,
    require_preconditions,
)
from .documents import JsonObject, mapping, metadata, text, with_field, with_metadata
from .errors import FieldError
from .hooks import Attributes
from .operations import Caller, DeleteOptions, Target, Written
from .patching import apply_patch
from .resources import NAMESPACES, PODS, RESOURCES, Resource
from .store import Store, Version

NAME_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
"""Letters of generated names: no vowels, so no words."""
SUFFIX_LENGTH = 5
MAX_NAME_BASE = 58
MAX_ATTEMPTS = 5
"""How often a patch is applied anew when the object changes during its admission."""


class Writer:
    """Carries out writes on the store after asking admission.

    Args:
        store: where versions go.
        admission: who is asked.
        now: the time for creation, deletion and conditions.
        rng: source of generated names.
        binding_labels: whether a Binding's labels go into the pod.
    """

    def __init__(
        self,
        store: Store,
        admission: Admission,
        now: Callable[[], datetime],
        rng: random.Random,
        binding_labels: bool,
    ) -> None:
        self._store = store
        self._admission = admission
        self._now = now
        self._rng = rng
        self._binding_labels = binding_labels

    async def create(self, target: Target, caller: Caller, obj: JsonObject) -> Written:
        """Store a new object.

        Args:
            target: kind and namespace; the name comes from the object.
            caller: who asks.
            obj: the object as sent, owned by this call.

        Raises:
            ApiError: 400, 403, 404 for a missing namespace, 409, 422, or what admission answers.
        """
        resource = target.resource
        meta = _sent_metadata(target, obj)
        for system in ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"):
            meta.pop(system, None)
        if meta.get("resourceVersion"):
            raise errors.plain(500, "resourceVersion should not be set on objects to be created")
        _refuse_undecodable(resource, obj)
        defaults.apply(resource, obj)
        self._require_namespace(target, text(meta.get("name")))
        attributes = self._attributes(target, caller, "CREATE", name=text(meta.get("name")), options="CreateOptions")
        mutated = await self._admission.mutate(attributes, obj, lambda patched: defaults.apply(resource, patched))
        assert mutated is not None
        obj = mutated
        self._complete(target, obj)
        meta = obj["metadata"]
        name = text(meta.get("name"))
        defaults.prepare_for_create(resource, obj)
        _refuse_invalid(resource, name, validation.created(resource, obj))
        attributes.name = name  # validating webhooks see the generated one
        await self._admission.validate(attributes, obj)
        key = resource.key(target.namespace, name)
        if self._store.get(resource, key) is not None:
            raise errors.already_exists(resource, name)
        if target.namespace:
            self._require_namespace(target, name)
        warnings = tuple(attributes.warnings)
        if caller.dry_run:
            return Written(self._unstored(resource, key, obj), changed=False, created=True, warnings=warnings)
        return Written(self._store.put(resource, key, obj), changed=True, created=True, warnings=warnings)

    async def update(self, target: Target, caller: Caller, obj: JsonObject) -> Written:
        """Replace an object by the one sent (owned by this call).

        Raises:
            ApiError: 404, 409 for an older resourceVersion or another UID, 422, or what admission answers.
        """
        resource = target.resource
        meta = _sent_metadata(target, obj)
        if text(meta.get("name")) != target.name:
            raise errors.bad_request(
                f"the name of the object ({text(meta.get('name'))}) does not match the name on the URL ({target.name})"
            )
        _refuse_undecodable(resource, obj)
        defaults.apply(resource, obj)
        uid = text(meta.get("uid"))
        if self._find(target) is None and resource.create_on_update and not target.subresource and not uid:
            meta.pop("resourceVersion", None)
            return await self.create(target, caller, obj)

        def replacement(current: Version) -> JsonObject:
            stored = metadata(current.obj)
            if uid and uid != stored["uid"]:
                raise errors.precondition_failed(resource, target.namespace, target.name, "UID", uid, stored["uid"])
            return {**obj, "metadata": dict(meta)}

        return await self._replace(target, caller, replacement, "UpdateOptions")

    async def patch(self, target: Target, caller: Caller, content_type: str, body: bytes) -> Written:
        """Apply a patch to an object, anew if the object changes during admission.

        Raises:
            ApiError: 400, 404, 409 for another resourceVersion in the patch, 415, 422, or what admission answers.
        """

        def patched(current: Version) -> JsonObject:
            obj = apply_patch(content_type, body, current.raw)
            meta = _sent_metadata(target, obj)
            if text(meta.get("name")) != target.name:
                raise errors.bad_request(
                    f"the name of the object ({text(meta.get('name'))}) does not match the name on the URL "
                    f"({target.name})"
                )
            why = validation.undecodable(target.resource, obj)
            if why is not None:
                wrong = FieldError.invalid("patch", orjson.dumps(obj).decode(), why)
                raise errors.invalid_kind("", "", "", [wrong])
            defaults.apply(target.resource, obj)
            return obj

        return await self._replace(target, caller, patched, "PatchOptions")

    async def bind(self, target: Target, caller: Caller, binding: JsonObject) -> Written:
        """Assign a pod to a node; the Binding's annotations, and on newer servers its labels, go into the pod, unchecked.

        Args:
            target: pods/binding with the pod's name, or `bindings` without.
            caller: who asks.
            binding: the Binding as sent, owned by this call.

        Raises:
            ApiError: 400, 404, 409 for a pod that is assigned, being deleted or another one, or what admission answers.
        """
        unreadable = validation.undecodable_metadata(binding)
        if unreadable is not None:
            raise errors.bad_request(f'Binding in version "v1" cannot be handled as a Binding: {unreadable}')
        meta = _sent_metadata(target, binding)
        name = text(meta.get("name"))
        if target.resource is PODS and name != target.name:
            raise errors.bad_request("name in URL does not match name in Binding object")
        self._require_namespace(target, name)
        attributes = self._attributes(target, caller, "CREATE", name=name, options="CreateOptions", kind="Binding")
        mutated = await self._admission.mutate(attributes, binding, lambda _: None)
        assert mutated is not None
        faults = binding_errors(mutated)
        if faults:
            raise errors.plain(500, errors.aggregate(faults))
        await self._admission.validate(attributes, mutated)
        pod = self._store.get(PODS, PODS.key(target.namespace, name))
        if pod is None:
            raise errors.not_found(PODS, name)
        require_bindable(target.namespace, pod, metadata(mutated))
        bound = bound_pod(pod.obj, mutated, self._timestamp(), with_labels=self._binding_labels)
        if not caller.dry_run:
            self._store.put(PODS, pod.key, bound)
        status: JsonObject = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
        return Written(
            None, changed=not caller.dry_run, created=True, warnings=tuple(attributes.warnings), status=status
        )

    async def delete(self, target: Target, caller: Caller, options: DeleteOptions) -> Written:
        """Delete an object, or begin to: a bound pod stays until its grace period is over.

        Raises:
            ApiError: 404, 409 for preconditions that do not hold, or what admission answers.
        """
        resource = target.resource
        for _ in range(MAX_ATTEMPTS):
            current = self._required(target)
            require_preconditions(target, current, options)
            attributes = await self._ask_to_delete(target, caller, current, options)
            if self._find(target) is not current:
                continue
            if not caller.dry_run and is_marked_first(resource, current.obj, options):
                # A pod's deletion is two writes, and admission is asked for each.
                marked = with_metadata(current.obj, deletionTimestamp=self._timestamp(), deletionGracePeriodSeconds=0)
                current = self._store.put(resource, current.key, marked)
                attributes = await self._ask_to_delete(target, caller, current, options)
                if self._find(target) is not current:
                    continue
            version, stored = self._deleted(resource, current, options, dry_run=caller.dry_run)
            status = None if stored or resource.returns_deleted else deleted_status(resource, current)
            return Written(version, changed=not caller.dry_run, warnings=tuple(attributes.warnings), status=status)
        raise errors.conflict(resource, target.name, errors.OPTIMISTIC_LOCK)

    async def _ask_to_delete(
        self, target: Target, caller: Caller, current: Version, options: DeleteOptions
    ) -> Attributes:
        attributes = self._attributes(
            target, caller, "DELETE", name=target.name, old=current.obj, options="DeleteOptions"
        )
        attributes.options = {**options.document, **attributes.options}
        await self._admission.mutate(attributes, None, lambda _: None)
        await self._admission.validate(attributes, None)
        return attributes

    async def _replace(
        self, target: Target, caller: Caller, change: Callable[[Version], JsonObject], options: str
    ) -> Written:
        """Compute the next version from the current one, ask admission, and store it if nothing came between."""
        resource = target.resource
        for _ in range(MAX_ATTEMPTS):
            current = self._required(target)
            new = change(current)
            attributes = self._attributes(target, caller, "UPDATE", name=target.name, old=current.obj, options=options)
            mutated = await self._admission.mutate(attributes, new, lambda patched: defaults.apply(resource, patched))
            assert mutated is not None
            _require_version(resource, target.name, mutated, current)
            kept = _keep_system_fields(target, mutated, current.obj)
            _refuse_invalid(resource, target.name, validation.updated(resource, kept, current.obj, target.subresource))
            await self._admission.validate(attributes, kept)
            if self._find(target) is not current:
                continue
            warnings = tuple(attributes.warnings)
            if kept == current.obj:
                return Written(current, changed=False, warnings=warnings)
            if caller.dry_run:
                return Written(self._unstored(resource, current.key, kept), changed=False, warnings=warnings)
            version = self._store.put(resource, current.key, kept)
            if metadata(kept).get("deletionTimestamp") and not metadata(kept).get("finalizers"):
                self._finish_deletion(resource, version)
            return Written(version, changed=True, warnings=warnings)
        raise errors.conflict(resource, target.name, errors.OPTIMISTIC_LOCK)

    def _finish_deletion(self, resource: Resource, version: Version) -> None:
        """Remove an object whose last finalizer has gone and whose grace period is over."""
        if not metadata(version.obj).get("deletionGracePeriodSeconds") and resource is not NAMESPACES:
            self._store.remove(resource, version.key)

    def _complete(self, target: Target, obj: JsonObject) -> None:
        """Fill in UID, time and, where one is to be generated, the name."""
        meta = obj["metadata"]
        meta["uid"] = str(uuid.uuid4())
        meta["creationTimestamp"] = self._timestamp()
        base = text(meta.get("generateName"))
        if base and not meta.get("name"):
            meta["name"] = self._free_name(target, base[:MAX_NAME_BASE])

    def _free_name(self, target: Target, base: str) -> str:
        while True:
            name = base + "".join(self._rng.choices(NAME_LETTERS, k=SUFFIX_LENGTH))
            if self._store.get(target.resource, target.resource.key(target.namespace, name)) is None:
                return name

    def _require_namespace(self, target: Target, name: str) -> None:
        if not target.resource.namespaced:
            return
        namespace = self._store.get(NAMESPACES, target.namespace)
        if namespace is None:
            raise errors.not_found(NAMESPACES, target.namespace)
        if mapping(namespace.obj.get("status")).get("phase") == "Terminating":
            raise errors.forbidden(
                target.resource,
                name,
                f"unable to create new content in namespace {target.namespace} because it is being terminated",
            )

    def _deleted(
        self, resource: Resource, current: Version, options: DeleteOptions, *, dry_run: bool
    ) -> tuple[Version, bool]:
        """Return the version to answer with, and whether the object is still stored."""
        if resource is NAMESPACES:
            return self._delete_namespace(current, dry_run=dry_run)
        meta = metadata(current.obj)
        grace_s = grace_period_s(resource, current.obj, options)
        finalizers = meta.get("finalizers")
        if grace_s == 0 and not finalizers:
            return (current if dry_run else self._store.remove(resource, current.key)), False
        old_grace_s = meta.get("deletionGracePeriodSeconds")
        if meta.get("deletionTimestamp") and (old_grace_s or 0) <= grace_s:
            return current, True  # a grace period may only become shorter
        marked = with_metadata(
            current.obj,
            deletionTimestamp=self._timestamp(grace_s),
            deletionGracePeriodSeconds=grace_s,
        )
        if dry_run:
            return self._unstored(resource, current.key, marked), True
        return self._store.put(resource, current.key, marked), True

    def _delete_namespace(self, current: Version, *, dry_run: bool) -> tuple[Version, bool]:
        """Mark a namespace as terminating and, as the namespace controller would, empty and remove it."""
        marked = with_field(
            with_metadata(current.obj, deletionTimestamp=self._timestamp()),
            "status",
            {**mapping(current.obj.get("status")), "phase": "Terminating"},
        )
        if dry_run:
            return self._unstored(NAMESPACES, current.key, marked), True
        version = self._store.put(NAMESPACES, current.key, marked)
        for resource in RESOURCES:
            if resource.namespaced:
                for content in self._store.ordered(resource):
                    if metadata(content.obj).get("namespace") == current.key:
                        self._store.remove(resource, content.key)
        self._store.remove(NAMESPACES, current.key)
        return version, True

    def _attributes(
        self,
        target: Target,
        caller: Caller,
        operation: str,
        *,
        name: str,
        old: JsonObject | None = None,
        options: str = "",
        kind: str = "",
    ) -> Attributes:
        document: JsonObject = {"kind": options, "apiVersion": "meta.k8s.io/v1"} if options else {}
        if caller.dry_run:
            document["dryRun"] = ["All"]
        if caller.field_manager:
            document["fieldManager"] = caller.field_manager
        return Attributes(
            operation=operation,
            resource=target.resource,
            kind=kind or target.resource.kind,
            subresource=target.subresource,
            namespace=target.name if target.resource is NAMESPACES else target.namespace,
            name=name,
            user=caller.user,
            dry_run=caller.dry_run,
            options=document,
            old=old,
        )

    def _find(self, target: Target) -> Version | None:
        return self._store.get(target.resource, target.resource.key(target.namespace, target.name))

    def _required(self, target: Target) -> Version:
        version = self._find(target)
        if version is None:
            raise errors.not_found(target.resource, target.name)
        return version

    def _unstored(self, resource: Resource, key: str, obj: JsonObject) -> Version:
        """Return what a dry run would have stored, without a place among the revisions."""
        ordered = {"kind": resource.kind, "apiVersion": resource.api_version, **obj}
        return Version(key, ordered, self._store.revision)

    def _timestamp(self, ahead_s: int = 0) -> str:
        return (self._now() + timedelta(seconds=ahead_s)).strftime("%Y-%m-%dT%H:%M:%SZ")


def _sent_metadata(target: Target, obj: JsonObject) -> JsonObject:
    """Return the object's metadata, its namespace set to the request's."""
    meta = obj.get("metadata")
    if not isinstance(meta, dict):
        meta = obj["metadata"] = {}
    sent = text(meta.get("namespace"))
    if not target.resource.namespaced:
        meta.pop("namespace", None)
    elif sent and sent != target.namespace:
        raise errors.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    else:
        meta["namespace"] = target.namespace
    return meta


def _refuse_undecodable(resource: Resource, obj: JsonObject) -> None:
    why = validation.undecodable(resource, obj)
    if why is not None:
        raise errors.bad_request(
            f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: {why}'
        )


def _refuse_invalid(resource: Resource, name: str, found: list[FieldError]) -> None:
    if found:
        raise errors.invalid(resource, name, found)


def _require_version(resource: Resource, name: str, new: JsonObject, current: Version) -> None:
    sent = metadata(new).get("resourceVersion")
    if not sent:
        if not resource.unconditional_update:
            wrong = FieldError(
                "FieldValueInvalid", "metadata.resourceVersion", "Invalid value: 0: must be specified for an update"
            )
            raise errors.invalid_kind(resource.group, resource.plural, name, [wrong])
    elif sent != current.obj["metadata"]["resourceVersion"]:
        raise errors.conflict(resource, name, errors.OPTIMISTIC_LOCK)


def _keep_system_fields(target: Target, new: JsonObject, old: JsonObject) -> JsonObject:
    """Return the new object with what its writer may not change taken from the old one."""
    meta, old_meta = dict(metadata(new)), metadata(old)
    meta["resourceVersion"] = old_meta["resourceVersion"]
    meta["creationTimestamp"] = old_meta["creationTimestamp"]
    meta.setdefault("uid", old_meta["uid"])
    kept_fields = ["generation", "deletionTimestamp", "deletionGracePeriodSeconds"]
    if target.subresource == "status":
        kept_fields.append("ownerReferences")
    for kept in kept_fields:
        meta.pop(kept, None)
        if kept in old_meta:
            meta[kept] = old_meta[kept]
    resource = target.resource
    result = {**new, "kind": resource.kind, "apiVersion": resource.api_version, "metadata": meta}
    if target.subresource == "status":
        result = with_field(result, "spec", old.get("spec"))
        if resource is PODS:
            qos_class = mapping(old.get("status")).get("qosClass")
            result["status"] = {"qosClass": qos_class, **mapping(new.get("status"))}
        return result
    if resource.status_from_strategy or "status" in resource.subresources:
        result = with_field(result, "status", old.get("status"))
    if "generation" in old_meta and result.get("spec") != old.get("spec"):
        meta["generation"] = old_meta["generation"] + 1
    return result
