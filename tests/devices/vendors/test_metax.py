"""MetaX: whole GPUs with their tables, and shared ones: units, app classes, service classes, link zones."""

import json
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devices.model import Card, CardState, Tenant
from tests.devices.vendors.stories import (
    Document,
    admitted,
    cards_of,
    filtered,
    node,
    pod,
    quota_used,
    state,
    told,
    usage,
    walk_over,
)

GPU = "metax-tech.com/gpu"
SGPU, MEMORY, CORES = "metax-tech.com/sgpu", "metax-tech.com/vmemory", "metax-tech.com/vcore"
APP, QOS = "metax-tech.com/sgpu-app-class", "metax-tech.com/sgpu-qos-policy"
TOPOLOGY = "metax-tech.com/sgpu-topology-aware"
USE = "metax-tech.com/use-gpuuuid"
ONLINE, OFFLINE = {APP: "online"}, {APP: "offline", QOS: "best-effort"}
BEST, FIXED = {QOS: "best-effort"}, {QOS: "fixed-share"}
SMALL: dict[str, object] = {SGPU: 1, MEMORY: 1, CORES: 10}
WHOLE: dict[str, object] = {SGPU: 1}


def shared(number: int, zone: int = 0, qos: str = "", **fields: Any) -> Document:
    card = {"uuid": f"GPU-{number}", "model": "MXC500", "totalDevCount": 16, "totalCompute": 100, "totalVRam": 65536}
    return {**card, "numa": 0, "healthy": True, "qosPolicy": qos, "linkZone": zone, **fields}


def shared_node(*cards: Document, name: str = "n1") -> Document:
    return node(name, {"metax-tech.com/node-gpu-devices": list(cards)})


def on(card: int, annotations: dict[str, str]) -> dict[str, str]:
    return {USE: f"GPU-{card}", **annotations}


# Whole GPUs


TABLES: dict[str, tuple[dict[str, object], str, int, str]] = {
    "19: losses under binpack": ({"losses": {"1": 40, "2": 250}}, "binpack", 2, "1750.00"),
    "scores under spread": ({"scores": {"1": 40, "2": 900}}, "spread", 2, "1100.00"),
    "MXG-2: a count that is not there": ({"losses": {"1": 40}}, "binpack", 2, "2000.00"),
    "a table that is no JSON": ({"losses": "{"}, "binpack", 1, "2000.00"),
    "a table that is no object": ({"losses": [1]}, "binpack", 1, "2000.00"),
    "a table of words": ({"losses": {"1": "many"}}, "binpack", 1, "2000.00"),
    "no table": ({}, "binpack", 1, "0.00"),
    "the other policy's table": ({"scores": {"1": 40}}, "binpack", 1, "0.00"),
}


@pytest.mark.parametrize(("tables", "policy", "count", "score"), TABLES.values(), ids=TABLES)
def test_tables_of_whole_gpus(tables: dict[str, object], policy: str, count: int, score: str) -> None:
    texts = {f"metax-tech.com/gpu.topology.{name}": table for name, table in tables.items()}
    asked = pod("a", {GPU: count}, {"hami.io/node-scheduler-policy": policy})
    (answer,) = told([node("n1", texts, {GPU: 4})], filtered(asked))
    assert answer["events"][0][2].endswith(f"(n1:{score})")


def test_mxg_1_several_containers_get_whole_gpus() -> None:
    first, second = told(
        [node("n1", {}, {GPU: 4})], filtered(pod("a", {GPU: 1}, more=[{GPU: 2}])), filtered(pod("b", {GPU: 2}))
    )
    assert cards_of(first, "Metax-GPU") == [["n1-metax-3"], ["n1-metax-2", "n1-metax-1"]]
    assert second["failed"] == {"n1": "1/4 AllocatedCardsInsufficientRequest, 3/4 CardTimeSlicingExhausted"}


# Units and admission


