"""The keeper against the embedded API server: first certificates, rotation, repair, races, and bad days."""

import asyncio
import copy
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from certs.secret import CA, CA_KEY, CERTIFICATE, KEY
from devices.kube.resources import MUTATING_WEBHOOKS, SECRETS
from lab.apiserver import ApiServer
from tests.certs.replicas import (
    HOST,
    MUTATING,
    NAMESPACE,
    PATIENCE_S,
    SETTINGS,
    VALIDATING,
    Clock,
    Replica,
    bundle,
    contents,
    install,
    is_settled,
    replica,
    until,
    webhook,
)

DAY_S = 86400.0


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    server = ApiServer()
    await server.start()
    server.put("namespaces", {"metadata": {"name": NAMESPACE}})
    install(server)
    yield server
    await server.stop()


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def later(api: ApiServer, clock: Clock, keeper: Replica, seconds: float) -> None:
    """Let time pass, and what is due then be done."""
    clock.seconds += seconds
    await keeper.turns(api)


async def take_over(clock: Clock, successor: Replica) -> None:
    """The keeper before it is gone without a word: its Lease has to run out, as the successor sees it."""
    async with asyncio.timeout(PATIENCE_S):
        while not successor.lease.held:
            clock.lease_seconds += 1.0
            await asyncio.sleep(0.02)


async def settled(api: ApiServer) -> None:
    await until(lambda: is_settled(api))


def change(api: ApiServer, plural: str, change: Callable[[Any], None]) -> None:
    """Somebody else writes an object."""
    namespace, name = (NAMESPACE, "tls") if plural == "secrets" else ("", "slotwise")
    stored = copy.deepcopy(api.get(plural, namespace, name))
    assert stored is not None
    change(stored)
    api.put(plural, stored)


async def test_where_there_is_nothing_everything_is_made(api: ApiServer, clock: Clock) -> None:
    async with replica(api, clock) as one:
        await settled(api)
        held = contents(api)
        assert held.problems == ()
        assert held.serving is not None
        assert held.signing is not None
        held.serving.certificate.verify_directly_issued_by(held.signing.certificate)
        assert one.count("writes", SECRETS) == 1
        assert one.registry.get_sample_value("slotwise_certificates_failures_total", {"resource": "secrets"}) is None
        secret = api.get("secrets", NAMESPACE, "tls")
        assert secret is not None
        assert secret["type"] == "Opaque"


async def test_what_is_good_is_not_written_again(api: ApiServer, clock: Clock) -> None:
    async with replica(api, clock, by_hand=True) as one:
        await one.turns(api)
        before = contents(api)
        await later(api, clock, one, DAY_S)
        await later(api, clock, one, 1.0)
        assert one.count("writes", SECRETS) == one.count("writes", MUTATING_WEBHOOKS) == 1
    async with replica(api, clock, "two", by_hand=True) as two:
        await take_over(clock, two)
        await two.turns(api)
        assert contents(api) == before
        assert two.count("writes", SECRETS) == two.count("writes", MUTATING_WEBHOOKS) == 0


async def test_a_serving_certificate_that_is_due_is_replaced_under_the_same_ca(api: ApiServer, clock: Clock) -> None:
    async with replica(api, clock, by_hand=True) as one:
        await one.turns(api)
        before = contents(api)
        await later(api, clock, one, 2 * DAY_S - 1)
        assert contents(api) == before
        await later(api, clock, one, 1)
        after = contents(api)
        assert after.serving != before.serving
        assert (after.trusted, after.signing) == (before.trusted, before.signing)
        assert one.count("writes", SECRETS) == 2


