"""The worked numbers of namespace quota, as what decides sees them: what the filter refuses and what placed pods cost."""

from typing import Any

import pytest

from devices.ledger import ADMITTED, PLACED, Ledger
from devices.model import Allocation, Card, Charge, Entry
from devices.objects import Pod
from scheduler.ask import Defaults
from scheduler.engine import Engine, Filtered
from tests.builders import (
    allocated,
    card,
    container_document,
    mig_card,
    node,
    nvidia_config,
    pod,
    quota,
)

C = container_document


def asked(cards: list[Card], limits: dict[str, object], *containers: Any, **more: Any) -> tuple[Filtered, Ledger]:
    """A pod of these containers before a node of these cards, in a namespace with these limits."""
    ledger = Ledger(nvidia_config())
    ledger.put_node(node("n1", *cards))
    ledger.put_quota(quota(**limits))
    found = Engine(ledger, Defaults()).filter(pod(*containers, **more), ["n1"], 0.0)
    return found, ledger


FOUR = [card(f"c{n}", index=n, memory_mib=m) for n, m in enumerate((2000, 8000, 4000, 6000))]
BIG = [card("GPU-a", memory_mib=40_000)]
FILTER: dict[str, tuple[list[Card], dict[str, object], tuple[Any, ...], tuple[Any, ...], str]] = {
    "two cards of 3000 under 4000": (
        FOUR,
        {"gpumem": 4000, "gpucores": 200},
        (C(gpu=2, gpumem=3000, gpucores=60),),
        (),
        "1/4 AllocatedCardsInsufficientRequest, 3/4 ResourceQuotaNotFit",
    ),
    "a whole card: the smallest fits": (FOUR, {"gpumem": 2000}, (C(gpu=1),), (), ""),
    "a whole card: none fits": (FOUR, {"gpumem": 1500}, (C(gpu=1),), (), "4/4 ResourceQuotaNotFit"),
    "two apps of 40 % under 24000": (
        BIG,
        {"gpumem": 24_000},
        (C("a", gpu=1, percentage=40), C("b", gpu=1, percentage=40)),
        (),
        "1/1 ResourceQuotaNotFit",
    ),
    "the same with a plain init container before them (was let in)": (
        BIG,
        {"gpumem": 24_000},
        (C("a", gpu=1, percentage=40), C("b", gpu=1, percentage=40)),
        (C("plain"),),
        "1/1 ResourceQuotaNotFit",
    ),
    "a MIG card is tested with what its profile costs": (
        [mig_card("GPU-m")],
        {"gpumem": 8000},
        (C(gpu=1, gpumem=8000),),
        (),
        "1/1 ResourceQuotaNotFit",
    ),
    "the count is limited too": (FOUR, {"gpu": 1}, (C(gpu=2, gpumem=100),), (), "1/4 AllocatedCards"),
}


@pytest.mark.parametrize(("cards", "limits", "containers", "init", "text"), FILTER.values(), ids=FILTER)
def test_what_the_filter_says(
    cards: list[Card], limits: dict[str, object], containers: tuple[Any, ...], init: tuple[Any, ...], text: str
) -> None:
    found, _ = asked(cards, limits, *containers, init=init)
    if not text:
        assert found.nodes == ("n1",)
        return
    assert found.failed is not None
    assert found.failed["n1"].startswith(text)
    assert any("limits.nvidia.com" in note for note in found.notes)


def held(uuid: str, memory: int, cores: int = 0) -> tuple[Entry, ...]:
    return (Entry(uuid, "NVIDIA", memory, cores),)


