"""What the server refuses as invalid: names, labels, annotations, and the few rules of pods and webhooks.

Not the whole of Kubernetes' validation: the rules that clients of this lab can run into.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator

from .documents import JsonObject, mapping, metadata, text
from .errors import FieldError
from .quantities import is_extended, parse
from .resources import Resource
from .selectors import from_document

MAX_ANNOTATIONS_BYTES = 256 * 1024
MAX_LABEL_VALUE = 63

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_WORD = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")

_LABEL_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end "
    "with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
_SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start "
    "and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    r"'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_LABEL_VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start "
    "and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation "
    "is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
_KEY_RULE = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_IMMUTABLE = "field is immutable"
_POD_UPDATE_RULE = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)
_FREE_POD_FIELDS = ("activeDeadlineSeconds", "tolerations", "schedulingGates")


def created(resource: Resource, obj: JsonObject) -> list[FieldError]:
    """Return what is wrong with a new object."""
    errors = [*_own_metadata(resource, metadata(obj))]
    if resource.plural == "pods":
        errors += _pod_spec(mapping(obj.get("spec")))
    if "webhooks" in obj:
        errors += _webhooks(obj)
    return errors


def updated(resource: Resource, new: JsonObject, old: JsonObject, subresource: str) -> list[FieldError]:
    """Return what is wrong with an object that is to replace another."""
    new_meta, old_meta = metadata(new), metadata(old)
    errors = [
        FieldError.invalid(f"metadata.{field}", new_meta.get(field), _IMMUTABLE)
        for field in ("name", "namespace", "uid")
        if new_meta.get(field) != old_meta.get(field)
    ]
    errors += _own_metadata(resource, new_meta)
    if resource.plural == "pods":
        if subresource == "status":
            if mapping(new.get("status")).get("qosClass") != mapping(old.get("status")).get("qosClass"):
                errors.append(
                    FieldError.invalid("status.qosClass", mapping(new.get("status")).get("qosClass"), _IMMUTABLE)
                )
        else:
            errors += _pod_update(mapping(new.get("spec")), mapping(old.get("spec")))
    if "webhooks" in new:
        errors += _webhooks(new)
    return errors


def subdomain_errors(value: str) -> list[str]:
    """Return why a text is no RFC 1123 subdomain, the form of most names."""
    errors = ["must be no more than 253 bytes"] if len(value) > 253 else []
    return errors if _SUBDOMAIN.fullmatch(value) else [*errors, _SUBDOMAIN_RULE]


def label_value_errors(value: object) -> list[str]:
    """Return why a value is no label value."""
    shown = text(value)
    errors = [f"must be no more than {MAX_LABEL_VALUE} bytes"] if len(shown.encode()) > MAX_LABEL_VALUE else []
    return errors if not shown or _WORD.fullmatch(shown) else [*errors, _LABEL_VALUE_RULE]


def _label_errors(value: str) -> list[str]:
    errors = ["must be no more than 63 bytes"] if len(value) > 63 else []
    if _LABEL.fullmatch(value):
        return errors
    return [*errors, "must not contain dots" if _SUBDOMAIN.fullmatch(value) else _LABEL_RULE]


def _own_metadata(resource: Resource, meta: JsonObject) -> Iterator[FieldError]:
    name = text(meta.get("name"))
    if not name:
        yield FieldError.required("metadata.name", "name or generateName is required")
    else:
        check = _label_errors if resource.plural in ("namespaces", "services") else subdomain_errors
        for why in check(name):
            yield FieldError.invalid("metadata.name", name, why)
    for key, value in mapping(meta.get("labels")).items():
        for why in _key_errors(key):
            yield FieldError.invalid("metadata.labels", key, why)
        for why in label_value_errors(value):
            yield FieldError.invalid("metadata.labels", value, why)
    size = 0
    for key, value in mapping(meta.get("annotations")).items():
        size += len(key.encode()) + len(text(value).encode())
        for why in _key_errors(key.lower()):
            yield FieldError.invalid("metadata.annotations", key, why)
    if size > MAX_ANNOTATIONS_BYTES:
        yield FieldError.too_long("metadata.annotations", MAX_ANNOTATIONS_BYTES)


def _key_errors(key: str) -> Iterator[str]:
    prefix, slash, name = key.rpartition("/")
    if slash:
        yield from (f"prefix part {why}" for why in subdomain_errors(prefix))
    if len(name) > 63:
        yield "name part must be no more than 63 bytes"
    if not _WORD.fullmatch(name):
        yield _KEY_RULE


def _pod_spec(spec: JsonObject) -> Iterator[FieldError]:
    containers = spec.get("containers")
    if not isinstance(containers, list) or not containers:
        yield FieldError.required("spec.containers")
    for kind in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(kind) or ()):
            yield from _container(f"spec.{kind}[{index}]", mapping(container))


def _container(path: str, container: JsonObject) -> Iterator[FieldError]:
    name = text(container.get("name"))
    if not name:
        yield FieldError.required(f"{path}.name")
    else:
        yield from (FieldError.invalid(f"{path}.name", name, why) for why in _label_errors(name))
    if not container.get("image"):
        yield FieldError.required(f"{path}.image")
    resources = mapping(container.get("resources"))
    limits, requests = mapping(resources.get("limits")), mapping(resources.get("requests"))
    for kind, amounts in (("limits", limits), ("requests", requests)):
        for resource, amount in amounts.items():
            yield from _amount(f"{path}.resources.{kind}[{resource}]", resource, amount)
    for resource, amount in requests.items():
        if not is_extended(resource):
            continue
        if resource not in limits:
            yield FieldError.required(f"{path}.resources.limits", "Limit must be set for non overcommitable resources")
        elif parse(amount) != parse(limits[resource]):
            yield FieldError.invalid(
                f"{path}.resources.requests", amount, f"must be equal to {resource} limit of {limits[resource]}"
            )


def _amount(path: str, resource: str, amount: object) -> Iterator[FieldError]:
    number = parse(amount)
    if number is None:
        return  # malformed quantities are refused on decoding
    if number < 0:
        yield FieldError.invalid(path, amount, "must be greater than or equal to 0")
    elif is_extended(resource) and number != number.to_integral_value():
        yield FieldError.invalid(path, amount, "must be an integer")


def undecodable(resource: Resource, obj: JsonObject) -> str | None:
    """Return why an object cannot be read as its kind at all (answered with 400), or None."""
    why = undecodable_metadata(obj)
    if why is not None:
        return why
    if resource.plural == "pods":
        spec = obj.get("spec")
        for kind in ("containers", "initContainers"):
            if not _are_objects(mapping(spec).get(kind)):
                return f"json: cannot unmarshal value into Go struct field PodSpec.spec.{kind} of type []v1.Container"
        for path, amount in _amounts(mapping(obj.get("spec"))):
            if parse(amount) is None:
                return (
                    f"{path}: {amount!r}: quantities must match the regular expression "
                    "'^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
                )
    for hook in obj.get("webhooks") or ():
        try:
            base64.b64decode(mapping(mapping(hook).get("clientConfig")).get("caBundle") or "", validate=True)
        except (binascii.Error, TypeError, ValueError) as error:
            return f"illegal base64 data in caBundle: {error}"
    return None


def undecodable_metadata(obj: JsonObject) -> str | None:
    """Return which part of an object's metadata has a type that cannot be read, or None."""
    meta = metadata(obj)
    for field in ("name", "namespace", "generateName", "uid", "resourceVersion"):
        if not isinstance(meta.get(field, ""), str | None):
            return f"json: cannot unmarshal value into Go struct field ObjectMeta.metadata.{field} of type string"
    for field in ("labels", "annotations"):
        values = meta.get(field)
        if values is None:
            continue
        if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
            return (
                f"json: cannot unmarshal value into Go struct field ObjectMeta.metadata.{field} of type "
                "map[string]string"
            )
    return None


