"""A vendor without hooks, and each hook of one that brings it."""

from dataclasses import replace
from types import MappingProxyType
from typing import Any

import msgspec
import pytest

from devices.errors import MalformedValue
from devices.fit import Headroom, Refusal, collect
from devices.ledger import Ledger
from devices.model import Card, Charge, Entry, NodeState
from devices.reasons import Reason
from devices.registration import CardList
from devices.requests import DeviceRequest
from devices.selection import Selection
from devices.vendor import Bound, Hooks, ScoreContext, Vendor
from tests.builders import (
    allocated,
    card,
    card_state,
    container,
    container_document,
    node,
    nvidia,
    nvidia_config,
    pod,
    request,
    walk,
)
from tests.builders import entry as nvidia_entry
from tests.devices.test_nvidia_admission import Changed

PLAIN = Vendor(key="Plain", count_resource="gpu", memory_resource="gpumem", core_resource="gpucores", memory_factor=2)


def plain_container(**limits: Any) -> Any:
    """Limits by the names that `PLAIN` has."""
    return replace_names(container_document(**{f"example/{key}": value for key, value in limits.items()}))


def replace_names(document: dict[str, Any]) -> dict[str, Any]:
    limits = document.get("resources", {}).get("limits", {})
    document["resources"] = {"limits": {key.removeprefix("example/"): value for key, value in limits.items()}}
    return document


REQUESTS: dict[str, tuple[dict[str, Any], DeviceRequest | None]] = {
    "whole card": ({"gpu": 1}, DeviceRequest("Plain", 1, 0, 100, 5)),
    "memory times the factor": ({"gpu": 2, "gpumem": 3, "gpucores": 7}, DeviceRequest("Plain", 2, 6, None, 7)),
    "memory 0": ({"gpu": 1, "gpumem": 0}, DeviceRequest("Plain", 1, 0, 100, 5)),
    "none": ({"gpumem": 3}, None),
}


@pytest.mark.parametrize(("limits", "expected"), REQUESTS.values(), ids=REQUESTS)
def test_plain_requests(limits: dict[str, Any], expected: DeviceRequest | None) -> None:
    vendor = replace(PLAIN, default_cores=5)
    asked = pod(plain_container(**limits)).containers[0]
    assert vendor.request(asked) == expected


def test_a_constant_request() -> None:
    vendor = replace(PLAIN, constant=(0, 100, 0))
    assert vendor.request(pod(plain_container(gpu=2, gpumem=9)).containers[0]) == DeviceRequest("Plain", 2, 0, 100, 0)
    with pytest.raises(MalformedValue, match="invalid gpumem value x"):
        vendor.request(pod(plain_container(gpu=1, gpumem="x")).containers[0])


ADMISSIONS: dict[str, tuple[dict[str, Any], bool, list[str]]] = {
    "asks": ({"gpu": 1, "gpumem": 5}, True, []),
    "does not": ({"gpumem": 5}, False, []),
    "memory 0": ({"gpu": 1, "gpumem": 0}, True, ["container main: gpumem 0 counts as not given"]),
    "too many cores": (
        {"gpu": 1, "gpucores": 150},
        True,
        ["container main: gpucores 150 counts as 100, one whole card"],
    ),
}


@pytest.mark.parametrize(("limits", "found", "warnings"), ADMISSIONS.values(), ids=ADMISSIONS)
def test_plain_admission(limits: dict[str, Any], found: bool, warnings: list[str]) -> None:
    changed = Changed(plain_container(**limits))
    assert PLAIN.admit(changed) is found
    assert changed.warnings == warnings


def test_plain_answers() -> None:
    one, selection = card("a", vendor="Plain", model="Plain X"), Selection()
    asked = DeviceRequest("Plain", 1, 0, 50, 150)
    assert PLAIN.read_node(node()) == CardList()
    assert PLAIN.selects(selection, one)
    assert not PLAIN.selects(Selection(nouse_uuids=frozenset("a")), one)
    assert PLAIN.total_cores(one, selection) == 100
    assert PLAIN.wanted_memory(asked, one) == 7680
    assert PLAIN.unplaced_price(asked, one) == Charge(7680, 100, 1)
    assert PLAIN.restored(Entry("a", "Plain", 1, 2), one) == Entry("a", "Plain", 1, 2)
    assert PLAIN.tenant_facts({}) is None
    assert PLAIN.reservations({}) == ()
    assert not PLAIN.gives_several(card_state(one), selection)
    assert not PLAIN.groups_by_numa(selection)
    assert PLAIN.resources == ("gpu", "gpumem", "gpucores")
    assert PLAIN.clamped(150) == 100
    assert replace(PLAIN, max_cores=None).clamped(150) == 150


def test_a_vendor_offers_its_own_cards_whose_type_names_it() -> None:
    assert PLAIN.offers(card("a", vendor="Plain", model="new PLAIN X"))
    assert not PLAIN.offers(card("a", vendor="Plain", model="X"))
    assert not PLAIN.offers(card("a", vendor="Other", model="Plain X"))


OVERDRAWN: dict[str, tuple[tuple[int, int, int], Bound | None]] = {
    "within": ((10, 15360, 100), None),
    "slots": ((11, 0, 0), Bound.SLOTS),
    "memory": ((1, 15361, 0), Bound.MEMORY),
    "cores": ((1, 0, 101), Bound.CORES),
}