INIT, APP, SIDECAR = C("i", gpu=1, gpumem=1), C("app", gpu=1, gpumem=1), C("s", gpu=1, gpumem=1, sidecar=True)
# Allocation by container, the init containers first; what it costs before and after the init containers have ended.
COSTS: dict[str, tuple[tuple[Any, ...], tuple[Any, ...], Allocation, Charge, Charge]] = {
    "init larger than the app": (
        (INIT,),
        (APP,),
        (held("G", 20_000, 10), held("G", 10_000, 5)),
        Charge(20_000, 10, 1),
        Charge(10_000, 5, 1),
    ),
    "init and two apps on one card": (
        (INIT,),
        (APP, C("b", gpu=1, gpumem=1)),
        (held("A", 8000, 30), held("A", 3000, 10), held("A", 4000, 10)),
        Charge(8000, 30, 2),
        Charge(7000, 20, 2),
    ),
    "init on two cards, apps on two: the pod's peak, not the sum of the cards' (was 20000)": (
        (INIT,),
        (APP, C("b", gpu=1, gpumem=1)),
        ((*held("A", 8000), *held("B", 8000)), held("A", 3000), held("C", 4000)),
        Charge(16_000, 0, 2),
        Charge(7000, 0, 2),
    ),
    "two init containers on different cards run one after the other (was 2000)": (
        (INIT, C("j", gpu=1, gpumem=1)),
        (APP,),
        (held("A", 1000), held("B", 1000), held("A", 500)),
        Charge(1000, 0, 1),
        Charge(500, 0, 1),
    ),
    "a plain init container, then the app (was 0 once it had ended)": (
        (C("plain"),),
        (APP,),
        ((), held("GPU-a", 4000, 10)),
        Charge(4000, 10, 1),
        Charge(4000, 10, 1),
    ),
    "a sidecar runs beside the app (was 4000)": (
        (SIDECAR,),
        (APP,),
        (held("G", 4000), held("G", 4000)),
        Charge(8000, 0, 2),
        Charge(8000, 0, 2),
    ),
    "init, sidecar and app (was 20000 for the pod's life)": (
        (INIT, SIDECAR),
        (APP,),
        (held("G", 20_000), held("G", 2000), held("G", 10_000)),
        Charge(22_000, 0, 2),
        Charge(12_000, 0, 2),
    ),
}


@pytest.mark.parametrize("counts", [PLACED, ADMITTED])
@pytest.mark.parametrize(("init", "apps", "allocation", "before", "after"), COSTS.values(), ids=COSTS)
def test_what_a_placed_pod_costs(
    init: tuple[Any, ...], apps: tuple[Any, ...], allocation: Allocation, before: Charge, after: Charge, counts: str
) -> None:
    ledger = Ledger(nvidia_config(), quota_counts=counts)

    def now(version: int, ended: dict[str, int]) -> Pod:
        return pod(*apps, init=init, annotations=allocated(allocation), node="n1", version=version, exit_codes=ended)

    ledger.put_pod(now(1, {}), 0.0)
    assert ledger.used("default") == {"NVIDIA": before}
    ledger.put_pod(now(2, {c["name"]: 0 for c in init if "restartPolicy" not in c}), 0.0)
    assert ledger.used("default") == {"NVIDIA": after}


def test_thirty_pods_against_room_for_ten_place_ten() -> None:
    ledger = Ledger(nvidia_config())
    ledger.put_node(node("n1", *(card(f"c{n}", index=n) for n in range(8))))
    ledger.put_quota(quota(gpumem=10_000))
    engine = Engine(ledger, Defaults())
    found = [engine.filter(pod(name=f"p{n}"), ["n1"], 0.0) for n in range(30)]
    assert sum(one.nodes == ("n1",) for one in found) == 10
    assert ledger.used("default") == {"NVIDIA": Charge(10_000, 0, 10)}


def test_where_every_pod_counts_the_filter_leaves_out_the_pod_itself_and_counts_the_others_that_wait() -> None:
    ledger = Ledger(nvidia_config(), quota_counts=ADMITTED)
    ledger.put_node(node("n1", card("small", index=0, memory_mib=8000), card("large", index=1)))
    ledger.put_quota(quota(gpumem=16_000))
    one, two = pod(C(gpu=1), name="one"), pod(C(gpu=1), name="two")
    for each in (one, two):
        ledger.put_pod(each, 0.0)
    assert ledger.used("default")["NVIDIA"].memory_mib == 16_000
    engine = Engine(ledger, Defaults())
    # The large card would cost 15360 beside the 8000 of the pod that waits.
    found = engine.filter(one, ["n1"], 0.0)
    assert found.allocation is not None
    assert [e.uuid for entries in found.allocation for e in entries] == ["small"]
    refused = engine.filter(two, ["n1"], 0.0)
    assert refused.failed is not None
    assert "ResourceQuotaNotFit" in refused.failed["n1"]
    assert refused.notes == (
        "exceeding resource quota: default/q limits.nvidia.com/gpumem: asked 15360, used 8000, limit 16000 (7360 too many)",
    )