UNITS = {
    "a plain number is GiB": (4, 4096),
    "Gi": ("4Gi", 4096),
    "Mi": ("2048Mi", 2048),
    "decimal G": ("4G", 3814),
    "fewer bytes than a MiB are the whole card": ("512Ki", 65536),
    "MXS-1: 3000 is written 3k, which is bytes": (3000, 65536),
    "0 is not given": (0, 65536),
}


@pytest.mark.parametrize(("asked", "memory"), UNITS.values(), ids=UNITS)
def test_units_of_memory(asked: object, memory: int) -> None:
    (answer,) = told([shared_node(shared(0))], filtered(pod("a", {**SMALL, MEMORY: asked}, BEST)))
    assert answer["allocation"]["Metax-SGPU"][0][0]["memory"] == memory


ADMISSION: dict[str, tuple[dict[str, object], dict[str, str], str]] = {
    "20: an online app on two cards": ({SGPU: 2}, ONLINE, "app-class pod must request single device"),
    "an offline app on two cards": ({SGPU: 2}, OFFLINE, "app-class pod must request single device"),
    "a class that is none": (WHOLE, {APP: "batch"}, f"{APP} must be set one of [online, offline]"),
    "a policy that is none": (WHOLE, {QOS: ""}, f"{QOS} must be set one of [best-effort, fixed-share, burst-share]"),
    "negative memory": ({**SMALL, MEMORY: -1}, BEST, f"invalid {MEMORY} value -1"),
    "a fraction of memory": ({**SMALL, MEMORY: "1500m"}, BEST, f"invalid {MEMORY} value 1500m"),
    "more memory than there is anywhere": ({**SMALL, MEMORY: 2**22}, BEST, f"invalid {MEMORY} value 4194304"),
    "the same in bytes": ({**SMALL, MEMORY: "4Pi"}, BEST, f"invalid {MEMORY} value 4Pi"),
    "a fraction of compute": ({**SMALL, CORES: "500m"}, BEST, f"invalid {CORES} value 500m"),
    "negative compute": ({**SMALL, CORES: -1}, BEST, f"invalid {CORES} value -1"),
}


@pytest.mark.parametrize(("limits", "annotations", "text"), ADMISSION.values(), ids=ADMISSION)
def test_what_admission_refuses(limits: dict[str, object], annotations: dict[str, str], text: str) -> None:
    (answer,) = told([], admitted(pod("a", limits, annotations)))
    assert not answer["allowed"]
    assert answer["message"].startswith(text)


def test_online_apps_may_name_any_policy() -> None:
    (answer,) = told([], admitted(pod("a", WHOLE, {**ONLINE, QOS: "whatever"})))
    assert answer["pod"]["metadata"]["annotations"] == {**ONLINE, QOS: "whatever"}


def test_mxs_5_requests_alone_are_not_seen() -> None:
    admission, answer = told(
        [shared_node(shared(0))], admitted(pod("a", requests={SGPU: 1})), filtered(pod("b", requests={SGPU: 1}))
    )
    assert not admission["pod"]["metadata"].get("annotations")
    assert answer["allocation"] == {}


def test_mxs_4_more_compute_than_a_card_has_never_fits() -> None:
    (answer,) = told([shared_node(shared(0))], filtered(pod("a", {**SMALL, CORES: 150}, BEST)))
    assert answer["failed"] == {"n1": "1/1 CardInsufficientCore"}


# Sharing


JOINS = {
    "online joins online": ([ONLINE], ONLINE, None),
    "online joins offline": ([OFFLINE], ONLINE, None),
    "offline joins offline": ([OFFLINE], OFFLINE, None),
    "offline does not join online": ([ONLINE], OFFLINE, "1/1 CardAppClassMismatch"),
    "nor both": ([OFFLINE, ONLINE], OFFLINE, "1/1 CardAppClassMismatch"),
    "no class joins no class": ([BEST], BEST, None),
    "no class does not join offline": ([OFFLINE], BEST, "1/1 CardAppClassMismatch"),
    "online does not join no class": ([BEST], ONLINE, "1/1 CardAppClassMismatch"),
    "one service class": ([FIXED], FIXED, None),
    "two service classes": ([FIXED], BEST, "1/1 CardQosPolicyMismatch"),
    "the service class of offline apps counts": ([OFFLINE], {**OFFLINE, **FIXED}, "1/1 CardQosPolicyMismatch"),
}


