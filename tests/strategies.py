"""Hypothesis strategies: cards, nodes, pods, and histories of a small cluster.

Names come from small pools, so that events hit each other; sizes are few, so that ties are common.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from msgspec.structs import replace

from devices.ledger import Ledger, Phase
from devices.model import Allocation, Card, CardState, Entry, MigReservation, Placement
from devices.objects import Node, Pod
from tests.builders import (
    ALLOCATED,
    MIG_ALLOCATIONS,
    VGPU_NODE,
    VGPU_TIME,
    Document,
    allocated,
    card,
    container_document,
    mig_card,
    node,
    pod,
    quota,
)
from tests.recount import Recount

NODES = ("n1", "n2")
NAMESPACES = ("default", "team")
PODS = ("p1", "p2")

plain_text = st.text(st.characters(exclude_characters=",:;", exclude_categories=["Cs"]), min_size=1, max_size=12)
"""What a name in the texts may be."""
int32 = st.integers(0, 2**31 - 1)
any_text = st.text(max_size=40)
near_texts = st.text(st.sampled_from(list(',:;-+.0123456789aGPUtruefals{}[]" \n')), max_size=60)
"""Garbage of the signs that the texts are made of."""
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)


def near_objects(names: tuple[str, ...]) -> st.SearchStrategy[Document]:
    """Objects with some of these fields, of any kind of value."""
    return st.dictionaries(st.sampled_from(names), json_values, max_size=len(names))


entries = st.builds(Entry, plain_text, st.just("NVIDIA"), int32, int32)
allocations: st.SearchStrategy[Allocation] = st.lists(st.lists(entries, max_size=3).map(tuple), max_size=4).map(tuple)
placements = st.builds(Placement, st.integers(0, 7), st.integers(1, 8))


@st.composite
def mig_reservation_lists(draw: st.DrawFn) -> tuple[MigReservation, ...]:
    """Reservations at distinct places, with or without what the plugin adds."""
    places = draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), unique=True, max_size=4))
    runtime = st.none() | st.tuples(st.text(max_size=5), st.integers(0, 20), st.integers(0, 20))
    names = st.text(min_size=1, max_size=5)
    return tuple(MigReservation(*place, draw(names), draw(names), draw(placements), draw(runtime)) for place in places)


def cards(uuid: str, index: int = 0) -> st.SearchStrategy[Card]:
    """A card that may be small, old, unhealthy, or hand out instances."""
    shared = st.builds(
        lambda memory, slots, numa, model, healthy: card(
            uuid, index=index, memory_mib=memory, slots=slots, numa=numa, model=model, healthy=healthy
        ),
        st.sampled_from([8000, 15360]),
        st.sampled_from([1, 2, 10]),
        st.integers(0, 1),
        st.sampled_from(["NVIDIA-Tesla T4", "NVIDIA A10"]),
        st.sampled_from([True, True, True, False]),
    )
    return shared | st.builds(lambda numa: mig_card(uuid, index=index, numa=numa), st.integers(0, 1))


@st.composite
def card_states(draw: st.DrawFn, most: int = 5) -> list[CardState]:
    """Cards of one node in some walk order, with tenants, that know pair scores of each other."""
    count = draw(st.integers(1, most))
    uuids = [f"g{number}" for number in range(count)]
    states = []
    for number, uuid in enumerate(uuids):
        base = draw(cards(uuid, number))
        scores = {other: draw(st.sampled_from([0, 10, 100, 200])) for other in uuids if other != uuid}
        mine = replace(base, pair_scores=scores)
        taken = tuple(draw(st.lists(placements, max_size=2))) if mine.mode == "mig" else ()
        used = draw(st.tuples(st.integers(0, 2), st.sampled_from([0, 1000, 8000]), st.sampled_from([0, 30, 100])))
        states.append(CardState(mine, *used, taken, mine.healthy, draw(st.sampled_from([False, False, True]))))
    return draw(st.permutations(states))


# A small cluster


def card_uuids(name: str) -> tuple[str, ...]:
    """UUIDs of a node of the small cluster."""
    return tuple(f"GPU-{name}-{letter}" for letter in "abm")


@st.composite
def nodes(draw: st.DrawFn, name: str | None = None) -> Node:
    """A node with some of its cards, listed in any order, that may be cordoned or out of order."""
    name = name or draw(st.sampled_from(NODES))
    uuids = draw(st.lists(st.sampled_from(card_uuids(name)), unique=True, max_size=3))
    listed = [mig_card(u, index=2) if u.endswith("m") else draw(cards(u, "ab".index(u[-1]))) for u in uuids]
    allocatable: Mapping[str, object] = draw(
        st.sampled_from([{}, {}, {"nvidia.com/gpu": "10"}, {"nvidia.com/gpu": "0"}])
    )
    cordon = draw(st.none() | st.sampled_from(card_uuids(name)))
    return node(name, *listed, cordon=cordon, allocatable=allocatable)


@dataclass(frozen=True)
class Shape:
    """What of a pod never changes: its containers and its namespace."""

    name: str
    namespace: str
    init: tuple[Document, ...]
    apps: tuple[Document, ...]

    @property
    def size(self) -> int:
        return len(self.init) + len(self.apps)

    def asks(self) -> list[bool]:
        return ["resources" in document for document in (*self.init, *self.apps)]


@st.composite
def shapes(draw: st.DrawFn, name: str) -> Shape:
    """Containers of all three kinds, some of which ask for a card."""
    init: list[Document] = []
    for number in range(draw(st.sampled_from([0, 1, 2, 2]))):
        limits: dict[str, Any] = draw(st.sampled_from([{"gpu": 1}, {"gpu": 1}, {}]))
        init.append(container_document(f"i{number}", sidecar=draw(st.sampled_from([False, False, True])), **limits))
    apps = [container_document("app", gpu=1)]
    if draw(st.booleans()):
        more: dict[str, Any] = draw(st.sampled_from([{}, {"gpu": 2}]))
        apps.append(container_document("log", **more))
    return Shape(name, draw(st.sampled_from(NAMESPACES)), tuple(init), tuple(draw(st.permutations(apps))))


@st.composite
def placed(draw: st.DrawFn, shape: Shape, name: str) -> Allocation:
    """Cards of a node for the containers that ask, instances among them; not every one need have got some."""
    a, b, m = card_uuids(name)
    shared = st.builds(Entry, st.sampled_from([a, b]), st.just("NVIDIA"), st.integers(0, 9000), st.integers(0, 100))
    instance = st.builds(lambda start: Entry(m, "NVIDIA", 4864, 15, "1g.5gb", Placement(start, 1)), st.integers(0, 6))
    given_ = st.lists(shared | shared | instance, min_size=1, max_size=2).map(tuple) | st.just(())
    return tuple(draw(given_) if asks else () for asks in shape.asks())


@st.composite
def annotations_of(draw: st.DrawFn, shape: Shape) -> dict[str, str]:
    """What a pod may carry: nothing, an allocation, one with lost positions, or what cannot be read."""
    name = draw(st.sampled_from(NODES))
    kind = draw(st.sampled_from(["none", "exact", "exact", "exact", "shifted", "garbage", "empty", "no reservations"]))
    if kind == "none":
        return {}
    values = allocated(draw(placed(shape, name)), name)
    if kind == "shifted":
        values[ALLOCATED] = "".join(f"{part};" for part in values[ALLOCATED].split(";") if part)
    elif kind == "garbage":
        values[ALLOCATED] = "GPU-a,NVIDIA:;"
    elif kind == "empty":
        values[ALLOCATED] = ""
    elif kind == "no reservations":
        values[MIG_ALLOCATIONS] = draw(st.sampled_from(["", "["]))
    if draw(st.booleans()):
        values[VGPU_TIME] = draw(st.sampled_from(["0", "500", "5000", "x"]))
    return dict(draw(st.permutations(list(values.items()))))


@st.composite
def pods(draw: st.DrawFn, shape: Shape, tick: int = 1) -> Pod:
    """The pod at some moment of its life near `tick`, which may be an earlier one than before."""
    values = draw(annotations_of(shape))
    ended = {c["name"]: draw(st.sampled_from([0, 0, 1])) for c in shape.init if draw(st.booleans())}
    return pod(
        *shape.apps,
        init=shape.init,
        name=shape.name,
        namespace=shape.namespace,
        annotations=values,
        node=draw(st.sampled_from(["", "", values.get(VGPU_NODE, "n1")])),
        phase=draw(st.sampled_from(["", "", "Pending", "Running", "Running", "Running", "Succeeded", "Failed"])),
        version=max(tick - draw(st.sampled_from([0, 0, 1, 2])), 1),
        unschedulable=draw(st.booleans()),
        terminating=draw(st.booleans()),
        exit_codes=ended,
    )


@dataclass(frozen=True)
class Step:
    """One event: a method that ledger and recount both have, and its arguments."""

    method: str
    arguments: tuple[Any, ...]

    def apply(self, to: Ledger | Recount) -> None:
        call: Callable[..., object] = getattr(to, self.method)
        call(*self.arguments)


@st.composite
def steps(draw: st.DrawFn, known: Mapping[str, Shape], now_s: float, tick: int, gone: set[str]) -> Step:
    """An event that the services may report at this moment. Nobody decides for a pod that is gone."""
    shape = known[draw(st.sampled_from(sorted(known)))]
    uid = f"uid-{shape.name}"
    kinds = ["put_node", "delete_node", "put_quota", "delete_quota", "set_phase", "delete_pod", "release"]
    kinds += ["put_pod"] * 5 + ["expire", "expire", "set_phase"] + ([] if uid in gone else ["reserve"] * 4 + ["answer"])
    kind = draw(st.sampled_from(kinds))
    arguments: tuple[Any, ...]
    if kind == "put_pod":
        arguments = (draw(pods(shape, tick)), now_s)
    elif kind == "put_node":
        arguments = (draw(nodes()),)
    elif kind == "delete_node":
        arguments = (draw(st.sampled_from(NODES)),)
    elif kind == "put_quota":
        hard = draw(st.dictionaries(st.sampled_from(["gpu", "gpumem", "gpucores"]), st.integers(0, 9), max_size=2))
        arguments = (quota(draw(st.sampled_from("ab")), shape.namespace, **hard),)
    elif kind == "delete_quota":
        arguments = (shape.namespace, draw(st.sampled_from("ab")))
    elif kind == "expire":
        arguments = (now_s,)
    elif kind == "set_phase":
        arguments = (uid, draw(st.sampled_from(list(Phase))))
    elif kind == "reserve":
        name = draw(st.sampled_from(NODES))
        arguments = (draw(pods(shape, tick)), name, draw(placed(shape, name)), now_s)
    elif kind == "answer":
        arguments = (draw(pods(shape, tick)), now_s)
    else:
        arguments = (uid,)
        gone |= {uid} if kind == "delete_pod" else set()
    return Step(kind, arguments)


@st.composite
def histories(draw: st.DrawFn, most: int = 25) -> list[Step]:
    """What may happen to a cluster of two nodes and two pods, in any order."""
    known = {name: draw(shapes(name)) for name in PODS}
    gone: set[str] = set()
    now_s, found = 0.0, [Step("put_node", (draw(nodes(name)),)) for name in NODES]
    tick = 1
    for _ in range(draw(st.integers(1, most))):
        now_s += draw(st.sampled_from([0.0, 1.0, 300.0, 700.0]))
        tick += draw(st.integers(0, 1))
        found.append(draw(steps(known, now_s, tick, gone)))
    return found
