"""What the device plugins of the families do with a pod, as far as the fake kubelet plays them.

Like `lab.names` this is what a plugin knows, and not Slotwise's own table: an annotation that Slotwise forgets is missed here. A
family that is not named here has a plugin that reads the allocation text and nothing else.
"""

from dataclasses import dataclass
from typing import Final

__all__ = ["Plugin", "plugin_of"]


@dataclass(frozen=True)
class Plugin:
    """One family's device plugin."""

    reads: tuple[str, ...] = ()
    """Annotations of the pod that it needs besides the allocation."""
    confirms: str = ""
    """The annotation that it sets to `true` once it has served the pod."""
    has_core_masks: bool = False
    """Compute in its allocation text is a bit mask of cores, no amount."""


_PLAIN: Final = Plugin()
_PLUGINS: Final = {
    "AWSNeuron": Plugin(
        ("AWS_NEURON_IDS", "NEURON_ALLOC_TIME", "NEURON_ALLOCATED", "aws.amazon.com/predicate-node"),
        confirms="NEURON_ALLOCATED",
        has_core_masks=True,
    ),
    "Enflame": Plugin(
        (
            "assigned-containers",
            "enflame.com/gcu-assigned",
            "enflame.com/gcu-assigned-time",
            "enflame.com/gcu-assigned-index",
            "enflame.com/gcu-assigned-id",
            "enflame.com/gcu-assigned-minor",
            "enflame.com/gcu-request-size",
        ),
        confirms="enflame.com/gcu-assigned",
    ),
    "MLU": Plugin(
        ("CAMBRICON_DSMLU_ASSIGNED", "CAMBRICON_DSMLU_PROFILE"),
        confirms="CAMBRICON_DSMLU_ASSIGNED",
    ),
    "Metax-SGPU": Plugin(("metax-tech.com/gpu-devices-allocated", "metax-tech.com/predicate-time")),
    "Mthreads": Plugin(("mthreads.com/gpu-index", "mthreads.com/predicate-time", "mthreads.com/predicate-node")),
    "kunlun": Plugin(("BAIDU_COM_DEVICE_IDX",)),
}


def plugin_of(vendor: str) -> Plugin:
    """The plugin behind a vendor key."""
    if vendor.startswith("Ascend"):
        return Plugin(("predicate-time", f"huawei.com/{vendor}"))
    return _PLUGINS.get(vendor, _PLAIN)
