"""Patches, selectors and quantities on their own."""

from __future__ import annotations

import copy
from decimal import Decimal
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.apiserver.documents import with_metadata
from lab.apiserver.errors import ApiError
from lab.apiserver.patching import JSON_PATCH, MERGE_PATCH, apply_patch, merge
from lab.apiserver.quantities import is_extended, parse
from lab.apiserver.resources import NODES, PODS
from lab.apiserver.selectors import from_document
from lab.apiserver.selectors import parse as parse_selectors

# The examples of RFC 7386, appendix A, that have an object as target and patch.
MERGES = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]


@pytest.mark.parametrize(("document", "patch", "expected"), MERGES)
def test_merge_patches_of_the_rfc(document: dict[str, Any], patch: dict[str, Any], expected: dict[str, Any]) -> None:
    assert merge(copy.deepcopy(document), patch) == expected
    assert apply_patch(MERGE_PATCH, orjson.dumps(patch), orjson.dumps(document)) == expected


FLAT = st.dictionaries(st.text(max_size=3), st.none() | st.integers(-5, 5) | st.text(max_size=3), max_size=4)


@given(st.recursive(FLAT, lambda inner: st.dictionaries(st.text(max_size=3), inner, max_size=3), max_leaves=6))
def test_a_merge_patch_applied_twice_is_applied_once(patch: dict[str, Any]) -> None:
    once = merge({}, copy.deepcopy(patch))
    assert merge(copy.deepcopy(once), copy.deepcopy(patch)) == once


REFUSED = {
    "no JSON": (JSON_PATCH, b"[", 400),
    "no list": (JSON_PATCH, b"{}", 400),
    "no object": (MERGE_PATCH, b"[]", 400),
    "an operation that is none": (JSON_PATCH, b'[{"op":"jump","path":"/a"}]', 422),
    "an operation without path": (JSON_PATCH, b'[{"op":"add","value":1}]', 422),
    "operations that are no objects": (JSON_PATCH, b"[1]", 422),
    "a whole document that is no object": (JSON_PATCH, b'[{"op":"replace","path":"","value":[1]}]', 422),
    "too many operations": (JSON_PATCH, b"[" + b",".join([b"{}"] * 10_001) + b"]", 413),
    "strategic merge": ("application/strategic-merge-patch+json", b"{}", 415),
}


@pytest.mark.parametrize(("content_type", "body", "code"), REFUSED.values(), ids=REFUSED)
def test_patches_that_are_refused(content_type: str, body: bytes, code: int) -> None:
    with pytest.raises(ApiError) as error:
        apply_patch(content_type, body, b'{"a":1}')
    assert error.value.code == code


QUANTITIES = {
    "0": Decimal(0),
    "1.5": Decimal("1.5"),
    ".5": Decimal("0.5"),
    "100m": Decimal("0.1"),
    "5n": Decimal("5e-9"),
    "2k": Decimal(2000),
    "1Ki": Decimal(1024),
    "3Gi": Decimal(3 * 1024**3),
    "1E": Decimal(10) ** 18,
    "1e3": Decimal(1000),
    "2E-1": Decimal("0.2"),
    "-1": Decimal(-1),
}


@pytest.mark.parametrize(("text", "number"), QUANTITIES.items())
def test_quantities(text: str, number: Decimal) -> None:
    assert parse(text) == number


@pytest.mark.parametrize("text", ["", "1 Gi", "Ki", "1KB", "1,5", "0x1", "1ki", None, True, [], "1e"])
def test_what_is_no_quantity(text: object) -> None:
    assert parse(text) is None


@pytest.mark.parametrize(
    ("name", "expected"),
    {"cpu": False, "nvidia.com/gpu": True, "kubernetes.io/x": False, "batch.kubernetes.io/x": False}.items(),
)
def test_extended_resources_have_a_foreign_domain(name: str, expected: bool) -> None:
    assert is_extended(name) is expected


EXPRESSIONS = {
    "In": ({"key": "a", "operator": "In", "values": ["1", "2"]}, [{"a": "1"}], [{"a": "3"}, {}]),
    "NotIn": ({"key": "a", "operator": "NotIn", "values": ["1"]}, [{"a": "2"}, {}], [{"a": "1"}]),
    "Exists": ({"key": "a", "operator": "Exists"}, [{"a": ""}], [{}]),
    "DoesNotExist": ({"key": "a", "operator": "DoesNotExist"}, [{}], [{"a": ""}]),
}


@pytest.mark.parametrize(("expression", "matching", "other"), EXPRESSIONS.values(), ids=EXPRESSIONS)
def test_selector_expressions(
    expression: dict[str, Any], matching: list[dict[str, str]], other: list[dict[str, str]]
) -> None:
    (matches,) = from_document({"matchExpressions": [expression]})
    assert [matches(labels) for labels in matching] == [True] * len(matching)
    assert [matches(labels) for labels in other] == [False] * len(other)


def test_an_unknown_operator_is_named() -> None:
    with pytest.raises(ValueError, match="operator 'Near' of label key 'a' is none of In"):
        from_document({"matchExpressions": [{"key": "a", "operator": "Near"}]})


def test_a_node_without_mark_counts_as_schedulable() -> None:
    schedulable = parse_selectors(NODES, None, "", "spec.unschedulable=false")
    assert schedulable.matches({"metadata": {}, "spec": {}})
    assert not schedulable.matches({"metadata": {}, "spec": {"unschedulable": True}})


@pytest.mark.parametrize("selector", ["a in (1", "!a=b", "=x", "a notin", "a,,b", "!a in (b)"])
def test_label_selectors_that_are_none(selector: str) -> None:
    with pytest.raises(ApiError, match="unable to parse requirement"):
        parse_selectors(PODS, None, selector, "")


def test_a_field_selector_needs_an_operator() -> None:
    with pytest.raises(ApiError, match="invalid field selector"):
        parse_selectors(PODS, None, "", "metadata.name")


def test_changed_metadata_leaves_the_original_alone() -> None:
    original = {"metadata": {"name": "a", "labels": {"x": "1"}}, "spec": {}}
    changed = with_metadata(original, labels=None, uid="u")
    assert changed == {"metadata": {"name": "a", "uid": "u"}, "spec": {}}
    assert original == {"metadata": {"name": "a", "labels": {"x": "1"}}, "spec": {}}
