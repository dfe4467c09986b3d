"""Containers of one pod on one node: sidecars first, each other init container beside them alone, then the apps."""

from typing import Any

import pytest

from devices.fit import Headroom
from devices.model import NodeState
from devices.objects import Pod
from scheduler.evaluate import Fit, evaluate
from tests.builders import card, card_state, container_document, pod
from tests.scheduler.builders import CONFIG, ask

C = container_document
BIG = card("a", memory_mib=10_000)
TWO = (card("a", memory_mib=10_000), card("b", memory_mib=10_000, index=1))


def verdict(asked: Pod, *cards: Any, memory_left: int | None = None) -> str:
    """UUIDs by container, or the container that fails and why."""
    node = NodeState("n", 1, tuple(card_state(one) for one in cards), 0.0)
    headrooms = {} if memory_left is None else {"NVIDIA": Headroom(memory_left)}
    found = evaluate(node, ask(asked), CONFIG, headrooms)
    if isinstance(found, Fit):
        return " ".join("+".join(e.uuid for e in entries) or "-" for entries in found.allocation)
    return f"{found.container}: {found.text}"


def sidecar(mib: int) -> Any:
    return C("side", gpu=1, gpumem=mib, sidecar=True)


ROWS: dict[str, tuple[Pod, tuple[Any, ...], int | None, str]] = {
    "an init container and an app share the memory in turn": (
        pod(C("app", gpu=1, gpumem=8000), init=[C("i", gpu=1, gpumem=9000)]),
        (BIG,),
        None,
        "a a",
    ),
    "a sidecar and an app do not": (
        pod(C("app", gpu=1, gpumem=6000), init=[sidecar(6000)]),
        (BIG,),
        None,
        "app: 1/1 CardInsufficientMemory",
    ),
    "nor a sidecar and an init container": (
        pod(C("app"), init=[C("i", gpu=1, gpumem=6000), sidecar(6000)]),
        (BIG,),
        None,
        "i: 1/1 CardInsufficientMemory",
    ),
    "beside a small enough sidecar it fits": (
        pod(C("app"), init=[C("i", gpu=1, gpumem=6000), sidecar(4000)]),
        (BIG,),
        None,
        "a a -",
    ),
    "init containers do not add up": (
        pod(C("app"), init=[C("i", gpu=1, gpumem=9000), C("j", gpu=1, gpumem=9000)]),
        (BIG,),
        None,
        "a a -",
    ),
    "apps do": (
        pod(C("x", gpu=1, gpumem=6000), C("y", gpu=1, gpumem=6000)),
        (BIG,),
        None,
        "y: 1/1 CardInsufficientMemory",
    ),
    "each init container and the apps start from the order of registration": (
        pod(C("app", gpu=1, gpumem=1000), init=[C("i", gpu=1, gpumem=1000), C("j", gpu=1, gpumem=1000)]),
        TWO,
        None,
        "b b b",
    ),
    "the app after a sidecar spreads": (pod(C("app", gpu=1, gpumem=1000), init=[sidecar(1000)]), TWO, None, "b a"),
    "quota counts a sidecar beside an init container": (
        pod(C("app"), init=[sidecar(2000), C("i", gpu=1, gpumem=3000)]),
        TWO,
        4999,
        "i: 2/2 ResourceQuotaNotFit",
    ),
    "and is enough for both exactly": (
        pod(C("app"), init=[sidecar(2000), C("i", gpu=1, gpumem=3000)]),
        TWO,
        5000,
        "b a -",
    ),
    "quota counts apps with their sidecars, not with init containers": (
        pod(C("app", gpu=1, gpumem=3000), init=[sidecar(2000), C("i", gpu=1, gpumem=3000)]),
        TWO,
        5000,
        "b a a",
    ),
    "the first container that fails is the one named": (
        pod(C("x", gpu=3, gpumem=1), C("y", gpu=1, gpumem=99_999)),
        TWO,
        None,
        "x: NodeInsufficientDevice",
    ),
    "the last slot": (pod(C("app", gpu=1, gpumem=1)), (card("a", slots=1),), None, "a"),
    "and none after it": (
        pod(C("x", gpu=1, gpumem=1), C("y", gpu=1, gpumem=1)),
        (card("a", slots=1),),
        None,
        "y: 1/1 CardTimeSlicingExhausted",
    ),
}


@pytest.mark.parametrize(("asked", "cards", "memory_left", "expected"), ROWS.values(), ids=ROWS)
def test_containers(asked: Pod, cards: tuple[Any, ...], memory_left: int | None, expected: str) -> None:
    assert verdict(asked, *cards, memory_left=memory_left) == expected
