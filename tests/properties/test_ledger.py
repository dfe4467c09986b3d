"""Whatever happens, the books equal a recount from the objects."""

import json
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from devices.ledger import Ledger
from devices.model import NodeState, Placement
from devices.objects import node_of, pod_of, quota_of
from devices.usage import Hold
from tests.builders import (
    REGISTER,
    allocated,
    card_document,
    container_document,
    entry,
    node,
    nvidia_config,
    pod,
)
from tests.recount import Recount
from tests.strategies import NAMESPACES, NODES, Step, cards, histories, nodes, pods, shapes

RESOURCES = ("nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores")


def played(history: list[Step]) -> tuple[Ledger, Recount]:
    ledger, recount = Ledger(nvidia_config()), Recount()
    for step in history:
        step.apply(ledger)
        step.apply(recount)
    return ledger, recount


def assert_equal(ledger: Ledger, recount: Recount) -> None:
    for name in NODES:
        expected = recount.usage(name)
        state = ledger.state(name)
        for one in state.cards if state else ():
            used = (one.used_slots, one.used_memory_mib, one.used_cores)
            assert used == expected.get(one.card.uuid, (0, 0, 0))
            assert min(used) >= 0
            if one.card.mode == "mig":
                found = [(place.start, place.size) for place in one.placements]
                assert found == recount.placements(name, one.card.uuid)
    for namespace in NAMESPACES:
        charge = ledger.used(namespace).get("NVIDIA")
        found_used = (charge.cards, charge.memory_mib, charge.cores) if charge else (0, 0, 0)
        assert found_used == recount.used(namespace)
        assert min(found_used) >= 0
        limits = ledger.limits(namespace)
        for resource in RESOURCES:
            limit = limits.get(resource)
            assert (limit.value if limit else None) == recount.limit(namespace, resource)


@settings(max_examples=150)
@given(histories())
def test_after_every_step_the_books_equal_a_recount(history: list[Step]) -> None:
    ledger, recount = Ledger(nvidia_config()), Recount()
    for step in history:
        step.apply(ledger)
        step.apply(recount)
        assert_equal(ledger, recount)
    assert {book.uid for book in ledger.pods()} == set(recount.pods)
    assert {r.uid for r in ledger.reservations()} == {uid for uid, facts in recount.pods.items() if facts.decided}


def seen(ledger: Ledger) -> dict[str, NodeState | None]:
    return {name: ledger.state(name) for name in NODES}


def content(state: NodeState | None) -> Any:
    return state and (state.cards, state.score, dict(state.facts))


@settings(max_examples=50)
@given(histories())
def test_a_version_stands_for_one_state(history: list[Step]) -> None:
    ledger = Ledger(nvidia_config())
    known: dict[tuple[str, int], Any] = {}
    total = 0
    for step in history:
        before = seen(ledger)
        step.apply(ledger)
        assert ledger.version >= total
        total = ledger.version
        for name, state in seen(ledger).items():
            earlier = before[name]
            if content(state) != content(earlier) and state is not None and earlier is not None:
                assert state.version > earlier.version
            if state is not None:
                assert known.setdefault((name, state.version), content(state)) == content(state)
                assert state.version <= total


@settings(max_examples=40)
@given(histories())
def test_when_every_pod_is_gone_nothing_is_left(history: list[Step]) -> None:
    ledger, _ = played(history)
    for left in list(ledger.pods()):
        ledger.delete_pod(left.uid)
    for state in seen(ledger).values():
        for one in state.cards if state else ():
            assert (one.used_slots, one.used_memory_mib, one.used_cores, one.placements) == (0, 0, 0, ())
            assert one.healthy == one.card.healthy
    assert [dict(ledger.used(namespace)) for namespace in NAMESPACES] == [{}, {}]
    assert ledger.pod_problems() == {}
    assert list(ledger.reservations()) == []


@st.composite
def clusters(draw: st.DrawFn) -> list[Step]:
    """Every object once."""
    found = [Step("put_node", (draw(nodes(name)),)) for name in NODES]
    for name in ("p1", "p2", "p3"):
        found.append(Step("put_pod", (draw(pods(draw(shapes(name)))), 0.0)))
    for name in "ab":
        hard = draw(st.dictionaries(st.sampled_from(RESOURCES), st.integers(0, 9), max_size=2))
        document = {
            "metadata": {"name": name, "namespace": "team"},
            "spec": {"hard": {f"limits.{resource}": value for resource, value in hard.items()}},
        }
        found.append(Step("put_quota", (quota_of(document),)))
    return found