@pytest.mark.parametrize(("used", "bound"), OVERDRAWN.values(), ids=OVERDRAWN)
def test_overdrawn(used: tuple[int, int, int], bound: Bound | None) -> None:
    state, selection = card_state("a", used), Selection()
    assert PLAIN.is_overdrawn(state, selection) is (bound is not None)
    for kept in Bound:
        assert replace(PLAIN, bounds=frozenset({kept})).is_overdrawn(state, selection) is (kept is bound)


def test_instances_may_come_to_more_compute_than_a_card_has() -> None:
    assert not PLAIN.is_overdrawn(card_state("a", (7, 100, 105), mode="mig"), Selection())


# Hooks


def walked(hooks: Hooks, *uuids: str, count: int = 1) -> Any:
    vendor = replace(nvidia(), hooks=hooks)
    return collect([card_state(u) for u in uuids], walk(request(count, memory_mib=1), vendor=vendor))


def test_a_gate_refuses_before_any_card_is_looked_at() -> None:
    closed = Refusal({Reason.CARD_FILTERED: 2}, 2)
    assert walked(replace(nvidia().hooks, gate=lambda vendor, walk: closed), "a", "b") == closed
    opened = walked(replace(nvidia().hooks, gate=lambda vendor, walk: None), "a", "b")
    assert [one.uuid for one in opened.entries] == ["a"]


def test_a_choice_beyond_the_quota_is_refused() -> None:
    vendor = nvidia()
    greedy = replace(
        vendor, hooks=replace(vendor.hooks, collects_all=lambda w: True, choose=lambda v, groups, w, counts: groups[0])
    )
    asks = walk(request(1, memory_mib=1000), headroom=Headroom(1000), vendor=greedy)
    assert collect([card_state("a"), card_state("b")], asks) == Refusal({Reason.QUOTA_NOT_FIT: 2}, 2)


CONTEXT = NodeState("n1", 1, (), 0.0)
SCORES = {
    "added as it is": (False, "binpack", 3.0),
    "added as it is under spread too": (False, "spread", 3.0),
    "neutral": (True, "binpack", 30_000.0),
    "neutral under spread": (True, "spread", -30_000.0),
}


@pytest.mark.parametrize(("neutral", "policy", "expected"), SCORES.values(), ids=SCORES)
def test_a_family_adds_to_the_node_score(neutral: bool, policy: str, expected: float) -> None:
    hooks = Hooks(score=lambda vendor, entries, context: float(len(entries)))
    vendor = replace(PLAIN, hooks=hooks, score_is_neutral=neutral)
    context = ScoreContext(CONTEXT, Selection(), policy)
    assert vendor.score([(), (), ()], context) == expected
    assert PLAIN.score([()], context) == 0.0


# Hooks in the books


def books(**hooks: Any) -> Ledger:
    config = nvidia_config()
    vendor = config.vendors[0]
    return Ledger(replace(config, vendors=(replace(vendor, hooks=replace(vendor.hooks, **hooks)),)))


def doubled(vendor: Vendor, entry: Entry, known: Card | None) -> Entry:
    """What the text does not say: twice the memory on a known card."""
    return entry if known is None else msgspec.structs.replace(entry, memory_mib=entry.memory_mib * 2)


def test_entries_are_completed_once_their_card_is_known() -> None:
    ledger = books(restore=doubled)
    ledger.put_pod(pod(node="n1", annotations=allocated(((nvidia_entry("GPU-a", 1000),),))), 0)
    assert ledger.used("default")["NVIDIA"].memory_mib == 1000
    ledger.put_node(node("n1", card("GPU-a")))
    assert ledger.used("default")["NVIDIA"].memory_mib == 2000
    # A card that goes away leaves what was known of it.
    ledger.put_node(node("n1", card("GPU-b")))
    assert ledger.used("default")["NVIDIA"].memory_mib == 2000


def test_what_cards_keep_of_a_pod() -> None:
    ledger = books(tenant_facts=lambda annotations: MappingProxyType({"class": annotations.get("class", "")}))
    ledger.put_node(node("n1", card("GPU-a")))
    carried = {**allocated(((nvidia_entry(),),)), "class": "gold"}
    ledger.put_pod(pod(node="n1", annotations={**carried, "hami.io/vgpu-time": "50"}), 7)
    ledger.put_pod(pod(name="b", node="n1", annotations=carried), 8)
    ledger.reserve(pod(name="c", annotations={"class": "tin"}), "n1", ((nvidia_entry(),),), 9)
    since = {uid: holding.tenancy.since_s for uid in "abc" if (holding := ledger.holding(f"uid-{uid}"))}
    assert since == {"a": 50.0, "b": 8, "c": 9}
    facts = {uid: holding.tenancy.facts for uid in "abc" if (holding := ledger.holding(f"uid-{uid}"))}
    assert facts == {uid: {"NVIDIA": {"class": text}} for uid, text in (("a", "gold"), ("b", "gold"), ("c", "tin"))}


def test_plain_containers_ask_a_plain_vendor_for_nothing() -> None:
    assert PLAIN.request(container()) is None