async def test_a_ca_is_replaced_step_by_step(api: ApiServer, clock: Clock) -> None:
    """New CA trusted everywhere first, then it signs, then the old one goes; each a step of its own, after the overlap."""
    async with replica(api, clock, by_hand=True) as one:
        await one.turns(api)
        old = contents(api)
        assert old.signing is not None
        await later(api, clock, one, 20 * DAY_S)
        held = contents(api)
        assert is_settled(api)
        assert held.signing == old.signing
        assert held.upcoming is not None
        assert held.trusted == (held.upcoming.certificate, old.signing.certificate)
        # The serving certificate was due as well; the old CA signed it.
        assert held.serving is not None
        held.serving.certificate.verify_directly_issued_by(old.signing.certificate)
        await later(api, clock, one, 599)
        assert contents(api) == held
        await later(api, clock, one, 1)
        taken = contents(api)
        assert is_settled(api)
        assert (taken.signing, taken.upcoming) == (held.upcoming, None)
        assert taken.trusted == held.trusted
        assert taken.serving is not None
        taken.serving.certificate.verify_directly_issued_by(held.upcoming.certificate)
        await later(api, clock, one, 599)
        assert contents(api) == taken
        await later(api, clock, one, 1)
        assert is_settled(api)
        assert contents(api).trusted == (held.upcoming.certificate,)
        assert contents(api).serving == taken.serving


async def test_the_overlap_begins_anew_when_a_bundle_lost_the_new_ca(api: ApiServer, clock: Clock) -> None:
    async with replica(api, clock, by_hand=True) as one:
        await one.turns(api)
        await later(api, clock, one, 20 * DAY_S)
        await later(api, clock, one, 590)
        change(api, VALIDATING, lambda stored: stored["webhooks"][0]["clientConfig"].pop("caBundle"))
        await one.turns(api)
        assert is_settled(api)
        await later(api, clock, one, 590)
        assert contents(api).upcoming is not None
        await later(api, clock, one, 10)
        assert contents(api).upcoming is None


async def test_a_new_keeper_counts_the_overlap_for_itself(api: ApiServer, clock: Clock) -> None:
    async with replica(api, clock, by_hand=True) as one:
        await one.turns(api)
        await later(api, clock, one, 20 * DAY_S)
    async with replica(api, clock, "two", by_hand=True) as two:
        clock.seconds += 590  # no keeper has watched the configurations meanwhile
        await take_over(clock, two)
        await two.turns(api)
        await later(api, clock, two, 590)
        assert contents(api).upcoming is not None
        await later(api, clock, two, 10)
        assert contents(api).upcoming is None


async def test_a_keeper_that_lost_the_lease_meanwhile_counts_anew(api: ApiServer, clock: Clock) -> None:
    async with replica(api, clock, by_hand=True) as one:
        await one.turns(api)
        await later(api, clock, one, 20 * DAY_S)
        await later(api, clock, one, 590)
        clock.lease_seconds += 11
        assert not one.lease.held
        await one.keeper.turn()
        await one.turns(api)
        await later(api, clock, one, 590)
        assert contents(api).upcoming is not None
        await later(api, clock, one, 10)
        assert contents(api).upcoming is None


@pytest.mark.parametrize("plural", [MUTATING, VALIDATING])
async def test_a_bundle_that_somebody_changed_is_repaired(api: ApiServer, clock: Clock, plural: str) -> None:
    async with replica(api, clock):
        await settled(api)
        change(api, plural, lambda stored: stored["webhooks"][0]["clientConfig"].update(caBundle=""))
        await settled(api)


async def test_a_configuration_that_is_made_anew_is_filled_in(api: ApiServer, clock: Clock) -> None:
    async with replica(api, clock):
        await settled(api)
        api.remove(MUTATING, "", "slotwise")
        await asyncio.sleep(0.05)
        api.remove(VALIDATING, "", "slotwise")
        install(api)
        await settled(api)


