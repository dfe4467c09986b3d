"""Flag values as HAMi's command line takes them: Go durations and booleans, and durations printed as Go prints them."""

import re

__all__ = ["boolean", "duration", "duration_text", "labels"]

_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|ms|s|m|h)")


def duration(text: str) -> float:
    """Seconds of a Go duration: `300ms`, `28s`, `1m30s`, `5m`; `0` needs no unit. Raises `ValueError` saying what is accepted."""
    sign, body = (-1.0, text[1:]) if text.startswith("-") else (1.0, text.removeprefix("+"))
    if body == "0":
        return 0.0
    parts = _PART.findall(body)
    if not parts or "".join(number + unit for number, unit in parts) != body:
        raise ValueError(f"{text!r} is not a duration: expected numbers with units such as 300ms, 28s, 1m30s or 5m")
    return sign * sum(float(number) * _UNITS_S[unit] for number, unit in parts)


def duration_text(seconds: float) -> str:
    """Seconds as Go prints a duration: `300ms`, `28s`, `1m30s`, `5m0s`."""
    nanoseconds = round(abs(seconds) * 1e9)
    sign = "-" if seconds < 0 else ""
    if nanoseconds == 0:
        return "0s"
    for unit, size in (("ns", 1), ("µs", 10**3), ("ms", 10**6)):
        if nanoseconds < size * 1000:
            return f"{sign}{_decimal(nanoseconds, size)}{unit}"
    minutes, rest = divmod(nanoseconds, 60 * 10**9)
    hours, minutes = divmod(minutes, 60)
    text = f"{_decimal(rest, 10**9)}s"
    if hours or minutes:
        text = f"{minutes}m{text}"
    return f"{sign}{hours}h{text}" if hours else f"{sign}{text}"


def _decimal(number: int, unit: int) -> str:
    whole, rest = divmod(number, unit)
    return str(whole) if not rest else f"{whole}.{str(rest).rjust(len(str(unit)) - 1, '0').rstrip('0')}"


def boolean(text: str) -> bool:
    """A boolean as Go's flag package reads it. Raises `ValueError` saying what is accepted."""
    if text in ("1", "t", "T", "true", "TRUE", "True"):
        return True
    if text in ("0", "f", "F", "false", "FALSE", "False"):
        return False
    raise ValueError(f"{text!r} is not a boolean: expected true or false")


def labels(text: str) -> dict[str, str]:
    """`k=v,k=v` as a mapping; empty text is empty. Raises `ValueError` naming the part that is no pair."""
    found: dict[str, str] = {}
    for part in (piece.strip() for piece in text.split(",")):
        if part:
            key, equals, value = part.partition("=")
            if not equals or not key.strip():
                raise ValueError(f"{part!r} is not a label: expected key=value, several of them joined by commas")
            found[key.strip()] = value.strip()
    return found
