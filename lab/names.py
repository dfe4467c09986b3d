"""Names on the wire that the lab's fake parts use: as a device plugin and a kubelet know them, not through Slotwise's own tables."""

from typing import Final

__all__ = [
    "ALLOCATED",
    "CORES",
    "COUNT",
    "FAIL_ALLOCATE",
    "HOLD_INIT",
    "MEMORY",
    "PERCENTAGE",
    "PUBLISHED",
    "REGISTRATION",
    "RUN_SECONDS",
    "TO_ALLOCATE",
]

COUNT: Final = "nvidia.com/gpu"
MEMORY: Final = "nvidia.com/gpumem"
PERCENTAGE: Final = "nvidia.com/gpumem-percentage"
CORES: Final = "nvidia.com/gpucores"

REGISTRATION: Final = "hami.io/node-nvidia-register"
TO_ALLOCATE: Final = "hami.io/vgpu-devices-to-allocate"
ALLOCATED: Final = "hami.io/vgpu-devices-allocated"

RUN_SECONDS: Final = "lab.slotwise.io/run-seconds"
"""On a pod: the fake kubelet lets it run so long and then ends it in good order; absent: until told."""
HOLD_INIT: Final = "lab.slotwise.io/hold-init"
"""On a pod, `true`: its init containers run until the fake kubelet is told to end them; absent: they end at once."""
FAIL_ALLOCATE: Final = "lab.slotwise.io/fail-allocate"
"""On a pod, `true`: the fake device plugin fails its Allocate."""
PUBLISHED: Final = "lab.slotwise.io/published"
"""On a node of a borrowed cluster: when its fake device plugin has last published it."""
