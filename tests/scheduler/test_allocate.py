"""What the one write carries where several families are configured."""

from dataclasses import replace

from devices.config import DeviceConfig
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