@pytest.mark.parametrize(("tenants", "asking", "refusal"), JOINS.values(), ids=JOINS)
def test_who_joins_whom(tenants: list[dict[str, str]], asking: dict[str, str], refusal: str | None) -> None:
    steps = [filtered(pod(f"t{n}", SMALL, annotations)) for n, annotations in enumerate(tenants)]
    *before, answer = told([shared_node(shared(0))], *steps, filtered(pod("a", SMALL, asking)))
    assert all(cards_of(tenant, "Metax-SGPU") for tenant in before)
    assert answer["failed"].get("n1") == refusal


def test_online_apps_hold_no_compute() -> None:
    steps = [filtered(pod(f"p{n}", {**SMALL, CORES: 100}, ONLINE)) for n in range(3)]
    assert told([shared_node(shared(0))], *steps, usage(), quota_used())[3:] == [
        {"GPU-0": {"used": 3, "memory": 3072, "cores": 0}},
        told([], quota_used())[0]
        | {
            MEMORY: {"used": 3072, "limit": None},
            CORES: {"used": 0, "limit": None},
            SGPU: {"used": 3, "limit": None},
        },
    ]


def gone(name: str) -> Document:
    return {"delete_pod": {"namespace": "default", "name": name}}


QOS_STORIES: dict[str, tuple[str, list[Document], dict[str, str], str | None]] = {
    "an idle card takes any": ("fixed-share", [], BEST, None),
    "the newest tenant decides, not the card": ("fixed-share", [filtered(pod("t", SMALL, BEST))], BEST, None),
    "MXS-2: a tenant that is gone decides nothing": (
        "best-effort",
        [filtered(pod("t", SMALL, FIXED)), gone("t")],
        BEST,
        None,
    ),
    "MXS-2: the one before it does again": (
        "",
        [filtered(pod("t", SMALL, FIXED)), filtered(pod("u", SMALL, FIXED)), gone("u")],
        BEST,
        "Qos",
    ),
}


@pytest.mark.parametrize(("reported", "before", "asking", "refusal"), QOS_STORIES.values(), ids=QOS_STORIES)
def test_service_class_of_a_card(
    reported: str, before: list[Document], asking: dict[str, str], refusal: str | None
) -> None:
    answer = told([shared_node(shared(0, qos=reported))], *before, filtered(pod("a", SMALL, asking)))[-1]
    said = answer["failed"].get("n1", "")
    assert (f"Card{refusal}" in said) if refusal else not said


def test_all_compute_leaves_the_service_class_open() -> None:
    """A tenant of a larger card with 100 % of one puts no other under its policy."""
    cards = shared_node(shared(0, totalCompute=200))
    first, second = told(
        [cards], filtered(pod("t", {**SMALL, CORES: 100}, FIXED)), filtered(pod("a", {**SMALL, CORES: 50}, BEST))
    )
    assert cards_of(first, "Metax-SGPU") == cards_of(second, "Metax-SGPU") == [["GPU-0"]]


def test_containers_of_one_pod_share_a_card_as_one_tenant() -> None:
    (answer,) = told([shared_node(shared(0))], filtered(pod("a", SMALL, ONLINE, more=[{}, SMALL])))
    text = answer["annotations"]["metax-tech.com/gpu-devices-allocated"]
    assert text == '[[{"uuid":"GPU-0","vRam":1024}],[],[{"uuid":"GPU-0","vRam":1024}]]'


