"""Rules that hold for every vendor and went wrong for some: types, quota, registration, positions."""

import json

import pytest

from devices.objects import Node, node_of, quota_of
from devices.vendor import Vendor
from tests.builders import pod as pod_with
from tests.devices.vendors.driver import filtered, pod, refusal, registered, text_of, world
from tests.devices.vendors.samples import CONFIG, VENDORS, asking, node_document, sample_node, share
from tests.scheduler.builders import World, uuids

TYPES = {
    "Biren": ("Biren166M", "BR100"),
    "Vastai": ("Vastai-VA16", "VA16"),
    "XPU": ("XPU-P800", "P800"),
    "DCU": ("DCU-K100", "K100"),
    "AMD": ("amd instinct", "MI210"),
}


@pytest.mark.parametrize("key", TYPES)
def test_a_card_whose_type_does_not_name_its_vendor_is_never_offered(key: str) -> None:
    """BIR-3, VAS-2."""
    vendor = VENDORS[key]
    named, unnamed = TYPES[key]
    for model, fits in ((named, True), (unnamed, False)):
        document = node_document(vendor, cards=1)
        annotation = vendor.registration[0]
        text = document["metadata"]["annotations"][annotation]
        document["metadata"]["annotations"][annotation] = text.replace(f"{key} X", model)
        here = World(node_of(document), config=CONFIG)
        found = filtered(here, share(vendor))
        assert found.nodes == ("n1",) if fits else refusal(found) == "NodeInsufficientDevice"


def test_cards_of_one_chip_are_none_of_another_whose_name_begins_alike() -> None:
    """BUG-TYPE1: the pod was bound where kubelet then refused it."""
    here = World(node_of(node_document(VENDORS["Ascend910B4-1"])), config=CONFIG)
    assert refusal(filtered(here, share(VENDORS["Ascend910B4"]))) == "NodeInsufficientDevice"
    assert filtered(here, share(VENDORS["Ascend910B4-1"])).nodes == ("n1",)


def test_biren_cards_have_all_compute_and_share_by_count_alone() -> None:
    card = {"id": "BR-0", "count": 2, "devmem": 32768, "devcore": 7, "type": "Biren166M", "health": True}
    here = world(registered({VENDORS["Biren"].registration[0]: [card]}))
    state = here.ledger.state("n1")
    assert state is not None
    assert [found.card.cores for found in state.cards] == [100]
    for name in ("a", "b"):
        found = filtered(here, {"birentech.com/gpu": 1}, name)
        assert text_of(here, found, VENDORS["Biren"].allocated) == "BR-0,Biren,0,0:;"
    assert refusal(filtered(here, {"birentech.com/gpu": 1}, "c")) == "1/1 CardTimeSlicingExhausted"


def test_an_old_registration_in_text_has_no_indexes() -> None:
    """DCU-3: seven fields; ties then go by UUID."""
    text = "DCU-72,4,32768,100,DCU-K100_AI,0,true:DCU-71,4,32768,100,DCU-K100_AI,0,true:"
    here = world(registered({"hami.io/node-dcu-register": text}))
    found = filtered(here, {"hygon.com/dcunum": 1, "hygon.com/dcumem": 1})
    assert uuids(found) == ["DCU-72"]
    assert (
        text_of(here, found, VENDORS["DCU"].allocated) == "DCU-72,DCU,1,100:;"
    )  # without a word about compute: all of it


def test_an_id_that_no_text_could_hold_is_dropped_with_a_reason() -> None:
    """VXP-3: bus ids."""
    cards = [
        {"id": identity, "count": 4, "devmem": 98304, "devcore": 100, "type": "XPU-P800", "health": True}
        for identity in ("0000:3b:00.0", "xpu-a0")
    ]
    here = world(registered({"hami.io/node-register-xpu": json.dumps(cards)}))
    state = here.ledger.state("n1")
    assert state is not None
    assert [found.card.uuid for found in state.cards] == ["xpu-a0"]
    (problem,) = here.ledger.problems_of("n1")
    assert "'0000:3b:00.0' must not contain" in problem


