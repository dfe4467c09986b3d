"""What the one write carries where several families are configured."""

from dataclasses import replace

import pytest

from devices.config import DeviceConfig
from devices.errors import BindingMetadataError
from devices.model import Entry
from scheduler.allocate import carried, carries
from tests.builders import entry, pod
from tests.scheduler.builders import CONFIG, NOW_S

NVIDIA = CONFIG.vendors[0]
OTHER = replace(
    NVIDIA,
    key="OTHER",
    allocated="o.io/allocated",
    to_allocate="",
    outputs=(),
    hooks=replace(NVIDIA.hooks, annotate=None),
)
BOTH = DeviceConfig((NVIDIA, OTHER))


def test_every_family_writes_its_own_keys_with_all_positions() -> None:
    allocation = ((entry("a"),), (Entry("o", "OTHER", 5, 1),))
    annotations = carried("n1", allocation, BOTH, pod(), None, NOW_S).annotations
    assert annotations["hami.io/vgpu-devices-allocated"] == "a,NVIDIA,1000,0:;;"
    assert annotations["hami.io/vgpu-devices-to-allocate"] == "a,NVIDIA,1000,0:;;"
    assert annotations["o.io/allocated"] == ";o,OTHER,5,1:;"
    assert "hami.io/vgpu-mig-allocations" not in annotations
    assert carries(annotations, allocation, BOTH)
    assert not carries(annotations, ((entry("b"),), allocation[1]), BOTH)
    assert not carries({**annotations, "o.io/allocated": ";;"}, allocation, BOTH)


def test_annotations_of_pod_and_allocation_together_were_more_than_a_pod_may_have() -> None:
    """The API server merges them unseen, and refuses every later write of the pod, the kubelet's too."""
    room = 256 * 1024 - sum(
        len(key) + len(value)
        for key, value in carried("n1", ((entry("a"),),), BOTH, pod(), None, NOW_S).annotations.items()
    )
    fits = pod(annotations={"team": "x" * (room - len("team"))})
    assert carried("n1", ((entry("a"),),), BOTH, fits, None, NOW_S).labels == {"hami.io/vgpu-node": "n1"}
    with pytest.raises(BindingMetadataError, match="take 262145 bytes, more than the 262144 a pod may carry"):
        carried("n1", ((entry("a"),),), BOTH, pod(annotations={"team": "x" * (room - 3)}), None, NOW_S)
    # What the allocation overwrites counts once.
    again = pod(annotations={**fits.annotations, "hami.io/vgpu-node": "an-older-node"})
    assert carried("n1", ((entry("a"),),), BOTH, again, None, NOW_S).annotations["hami.io/vgpu-node"] == "n1"


def test_what_an_earlier_attempt_left_of_another_family_is_emptied() -> None:
    """The plugin of the family that is not used any more would have found cards to hand out."""
    left = {
        "hami.io/vgpu-devices-allocated": "a,NVIDIA,1,1:;",
        "hami.io/vgpu-devices-to-allocate": "a,NVIDIA,1,1:;",
        "hami.io/vgpu-mig-allocations": "",
        "team": "x",
    }
    annotations = carried("n1", ((Entry("o", "OTHER", 5, 1),),), BOTH, pod(annotations=left), None, NOW_S).annotations
    assert annotations == {
        "hami.io/vgpu-node": "n1",
        "hami.io/vgpu-time": str(int(NOW_S)),
        "hami.io/bind-phase": "allocating",
        "hami.io/bind-time": str(int(NOW_S)),
        "o.io/allocated": "o,OTHER,5,1:;",
        "hami.io/vgpu-devices-allocated": "",
        "hami.io/vgpu-devices-to-allocate": "",
    }