QUOTA = {
    "memory": ({MEMORY: 3}, "2/2 ResourceQuotaNotFit"),
    "compute": ({CORES: 15}, "2/2 ResourceQuotaNotFit"),
    "cards": ({SGPU: 1}, "2/2 ResourceQuotaNotFit"),
    "enough": ({MEMORY: 4, CORES: 20, SGPU: 2}, None),
}


@pytest.mark.parametrize(("limits", "refusal"), QUOTA.values(), ids=QUOTA)
def test_quota_in_the_fit_is_in_gib(limits: dict[str, int], refusal: str | None) -> None:
    asked = {**SMALL, MEMORY: 2}
    answers = told(
        [shared_node(shared(0), shared(1))],
        filtered(pod("t", asked, BEST)),
        filtered(pod("a", asked, BEST)),
        quota=limits,
    )
    assert answers[-1]["failed"].get("n1") == refusal


BROKEN = {
    "no uuid": ({"uuid": ""}, "NodeInsufficientDevice"),
    "a uuid that the text cannot hold": ({"uuid": "GPU:0"}, "NodeInsufficientDevice"),
    "memory in words": ({"totalVRam": "much"}, "NodeInsufficientDevice"),
    "unhealthy, in its own word": ({"healthy": False}, "1/2 AllocatedCardsInsufficientRequest, 1/2 CardUnhealthy"),
}


@pytest.mark.parametrize(("fields", "refusal"), BROKEN.values(), ids=BROKEN)
def test_a_broken_card_leaves_the_others(fields: dict[str, object], refusal: str) -> None:
    cards = shared_node({**shared(0), **fields}, shared(1))
    one, two = told([cards], filtered(pod("a", SMALL, BEST)), filtered(pod("b", {**SMALL, SGPU: 2}, BEST)))
    assert cards_of(one, "Metax-SGPU") == [["GPU-1"]]
    assert two["failed"] == {"n1": refusal}


# Choices


ONLINE_ORDER: dict[str, tuple[list[tuple[int, dict[str, str]]], str]] = {
    "an idle card first": ([(0, ONLINE), (1, OFFLINE)], "GPU-2"),
    "fewer online apps": ([(0, ONLINE), (1, ONLINE), (1, ONLINE), (2, ONLINE), (2, ONLINE)], "GPU-0"),
    "then fewer offline ones": (
        [(0, OFFLINE), (0, ONLINE), (1, ONLINE), (2, OFFLINE), (2, OFFLINE), (2, ONLINE)],
        "GPU-1",
    ),
    "cards with offline apps alone last": (
        [(0, OFFLINE), (1, OFFLINE), (1, OFFLINE), (2, OFFLINE), (2, ONLINE), (2, ONLINE)],
        "GPU-2",
    ),
    "of these the one with fewer": ([(0, OFFLINE), (1, OFFLINE), (1, OFFLINE), (2, OFFLINE), (2, OFFLINE)], "GPU-0"),
}


@pytest.mark.parametrize(("tenants", "expected"), ONLINE_ORDER.values(), ids=ONLINE_ORDER)
def test_where_online_apps_go(tenants: list[tuple[int, dict[str, str]]], expected: str) -> None:
    steps = [filtered(pod(f"t{n}", SMALL, on(card, annotations))) for n, (card, annotations) in enumerate(tenants)]
    *before, answer = told([shared_node(*map(shared, range(3)))], *steps, filtered(pod("a", SMALL, ONLINE)))
    assert all(cards_of(tenant, "Metax-SGPU") for tenant in before)
    assert cards_of(answer, "Metax-SGPU") == [[expected]]


