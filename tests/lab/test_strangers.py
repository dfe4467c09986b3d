"""What kube-scheduler says, as it would be without the nodes that are not the lab's."""

import pytest

from lab.strangers import without_strangers

TAINTED = "2 node(s) had untolerated taint(s)"
CASES = {
    "closed nodes come last": (
        f"0/3 nodes are available: 1 4/4 ExclusiveDeviceAllocateConflict, {TAINTED}. preemption: 0/3 nodes are available: "
        "1 No preemption victims found for incoming pod, 2 Preemption is not helpful for scheduling.",
        "0/1 nodes are available: 1 4/4 ExclusiveDeviceAllocateConflict. preemption: 0/1 nodes are available: "
        "1 No preemption victims found for incoming pod.",
    ),
    "a taint by name, in the middle": (
        "0/4 nodes are available: 1 a, 2 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }, 1 z.",
        "0/2 nodes are available: 1 a, 1 z.",
    ),
    "they come first": (
        "0/3 nodes are available: 2 node(s) were unschedulable, 1 z. preemption: 0/3 nodes are available: "
        "3 Preemption is not helpful for scheduling.",
        "0/1 nodes are available: 1 z. preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.",
    ),
    "other words stay": ("waiting for the quota of team-a", "waiting for the quota of team-a"),
}


@pytest.mark.parametrize(("said", "expected"), CASES.values(), ids=CASES)
def test_two_strangers_are_left_out(said: str, expected: str) -> None:
    assert without_strangers(said, 2) == expected


def test_kubernetes_1_34_said_more_about_every_pod() -> None:
    message = "0/1 nodes are available: 1 z. no new claims to deallocate, preemption: 0/1 nodes are available: 1 y."
    assert without_strangers(message, 0) == "0/1 nodes are available: 1 z. preemption: 0/1 nodes are available: 1 y."


def test_without_strangers_nothing_changes() -> None:
    message = "0/1 nodes are available: 1 node(s) had untolerated taint(s)."
    assert without_strangers(message, 0) == message