def _are_objects(value: object) -> bool:
    return value is None or (isinstance(value, list) and all(isinstance(entry, dict) for entry in value))


def _amounts(spec: JsonObject) -> Iterator[tuple[str, object]]:
    for kind in ("containers", "initContainers"):
        for container in spec.get(kind) or ():
            resources = mapping(mapping(container).get("resources"))
            for sort in ("limits", "requests"):
                for name, amount in mapping(resources.get(sort)).items():
                    yield f"spec.{kind}.resources.{sort}[{name}]", amount


def _pod_update(new: JsonObject, old: JsonObject) -> Iterator[FieldError]:
    if new == old:
        return
    for kind in ("containers", "initContainers"):
        if len(new.get(kind) or ()) != len(old.get(kind) or ()):
            yield FieldError.forbidden(f"spec.{kind}", "pod updates may not add or remove containers")
            return
    tolerations = new.get("tolerations") or ()
    if any(toleration not in tolerations for toleration in old.get("tolerations") or ()):
        yield FieldError.forbidden(
            "spec.tolerations", "existing toleration can not be modified except its tolerationSeconds"
        )
    gates = old.get("schedulingGates") or ()
    if any(gate not in gates for gate in new.get("schedulingGates") or ()):
        yield FieldError.forbidden("spec.schedulingGates", "only deletion is allowed")
    if _fixed_part(new) != _fixed_part(old):
        yield FieldError.forbidden("spec", _POD_UPDATE_RULE)


