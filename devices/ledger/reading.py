"""Reading from a pod what it was given."""

from collections.abc import Iterable
from operator import add

from devices.annotations import at_positions, decode
from devices.errors import MalformedValue
from devices.model import Allocation
from devices.objects import Container, Pod
from devices.vendor import Vendor

__all__ = ["decode_allocation", "revision"]

_REVISION_DIGITS = 20
"""Of 64 bits. A longer one is none of the API server's."""


def revision(pod: Pod) -> int:
    """The resourceVersion as a number; 0 where it is none."""
    text = pod.metadata.resource_version
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _REVISION_DIGITS else 0


def _asks(vendor: Vendor, container: Container) -> bool:
    try:
        request = vendor.request(container)
    except MalformedValue:
        return vendor.count_resource in container.limits or vendor.count_resource in container.requests
    return request is not None


def decode_allocation(pod: Pod, vendors: Iterable[Vendor]) -> Allocation:
    """The allocation that a pod's annotations carry, at its container positions. Raises `AllocationError`."""
    containers = [*pod.init_containers, *pod.containers]
    annotations = pod.annotations
    found: Allocation = ()
    for vendor in [vendor for vendor in vendors if vendor.allocated in annotations]:
        if vendor.allocated and (text := annotations[vendor.allocated]):
            decoded = decode(text, vendor.key)
            if len(decoded) != len(containers):
                decoded = at_positions(decoded, [_asks(vendor, container) for container in containers])
            found = tuple(map(add, found, decoded)) if found else decoded
    return found or ((),) * len(containers)