def test_positions_stay_where_the_type_is_another_than_the_key() -> None:
    """BUG-ENC1, AMD-5: empty positions were lost."""
    here = World(node_of(node_document(VENDORS["AMD"])), config=CONFIG)
    one = pod([{}, share(VENDORS["AMD"]), {}])
    assert text_of(here, here.filter(one), VENDORS["AMD"].allocated, one) == ";AMD-03,AMD X,1000,10:;;"


def test_only_vendors_with_cards_in_the_allocation_write_anything() -> None:
    """QUIRK-ENC2: cards of other vendors on the node added empty texts and extra annotations."""
    here = World(node_of(node_document(*VENDORS.values())), config=CONFIG)
    one = pod(share(VENDORS["DCU"]))
    found = here.filter(one)
    assert text_of(here, found, VENDORS["DCU"].allocated, one)
    for vendor in (vendor for key, vendor in VENDORS.items() if key != "DCU"):
        for key in vendor.protected_annotations:
            with pytest.raises(KeyError):
                text_of(here, found, key, one)


def dies(*cards: str) -> Node:
    """A node named after the physical cards that its dies sit on."""
    listed = [
        {"id": f"{''.join(cards)}-{n}", "index": n, "count": 1, "devcore": 100, "type": "Vastai", "health": True}
        | {"custominfo": {"DeviceStrategy": "die", "AIC": card}}
        for n, card in enumerate(cards)
    ]
    return registered({VENDORS["Vastai"].registration[0]: listed}, name="".join(cards))


@pytest.mark.parametrize(
    ("policy", "scores"),
    [("binpack", {"aa": 10, "ab": 0, "abb": 0, "a": 0}), ("spread", {"aa": 0, "ab": 10, "abb": 0, "a": 0})],
)
def test_prioritize_counts_what_a_family_adds_for_the_cards_it_would_give(policy: str, scores: dict[str, int]) -> None:
    """All nodes are idle: only the dies that the pod would get tell them apart. Nodes that cannot give two have 0."""
    here = world(*(dies(*name) for name in scores))
    held = filtered(here, {"vastaitech.com/va": 2}, "held", annotations={"vastaitech.com/use-gpuuuid": "abb-0,abb-1"})
    assert held.nodes == ("abb",)
    asked = pod({"vastaitech.com/va": 2}, annotations={"hami.io/node-scheduler-policy": policy})
    assert here.engine.scores(asked, list(scores)) == scores
    assert here.ledger.reservation(asked.uid) is None
    best = max(scores, key=lambda name: scores[name])
    assert here.filter(asked).nodes == (best,)


def limited(vendor: Vendor, resource: str, amount: int) -> World:
    """A node of the family, and a quota of so much."""
    here = World(sample_node(vendor), config=CONFIG)
    hard = {f"limits.{resource}": str(amount)}
    here.ledger.put_quota(quota_of({"metadata": {"name": "q", "namespace": "default"}, "spec": {"hard": hard}}))
    return here


@pytest.mark.parametrize("key", sorted(VENDORS))
def test_bug_quota1_apps_beside_an_init_container_count_together(key: str) -> None:
    """The first app was taken for the init container, and the pod charged one card instead of two."""
    vendor = VENDORS[key]
    containers = [asking(name, share(vendor)) for name in ("first", "second")]
    asked = pod_with(*containers, init=[asking("init", share(vendor))])
    assert limited(vendor, vendor.count_resource, 2).filter(asked).nodes == ("n1",)
    refused = limited(vendor, vendor.count_resource, 1).filter(asked)
    assert "ResourceQuotaNotFit" in refusal(refused)


WITH_MEMORY = sorted(key for key, vendor in VENDORS.items() if vendor.memory_resource and key != "Enflame")


@pytest.mark.parametrize("key", WITH_MEMORY)
def test_bug_quota2_a_whole_card_does_not_escape_the_memory_limit(key: str) -> None:
    vendor = VENDORS[key]
    (largest,) = {card.memory_mib for card in vendor.read_node(sample_node(vendor)).cards}
    units = largest // vendor.memory_factor
    whole = {vendor.count_resource: 1}
    assert filtered(limited(vendor, vendor.memory_resource, units), whole).nodes == ("n1",)
    refused = filtered(limited(vendor, vendor.memory_resource, units - 1), whole)
    # Families that choose along links are refused after the choice, the others card by card.
    assert refusal(refused) in ("4/4 ResourceQuotaNotFit", "1/4 ResourceQuotaNotFit")
