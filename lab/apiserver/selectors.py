"""Label and field selectors, from query text and from webhook configurations, as plain tests on objects."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .documents import JsonObject, labels, mapping, text
from .errors import bad_request
from .resources import Resource

LabelTest = Callable[[Mapping[str, object]], bool]

_SET = re.compile(r"^\s*(!?)\s*([A-Za-z0-9][-A-Za-z0-9_./]*)\s*(?:(in|notin)\s*\(([^)]*)\))?\s*$")
_EQUALITY = re.compile(r"^\s*([A-Za-z0-9][-A-Za-z0-9_./]*)\s*(==|=|!=)\s*([-A-Za-z0-9_.]*)\s*$")
_OUTSIDE_BRACKETS = re.compile(r",(?![^(]*\))")


@dataclass(frozen=True, slots=True)
class Selection:
    """What a list or watch asked for. An empty selection matches everything."""

    label_tests: tuple[LabelTest, ...] = ()
    field_tests: tuple[tuple[tuple[str, ...], bool, str], ...] = ()
    """Each: the path, whether it must equal (else differ), the value."""
    namespace: str | None = None

    @property
    def everything(self) -> bool:
        """Whether no object is left out."""
        return not self.label_tests and not self.field_tests and self.namespace is None

    def matches(self, obj: JsonObject) -> bool:
        """Return whether the object is selected."""
        if self.namespace is not None and obj["metadata"].get("namespace") != self.namespace:
            return False
        if any((_field(obj, path) == value) is not equal for path, equal, value in self.field_tests):
            return False
        if not self.label_tests:
            return True
        own = labels(obj)
        return all(test(own) for test in self.label_tests)


def parse(resource: Resource, namespace: str | None, label_selector: str, field_selector: str) -> Selection:
    """Return the selection for the query texts.

    Raises:
        ApiError: 400 for a text that is no selector, or a field the kind does not offer.
    """
    return Selection(_label_tests(label_selector), _field_tests(resource, field_selector), namespace)


def from_document(selector: object) -> tuple[LabelTest, ...]:
    """Return the tests of a LabelSelector object (matchLabels, matchExpressions).

    Raises:
        ValueError: an operator that does not exist.
    """
    document = mapping(selector)
    tests = [_one_of(key, frozenset({text(value)})) for key, value in mapping(document.get("matchLabels")).items()]
    for expression in document.get("matchExpressions") or ():
        tests.append(_expression(mapping(expression)))
    return tuple(tests)


def _expression(expression: JsonObject) -> LabelTest:
    key, values = text(expression.get("key")), frozenset(expression.get("values") or ())
    match expression.get("operator"):
        case "In":
            return _one_of(key, values)
        case "NotIn":
            return _none_of(key, values)
        case "Exists":
            return lambda own: key in own
        case "DoesNotExist":
            return lambda own: key not in own
        case other:
            raise ValueError(f"operator {other!r} of label key {key!r} is none of In, NotIn, Exists, DoesNotExist")


def _one_of(key: str, values: frozenset[str]) -> LabelTest:
    return lambda own: own.get(key) in values


def _none_of(key: str, values: frozenset[str]) -> LabelTest:
    return lambda own: own.get(key) not in values


def _label_tests(selector: str) -> tuple[LabelTest, ...]:
    if not selector.strip():
        return ()
    return tuple(_label_test(part) for part in _OUTSIDE_BRACKETS.split(selector))


def _label_test(part: str) -> LabelTest:
    equality = _EQUALITY.match(part)
    if equality:
        key, operator, value = equality.groups()
        values = frozenset({value})
        return _none_of(key, values) if operator == "!=" else _one_of(key, values)
    found = _SET.match(part)
    if found is None or (found[1] and found[3]):
        raise bad_request(f"unable to parse requirement: {part.strip()!r} is no label selector")
    negated, key, operator, listed = found.groups()
    if operator is None:
        return (lambda own: key not in own) if negated else (lambda own: key in own)
    values = frozenset(value.strip() for value in listed.split(","))
    return _one_of(key, values) if operator == "in" else _none_of(key, values)


def _field_tests(resource: Resource, selector: str) -> tuple[tuple[tuple[str, ...], bool, str], ...]:
    tests = []
    for part in filter(None, selector.split(",")):
        found = re.fullmatch(r"([^!=]*)(==|!=|=)(.*)", part, re.S)
        if found is None:
            raise bad_request(f"invalid field selector: {part!r}; can't understand '{part}'")
        label, operator, value = found.groups()
        if label not in resource.selectable:
            raise bad_request(f"field label not supported: {label}")
        # An event's source is an object; its selector label means the component in it.
        path = ("source", "component") if label == "source" else tuple(label.split("."))
        tests.append((path, operator != "!=", value))
    return tuple(tests)


def _field(obj: JsonObject, path: tuple[str, ...]) -> str:
    value: object = obj
    for step in path:
        value = mapping(value).get(step)
    if path == ("spec", "unschedulable"):
        return "true" if value else "false"
    return text(value)