async def test_webhooks_of_others_are_left_alone(
    api: ApiServer, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    install(
        api,
        webhook("elsewhere.example.io", {"url": "https://elsewhere.example:8443/x"}),
        webhook("other.slotwise.io", {"service": {"name": "other", "namespace": NAMESPACE}}),
        webhook("by-url.slotwise.io", {"url": "https://127.0.0.1:8443/validate"}),
    )
    with caplog.at_level(logging.WARNING, logger="certs.keeper"):
        async with replica(api, clock):
            await settled(api)
    assert bundle(api, MUTATING, 1) == bundle(api, MUTATING, 2) == ()
    assert bundle(api, MUTATING, 3) == contents(api).trusted
    said = {record.getMessage() for record in caplog.records}
    foreign = "elsewhere.example.io: elsewhere.example, other.slotwise.io: other.slotwise-system.svc"
    assert (
        f"{MUTATING_WEBHOOKS.label} slotwise: not ours, left alone, since --cert-hosts does not name them: {foreign}"
        in said
    )


async def test_a_secret_that_is_deleted_is_put_back_as_it_was(api: ApiServer, clock: Clock) -> None:
    async with replica(api, clock):
        await settled(api)
        before = contents(api)
        api.remove("secrets", NAMESPACE, "tls")
        await settled(api)
        assert contents(api) == before


async def test_a_damaged_secret_is_put_back_as_it_was(api: ApiServer, clock: Clock) -> None:
    async with replica(api, clock):
        await settled(api)
        before = contents(api)
        change(
            api, "secrets", lambda stored: stored["data"].update({CA: "bm8=", CERTIFICATE: "!!", "of-others": "eWVz"})
        )
        await until(lambda: contents(api) == before)
        secret = api.get("secrets", NAMESPACE, "tls")
        assert secret is not None
        data = secret["data"]
        assert isinstance(data, dict)
        assert data["of-others"] == "eWVz"


def without(*parts: str) -> Callable[[Any], None]:
    def remove(stored: Any) -> None:
        for part in parts:
            del stored["data"][part]

    return remove


async def test_a_missing_serving_certificate_asks_for_a_new_one(api: ApiServer, clock: Clock) -> None:
    async with replica(api, clock):
        await settled(api)
        before = contents(api)
        change(api, "secrets", without(CERTIFICATE, KEY))
        await until(lambda: contents(api).serving not in (None, before.serving))
        assert contents(api).trusted == before.trusted


async def test_a_missing_ca_key_asks_for_a_new_ca_with_overlap(api: ApiServer, clock: Clock) -> None:
    async with replica(api, clock, by_hand=True) as one:
        await one.turns(api)
        before = contents(api)
        change(api, "secrets", without(CA_KEY))
        await one.turns(api)
        assert is_settled(api)
        held = contents(api)
        assert (held.signing, held.serving) == (None, before.serving)
        assert held.upcoming is not None
        await later(api, clock, one, 600)
        assert contents(api).signing == held.upcoming
        await later(api, clock, one, 600)
        assert is_settled(api)
        assert contents(api).trusted == (held.upcoming.certificate,)


async def test_hosts_that_are_asked_for_anew_are_in_the_next_certificate(api: ApiServer, clock: Clock) -> None:
    async with replica(api, clock):
        await settled(api)
    before = contents(api)
    async with replica(api, clock, "two", replace(SETTINGS, hosts=(HOST, "127.0.0.1", "new.example"))) as two:
        await take_over(clock, two)
        await until(lambda: contents(api).serving != before.serving)
    assert contents(api).trusted == before.trusted


async def test_two_replicas_make_one_ca(api: ApiServer, clock: Clock) -> None:
    for round_number in range(5):
        async with replica(api, clock, f"one-{round_number}") as one, replica(api, clock, f"two-{round_number}") as two:
            await settled(api)
            await asyncio.sleep(0.05)
            assert [one.lease.held, two.lease.held].count(True) == 1
            assert one.count("writes", SECRETS) + two.count("writes", SECRETS) == 1
        api.remove("secrets", NAMESPACE, "tls")
        api.remove("leases", NAMESPACE, SETTINGS.lease)


async def test_two_keepers_at_once_still_make_one_ca(api: ApiServer, clock: Clock) -> None:
    """Even without the Lease: both believe that they hold it."""
    other = replace(SETTINGS, lease="another")
    async with replica(api, clock, "one") as one, replica(api, clock, "two", other) as two:
        await settled(api)
        await until(lambda: one.lease.held and two.lease.held)
        clock.seconds += 2.1 * DAY_S
        one.keeper.look()
        await settled(api)
        assert len(contents(api).trusted) == 1
        assert one.count("writes", SECRETS) + two.count("writes", SECRETS) <= 2


def watches_end_at_once(api: ApiServer) -> None:
    for plural in ("secrets", MUTATING, VALIDATING):
        api.faults.expire_next_watch(plural, 3)


def changes_come_twice(api: ApiServer) -> None:
    for plural in ("secrets", MUTATING, VALIDATING):
        api.faults.duplicate_changes(plural, 5)


FAULTS: dict[str, Callable[[ApiServer], object]] = {
    "a conflict at every write": lambda api: [
        api.faults.answer(409, verb=verb, resource=plural, count=3)
        for verb, plural in (("create", "secrets"), ("update", "secrets"), ("patch", MUTATING), ("patch", VALIDATING))
    ],
    "replies to writes are lost": lambda api: [
        api.faults.lose_reply(verb=verb, resource=plural, count=2)
        for verb, plural in (("create", "secrets"), ("update", "secrets"), ("patch", MUTATING), ("patch", VALIDATING))
    ],
    "the Secret's replies are late and the watch faster": lambda api: api.faults.slow(
        0.1, resource="secrets", verb="create", count=2
    ),
    "too many requests": lambda api: api.faults.answer(429, count=10, retry_after_s=1),
    "server errors": lambda api: api.faults.answer(500, count=10),
    "the Lease's replies are lost": lambda api: api.faults.lose_reply(resource="leases", count=3),
    "watches end at once": watches_end_at_once,
    "changes do not come through the watch": lambda api: api.faults.drop_changes("secrets", 1),
    "changes come twice": changes_come_twice,
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
async def test_a_bad_day_ends_with_one_ca_that_everybody_trusts(
    api: ApiServer, clock: Clock, fault: Callable[[ApiServer], object]
) -> None:
    fault(api)
    async with replica(api, clock) as one:
        await settled(api)
        assert len(contents(api).trusted) == 1
        before = contents(api)
        fault(api)
        clock.seconds += 2.1 * DAY_S
        one.keeper.look()
        await until(lambda: contents(api).serving != before.serving and is_settled(api))
        assert contents(api).trusted == before.trusted


async def test_who_loses_the_api_server_is_keeper_no_longer(api: ApiServer, clock: Clock) -> None:
    async with replica(api, clock) as one:
        await settled(api)
        await api.stop()
        clock.lease_seconds += 11
        assert not one.lease.held
        assert one.registry.get_sample_value("slotwise_certificates_writes_total", {"resource": "secrets"}) == 1


async def test_a_secret_of_cert_manager_is_never_written(
    api: ApiServer, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = {
        "metadata": {"name": "tls", "namespace": NAMESPACE, "annotations": {"cert-manager.io/certificate-name": "x"}}
    }
    stored = api.put("secrets", theirs)
    with caplog.at_level(logging.WARNING, logger="certs.keeper"):
        async with replica(api, clock) as one:
            await until(lambda: one.count("failures", SECRETS) > 0)
    assert api.get("secrets", NAMESPACE, "tls") == stored
    assert any(
        "is kept by cert-manager: mount it and serve it with --cert-file" in r.getMessage() for r in caplog.records
    )


async def test_no_key_is_ever_logged(api: ApiServer, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        async with replica(api, clock) as one:
            await settled(api)
            change(api, "secrets", lambda stored: stored["data"].update({CA_KEY: stored["data"][KEY]}))
            clock.seconds += 2.1 * DAY_S
            one.keeper.look()
            await settled(api)
    assert not [record for record in caplog.records if "PRIVATE" in record.getMessage()]


class Faulty(Clock):
    """A fault of our own: a clock that cannot be read."""

    broken = False

    def now(self) -> datetime:
        if self.broken:
            raise RuntimeError("no time")
        return super().now()


async def test_a_fault_of_ours_does_not_end_the_keeper(api: ApiServer, caplog: pytest.LogCaptureFixture) -> None:
    clock = Faulty()
    async with replica(api, clock, by_hand=True) as one:
        await one.turns(api)
        clock.broken = True
        with caplog.at_level(logging.ERROR, logger="certs.keeper"):
            _, pause_s = await one.keeper.turn()
        clock.broken = False
        assert pause_s > 0
        assert [record.getMessage() for record in caplog.records] == ["keeping Secret tls failed"]
        assert one.count("failures", SECRETS) == 1
        api.remove("secrets", NAMESPACE, "tls")
        await one.turns(api)
        assert is_settled(api)
