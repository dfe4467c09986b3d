"""Just enough of Kubernetes quantities to refuse what the API server refuses: malformed and fractional counts."""

from __future__ import annotations

import re
from decimal import Decimal

_QUANTITY = re.compile(r"^([+-]?(?:\d+\.?\d*|\.\d+))(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?\d+))?$")
_FACTORS = {
    "": Decimal(1),
    **{suffix: Decimal(10) ** (3 * place - 9) for place, suffix in enumerate("num")},
    **{suffix: Decimal(10) ** (3 * place) for place, suffix in enumerate("kMGTPE", start=1)},
    **{f"{letter}i": Decimal(2) ** (10 * place) for place, letter in enumerate("KMGTPE", start=1)},
}


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


def is_extended(resource_name: str) -> bool:
    """Return whether a resource is one of a device plugin's: counted in whole units, never overcommitted."""
    domain, slash, _ = resource_name.partition("/")
    return bool(slash) and domain != "kubernetes.io" and not domain.endswith(".kubernetes.io")
