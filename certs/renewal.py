"""When a certificate must be replaced: dates and names in, one decision out, no clock and no files."""

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from fractions import Fraction

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from certs.pki import BACKDATED, hosts_of, san_of

__all__ = ["DEFAULT_FRACTION", "Held", "Renewal", "Why", "decide", "held"]

DEFAULT_FRACTION = Fraction(2, 3)
"""Part of a lifetime after which a certificate is due: the last third is left for trying again."""


class Why(enum.Enum):
    """What a decision rests on; the value reads on after `kept:` or `renewed:`."""

    GOOD = "still good"
    NOT_YET_VALID = "not yet valid"
    EXPIRED = "expired"
    OTHER_CA = "signed by another CA"
    SAN_MISSING = "a host is missing"
    DUE = "due"


@dataclass(frozen=True)
class Held:
    """What there is now. `hosts` are spelled as in the certificate; `from_ca` says the CA in use signed it."""

    not_before: datetime
    not_after: datetime
    hosts: frozenset[str]
    from_ca: bool


@dataclass(frozen=True)
class Renewal:
    """Keep or renew, and why. `due` is when renewing is or was due; `missing` the hosts asked for and not there."""

    renew: bool
    why: Why
    due: datetime
    missing: tuple[str, ...] = ()


def held(certificate: x509.Certificate, ca: x509.Certificate) -> Held:
    """What matters of `certificate` for renewal under `ca`; the signature is checked, not the names alone."""
    try:
        certificate.verify_directly_issued_by(ca)
        from_ca = True
    except (ValueError, TypeError, InvalidSignature):
        from_ca = False
    return Held(
        certificate.not_valid_before_utc, certificate.not_valid_after_utc, frozenset(hosts_of(certificate)), from_ca
    )


def decide(
    current: Held,
    *,
    now: datetime,
    needed_hosts: Iterable[str],
    fraction: Fraction = DEFAULT_FRACTION,
    renew_before: timedelta | None = None,
) -> Renewal:
    """Whether to renew `current` at `now`; the most pressing cause is the one named.

    Due at not_before + fraction of the lifetime, to the second below; that moment itself counts as due, and so does
    the very second of `not_after` as expired. 90 days from the 1st of January and two thirds: due after 60 days.
    `fraction` lies above 0 and at most at 1, else ValueError. A host in `needed_hosts` that is none raises `SanError`.

    With `renew_before` it is due so long before the end instead, but not before half of the time since it was issued
    is over: a certificate cut short by the end of its CA would else be due as soon as it is made.
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction: {fraction}; above 0 and at most 1 is accepted")
    if renew_before is None:
        lifetime_s = int((current.not_after - current.not_before).total_seconds())
        due = datetime.fromtimestamp(int(current.not_before.timestamp()) + int(lifetime_s * fraction), now.tzinfo)
    else:
        issued = min(current.not_before + BACKDATED, current.not_after)
        due = max(current.not_after - renew_before, issued + (current.not_after - issued) / 2)
    needed = dict.fromkeys(str(san_of(host).value) for host in needed_hosts)
    missing = tuple(host for host in needed if host not in current.hosts)
    if now < current.not_before:
        return Renewal(True, Why.NOT_YET_VALID, due, missing)
    if now >= current.not_after:
        return Renewal(True, Why.EXPIRED, due, missing)
    if not current.from_ca:
        return Renewal(True, Why.OTHER_CA, due, missing)
    if missing:
        return Renewal(True, Why.SAN_MISSING, due, missing)
    if now >= due:
        return Renewal(True, Why.DUE, due)
    return Renewal(False, Why.GOOD, due)
