"""Hygon DCU: cards shared by memory and compute, registered in the text form."""

from devices.errors import ConfigError
from devices.vendor import INT32, WHOLE, Family, FamilySettings, Hooks, Vendor, text_registration

__all__ = ["FAMILY"]


class Settings(FamilySettings, frozen=True, kw_only=True):
    """The section `hygon` (HAMi v2.10 device config)."""

    resource_count_name: str = "hygon.com/dcunum"
    resource_memory_name: str = "hygon.com/dcumem"
    resource_core_name: str = "hygon.com/dcucores"
    memory_factor: int = 1


def _build(settings: Settings) -> tuple[Vendor, ...]:
    if not 0 <= settings.memory_factor <= INT32:
        raise ConfigError(f"memoryFactor: {settings.memory_factor} is out of range, accepted are 0 to {INT32}")
    return (
        Vendor(
            key="DCU",
            count_resource=settings.resource_count_name,
            memory_resource=settings.resource_memory_name,
            core_resource=settings.resource_core_name,
            allocated="hami.io/dcu-devices-allocated",
            to_allocate="hami.io/dcu-devices-to-allocate",
            registration=("hami.io/node-dcu-register",),
            handshake="hami.io/node-handshake-dcu",
            uuid_keys=(("hygon.com/use-gpuuuid", "hygon.com/nouse-gpuuuid"),),
            type_keys=("hygon.com/use-dcutype", "hygon.com/nouse-dcutype"),
            node_lock="hami.io/mutex.lock",
            memory_factor=max(settings.memory_factor, 1),
            default_cores=WHOLE,
            hooks=Hooks(read_node=text_registration),
        ),
    )


FAMILY = Family("hygon", Settings, _build)
