"""Versions, changes and earlier states in the store."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.apiserver.errors import ApiError
from lab.apiserver.resources import NODES, PODS, Resource
from lab.apiserver.store import Change, Store


def node(name: str, label: str = "") -> dict[str, object]:
    return {"metadata": {"name": name, "labels": {"l": label}}}


def recording(window: int = 1000) -> tuple[Store, list[tuple[Resource, Change]]]:
    seen: list[tuple[Resource, Change]] = []
    return Store(window, lambda resource, change: seen.append((resource, change))), seen


def names(store: Store, revision: int) -> list[tuple[str, str]]:
    return [(v.key, v.obj["metadata"]["labels"]["l"]) for v in store.ordered_at(NODES, revision)]


def test_revisions_rise_over_all_kinds() -> None:
    store, seen = recording()
    first = store.put(NODES, "n1", node("n1"))
    second = store.put(PODS, "ns/p", {"metadata": {"name": "p", "namespace": "ns"}})
    gone = store.remove(NODES, "n1")
    assert [first.revision, second.revision, gone.revision] == [2, 3, 4]
    assert [(resource.plural, change.type) for resource, change in seen] == [
        ("nodes", "ADDED"),
        ("pods", "ADDED"),
        ("nodes", "DELETED"),
    ]
    assert gone.obj["metadata"]["resourceVersion"] == "4"


def test_stored_documents_begin_with_their_kind() -> None:
    store, _ = recording()
    version = store.put(NODES, "n1", {"status": {}, **node("n1"), "kind": "Node"})
    assert version.raw.startswith(NODES.raw_prefix)
    assert version.raw is version.raw


def test_a_namespace_sorts_as_in_etcd() -> None:
    store, _ = recording()
    for key in ("a/z", "a-b/a", "a/a"):
        store.put(PODS, key, {"metadata": {}})
    assert [version.key for version in store.ordered(PODS)] == ["a-b/a", "a/a", "a/z"]


def test_changes_before_the_window_are_refused() -> None:
    store, _ = recording(window=2)
    for number in range(4):  # revisions 2 to 5, of which 4 and 5 are kept
        store.put(NODES, "n", node("n", str(number)))
    assert [change.version.revision for change in store.changes_after(NODES, 3)] == [4, 5]
    with pytest.raises(ApiError, match=r"too old resource version: 2 \(3\)") as error:
        store.changes_after(NODES, 2)
    assert error.value.code == 410


def test_forgotten_changes_leave_only_the_present() -> None:
    store, _ = recording()
    store.put(NODES, "n", node("n"))
    store.forget_changes(NODES)
    assert store.changes_after(NODES, store.revision) == []
    with pytest.raises(ApiError, match="too old resource version"):
        store.changes_after(NODES, store.revision - 1)


def test_a_revision_ahead_is_refused() -> None:
    store, _ = recording()
    with pytest.raises(ApiError) as error:
        store.ordered_at(NODES, 99)
    assert error.value.code == 504


STEPS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c"]), st.sampled_from(["put", "remove"]), st.sampled_from("xyz")),
    max_size=30,
)


@given(STEPS)
def test_every_earlier_state_can_be_shown_again(steps: list[tuple[str, str, str]]) -> None:
    store, _ = recording()
    states: dict[int, list[tuple[str, str]]] = {store.revision: []}
    for name, step, label in steps:
        if step == "put":
            store.put(NODES, name, node(name, label))
        elif store.get(NODES, name) is not None:
            store.remove(NODES, name)
        states[store.revision] = [(v.key, v.obj["metadata"]["labels"]["l"]) for v in store.ordered(NODES)]
    assert {revision: names(store, revision) for revision in states} == states


@given(STEPS, st.integers(0, 30))
def test_a_list_and_the_changes_after_it_give_the_present(steps: list[tuple[str, str, str]], cut: int) -> None:
    store, _ = recording()
    listed: dict[str, str] = {}
    start = store.revision
    for place, (name, step, label) in enumerate(steps):
        if place == cut:
            listed, start = dict(names(store, store.revision)), store.revision
        if step == "put":
            store.put(NODES, name, node(name, label))
        elif store.get(NODES, name) is not None:
            store.remove(NODES, name)
    for change in store.changes_after(NODES, start):
        if change.type == "DELETED":
            del listed[change.version.key]
        else:
            listed[change.version.key] = change.version.obj["metadata"]["labels"]["l"]
    assert listed == dict(names(store, store.revision))
