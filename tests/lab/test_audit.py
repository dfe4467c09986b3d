import pytest
from msgspec import structs

from devices.objects import Node, Pod, node_of, pod_of
from lab.audit import Share, audit, placements, usage_of
from lab.families import every_family
from lab.nodes import CardSpec, NodeSpec, node_document

VENDORS = every_family().vendors
ALLOCATED = "hami.io/vgpu-devices-allocated"


def node(*cards: CardSpec) -> Node:
    return node_of(node_document(NodeSpec("n1", cards or (CardSpec("A"), CardSpec("B")))))


def pod(name: str, text: str | None, phase: str = "Running", bound: str | None = "n1", containers: int = 1) -> Pod:
    return pod_of(
        {
            "metadata": {
                "name": name,
                "namespace": "default",
                "annotations": {} if text is None else {ALLOCATED: text},
            },
            "spec": {"nodeName": bound, "containers": [{"name": f"c{n}"} for n in range(containers)]},
            "status": {"phase": phase},
        }
    )


def with_inits(text: str, restart: list[str | None], ended: list[str]) -> Pod:
    inits = [{"name": f"i{n}", "restartPolicy": policy} for n, policy in enumerate(restart)]
    return pod_of(
        {
            "metadata": {"name": "p", "namespace": "default", "annotations": {ALLOCATED: text}},
            "spec": {"nodeName": "n1", "initContainers": inits, "containers": [{"name": "main"}]},
            "status": {
                "phase": "Pending",
                "initContainerStatuses": [{"name": n, "state": {"terminated": {"exitCode": 0}}} for n in ended],
            },
        }
    )


def card(memory: int, cores: int = 0, uuid: str = "A") -> str:
    return f"{uuid},NVIDIA,{memory},{cores}:"


FINE = {
    "nothing": [],
    "full to the last MiB": [pod("a", f"{card(15000)};"), pod("b", f"{card(360)};")],
    "a finished pod holds nothing": [pod("a", f"{card(15360)};", "Succeeded"), pod("b", f"{card(15360)};")],
    "an unbound pod holds nothing": [pod("a", f"{card(15360)};", bound=None), pod("b", f"{card(15360)};")],
    "ten slots": [pod(str(n), f"{card(1)};") for n in range(10)],
    "no annotation": [pod("a", None)],
}


@pytest.mark.parametrize("pods", FINE.values(), ids=FINE)
def test_nothing_is_wrong(pods: list[Pod]) -> None:
    assert audit([node()], pods, VENDORS) == ()


PLANTED = {
    "memory": ([pod("a", f"{card(15000)};"), pod("b", f"{card(361)};")], "A: memory (MiB): 15361 of 15360 given to default/a, default/b"),
    "slots": ([pod(str(n), f"{card(1)};") for n in range(11)], "A: slots: 11 of 10 given to default/0, "),
    "cores": ([pod("a", f"{card(1, 60)};"), pod("b", f"{card(1, 50)};")], "A: cores (percent): 110 of 100 given to "),
    "a card of nobody's": ([pod("a", f"{card(1, uuid='C')};")], "C: no such card on this node; given to default/a"),
    "a text that cannot be read": ([pod("a", "A,NVIDIA,x,0:;")], "default/a: hami.io/vgpu-devices-allocated 'A,NVIDIA,x,0:;' cannot be read"),
    "a lost position": ([pod("a", f"{card(1)};", containers=2)], "1 positions for 2 containers"),
    "a pod that is bound and still pending counts": (
        [pod("a", f"{card(15360)};"), pod("b", f"{card(1)};", "Pending")],
        "A: memory (MiB): 15361 of 15360",
    ),
    "containers of one pod add up": ([pod("a", f"{card(8000)};{card(8000)};", containers=2)], "A: memory (MiB): 16000"),
}  # fmt: skip


@pytest.mark.parametrize(("pods", "text"), PLANTED.values(), ids=PLANTED)
def test_planted_violation_is_found(pods: list[Pod], text: str) -> None:
    found = audit([node()], pods, VENDORS)
    assert len(found) == 1
    assert text in f"{found[0].card}: {found[0].text}"


def test_cards_of_a_node_that_is_gone() -> None:
    assert [v.text for v in audit([], [pod("a", f"{card(1)};")], VENDORS)] == [
        "no such card on this node; given to default/a"
    ]


# init container, sidecar and app of one card: what runs together adds up, init containers run before.
PHASES = {
    "init larger": (f"{card(8000)};{card(2000)};", [None], [], (1, 8000)),
    "init ended": (f"{card(8000)};{card(2000)};", [None], ["i0"], (1, 2000)),
    "app larger": (f"{card(1000)};{card(2000)};", [None], [], (1, 2000)),
    "sidecar beside both": (f"{card(1000)};{card(9000)};{card(3000)};", ["Always", None], [], (2, 10000)),
    "sidecar, init ended": (f"{card(1000)};{card(9000)};{card(3000)};", ["Always", None], ["i1"], (2, 4000)),
    "plain init container": (f";{card(3000)};", [None], ["i0"], (1, 3000)),
}


@pytest.mark.parametrize(("text", "restart", "ended", "held"), PHASES.values(), ids=PHASES)
def test_what_a_pod_holds_over_its_life(
    text: str, restart: list[str | None], ended: list[str], held: tuple[int, int]
) -> None:
    usage = usage_of([node()], [with_inits(text, restart, ended)], VENDORS)
    assert (usage[0].used_slots, usage[0].used_memory_mib) == held
    assert usage[1].tenants == ()


