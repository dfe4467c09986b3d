"""Just enough of Kubernetes quantities to refuse what the API server refuses, and to write them as it does."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import ROUND_CEILING, Decimal
from types import MappingProxyType

_QUANTITY = re.compile(r"^([+-]?(?:\d+\.?\d*|\.\d+))(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?\d+))?$")
_FACTORS = {
    "": Decimal(1),
    **{suffix: Decimal(10) ** (3 * place - 9) for place, suffix in enumerate("num")},
    **{suffix: Decimal(10) ** (3 * place) for place, suffix in enumerate("kMGTPE", start=1)},
    **{f"{letter}i": Decimal(2) ** (10 * place) for place, letter in enumerate("KMGTPE", start=1)},
}
_POWERS = MappingProxyType({"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18})
_BINARY = MappingProxyType({suffix: _FACTORS[suffix] for suffix in ("Ei", "Pi", "Ti", "Gi", "Mi", "Ki", "")})
_DECIMAL = MappingProxyType({suffix: _FACTORS[suffix] for suffix in ("E", "P", "T", "G", "M", "k", "", "m", "u", "n")})


def parse(value: object) -> Decimal | None:
    """Return the number a quantity (text or JSON number) stands for, or None for what is no quantity."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return None
    found = _QUANTITY.match(str(value))
    if found is None:
        return None
    number, suffix, exponent = found.groups()
    if exponent is not None:
        return Decimal(number).scaleb(int(exponent))
    return Decimal(number) * _FACTORS[suffix or ""]


def canonical(value: object) -> object:
    """Write a quantity as the API server stores it: a whole number and the largest suffix of its kind, `1000` as `1k`.

    What is no quantity comes back as it is.
    """
    number = parse(value)
    if number is None:
        return value
    suffix = _QUANTITY.match(str(value))
    assert suffix is not None
    if number == 0 or _stays(suffix):
        return str(value) if number else "0"
    if (suffix[2] or "").endswith("i") and abs(number) >= 1024:
        return _scaled(number.to_integral_value(ROUND_CEILING), _BINARY)
    if suffix[3] is not None:
        whole, power = _reduced(number)
        return f"{whole}e{power}" if power else str(whole)
    return _scaled(number, _DECIMAL)


def _scaled(number: Decimal, factors: Mapping[str, Decimal]) -> str:
    for suffix, factor in factors.items():
        if number % factor == 0:
            return f"{int(number / factor)}{suffix}"
    smallest = _FACTORS["n"]  # finer than this is rounded up
    return f"{int((number / smallest).to_integral_value(ROUND_CEILING))}n"


def _reduced(number: Decimal) -> tuple[int, int]:
    """A whole number and a power of ten that is a multiple of 3."""
    for power in range(18, -12, -3):
        factor = Decimal(10) ** power
        if number % factor == 0:
            return int(number / factor), power
    return int(number), 0


def _stays(form: re.Match[str]) -> bool:
    """Whether the server takes a text for canonical at sight and keeps it, leading zeros and all: `007`, `1.500k`."""
    digits, suffix, exponent = form.groups()
    whole, _, decimals = digits.lstrip("+-").partition(".")
    whole = whole.lstrip("0")
    if (suffix or "").endswith("i"):
        return not decimals and bool(int(whole or 0) % 8)
    power = int(exponent) if exponent is not None else _POWERS[suffix or ""]
    shown = whole + decimals
    return (power - len(decimals)) % 3 == 0 and not shown.endswith("000") and not shown.startswith("0")


def is_extended(resource_name: str) -> bool:
    """Return whether a resource is one of a device plugin's: counted in whole units, never overcommitted."""
    domain, slash, _ = resource_name.partition("/")
    return bool(slash) and domain != "kubernetes.io" and not domain.endswith(".kubernetes.io")
