"""Cards of families whose plugins announce no more than a number: one card for each, named after its node."""

from collections.abc import Callable

from msgspec.structs import replace

from devices.errors import QuantityError, RegistrationError
from devices.model import Card
from devices.objects import Node
from devices.quantity import whole
from devices.registration import CardList
from devices.vendor import Vendor

__all__ = ["MOST_CARDS", "capacity_of", "numbered_cards", "split_by_compute"]

MOST_CARDS = 1024
"""More cards than any node has; a larger number is a mistake that would cost memory."""


def capacity_of(node: Node, resource: str) -> int:
    """The node's capacity of a resource, 0 where it has none. Raises `RegistrationError` for what is no whole number."""
    value = node.capacity.get(resource, 0) if resource else 0
    try:
        count = whole(value)
    except QuantityError as error:
        raise RegistrationError(f"capacity {resource}: {error}") from error
    if count < 0:
        raise RegistrationError(f"capacity {resource} is {count}, accepted is 0 or more")
    return count


def _numbered(node: Node, resource: str, name: str, like: Card, count: int) -> CardList:
    if count > MOST_CARDS:
        raise RegistrationError(f"capacity {resource} makes {count} cards, accepted are 0 to {MOST_CARDS}")
    return CardList(tuple(replace(like, uuid=f"{node.name}-{name}-{index}", index=index) for index in range(count)))


def numbered_cards(node: Node, resource: str, name: str, like: Card) -> CardList:
    """As many cards as the node's capacity of `resource`, none where it has none: `like` with indexes from 0 on.

    Their UUIDs are `<node>-<name>-<index>`.
    """
    return _numbered(node, resource, name, like, capacity_of(node, resource))


def split_by_compute(name: str, slots: int, cores: int) -> Callable[[Vendor, Node], CardList]:
    """A `read_node` hook: a card for every `cores` units of compute that the node has, its memory split evenly.

    Worked: 400 units of compute in cards of 100 and 384 units of memory of 256 MiB are four cards of 24576 MiB.
    """

    def read(vendor: Vendor, node: Node) -> CardList:
        compute = capacity_of(node, vendor.core_resource)
        if not compute:
            return CardList()
        memory = capacity_of(node, vendor.memory_resource) * vendor.memory_factor * cores // compute
        like = Card("", vendor.key, 0, slots, memory, cores, vendor.key, healthy=True)
        return _numbered(node, vendor.core_resource, name, like, -(-compute // cores))

    return read
