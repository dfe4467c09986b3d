"""Comparing amounts of resources: the API server writes quantities its own way, `6000` as `6k`."""

from collections.abc import Mapping

from devices.errors import QuantityError
from devices.quantity import parse

__all__ = ["same_amounts"]


def same_amounts(one: Mapping[str, object], other: Mapping[str, object]) -> bool:
    """Whether both name the same resources and as much of each."""
    return one.keys() == other.keys() and all(_same(str(amount), str(other[name])) for name, amount in one.items())


def _same(one: str, other: str) -> bool:
    try:
        return parse(one) == parse(other)
    except QuantityError:
        return one == other
