"""What a Secret must hold next: every case of what is there, and whole lives on a simulated clock."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from certs.errors import SettingsError
from certs.pki import BACKDATED, Pair, create_ca, issue_serving
from certs.renewal import Held, decide
from certs.secret import (
    CA,
    CA_KEY,
    CERTIFICATE,
    KEY,
    NEXT_CA_KEY,
    Contents,
    Observed,
    fingerprint,
    pem_of,
    plan,
    read,
)
from certs.settings import KeptCertificates
from tests.certs.replicas import HOST, SETTINGS, START

DAY = timedelta(days=1)
OLD = create_ca("old", now=START - 15 * DAY, days=30)
NEW = create_ca("new", now=START, days=30)
ENDED = create_ca("ended", now=START - 40 * DAY, days=30)
SERVING = issue_serving(OLD, SETTINGS.hosts, now=START, days=3)
SERVING_NEW = issue_serving(NEW, SETTINGS.hosts, now=START, days=3)
SERVING_OTHER = issue_serving(OLD, ["other.example"], now=START, days=3)
SERVING_ENDED = issue_serving(OLD, SETTINGS.hosts, now=START - 4 * DAY, days=3)


def secret(
    *trusted: Pair, signing: Pair | None = None, upcoming: Pair | None = None, serving: Pair | None = None
) -> dict[str, bytes]:
    data: dict[str, bytes] = {}
    if trusted:
        data[CA] = pem_of(pair.certificate for pair in trusted)
    if signing is not None:
        data[CA_KEY] = signing.key_pem()
    if upcoming is not None:
        data[NEXT_CA_KEY] = upcoming.key_pem()
    if serving is not None:
        data |= {CERTIFICATE: serving.certificate_pem(), KEY: serving.key_pem()}
    return data


def told(
    data: Mapping[str, bytes] | None,
    *,
    published: tuple[Pair, ...] = (),
    served_s: float = 0.0,
    now: datetime = START,
    remembered: Mapping[str, bytes] | None = None,
) -> tuple[Contents, tuple[str, ...], float]:
    """What it must hold, why, and when to look again; the new CAs have been published for the overlap, the rest not at all."""
    observed = Observed({fingerprint(pair.certificate): SETTINGS.overlap_s for pair in published}, served_s)
    planned = plan(data, now=now, settings=SETTINGS, observed=observed, remembered=remembered)
    if not planned.changes:
        assert planned.data == (data or {})
    return read(planned.data, "Secret"), planned.changes, planned.next_look_s


KEEPS: dict[str, tuple[dict[str, bytes], float]] = {
    # The certificate is due after 2 of 3 days, the CA at day 20 of its 30, 5 days from now.
    "all is well": (secret(OLD, signing=OLD, serving=SERVING), 2 * 86400),
    "the next CA is not published for long enough": (
        secret(NEW, OLD, signing=OLD, upcoming=NEW, serving=SERVING),
        SETTINGS.overlap_s,
    ),
    "the certificate of the new CA is not served for long enough": (
        secret(NEW, OLD, signing=NEW, serving=SERVING_NEW),
        SETTINGS.overlap_s,
    ),
    "no CA signs and the next is not published": (secret(NEW, OLD, upcoming=NEW, serving=SERVING), SETTINGS.overlap_s),
}


@pytest.mark.parametrize(("data", "next_look_s"), KEEPS.values(), ids=KEEPS)
def test_what_stays(data: dict[str, bytes], next_look_s: float) -> None:
    _, changes, look = told(data)
    assert changes == ()
    assert look == pytest.approx(next_look_s)


CHANGES: dict[str, tuple[dict[str, bytes] | None, tuple[str, ...], int]] = {
    "there is no Secret": (None, ("made CA", "issued certificate"), 1),
    "it is empty": ({}, ("made CA", "issued certificate"), 1),
    "no serving certificate": (secret(OLD, signing=OLD), ("issued certificate",), 1),
    "a serving certificate that ended": (secret(OLD, signing=OLD, serving=SERVING_ENDED), ("issued certificate",), 1),
    "a host is missing": (secret(OLD, signing=OLD, serving=SERVING_OTHER), ("issued certificate",), 1),
    "the serving certificate is of another CA that is trusted": (
        secret(NEW, OLD, signing=NEW, serving=SERVING),
        ("issued certificate",),
        2,
    ),
    "nobody trusts the serving certificate": (secret(NEW, signing=NEW, serving=SERVING), ("issued certificate",), 1),
    "no CA key, and all else is well": (secret(OLD, serving=SERVING), ("made CA",), 2),
    "no CA key, and the serving certificate has ended": (
        secret(OLD, serving=SERVING_ENDED),
        ("made CA", "issued certificate"),
        2,
    ),
    "the CA has ended": (
        secret(ENDED, signing=ENDED),
        ("CA", "made CA", "issued certificate"),
        1,
    ),
    "an old CA has ended": (secret(NEW, ENDED, signing=NEW, serving=SERVING_NEW), ("CA",), 1),
    "the CA has ended and the next waits": (
        secret(NEW, ENDED, signing=ENDED, upcoming=NEW),
        ("CA", "CA", "issued certificate"),
        1,
    ),
}


@pytest.mark.parametrize(("data", "expected", "trusted"), CHANGES.values(), ids=CHANGES)
def test_what_changes(data: dict[str, bytes] | None, expected: tuple[str, ...], trusted: int) -> None:
    held, changes, _ = told(data)
    assert len(changes) == len(expected)
    assert all(change.startswith(begin) for change, begin in zip(changes, expected, strict=True)), changes
    assert held.problems == ()
    assert held.serving is not None
    assert len(held.trusted) == trusted
    # Whatever is served has been signed by somebody who is trusted.
    assert trusts(held, held.serving, START)


def test_a_published_ca_takes_over_and_signs() -> None:
    held, changes, _ = told(
        secret(NEW, OLD, signing=OLD, upcoming=NEW, serving=SERVING), published=(NEW,), served_s=9999
    )
    assert (held.signing, held.upcoming) == (NEW, None)
    assert held.trusted == (NEW.certificate, OLD.certificate)
    assert held.serving is not None
    held.serving.certificate.verify_directly_issued_by(NEW.certificate)
    assert len(changes) == 2


def test_an_old_ca_goes_when_nothing_of_it_is_served() -> None:
    held, changes, _ = told(secret(NEW, OLD, signing=NEW, serving=SERVING_NEW), served_s=SETTINGS.overlap_s)
    assert held.trusted == (NEW.certificate,)
    assert held.serving == SERVING_NEW
    assert len(changes) == 1


def test_a_ca_that_is_due_is_joined_by_the_next() -> None:
    held, _, _ = told(secret(OLD, signing=OLD, serving=SERVING), now=START + 5 * DAY - timedelta(seconds=1))
    assert held.upcoming is None
    held, _, _ = told(secret(OLD, signing=OLD, serving=SERVING), now=START + 5 * DAY)
    assert held.signing == OLD
    assert held.upcoming is not None
    assert held.trusted == (held.upcoming.certificate, OLD.certificate)


def test_keys_of_others_stay() -> None:
    planned = plan({"theirs": b"x"}, now=START, settings=SETTINGS, observed=Observed({}, 0))
    assert planned.data["theirs"] == b"x"


GOOD = secret(OLD, signing=OLD, serving=SERVING)
RSA_KEY = rsa.generate_private_key(65537, 2048).private_bytes(
    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
)
DAMAGE: dict[str, dict[str, bytes] | None] = {
    "the Secret is gone": None,
    "the CA is no PEM": {**GOOD, CA: b"x"},
    "the CA is cut": {**GOOD, CA: GOOD[CA][:200]},
    "the CA is none": {**GOOD, CA: SERVING.certificate_pem()},
    "the CA's key is of another": {**GOOD, CA_KEY: NEW.key_pem()},
    "the CA's key is no PEM": {**GOOD, CA_KEY: b""},
    "the certificate is no PEM": {**GOOD, CERTIFICATE: b"x"},
    "the key is of another": {**GOOD, KEY: SERVING_NEW.key_pem()},
    "the key is missing": {name: value for name, value in GOOD.items() if name != KEY},
    "the key is an RSA key": {**GOOD, KEY: RSA_KEY},
    "the next key belongs to nobody": {**GOOD, NEXT_CA_KEY: NEW.key_pem()},
}


@pytest.mark.parametrize("data", DAMAGE.values(), ids=DAMAGE)
def test_damage_is_put_right_from_memory(data: dict[str, bytes] | None) -> None:
    held, changes, _ = told(data, remembered=GOOD)
    if data is not None and NEXT_CA_KEY in data:
        assert held.upcoming is None
    assert changes[0].startswith("put back what was there (")
    assert (held.trusted, held.signing, held.serving) == ((OLD.certificate,), OLD, SERVING)


@pytest.mark.parametrize("data", DAMAGE.values(), ids=DAMAGE)
def test_damage_without_memory_ends_with_something_that_works(data: dict[str, bytes] | None) -> None:
    held, changes, _ = told(data)
    assert changes
    assert held.problems == ()
    assert held.serving is not None


@pytest.mark.parametrize("data", [case for case in DAMAGE.values() if case is not None])
def test_problems_name_the_part_and_no_secret(data: dict[str, bytes]) -> None:
    (problem, *_) = read(data, "Secret tls").problems
    assert problem.startswith("Secret tls: ")
    assert "PRIVATE" not in problem


def test_a_plan_carried_out_is_followed_by_none() -> None:
    for data, _, _ in CHANGES.values():
        first = plan(data, now=START, settings=SETTINGS, observed=Observed({}, 0))
        assert plan(first.data, now=START, settings=SETTINGS, observed=Observed({}, 0)).changes == ()


@pytest.mark.parametrize(("cert_days", "ca_days"), [(3, 30), (20, 30), (30, 30)])
def test_a_life_of_years_without_a_moment_of_distrust(cert_days: float, ca_days: float) -> None:
    """Looked at whenever the plan says so: what any client trusts, late by up to the overlap, covers what any replica serves, late as well."""
    settings = replace(SETTINGS, cert_days=cert_days, ca_days=ca_days)
    now, data = START, plan(None, now=START, settings=settings, observed=Observed({}, 0)).data
    published: dict[bytes, datetime] = {}
    served_since = now
    states: list[tuple[datetime, Contents]] = []
    rotations = 0
    while now < START + 400 * DAY:
        held = read(data, "Secret")
        states = [state for state in states if (now - state[0]).total_seconds() < settings.overlap_s] + states[-1:]
        states = list({state[0]: state for state in [*states, (now, held)]}.values())
        for _, late in states:
            assert held.serving is not None
            assert late.serving is not None
            assert trusts(late, held.serving, now), "a client that is late meets the newest certificate"
            assert trusts(held, late.serving, now), "the newest bundle meets a replica that is late"
        for ca in held.trusted:
            published.setdefault(fingerprint(ca), now)
        ages = {known: (now - since).total_seconds() for known, since in published.items()}
        planned = plan(data, now=now, settings=settings, observed=Observed(ages, (now - served_since).total_seconds()))
        if planned.changes:
            after = read(planned.data, "Secret")
            if after.serving != held.serving:
                served_since = now
            rotations += after.signing != held.signing
            data = planned.data
            now += timedelta(seconds=1)
        else:
            assert planned.next_look_s > 0
            now += timedelta(seconds=min(planned.next_look_s, 86400.0))
    assert rotations >= 15


def trusts(client: Contents, served: Pair, now: datetime) -> bool:
    certificate = served.certificate
    if not certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc:
        return False
    for ca in client.trusted:
        if ca.not_valid_after_utc <= now:
            continue
        try:
            certificate.verify_directly_issued_by(ca)
        except (ValueError, InvalidSignature):
            continue
        return True
    return False


def test_a_certificate_cut_short_by_its_ca_is_not_due_at_once() -> None:
    held = Held(START - BACKDATED, START + DAY, frozenset((HOST,)), True)
    week = timedelta(days=7)
    assert decide(held, now=START, needed_hosts=(), renew_before=week).due == START + DAY / 2
    assert not decide(held, now=START + DAY / 2 - timedelta(seconds=1), needed_hosts=(), renew_before=week).renew
    assert decide(held, now=START + DAY / 2, needed_hosts=(), renew_before=week).renew
    long = Held(START - BACKDATED, START + 90 * DAY, frozenset((HOST,)), True)
    assert decide(long, now=START, needed_hosts=(), renew_before=week).due == START + 83 * DAY


REFUSED: dict[str, tuple[dict[str, object], str]] = {
    "no Secret": ({"secret": ""}, "secret: '' is no name of an object"),
    "a path": ({"configuration": "a/b"}, "configuration: 'a/b' is no name of an object"),
    "no hosts": ({"hosts": ()}, "hosts: none given"),
    "a host that is none": ({"hosts": ("a b",)}, "hosts: host 'a b': neither a DNS name"),
    "no life": ({"cert_days": 0.0}, "cert days: 0 is not accepted: expected more than 0"),
    "a CA that ends before what it signs": ({"cert_days": 9.0, "ca_days": 8.0}, "CA days: 8 is not accepted"),
    "renewed before it begins": ({"renew_before_s": 3 * 86400.0}, "renew before: 259200 s is not accepted"),
    "never renewed": ({"renew_before_s": 0.0}, "renew before: 0 s is not accepted"),
    "an overlap longer than the CA allows": ({"overlap_s": 432001.0}, "overlap: 432001 s is not accepted"),
    "not a number": ({"ca_days": float("nan")}, "CA days: nan is not accepted"),
}


@pytest.mark.parametrize(("given", "text"), REFUSED.values(), ids=REFUSED)
def test_settings_that_make_no_sense(given: dict[str, object], text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        replace(SETTINGS, **given)  # type: ignore[arg-type] # whatever the table gives


def test_defaults() -> None:
    settings = KeptCertificates(secret="s", namespace="n", hosts=("h",))
    assert settings.renew_before == timedelta(days=30)
    assert settings.renew_ca_before == timedelta(days=730) / 3