ZONES: dict[str, tuple[list[int], dict[str, object], list[list[str]]]] = {
    "the smallest zone that is large enough": ([1, 1, 1, 2, 2], {SGPU: 2}, [["GPU-4", "GPU-3"]]),
    "not a smaller one": ([1, 1, 1, 2, 2], {SGPU: 3}, [["GPU-2", "GPU-1", "GPU-0"]]),
    "of equal ones the lowest": ([2, 2, 1, 1], {SGPU: 2}, [["GPU-3", "GPU-2"]]),
    "several zones, small ones first": ([1, 1, 2, 0], {SGPU: 3}, [["GPU-2", "GPU-1", "GPU-0"]]),
    "cards without zone last": ([1, 1, 0, 0], {SGPU: 3}, [["GPU-1", "GPU-0", "GPU-3"]]),
    "no zones": ([0, 0, 0], {SGPU: 2}, [["GPU-2", "GPU-1"]]),
    "a part of the compute looks at no zone": ([1, 1, 0], {SGPU: 2, CORES: 50}, [["GPU-2", "GPU-1"]]),
}


@pytest.mark.parametrize(("zones", "limits", "expected"), ZONES.values(), ids=ZONES)
def test_whole_cards_come_from_one_zone(zones: list[int], limits: dict[str, object], expected: list[list[str]]) -> None:
    cards = shared_node(*(shared(n, zone) for n, zone in enumerate(zones)))
    (answer,) = told([cards], filtered(pod("a", limits, BEST)))
    assert cards_of(answer, "Metax-SGPU") == expected


SCORES: dict[str, tuple[list[int], dict[str, object], dict[str, str], str]] = {
    "two linked of four": ([1, 1, 2, 2], {SGPU: 2}, {TOPOLOGY: "true"}, "1000000.00"),
    "spread turns it round": (
        [1, 1, 2, 2],
        {SGPU: 2},
        {TOPOLOGY: "true", "hami.io/node-scheduler-policy": "spread"},
        "-1000000.00",
    ),
    "one of a pair breaks a link": ([1, 1], {SGPU: 1}, {TOPOLOGY: "true"}, "-100000.00"),
    "not asked for": ([1, 1, 2, 2], {SGPU: 2}, {}, "0.00"),
    "refused": ([1, 1, 2, 2], {SGPU: 2}, {TOPOLOGY: "false"}, "0.00"),
    "a word that is none": ([1, 1, 2, 2], {SGPU: 2}, {TOPOLOGY: "maybe"}, "0.00"),
    "a part of the compute": ([1, 1], {SGPU: 2, CORES: 10}, {TOPOLOGY: "true"}, "0.00"),
}


@pytest.mark.parametrize(("zones", "limits", "annotations", "score"), SCORES.values(), ids=SCORES)
def test_score_of_links(zones: list[int], limits: dict[str, object], annotations: dict[str, str], score: str) -> None:
    cards = shared_node(*(shared(n, zone) for n, zone in enumerate(zones)))
    (answer,) = told([cards], filtered(pod("a", limits, {**BEST, **annotations})))
    assert answer["events"][0][2].endswith(f"(n1:{score})")


def test_topology_can_be_asked_for_in_the_configuration() -> None:
    config = {"metax": {"sgpuTopologyAware": True}}
    cards = shared_node(shared(0, 1), shared(1, 1))
    steps = [filtered(pod("a", {SGPU: 2}, BEST)), gone("a"), filtered(pod("b", {SGPU: 2}, {**BEST, TOPOLOGY: "0"}))]
    asked, _, refused = told([cards], *steps, config=config)
    assert asked["events"][0][2].endswith("(n1:1000000.00)")
    assert refused["events"][0][2].endswith("(n1:0.00)")


CROWDS = {
    "online and offline": ([ONLINE, ONLINE, OFFLINE], -420000),
    "offline alone": ([OFFLINE, OFFLINE, OFFLINE], -3000000),
    "nobody": ([], 0),
}


