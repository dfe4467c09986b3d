"""Quantities as Kubernetes writes them, read exactly.

A quantity is a signed decimal number with an optional suffix: binary (`Ki` … `Ei`), decimal (`n u m "" k M G T P E`) or a decimal
exponent (`e3`, `E-2`). Upstream: k8s.io/apimachinery, package `api/resource`.
"""

import re
from fractions import Fraction
from functools import lru_cache

from devices.errors import QuantityError

__all__ = ["Quantity", "parse", "whole"]

Quantity = str | int | float
"""What JSON may hold where a quantity is meant."""

_FORM = re.compile(r"([+-]?)(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4}|[KMGTPE]i|[numkMGTPE]|)", re.ASCII)
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
"""Powers of ten."""
_BINARY = {f"{unit}i": 1024**power for power, unit in enumerate("KMGTPE", start=1)}
_MAX_INT64 = 2**63 - 1
_SHORT = 19
"""So many digits may not fit 64 bits any more."""
_LONGEST = 400
"""Characters; no quantity that anybody means is longer, and reading digits takes time that grows with their square."""
_MAX_EXPONENT = 400
"""Beyond this no quantity is an int64; refusing early keeps `1e9999` from becoming a number of ten thousand digits."""


def parse(value: Quantity) -> Fraction:
    """The exact value, e.g. `parse("1.5Gi") == 3 * 2**29`. Raises `QuantityError` on text that is no quantity."""
    return _read(value)[0]


def whole(value: Quantity) -> int:
    """The value as a whole number that fits 64 bits. Raises `QuantityError`.

    What is written with a fraction is none, whatever it comes to: `2k`, `1Gi` and `0.5k` are whole; `500m`, `2.0`, `2000m` and
    `16.0Gi` are not. The API server rewrites those that stand for a whole number (`2000m` to `2`) before anybody reads them.
    """
    if isinstance(value, str) and len(value) < _SHORT and (number_written := _digits(value)) is not None:
        return number_written
    if type(value) is int and abs(value) <= _MAX_INT64:
        return value
    number, is_whole = _read(value)
    if not is_whole:
        raise QuantityError(f"{value!r} is not a whole number")
    if abs(number.numerator) > _MAX_INT64:
        raise QuantityError(f"{value!r} is out of range")
    return number.numerator


@lru_cache(maxsize=1024)
def _digits(text: str) -> int | None:
    """The number, where nothing but digits is written: most values are, and the same ones again and again."""
    return int(text) if text.isascii() and text.isdigit() else None


def _read(value: Quantity) -> tuple[Fraction, bool]:
    """The exact value, and whether it is written without a fraction."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise QuantityError(f"{value!r} is not a quantity")
    if isinstance(value, int):
        return Fraction(value), True
    text = value if isinstance(value, str) else repr(value)
    form = _FORM.fullmatch(text) if len(text) <= _LONGEST else None
    if form is None:
        raise QuantityError(
            f"{text!r} is not a quantity: expected a number with an optional suffix such as 2, 1.5, 500m, 2k or 1Gi"
        )
    sign, digits, suffix = form.groups()
    decimals = len(digits.partition(".")[2])
    number = Fraction(f"{sign}{digits}")
    if suffix in _BINARY:
        return number * _BINARY[suffix], decimals == 0
    power = _DECIMAL[suffix] if suffix in _DECIMAL else int(suffix[1:])
    if abs(power) > _MAX_EXPONENT:
        raise QuantityError(f"{text!r} is out of range")
    return number * Fraction(10) ** power, power >= decimals
