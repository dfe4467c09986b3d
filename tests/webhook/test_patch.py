"""Editing a raw pod, and what a family may do to a container."""

from collections.abc import Callable

import pytest

from tests.webhook.builders import applied, container, pod
from webhook.advice import Advice
from webhook.errors import NotAPodError
from webhook.mutators import ContainerAdmission
from webhook.patch import PodEdit
from webhook.wire import JsonObject, Operation

Edit = Callable[[PodEdit], object]

EDITS: dict[str, tuple[JsonObject, Edit, list[Operation]]] = {
    "a text that is absent": ({}, lambda e: e.put(("a",), "x"), [{"op": "add", "path": "/a", "value": "x"}]),
    "a text that stands already": ({"a": "x"}, lambda e: e.put(("a",), "x"), []),
    "a text in place of another": (
        {"a": "y"},
        lambda e: e.put(("a",), "x"),
        [{"op": "test", "path": "/a", "value": "y"}, {"op": "replace", "path": "/a", "value": "x"}],
    ),
    "parents that are missing": (
        {"a": {}},
        lambda e: e.put(("a", "b", "c/d~e"), "x"),
        [{"op": "add", "path": "/a/b", "value": {"c/d~e": "x"}}],
    ),
    "a parent that is null": (
        {"a": None},
        lambda e: e.put(("a", "b"), "x"),
        [{"op": "test", "path": "/a", "value": None}, {"op": "replace", "path": "/a", "value": {"b": "x"}}],
    ),
    "an escaped key": (
        {"a": {}},
        lambda e: e.put(("a", "c/d~e"), "x"),
        [{"op": "add", "path": "/a/c~1d~0e", "value": "x"}],
    ),
    "the first of a list": (
        {},
        lambda e: e.append(("l",), {"n": 1}),
        [{"op": "add", "path": "/l", "value": [{"n": 1}]}],
    ),
    "one more of a list": (
        {"l": [0]},
        lambda e: e.append(("l",), {"n": 1}),
        [{"op": "add", "path": "/l/-", "value": {"n": 1}}],
    ),
    "removing": ({"a": {"b": 1, "c": 2}}, lambda e: e.remove(("a", "b")), [{"op": "remove", "path": "/a/b"}]),
    "removing what is not there": ({"a": None}, lambda e: e.remove(("a", "b")), []),
    "an element without a name needs no guard": (
        {"l": [{}]},
        lambda e: e.put(("l", 0, "a"), "x"),
        [{"op": "add", "path": "/l/0/a", "value": "x"}],
    ),
}


@pytest.mark.parametrize(("given", "edit", "operations"), EDITS.values(), ids=EDITS)
def test_edits(given: JsonObject, edit: Edit, operations: list[Operation]) -> None:
    made = PodEdit(given)
    edit(made)
    assert made.operations == operations
    assert applied(given, made.operations) == made.pod


MISSHAPEN: dict[str, tuple[JsonObject, Edit, str]] = {
    "an object where a list is meant": ({"l": {}}, lambda e: e.get("l", 0), "/l must be a list"),
    "a list where an object is meant": ({"l": []}, lambda e: e.get("l", "a"), "/l must be an object"),
    "appending to a text": ({"l": "x"}, lambda e: e.append(("l",), {}), "/l must be a list"),
}


@pytest.mark.parametrize(("given", "edit", "text"), MISSHAPEN.values(), ids=MISSHAPEN)
def test_wrong_shapes(given: JsonObject, edit: Edit, text: str) -> None:
    made = PodEdit(given)
    with pytest.raises(NotAPodError, match=f"^object is not a Pod: {text}$"):
        edit(made)
    assert made.operations == []


LIMITS: dict[str, tuple[object, int, list[Operation]]] = {
    "the same in another spelling": ("1k", 1000, []),
    "another": (
        "500m",
        1,
        [
            {"op": "test", "path": "/spec/containers/0/name", "value": "main"},
            {"op": "test", "path": "/spec/containers/0/resources/limits/nvidia.com~1gpu", "value": "500m"},
            {"op": "replace", "path": "/spec/containers/0/resources/limits/nvidia.com~1gpu", "value": "1"},
        ],
    ),
    "one that is no quantity": (
        "many",
        1,
        [
            {"op": "test", "path": "/spec/containers/0/name", "value": "main"},
            {"op": "test", "path": "/spec/containers/0/resources/limits/nvidia.com~1gpu", "value": "many"},
            {"op": "replace", "path": "/spec/containers/0/resources/limits/nvidia.com~1gpu", "value": "1"},
        ],
    ),
}


@pytest.mark.parametrize(("held", "value", "operations"), LIMITS.values(), ids=LIMITS)
def test_overwriting_a_limit(held: object, value: int, operations: list[Operation]) -> None:
    edit = PodEdit(pod(container(gpu=held)))
    ContainerAdmission(edit, ("spec", "containers", 0), Advice()).set_limit("nvidia.com/gpu", value)
    assert edit.operations == operations


def test_later_changes_touch_neither_the_pod_given_nor_earlier_operations() -> None:
    """What was copied once is changed in place."""
    given: JsonObject = {"l": [{"n": 1}, {"n": 2}], "m": {"x": {"y": "old"}}}
    edit = PodEdit(given)
    for key in ("a", "b"):
        edit.put(("new", key), "1")
        edit.put(("l", 0, "k", key), "2")
        edit.put(("m", "x", key), "3")
    edit.remove(("m", "x", "y"))
    assert given == {"l": [{"n": 1}, {"n": 2}], "m": {"x": {"y": "old"}}}
    assert edit.operations[:2] == [
        {"op": "add", "path": "/new", "value": {"a": "1"}},
        {"op": "add", "path": "/l/0/k", "value": {"a": "2"}},
    ]
    both = {"a": "3", "b": "3"}
    assert edit.pod == {
        "l": [{"n": 1, "k": {"a": "2", "b": "2"}}, {"n": 2}],
        "m": {"x": both},
        "new": {"a": "1", "b": "1"},
    }
    assert applied(given, edit.operations) == edit.pod