@pytest.mark.parametrize(("tenants", "score"), CROWDS.values(), ids=CROWDS)
def test_score_of_online_apps(tenants: list[dict[str, str]], score: int) -> None:
    """Offline apps come first, since they do not join online ones; the node's own score is below 10."""
    ordered = sorted(tenants, key=lambda annotations: annotations[APP])
    steps = [filtered(pod(f"t{n}", SMALL, annotations)) for n, annotations in enumerate(ordered)]
    answer = told([shared_node(shared(0))], *steps, filtered(pod("a", SMALL, ONLINE)))[-1]
    assert float(answer["events"][0][2].rpartition(":")[2].rstrip(")")) == pytest.approx(score, abs=10)


@st.composite
def zoned_cards(draw: st.DrawFn) -> list[CardState]:
    zones = draw(st.lists(st.integers(0, 3), min_size=1, max_size=7))
    walked = draw(st.permutations(range(len(zones))))

    def card(number: int) -> Card:
        custom = {"QosPolicy": "", "LinkZone": zones[number]}
        return Card(f"GPU-{number}", "Metax-SGPU", number, 16, 65536, 100, "Metax-SGPU", healthy=True, custom=custom)

    return [state(card(number)) for number in walked]


@given(zoned_cards(), st.integers(1, 4))
def test_the_zones_are_the_first_of_all_subsets(states: list[CardState], count: int) -> None:
    zones = [int(str(s.card.custom["LinkZone"])) for s in states]
    sizes = {zone: zones.count(zone) for zone in zones}
    # Smaller zones first, then the lower number, cards without zone last, then walk order.
    ranks = [(zone == 0, sizes[zone] if zone else 0, zone, place) for place, zone in enumerate(zones)]
    subsets = [sorted(subset) for subset in combinations(ranks, count)]
    inside = [s for s in subsets if len({zone for _, _, zone, _ in s}) == 1 and s[0][2]]
    came = walk_over(states, "Metax-SGPU", {SGPU: count}, BEST)
    if count > len(states):
        assert came == "NodeInsufficientDevice"
    elif count == len(states):
        assert came == [s.card.uuid for s in states]
    else:
        assert came == [states[place].card.uuid for *_, place in min(inside or subsets)]


@st.composite
def crowded_cards(draw: st.DrawFn) -> list[CardState]:
    counts = draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=2, max_size=5))

    def crowd(online: int, offline: int) -> tuple[Tenant, ...]:
        facts = [{APP: "online"}] * online + [{APP: "offline"}] * offline
        return tuple(Tenant(f"u{n}", fact) for n, fact in enumerate(facts))

    return [
        state(
            Card(f"GPU-{n}", "Metax-SGPU", n, 16, 65536, 100, "Metax-SGPU", healthy=True),
            slots=online + offline,
            tenants=crowd(online, offline),
        )
        for n, (online, offline) in enumerate(counts)
    ]


@given(crowded_cards())
def test_no_card_would_be_better_for_an_online_app(states: list[CardState]) -> None:
    counts = {
        s.card.uuid: tuple(sum(t.facts[APP] == word for t in s.tenants) for word in ("online", "offline"))
        for s in states
    }
    chosen = walk_over(states, "Metax-SGPU", {SGPU: 1}, ONLINE)
    online, offline = counts[chosen[0]]
    for other_online, other_offline in counts.values():
        lonely, other_lonely = offline and not online, other_offline and not other_online
        if lonely:
            assert other_lonely
            assert offline <= other_offline
        elif not other_lonely:
            assert (online, offline) <= (other_online, other_offline)


def test_the_plugin_reads_what_is_not_zero() -> None:
    (answer,) = told([shared_node(shared(0))], filtered(pod("a", {}, BEST, more=[{SGPU: 1, MEMORY: 6, CORES: 45}])))
    said = answer["annotations"]
    assert said["hami.io/metax-sgpu-devices-allocated"] == ";GPU-0,Metax-SGPU,6144,45:;"
    devices = json.loads(said["metax-tech.com/gpu-devices-allocated"])
    assert devices == [[], [{"uuid": "GPU-0", "compute": 45, "vRam": 6144}]]
    assert said["metax-tech.com/predicate-time"].isdigit()