def test_usage_names_tenants_in_order() -> None:
    pods = [pod("b", f"{card(2, 5)};"), pod("a", f"{card(1)};")]
    assert usage_of([node()], pods, VENDORS)[0].tenants == (Share("default/a", 1, 1, 0), Share("default/b", 1, 2, 5))


def test_placements_are_equal_for_equal_cards() -> None:
    one, other = pod("a", f"{card(1)};"), pod("b", f"{card(1, uuid='B')};")
    assert placements([one, other], VENDORS) == placements([other, one], VENDORS)
    assert placements([one], VENDORS) == {"default/a": f"n1 {card(1)};"}
    assert placements([pod("a", None, bound=None)], VENDORS) == {}


def by_capacity(**capacity: str) -> Node:
    """A node whose cards are numbers: `__` stands for a dot, `_` for a slash."""
    resources = {name.replace("__", ".").replace("_", "/"): value for name, value in capacity.items()}
    return node_of(node_document(NodeSpec("n1", (), capacity=resources)))


def holding(annotation: str, text: str, name: str = "a", **annotations: str) -> Pod:
    bare = pod(name, None)
    return structs.replace(bare, metadata=structs.replace(bare.metadata, annotations={annotation: text, **annotations}))


NEURON = by_capacity(aws__amazon__com_neuron="2", aws__amazon__com_neuroncore="4")
NEURON_KEY = "hami.io/aws-neuron-devices-allocated"
DRS_KEY = "hami.io/enflame-vgpu-devices-allocated"
DRS = node_of(
    node_document(
        NodeSpec(
            "n1",
            (),
            {
                "enflame.com/gcu-drs-capacity": '{"devices":[{"index":"0","capacity":6}],"profiles":{"3g.24gb":"1","6g.48gb":"2"}}'
            },
        )
    )
)
NPU_KEY = "hami.io/Ascend910B3-devices-allocated"
NPU = node_of(
    node_document(
        NodeSpec(
            "n1",
            (),
            {
                "hami.io/node-register-Ascend910B3": '[{"id":"b","count":9,"devmem":65536,"devcore":20,"type":"Ascend910B3","health":true}]'
            },
        )
    )
)
SOFT = {"huawei.com/vnpu-mode": "hami-core"}

OF_OTHERS: dict[str, tuple[Node, list[Pod], list[str]]] = {
    "cores of a device are given once": (
        NEURON,
        [
            holding(NEURON_KEY, "n1-AWSNeuron-0,AWSNeuron,0,1:;"),
            holding(NEURON_KEY, "n1-AWSNeuron-0,AWSNeuron,0,2:;", "b"),
        ],
        [],
    ),
    "one core twice": (
        NEURON,
        [
            holding(NEURON_KEY, "n1-AWSNeuron-0,AWSNeuron,0,1:;"),
            holding(NEURON_KEY, "n1-AWSNeuron-0,AWSNeuron,0,1:;", "b"),
        ],
        ["cores: mask 1 more than once given to default/a, default/b"],
    ),
    "a share of slices holds its slices": (
        DRS,
        [
            holding(DRS_KEY, "n1-enflame-drs-0,Enflame,24576,50:;"),
            holding(DRS_KEY, "n1-enflame-drs-0,Enflame,24576,50:;", "b"),
        ],
        [],
    ),
    "more slices than there are": (
        DRS,
        [
            holding(DRS_KEY, "n1-enflame-drs-0,Enflame,24576,50:;"),
            holding(DRS_KEY, "n1-enflame-drs-0,Enflame,1,67:;", "b"),
        ],
        ["slots: 7 of 6 given to default/a, default/b"],
    ),
    "a soft split counts percent": (NPU, [holding(NPU_KEY, "b,Ascend910B3,1000,100:;", **SOFT)], []),
    "others count the chip's own cores": (
        NPU,
        [holding(NPU_KEY, "b,Ascend910B3,1000,21:;")],
        ["cores (percent): 21 of 20 given to default/a"],
    ),
    "a card that no plugin announces": (
        by_capacity(vastaitech__com_va="1"),
        [holding("hami.io/Vastai-devices-allocated", "va,Vastai,0,0:;")],
        ["no such card on this node; given to default/a"],
    ),
}


@pytest.mark.parametrize(("where", "pods", "told"), OF_OTHERS.values(), ids=OF_OTHERS)
def test_every_family_is_audited_by_its_own_bounds(where: Node, pods: list[Pod], told: list[str]) -> None:
    assert [violation.text for violation in audit([where], pods, VENDORS)] == told


def test_use_of_several_families_on_one_node() -> None:
    holder = holding(NEURON_KEY, "n1-AWSNeuron-1,AWSNeuron,0,3:;", **{ALLOCATED: f"{card(500)};"})
    both = node_of(
        node_document(
            NodeSpec("n1", (CardSpec("A"),), capacity={"aws.amazon.com/neuron": "2", "aws.amazon.com/neuroncore": "4"})
        )
    )
    usage = {
        card.uuid: (card.used_slots, card.used_memory_mib, card.used_cores)
        for card in usage_of([both], [holder], VENDORS)
    }
    assert usage == {"A": (1, 500, 0), "n1-AWSNeuron-0": (0, 0, 0), "n1-AWSNeuron-1": (1, 0, 3)}
