"""Quantities as Kubernetes writes them, read exactly.

A quantity is a signed decimal number with an optional suffix: binary (`Ki` … `Ei`), decimal (`n u m "" k M G T P E`) or a decimal
exponent (`e3`, `E-2`). Upstream: k8s.io/apimachinery, package `api/resource`.
"""

import re
from fractions import Fraction

from devices.errors import QuantityError

__all__ = ["Quantity", "parse", "whole"]

Quantity = str | int | float
"""What JSON may hold where a quantity is meant."""

_FORM = re.compile(r"([+-]?)(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4}|[KMGTPE]i|[numkMGTPE]|)")
_SUFFIX = {
    "": Fraction(1),
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
    **{unit + "i": Fraction(1024**power) for power, unit in enumerate("KMGTPE", start=1)},
}
_MAX_INT64 = 2**63 - 1
_MAX_EXPONENT = 400
"""Beyond this no quantity is an int64; refusing early keeps `1e9999` from becoming a number of ten thousand digits."""


def parse(value: Quantity) -> Fraction:
    """The exact value, e.g. `parse("1.5Gi") == 3 * 2**29`. Raises `QuantityError` on text that is no quantity."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise QuantityError(f"{value!r} is not a quantity")
    if isinstance(value, int):
        return Fraction(value)
    text = value if isinstance(value, str) else repr(value)
    form = _FORM.fullmatch(text)
    if form is None:
        raise QuantityError(
            f"{text!r} is not a quantity: expected a number with an optional suffix such as 2, 1.5, 500m, 2k or 1Gi"
        )
    sign, digits, suffix = form.groups()
    if suffix[:1] in ("e", "E") and len(suffix) > 1 and suffix[1] != "i":
        exponent = int(suffix[1:])
        if abs(exponent) > _MAX_EXPONENT:
            raise QuantityError(f"{text!r} is out of range")
        scale = Fraction(10) ** exponent
    else:
        scale = _SUFFIX[suffix]
    number = Fraction(digits) * scale
    return -number if sign == "-" else number


def whole(value: Quantity) -> int:
    """The value as a whole number that fits 64 bits; `2k` and `1Gi` are, `1.5` and `500m` are not. Raises `QuantityError`."""
    if type(value) is int:
        number = Fraction(value)
    elif isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
        return int(value)
    else:
        number = parse(value)
    if number.denominator != 1:
        raise QuantityError(f"{value!r} is not a whole number")
    if abs(number.numerator) > _MAX_INT64:
        raise QuantityError(f"{value!r} is out of range")
    return number.numerator
