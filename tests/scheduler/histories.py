"""Random clusters and what happens to them, for the properties of decisions and of the books."""

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from devices.model import Card
from devices.objects import Node, Pod
from tests.builders import T4_MIB, card, container_document, mig_card, node, pod

NODES = ("n1", "n2", "n3")
NAMESPACES = ("default", "team")
POLICY = "hami.io/gpu-scheduler-policy"

_C = container_document
BODIES: tuple[dict[str, Any], ...] = (
    {"containers": [_C(gpu=1, gpumem=1000)]},
    {"containers": [_C("other", gpu=1, gpumem=1000)]},
    {"containers": [_C(gpu=1, gpumem=8000, gpucores=50)]},
    {"containers": [_C(gpu=2, gpumem=5000)]},
    {"containers": [_C(gpu=1)]},
    {"containers": [_C(gpu=1, gpucores=100)]},
    {"containers": [_C(gpu=1, percentage=60)]},
    {"containers": [_C(gpu=1, gpumem=9000), _C("b", gpu=1, gpumem=4000, gpucores=30)]},
    {"containers": [_C("app", gpu=1, gpumem=3000)], "init": [_C("i", gpu=1, gpumem=12000), _C("j")]},
    {"containers": [_C("app", gpu=1, gpumem=6000)], "init": [_C("s", gpu=1, gpumem=6000, sidecar=True)]},
    {
        "containers": [_C("app", gpu=1, gpumem=6000)],
        "init": [_C("s", gpu=1, gpumem=2000, sidecar=True), _C("i", gpu=2, gpumem=7000)],
    },
    {"containers": [_C("plain")]},
    {"containers": [_C(gpu=1, gpumem="16Gi")]},
)
EXTRAS: tuple[dict[str, str], ...] = (
    {},
    {},
    {POLICY: "binpack"},
    {POLICY: "mutex"},
    {POLICY: "topology-aware"},
    {"hami.io/node-scheduler-policy": "spread"},
    {"nvidia.com/numa-bind": "true"},
    {"nvidia.com/use-gputype": "T4"},
    {"nvidia.com/nouse-gpuuuid": "n1-0,n2-0"},
    {"nvidia.com/vgpu-mode": "mig"},
    {"hami.io/device-scoring-weights": "slot=0,core=0,memory=5"},
    {"hami.io/device-scoring-weights": "slot=0"},
)


@st.composite
def pods(draw: st.DrawFn) -> Pod:
    """A pod of one of twelve names; one that asks for something else than before is another pod and has another UID."""
    number = draw(st.integers(0, 11))
    chosen = draw(st.integers(0, len(BODIES) - 1))
    body = dict(BODIES[chosen])
    namespace = NAMESPACES[number % 2]
    containers = body.pop("containers")
    extra = draw(st.sampled_from(EXTRAS))
    return pod(
        *containers, name=f"p{number}", uid=f"uid-{number}-{chosen}", namespace=namespace, annotations=extra, **body
    )


@st.composite
def cards(draw: st.DrawFn, name: str, number: int) -> Card:
    """A card that says which node it is on: small, slotless, sick, scaled or MIG now and then."""
    uuid = f"{name}-{number}"
    fields: dict[str, Any] = {"index": number, "numa": draw(st.integers(0, 1))}
    kind = draw(st.sampled_from(("T4", "T4", "small", "sick", "full", "full", "scaled", "mig")))
    if kind == "mig":
        return mig_card(uuid, **fields)
    kinds: dict[str, dict[str, Any]] = {
        "T4": {},
        "small": {"memory_mib": 4000, "model": "NVIDIA-P4"},
        "sick": {"healthy": False},
        "full": {"slots": 1},
        "scaled": {"cores": 200, "memory_mib": 2 * T4_MIB},
    }
    return card(uuid, **fields, **kinds[kind])


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    """One of three nodes, with up to three cards, some of them cordoned; now and then without any."""
    name = draw(st.sampled_from(NODES))
    count = draw(st.integers(0, 3))
    listed = [draw(cards(name, number)) for number in range(count)]
    cordon = draw(st.sampled_from((None, None, f"{name}-0", f"{name}-1, {name}-2")))
    allocatable = draw(st.sampled_from(({}, {}, {"nvidia.com/gpu": "10"}, {"nvidia.com/gpu": "0"})))
    return node(name, *listed, cordon=cordon, allocatable=allocatable)


@dataclass(frozen=True)
class Step:
    """One thing that happens: `what` says which of the fields count."""

    what: str
    pod: Pod
    node: Node
    names: tuple[str, ...]
    limit: int
    seconds: float


@st.composite
def steps(draw: st.DrawFn, whats: tuple[str, ...]) -> Step:
    names = tuple(draw(st.permutations((*NODES, "nowhere")))[: draw(st.integers(1, 4))])
    return Step(
        draw(st.sampled_from(whats)),
        draw(pods()),
        draw(nodes()),
        names,
        draw(st.sampled_from((0, 1000, 9000, 15000, 20000, 60000))),
        draw(st.sampled_from((0.0, 1.0, 40.0, 700.0))),
    )
