"""Quantities: every form Kubernetes writes, exactly, and what counts as a whole number."""

from fractions import Fraction

import pytest

from devices.errors import QuantityError
from devices.quantity import parse, whole

EXACT = {
    "plain": ("2", Fraction(2)),
    "a number in JSON": (7, Fraction(7)),
    "a fraction in JSON": (1.5, Fraction(3, 2)),
    "positive sign": ("+3", Fraction(3)),
    "negative": ("-3", Fraction(-3)),
    "fraction without digits before the point": (".5", Fraction(1, 2)),
    "point without digits after it": ("5.", Fraction(5)),
    "nano": ("1n", Fraction(1, 10**9)),
    "micro": ("1u", Fraction(1, 10**6)),
    "milli": ("1500m", Fraction(3, 2)),
    "kilo": ("2k", Fraction(2000)),
    "mega": ("2M", Fraction(2 * 10**6)),
    "giga": ("2G", Fraction(2 * 10**9)),
    "tera": ("2T", Fraction(2 * 10**12)),
    "peta": ("2P", Fraction(2 * 10**15)),
    "exa": ("2E", Fraction(2 * 10**18)),
    "kibi": ("1Ki", Fraction(1024)),
    "mebi": ("1Mi", Fraction(1024**2)),
    "gibi": ("1.5Gi", Fraction(3 * 2**29)),
    "tebi": ("1Ti", Fraction(1024**4)),
    "pebi": ("1Pi", Fraction(1024**5)),
    "exbi": ("1Ei", Fraction(1024**6)),
    "exponent": ("12e2", Fraction(1200)),
    "capital exponent": ("12E2", Fraction(1200)),
    "negative exponent": ("5e-1", Fraction(1, 2)),
    "exponent with sign": ("5e+1", Fraction(50)),
    "decimals that no double holds": ("0.1", Fraction(1, 10)),
    "more digits than a double has": ("9007199254740993", Fraction(9007199254740993)),
}


@pytest.mark.parametrize(("text", "value"), EXACT.values(), ids=EXACT)
def test_parse_is_exact(text: str | int | float, value: Fraction) -> None:
    assert parse(text) == value


GARBAGE = {
    "empty": "",
    "blank around": " 1",
    "newline after": "1\n",
    "a suffix alone": "Gi",
    "unknown suffix": "1x",
    "capital kilo": "1K",
    "two points": "1.2.3",
    "exponent without digits": "1e",
    "exponent and suffix": "1e3k",
    "underscore": "1_000",
    "hexadecimal": "0x10",
    "digits of another script were read as numbers": "١",
    "wide digits were read as numbers": "１k",
    "5000 digits ended in another error": "9" * 5000,
    "exponent beyond anything": "1e9999",
    "not a number": float("nan"),
    "infinite": float("inf"),
    "a boolean is no number": True,
    "null": None,
    "a list": [1],
}


@pytest.mark.parametrize("value", GARBAGE.values(), ids=GARBAGE)
def test_garbage_is_named(value: str) -> None:
    with pytest.raises(QuantityError) as error:
        parse(value)
    assert repr(value) in str(error.value)


@pytest.mark.parametrize("value", ["1e401", "1e-401"])
def test_an_exponent_out_of_range_is_refused_before_it_is_computed(value: str) -> None:
    with pytest.raises(QuantityError, match="out of range"):
        parse(value)


WHOLE = {
    "plain": ("16", 16),
    "a JSON number": (16, 16),
    "zero": ("0", 0),
    "minus zero": ("-0", 0),
    "negative": ("-4", -4),
    "kilo, as the API server writes 3000": ("3k", 3000),
    "binary": ("1Gi", 2**30),
    "a fraction that the suffix takes up": ("0.5k", 500),
    "exponent": ("1e3", 1000),
    "fraction and exponent": ("1.5e1", 15),
    "largest of 18 digits": ("999999999999999999", 999999999999999999),
    "largest of 64 bits": ("9223372036854775807", 2**63 - 1),
    "smallest taken": ("-9223372036854775807", 1 - 2**63),
}


@pytest.mark.parametrize(("text", "value"), WHOLE.values(), ids=WHOLE)
def test_whole(text: str | int, value: int) -> None:
    assert whole(text) == value
    assert type(whole(text)) is int


NOT_WHOLE = {
    "half": "1.5",
    "milli": "500m",
    "milli that comes to a whole number": "2000m",
    "written with decimals": "2.0",
    "written with decimals in JSON": 2.0,
    "binary with decimals was taken for whole": "16.0Gi",
    "binary and really a fraction": "0.1Ki",
    "negative exponent": "10e-1",
    "fraction larger than the exponent": "1.25e1",
}


@pytest.mark.parametrize("value", NOT_WHOLE.values(), ids=NOT_WHOLE)
def test_not_whole(value: str | float) -> None:
    with pytest.raises(QuantityError, match="is not a whole number") as error:
        whole(value)
    assert repr(value) in str(error.value)


@pytest.mark.parametrize("value", ["9223372036854775808", "-9223372036854775808", "8Ei", "1e19", 2**63])
def test_beyond_64_bits(value: str | int) -> None:
    with pytest.raises(QuantityError, match="is out of range"):
        whole(value)
