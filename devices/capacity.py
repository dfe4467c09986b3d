"""Cards of families whose plugins announce no more than a number: one card for each, named after its node."""

from collections.abc import Callable

from devices.errors import QuantityError, RegistrationError
from devices.model import Card
from devices.objects import Node
from devices.quantity import whole
from devices.registration import CardList

__all__ = ["MOST_CARDS", "capacity_of", "numbered_cards"]

MOST_CARDS = 1024
"""More cards than any node has; a larger number is a mistake that would cost memory."""


def capacity_of(node: Node, resource: str) -> int:
    """The node's capacity of a resource, 0 where it has none. Raises `RegistrationError` for what is no count of cards."""
    value = node.capacity.get(resource, 0) if resource else 0
    try:
        count = whole(value)
    except QuantityError as error:
        raise RegistrationError(f"capacity {resource}: {error}") from error
    if not 0 <= count <= MOST_CARDS:
        raise RegistrationError(f"capacity {resource} is {count}, accepted are 0 to {MOST_CARDS}")
    return count


def numbered_cards(node: Node, resource: str, card: Callable[[int], Card]) -> CardList:
    """`card(0)`, `card(1)` … for as many as the node's capacity of `resource`; none where it has none."""
    return CardList(tuple(card(index) for index in range(capacity_of(node, resource))))
