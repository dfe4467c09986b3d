"""When a certificate is renewed, and what is given as the cause."""

from datetime import UTC, datetime, timedelta
from fractions import Fraction

import pytest

from certs.errors import SanError
from certs.pki import create_ca, issue_serving
from certs.renewal import Held, Renewal, Why, decide, held

START = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
SECOND = timedelta(seconds=1)


def ninety_days(*, hosts: tuple[str, ...] = ("a.svc", "10.0.0.1"), from_ca: bool = True) -> Held:
    return Held(START, START + 90 * DAY, frozenset(hosts), from_ca)


DUE = START + 60 * DAY
END = START + 90 * DAY

DECISIONS: dict[str, tuple[Held, datetime, tuple[str, ...], Renewal]] = {
    "fresh": (ninety_days(), START, ("a.svc",), Renewal(False, Why.GOOD, DUE)),
    "a second before it is valid": (ninety_days(), START - SECOND, (), Renewal(True, Why.NOT_YET_VALID, DUE)),
    "a second before two thirds": (ninety_days(), DUE - SECOND, (), Renewal(False, Why.GOOD, DUE)),
    "a microsecond before two thirds": (
        ninety_days(),
        DUE - timedelta(microseconds=1),
        (),
        Renewal(False, Why.GOOD, DUE),
    ),
    "at two thirds": (ninety_days(), DUE, (), Renewal(True, Why.DUE, DUE)),
    "a second before the end": (ninety_days(), END - SECOND, (), Renewal(True, Why.DUE, DUE)),
    "at the end": (ninety_days(), END, (), Renewal(True, Why.EXPIRED, DUE)),
    "long after": (ninety_days(), END + 900 * DAY, (), Renewal(True, Why.EXPIRED, DUE)),
    "every host there": (ninety_days(), START, ("10.0.0.1", "a.svc"), Renewal(False, Why.GOOD, DUE)),
    "fewer hosts asked than there": (ninety_days(), START, (), Renewal(False, Why.GOOD, DUE)),
    "host in other spelling": (ninety_days(), START, ("A.SVC",), Renewal(False, Why.GOOD, DUE)),
    "IPv6 in other spelling": (
        ninety_days(hosts=("::1",)),
        START,
        ("0:0:0:0:0:0:0:1",),
        Renewal(False, Why.GOOD, DUE),
    ),
    "hosts missing, in the order asked": (
        ninety_days(),
        START,
        ("z.svc", "a.svc", "b.svc", "z.svc"),
        Renewal(True, Why.SAN_MISSING, DUE, ("z.svc", "b.svc")),
    ),
    "a wildcard there does not count as the name asked": (
        ninety_days(hosts=("*.svc",)),
        START,
        ("a.svc",),
        Renewal(True, Why.SAN_MISSING, DUE, ("a.svc",)),
    ),
    "other CA": (ninety_days(from_ca=False), START, (), Renewal(True, Why.OTHER_CA, DUE)),
    "other CA before missing host": (
        ninety_days(from_ca=False),
        START,
        ("b.svc",),
        Renewal(True, Why.OTHER_CA, DUE, ("b.svc",)),
    ),
    "missing host before due": (
        ninety_days(),
        DUE,
        ("b.svc",),
        Renewal(True, Why.SAN_MISSING, DUE, ("b.svc",)),
    ),
    "expired before other CA": (ninety_days(from_ca=False), END, (), Renewal(True, Why.EXPIRED, DUE)),
    "no lifetime at all": (Held(START, START, frozenset(), True), START, (), Renewal(True, Why.EXPIRED, START)),
}


@pytest.mark.parametrize(("current", "now", "needed", "expected"), DECISIONS.values(), ids=DECISIONS)
def test_decision(current: Held, now: datetime, needed: tuple[str, ...], expected: Renewal) -> None:
    assert decide(current, now=now, needed_hosts=needed) == expected


DUE_TIMES: dict[str, tuple[timedelta, Fraction, timedelta]] = {
    "90 days at two thirds": (90 * DAY, Fraction(2, 3), 60 * DAY),
    "90 days at one half": (90 * DAY, Fraction(1, 2), 45 * DAY),
    "at the very end": (90 * DAY, Fraction(1), 90 * DAY),
    "an hour": (timedelta(hours=1), Fraction(2, 3), timedelta(minutes=40)),
    "cut to the second below": (timedelta(seconds=100), Fraction(2, 3), timedelta(seconds=66)),
    "a hundred years": (36500 * DAY, Fraction(2, 3), timedelta(seconds=2 * 36500 * 86400 // 3)),
}


@pytest.mark.parametrize(("lifetime", "fraction", "after"), DUE_TIMES.values(), ids=DUE_TIMES)
def test_due_time(lifetime: timedelta, fraction: Fraction, after: timedelta) -> None:
    current = Held(START, START + lifetime, frozenset(), True)
    assert decide(current, now=START, needed_hosts=(), fraction=fraction).due == START + after


@pytest.mark.parametrize("fraction", [Fraction(0), Fraction(-1, 2), Fraction(3, 2)])
def test_a_fraction_that_is_none(fraction: Fraction) -> None:
    with pytest.raises(ValueError, match="fraction: "):
        decide(ninety_days(), now=START, needed_hosts=(), fraction=fraction)


def test_a_needed_host_that_is_none() -> None:
    with pytest.raises(SanError, match="'a b'"):
        decide(ninety_days(), now=START, needed_hosts=("a b",))


def test_what_is_held_comes_from_the_certificate_and_its_signature() -> None:
    ca, same_name = (create_ca("test CA", now=START, days=90) for _ in range(2))
    leaf = issue_serving(ca, ["a.svc", "::1"], now=START, days=30).certificate
    expected = Held(START - timedelta(minutes=5), START + 30 * DAY, frozenset({"a.svc", "::1"}), True)
    assert held(leaf, ca.certificate) == expected
    assert held(leaf, same_name.certificate).from_ca is False
    assert held(ca.certificate, ca.certificate).from_ca is True
    assert held(leaf, create_ca("other", now=START, days=1).certificate).from_ca is False
