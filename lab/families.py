"""Every accelerator family in the lab's eyes: whose allocations a pod carries, and which cards a node says it has."""

from collections.abc import Iterable, Sequence

from devices.config import DeviceConfig, default_config, optional_families
from devices.errors import RegistrationError
from devices.model import Card
from devices.objects import Node, Pod
from devices.vendor import Vendor

__all__ = ["allocations", "every_family", "registered"]


def every_family() -> DeviceConfig:
    """The shipped configuration with all families on: the lab has every card there is."""
    return default_config(optional_families())


def allocations(pod: Pod, vendors: Iterable[Vendor]) -> list[tuple[Vendor, str]]:
    """The allocation texts of a pod with the vendor of each; what names no card is left out."""
    texts = ((vendor, pod.annotations.get(vendor.allocated, "")) for vendor in vendors)
    return [(vendor, text) for vendor, text in texts if text.strip(";")]


def registered(node: Node, vendors: Iterable[Vendor]) -> Sequence[tuple[Vendor, Card]]:
    """The cards of a node by its annotations and capacity; a registration that nobody can read has none."""
    found: list[tuple[Vendor, Card]] = []
    for vendor in vendors:
        if vendor.registration and vendor.registration[0] not in node.annotations:
            continue
        try:
            found += ((vendor, card) for card in vendor.read_node(node).cards)
        except RegistrationError:
            continue  # whatever is given away of it is then on a card that is not there
    return found