def _fixed_part(spec: JsonObject) -> JsonObject:
    fixed = {key: value for key, value in spec.items() if key not in _FREE_POD_FIELDS}
    for kind in ("containers", "initContainers"):
        if kind in fixed:
            fixed[kind] = [{**mapping(container), "image": ""} for container in fixed[kind] or ()]
    return fixed


def _webhooks(configuration: JsonObject) -> Iterator[FieldError]:
    for index, raw in enumerate(configuration.get("webhooks") or ()):
        hook, path = mapping(raw), f"webhooks[{index}]"
        name = text(hook.get("name"))
        if not name:
            yield FieldError.required(f"{path}.name")
        elif name.count(".") < 2 or subdomain_errors(name):
            yield FieldError.invalid(
                f"{path}.name", name, "should be a domain with at least three segments separated by dots"
            )
        if not hook.get("admissionReviewVersions"):
            yield FieldError.required(f"{path}.admissionReviewVersions", "must specify one of v1, v1beta1")
        if hook.get("sideEffects") not in ("None", "NoneOnDryRun"):
            yield FieldError.unsupported(f"{path}.sideEffects", hook.get("sideEffects"), ("None", "NoneOnDryRun"))
        if hook.get("failurePolicy") not in ("Fail", "Ignore"):
            yield FieldError.unsupported(f"{path}.failurePolicy", hook.get("failurePolicy"), ("Fail", "Ignore"))
        timeout_s = hook.get("timeoutSeconds")
        if not isinstance(timeout_s, int) or not 1 <= timeout_s <= 30:
            yield FieldError.invalid(
                f"{path}.timeoutSeconds", timeout_s, "the timeout value must be between 1 and 30 seconds"
            )
        for selector in ("namespaceSelector", "objectSelector"):
            try:
                from_document(hook.get(selector))
            except ValueError as error:
                yield FieldError.invalid(f"{path}.{selector}", hook.get(selector), str(error))
        client = mapping(hook.get("clientConfig"))
        if ("url" in client) == ("service" in client):
            yield FieldError.required(f"{path}.clientConfig", "exactly one of url or service is required")
        elif "url" in client and not text(client["url"]).startswith("https://"):
            yield FieldError.invalid(
                f"{path}.clientConfig.url",
                client["url"],
                "'https' is the only allowed URL scheme; desired format: https://host[/path]",
            )
