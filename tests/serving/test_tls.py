"""Changed certificate files are served without a restart, broken ones are not, and nothing in flight notices."""

import asyncio
import functools
import logging
import socket
import ssl
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from aiohttp import ClientSession, TCPConnector, web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from prometheus_client import CollectorRegistry

from serving.errors import TlsFilesError
from serving.server import Address
from serving.tls import Reload, TlsReloader, server_context
from tests.serving.running import (
    NOW,
    PATIENCE_S,
    Plain,
    Tls,
    on_uvloop,
    running,
    served_serial,
    until,
)


@pytest.fixture
def tls(tmp_path: Path) -> Tls:
    tls = Tls(tmp_path)
    tls.write_fresh()
    return tls


def reloader_of(tls: Tls, registry: CollectorRegistry | None = None, interval_s: float = 10.0) -> TlsReloader:
    return TlsReloader(tls.certificate, tls.key, registry=registry or CollectorRegistry(), interval_s=interval_s)


def cut_certificate(tls: Tls) -> str:
    content = tls.certificate.read_bytes()
    tls.certificate.write_bytes(content[: len(content) // 2])
    return "tls.crt: no readable PEM certificate"


def cut_key(tls: Tls) -> str:
    content = tls.key.read_bytes()
    tls.key.write_bytes(content[: len(content) // 2])
    return "no usable PEM certificate chain and unencrypted PEM key"


def empty_certificate(tls: Tls) -> str:
    tls.certificate.write_bytes(b"")
    return "tls.crt: no readable PEM certificate"


def no_key(tls: Tls) -> str:
    tls.key.unlink()
    return "tls.key: No such file or directory"


def certificate_of_another_key(tls: Tls) -> str:
    tls.certificate.write_bytes(tls.fresh().certificate_pem())
    return "the key does not belong to the certificate"


def encrypted_key(tls: Tls) -> str:
    pair = tls.write_fresh()
    tls.key.write_bytes(
        pair.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    return "the key is encrypted"


def chain_cut_in_its_second_certificate(tls: Tls) -> str:
    pair = tls.write_fresh()
    tls.certificate.write_bytes(pair.certificate_pem() + tls.ca.certificate_pem()[:100])
    return "tls.crt"


BROKEN: dict[str, Callable[[Tls], str]] = {
    function.__name__.replace("_", " "): function
    for function in (
        cut_certificate,
        cut_key,
        empty_certificate,
        no_key,
        certificate_of_another_key,
        encrypted_key,
        chain_cut_in_its_second_certificate,
    )
}


@pytest.mark.parametrize("damage", BROKEN.values(), ids=BROKEN)
def test_broken_files_stop_the_start(tls: Tls, damage: Callable[[Tls], str]) -> None:
    cause = damage(tls)
    with pytest.raises(TlsFilesError, match=cause):
        server_context(tls.certificate, tls.key)


@pytest.mark.parametrize("damage", BROKEN.values(), ids=BROKEN)
async def test_broken_files_leave_the_old_pair_serving(
    tls: Tls, damage: Callable[[Tls], str], caplog: pytest.LogCaptureFixture
) -> None:
    registry = CollectorRegistry()
    reloader = reloader_of(tls, registry)
    plain = Plain()
    async with running([plain.listener(ssl_context=reloader.context)]) as server:
        before = await served_serial(server.addresses[0], tls.client_context())
        with caplog.at_level(logging.WARNING, logger="serving.tls"):
            cause = damage(tls)
            assert [reloader.check(), reloader.check()] == [Reload.REJECTED, Reload.REJECTED]
            assert await served_serial(server.addresses[0], tls.client_context()) == before
        # Logged once as long as it stays the same, counted each time.
        assert [cause in record.getMessage() for record in caplog.records] == [True]
        assert registry.get_sample_value("slotwise_tls_reloads_total", {"outcome": "rejected"}) == 2.0
        fresh = tls.write_fresh()
        assert reloader.check() is Reload.RELOADED
        assert await served_serial(server.addresses[0], tls.client_context()) == fresh.certificate.serial_number
        assert registry.get_sample_value("slotwise_tls_reloads_total", {"outcome": "reloaded"}) == 1.0


def test_a_touched_file_is_not_a_new_one(tls: Tls) -> None:
    reloader = reloader_of(tls)
    tls.certificate.touch()
    tls.key.write_bytes(tls.key.read_bytes())
    assert reloader.check() is Reload.UNCHANGED


def test_a_cause_that_went_away_and_came_back_is_logged_again(tls: Tls, caplog: pytest.LogCaptureFixture) -> None:
    reloader = reloader_of(tls)
    good = tls.key.read_bytes()
    for content in (b"", good, b""):
        tls.key.write_bytes(content)
        reloader.check()
    assert len([record for record in caplog.records if "still serving" in record.getMessage()]) == 2


def test_a_swap_by_symlink_is_seen(tls: Tls, tmp_path: Path) -> None:
    """As the kubelet changes a mounted Secret: the files are links through a link to a folder."""
    versions = [Tls(tmp_path / name, tls.ca) for name in ("one", "two")]
    for version in versions:
        version.folder.mkdir()
        version.write_fresh()
    data = tmp_path / "..data"
    data.symlink_to(versions[0].folder)
    reloader = TlsReloader(data / "tls.crt", data / "tls.key", registry=CollectorRegistry())
    swapped = tmp_path / "..data_tmp"
    swapped.symlink_to(versions[1].folder)
    swapped.replace(data)
    assert reloader.check() is Reload.RELOADED


def test_the_expiry_of_the_served_certificate_is_shown(tls: Tls) -> None:
    registry = CollectorRegistry()
    reloader_of(tls, registry)
    expiry = (NOW + timedelta(days=5)).replace(microsecond=0).timestamp()
    assert registry.get_sample_value("slotwise_tls_certificate_expiry_timestamp_seconds") == expiry


@on_uvloop
async def test_another_kind_of_key_replaces_the_old_one_for_every_client(tls: Tls) -> None:
    """A context holds one pair a kind of key: changed in place, a client that prefers RSA would get the old one."""
    key = rsa.generate_private_key(65537, 2048)
    old = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(tls.ca.certificate.subject)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(NOW - timedelta(hours=1))
        .not_valid_after(NOW + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=True)
        .sign(tls.ca.key, hashes.SHA256())
    )
    tls.certificate.write_bytes(old.public_bytes(serialization.Encoding.PEM))
    tls.key.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    reloader = reloader_of(tls)
    client = tls.client_context()
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    client.set_ciphers("ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES128-GCM-SHA256")
    async with running([Plain().listener(ssl_context=reloader.context)]) as server:
        address = ("localhost", server.addresses[0][1])
        assert await served_serial(address, client) == 7
        fresh = tls.write_fresh("localhost")
        assert reloader.check() is Reload.RELOADED
        assert await served_serial(address, client) == fresh.certificate.serial_number


async def test_old_tls_is_refused(tls: Tls) -> None:
    client = tls.client_context()
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        client.minimum_version = client.maximum_version = ssl.TLSVersion.TLSv1_1
    async with running([Plain().listener(ssl_context=server_context(tls.certificate, tls.key))]) as server:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await served_serial(server.addresses[0], client)


@on_uvloop
async def test_files_swapped_under_load_drop_no_request(tls: Tls) -> None:
    plain = Plain()

    async def echo(request: web.Request) -> web.Response:
        body = await request.read()
        await asyncio.sleep(0)
        return web.Response(body=body)

    plain.app.router.add_post("/echo", echo)
    registry = CollectorRegistry()
    reloader = reloader_of(tls, registry, interval_s=0.01)
    client = tls.client_context()
    swapping = asyncio.Event()
    swapping.set()
    answered = {True: 0, False: 0}
    moved = asyncio.Condition()

    async def load(session: ClientSession, url: str, *, keep_alive: bool) -> None:
        """Ask on and on; any failure ends the test through the task group."""
        number = 0
        while swapping.is_set():
            number += 1
            body = f"{keep_alive} {number} ".encode() * 500
            async with session.post(url, data=body) as answer:
                assert answer.status == 200
                assert await answer.read() == body
            answered[keep_alive] += 1
            async with moved:
                moved.notify_all()

    async def more_answers() -> None:
        """Wait until both kinds of client have had three more answers."""
        goal = {kind: count + 3 for kind, count in answered.items()}
        async with moved:
            await moved.wait_for(lambda: all(answered[kind] >= goal[kind] for kind in goal))

    async def shows(serial: int) -> bool:
        return await served_serial(server.addresses[0], client) == serial

    async with (
        running([plain.listener(ssl_context=reloader.context)]) as server,
        ClientSession(connector=TCPConnector(ssl=client)) as kept,
        ClientSession(connector=TCPConnector(ssl=client, force_close=True)) as renewed,
        asyncio.timeout(PATIENCE_S * 2),
        asyncio.TaskGroup() as tasks,
    ):
        watching = tasks.create_task(reloader.watch())
        url = server.url("/echo", scheme="https")
        for _ in range(2):
            tasks.create_task(load(kept, url, keep_alive=True))
            tasks.create_task(load(renewed, url, keep_alive=False))
        for _ in range(4):
            rejected = registry.get_sample_value("slotwise_tls_reloads_total", {"outcome": "rejected"}) or 0.0
            fresh = tls.fresh()
            # Not atomically, and slowly: first half a certificate, then a whole one with the old key, then its key.
            tls.certificate.write_bytes(fresh.certificate_pem()[:200])
            while registry.get_sample_value("slotwise_tls_reloads_total", {"outcome": "rejected"}) == rejected:
                await more_answers()
            tls.certificate.write_bytes(fresh.certificate_pem())
            await more_answers()
            tls.key.write_bytes(fresh.key_pem())
            await until(functools.partial(shows, fresh.certificate.serial_number))
            await more_answers()
        swapping.clear()
        watching.cancel()
    assert registry.get_sample_value("slotwise_tls_reloads_total", {"outcome": "reloaded"}) == 4.0
    assert registry.get_sample_value("slotwise_tls_reloads_total", {"outcome": "rejected"}) >= 4.0  # type: ignore[operator]  # None fails the test as well
    codes = {
        sample.labels["code"]
        for metric in plain.registry.collect()
        for sample in metric.samples
        if sample.name == "slotwise_http_requests_total"
    }
    assert codes == {"200"}


@on_uvloop
async def test_idle_tls_connections_close_when_draining(tls: Tls) -> None:
    plain = Plain()

    async def hello(request: web.Request) -> web.Response:
        return web.Response()

    plain.app.router.add_get("/hello", hello)
    context = server_context(tls.certificate, tls.key)
    async with (
        running([plain.listener(ssl_context=context)], drain_timeout_s=3600.0) as server,
        ClientSession(connector=TCPConnector(ssl=tls.client_context())) as client,
    ):
        assert (await client.get(server.url("/hello", scheme="https"))).status == 200
        await server.stopped()


def asked(address: Address, client: ssl.SSLContext, session: ssl.SSLSession | None) -> tuple[bool, ssl.SSLSession]:
    """Whether a new connection took up an earlier session, and the session to go on with: TLS 1.3 sends it with the first answer."""
    with (
        socket.create_connection(address, timeout=PATIENCE_S) as raw,
        client.wrap_socket(raw, server_hostname="127.0.0.1", session=session) as connection,
    ):
        connection.sendall(b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 404")
        assert connection.session is not None
        return bool(connection.session_reused), connection.session


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["TLS 1.2", "TLS 1.3"])
@on_uvloop
async def test_a_caller_that_comes_back_takes_up_its_session(tls: Tls, version: ssl.TLSVersion) -> None:
    """The API server opens connections anew; a whole handshake costs more than many admissions. A new certificate changes nothing."""
    client = tls.client_context()
    client.minimum_version = client.maximum_version = version
    reloader, plain = reloader_of(tls), Plain()
    async with running([plain.listener(ssl_context=reloader.context)]) as server:
        reused, session = await asyncio.to_thread(asked, server.addresses[0], client, None)
        assert not reused
        reused, session = await asyncio.to_thread(asked, server.addresses[0], client, session)
        assert reused
        tls.write_fresh()
        assert reloader.check() is Reload.RELOADED
        reused, _ = await asyncio.to_thread(asked, server.addresses[0], client, session)
        assert reused