@settings(max_examples=80)
@given(clusters(), st.data())
def test_the_order_in_which_objects_arrive_never_matters(cluster: list[Step], data: st.DataObject) -> None:
    one, _ = played(cluster)
    other, _ = played(data.draw(st.permutations(cluster)))
    assert {n: content(s) for n, s in seen(one).items()} == {n: content(s) for n, s in seen(other).items()}
    for namespace in NAMESPACES:
        assert one.used(namespace) == other.used(namespace)
        assert one.limits(namespace) == other.limits(namespace)
    assert one.namespaces() == other.namespaces()
    for vendor in one.config.vendors:
        selection = vendor.selection({})
        kinds = [{(c.model, c.memory_mib) for c in books.cards_for(vendor, selection)} for books in (one, other)]
        assert kinds[0] == kinds[1]
        assert one.largest_memory_mib(vendor.key) == other.largest_memory_mib(vendor.key)
        assert one.most_cards(vendor.key) == other.most_cards(vendor.key)


def turned(document: Any) -> Any:
    """The same document with the keys of every object in reverse order."""
    if isinstance(document, dict):
        return {key: turned(document[key]) for key in reversed(document)}
    return [turned(item) for item in document] if isinstance(document, list) else document


@given(st.lists(st.sampled_from("abcd"), unique=True, min_size=1), st.data())
def test_the_order_of_cards_and_keys_in_a_registration_never_matters(letters: list[str], data: st.DataObject) -> None:
    listed = [data.draw(cards(f"GPU-{letter}", data.draw(st.integers(0, 1)))) for letter in letters]
    again = data.draw(st.permutations(listed))
    one, other = Ledger(nvidia_config()), Ledger(nvidia_config())
    one.put_node(node("n1", *listed))
    text = json.dumps([turned(card_document(c)) for c in again])
    other.put_node(node_of({"metadata": {"name": "n1", "annotations": {REGISTER: text}}}))
    assert content(one.state("n1")) == content(other.state("n1"))
    before = one.state("n1")
    one.put_node(node("n1", *again))
    assert one.state("n1") is before


@given(st.permutations(["metadata", "spec", "status"]))
@example(["status", "spec", "metadata"])
def test_the_order_of_keys_in_a_pod_never_matters(keys: list[str]) -> None:
    whole = {
        "metadata": {
            "uid": "u",
            "resourceVersion": "1",
            "annotations": allocated(((entry("GPU-a", 5),), (entry("GPU-a", 3),))),
        },
        "spec": {"containers": [container_document(gpu=1)], "initContainers": [container_document("i", gpu=1)]},
        "status": {"initContainerStatuses": [{"state": {"terminated": {"exitCode": 0}}, "name": "i"}]},
    }
    ledger = Ledger(nvidia_config())
    ledger.put_pod(pod_of(turned({key: whole[key] for key in keys})), 0)
    holding = ledger.holding("u")
    assert holding is not None
    assert holding.tenancy.holds == {("NVIDIA", "GPU-a"): Hold(1, 3, 0)}


def test_the_recount_sees_what_it_should() -> None:
    """The yardstick itself, on the worked examples."""
    recount = Recount()
    lists = ((entry("G", 20000),), (entry("G", 2000),), (entry("G", 10000),))
    init = [container_document("i", gpu=1), container_document("s", sidecar=True, gpu=1)]
    fields: dict[str, Any] = {"init": init, "annotations": allocated(lists), "node": "n1"}
    recount.put_pod(pod(**fields), 0)
    assert recount.usage("n1") == {"G": (2, 22000, 0)}
    assert recount.used("default") == (2, 22000, 0)
    recount.put_pod(pod(**fields, version=2, exit_codes={"i": 0}), 0)
    assert recount.usage("n1") == {"G": (2, 12000, 0)}
    two = [container_document("i", gpu=1), container_document("j", gpu=1)]
    on_two = ((entry("A", 1000),), (entry("B", 1000),), (entry("A", 500),))
    recount.put_pod(pod(name="b", init=two, annotations=allocated(on_two, "n2"), node="n2"), 0)
    assert recount.usage("n2") == {"A": (1, 1000, 0), "B": (1, 1000, 0)}
    assert recount.used("default") == (3, 13000, 0)
    instance = entry("M", 9984, 29, profile="2g.10gb", placement=Placement(0, 2))
    recount.reserve(pod(name="c"), "n3", ((instance,),), 0)
    assert recount.placements("n3", "M") == [(0, 2)]
    recount.expire(700)
    assert recount.usage("n3") == {}
