"""Certificates as a TLS client sees them, and what is refused."""

import asyncio
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from certs.errors import CertError, ExpiredCaError, KeyMismatchError, PemError, SanError, ValidityError
from certs.files import write_atomically, write_pair
from certs.pki import Pair, create_ca, hosts_of, issue_serving, read_ca, read_certificates, read_pair, san_of

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


@pytest.fixture(scope="module")
def ca() -> Pair:
    return create_ca("test CA", now=NOW, days=100)


def test_ca(ca: Pair) -> None:
    certificate = ca.certificate
    extensions = certificate.extensions
    basic = extensions.get_extension_for_class(x509.BasicConstraints)
    usage = extensions.get_extension_for_class(x509.KeyUsage)
    assert (basic.critical, basic.value.ca, basic.value.path_length) == (True, True, 0)
    assert (usage.critical, usage.value.key_cert_sign, usage.value.crl_sign) == (True, True, True)
    key_id = extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    assert key_id == x509.SubjectKeyIdentifier.from_public_key(ca.key.public_key())
    assert isinstance(ca.key.curve, ec.SECP256R1)
    assert certificate.not_valid_before_utc == NOW - timedelta(minutes=5)
    assert certificate.not_valid_after_utc == NOW + timedelta(days=100)
    certificate.verify_directly_issued_by(certificate)


def test_serving_certificate(ca: Pair) -> None:
    pair = issue_serving(ca, ["Scheduler.default.svc", "10.0.0.1", "::1", "10.0.0.1"], now=NOW, days=30)
    extensions = pair.certificate.extensions
    assert hosts_of(pair.certificate) == ("scheduler.default.svc", "10.0.0.1", "::1")
    assert list(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [ExtendedKeyUsageOID.SERVER_AUTH]
    assert extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
    ca_key_id = ca.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest
    assert extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value.key_identifier == ca_key_id
    assert pair.certificate.not_valid_before_utc == NOW - timedelta(minutes=5)
    assert pair.certificate.not_valid_after_utc == NOW + timedelta(days=30)
    pair.certificate.verify_directly_issued_by(ca.certificate)


def test_a_serving_certificate_does_not_outlive_its_ca(ca: Pair) -> None:
    pair = issue_serving(ca, ["a.b"], now=NOW + timedelta(days=90), days=30)
    assert pair.certificate.not_valid_after_utc == ca.certificate.not_valid_after_utc


def test_a_host_too_long_for_a_common_name_still_gets_a_certificate(ca: Pair) -> None:
    host = ".".join(["a" * 60] * 4)
    assert hosts_of(issue_serving(ca, [host], now=NOW, days=30).certificate) == (host,)


async def handshake(server_pair: Pair, trusted: Pair, name: str, folder: Path) -> None:
    """A real handshake of a client that trusts `trusted` and expects `name`; raises what the client raises."""
    write_pair(server_pair, folder / "tls.crt", folder / "tls.key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    client = ssl.create_default_context(cadata=trusted.certificate_pem().decode())
    client.verify_flags |= ssl.VERIFY_X509_STRICT

    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(close, "127.0.0.1", 0, ssl=context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client, server_hostname=name)
        await reader.read()
        writer.close()
        await writer.wait_closed()


GOOD_NAMES = {
    "DNS name": "scheduler.default.svc",
    "IPv4": "127.0.0.1",
    "IPv6": "::1",
    "under a wildcard": "x.wild.svc",
}


@pytest.mark.parametrize("name", GOOD_NAMES.values(), ids=GOOD_NAMES)
async def test_a_strict_client_accepts_every_host(name: str, tmp_path: Path) -> None:
    now = datetime.now(UTC)
    ca = create_ca("test CA", now=now, days=2)
    hosts = ["scheduler.default.svc", "127.0.0.1", "::1", "*.wild.svc"]
    await handshake(issue_serving(ca, hosts, now=now, days=1), ca, name, tmp_path)


def expired(ca: Pair, now: datetime) -> Pair:
    return issue_serving(ca, ["a.svc"], now=now - timedelta(days=2), days=1)


def future(ca: Pair, now: datetime) -> Pair:
    return issue_serving(ca, ["a.svc"], now=now + timedelta(days=1), days=1)


def of_another_ca(ca: Pair, now: datetime) -> Pair:
    return issue_serving(create_ca("test CA", now=now, days=2), ["a.svc"], now=now, days=1)


def of_another_name(ca: Pair, now: datetime) -> Pair:
    return issue_serving(ca, ["b.svc", "127.0.0.1"], now=now, days=1)


def as_a_ca(ca: Pair, now: datetime) -> Pair:
    """Signed by a serving certificate, which must not sign."""
    return issue_serving(issue_serving(ca, ["x.svc"], now=now, days=1), ["a.svc"], now=now, days=1)


REFUSED: dict[str, tuple[Callable[[Pair, datetime], Pair], str]] = {
    "expired": (expired, "certificate has expired"),
    "not yet valid": (future, "certificate is not yet valid"),
    "another CA of the same name": (of_another_ca, "unable to get local issuer|signature failure|self-signed"),
    "wrong SAN": (of_another_name, "Hostname mismatch"),
    "signed by a serving certificate": (as_a_ca, "unable to get local issuer"),
}


@pytest.mark.parametrize(("make", "cause"), REFUSED.values(), ids=REFUSED)
async def test_a_client_refuses(make: Callable[[Pair, datetime], Pair], cause: str, tmp_path: Path) -> None:
    now = datetime.now(UTC)
    ca = create_ca("test CA", now=now - timedelta(days=5), days=10)
    with pytest.raises(ssl.SSLCertVerificationError, match=cause):
        await handshake(make(ca, now), ca, "a.svc", tmp_path)


BAD_HOSTS = [
    "",
    " ",
    "a b",
    "-a",
    "a-",
    "a..b",
    ".a",
    "a.",
    "*",
    "a.*",
    "*.",
    "1.2.3.400",
    "1.2.3",
    "http://a",
    "a:8443",
]
BAD_HOSTS += ["fe80::1%eth0", "ü.svc", "a" * 64, ".".join(["a" * 60] * 5), "10.0.0.0/8", "a\n"]


@pytest.mark.parametrize("host", BAD_HOSTS)
def test_no_host(host: str) -> None:
    with pytest.raises(SanError) as caught:
        san_of(host)
    assert repr(host) in str(caught.value)


def test_a_certificate_needs_hosts_and_a_lifetime(ca: Pair) -> None:
    with pytest.raises(SanError, match="none given"):
        issue_serving(ca, [], now=NOW, days=1)
    with pytest.raises(ValidityError, match="days: 0; more than 0"):
        issue_serving(ca, ["a.b"], now=NOW, days=0)
    with pytest.raises(ValidityError, match="days: 99999999"):
        create_ca("test CA", now=NOW, days=99999999)
    with pytest.raises(ExpiredCaError, match="2026-06-09T12:00:00Z"):
        issue_serving(ca, ["a.b"], now=NOW + timedelta(days=100), days=1)


def test_pem_there_and_back(ca: Pair) -> None:
    pair = read_pair(ca.certificate_pem(), ca.key_pem(), certificate_source="ca.crt", key_source="ca.key")
    assert pair.certificate == ca.certificate
    assert pair.key.private_numbers() == ca.key.private_numbers()
    assert ca.key_pem().startswith(b"-----BEGIN PRIVATE KEY-----")
    assert read_ca(ca.certificate_pem(), "ca.crt") == ca.certificate
    assert len(read_certificates(ca.certificate_pem() * 2, "chain")) == 2


def test_unreadable_pem_names_the_file(ca: Pair) -> None:
    certificate, key = ca.certificate_pem(), ca.key_pem()
    rsa_key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    locked = ca.key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")
    )
    cases: list[tuple[bytes, bytes, type[CertError], str]] = [
        (b"", key, PemError, "the.crt: no readable PEM certificate .*it is empty"),
        (key, key, PemError, "the.crt: no readable PEM certificate .*BEGIN PRIVATE KEY"),
        (certificate[:200], key, PemError, "the.crt: no readable PEM certificate"),
        (certificate, b"", PemError, "the.key: no readable PEM private key"),
        (certificate, key[:100], PemError, "the.key: no readable PEM private key"),
        (certificate, locked, PemError, "the.key: the key is encrypted"),
        (certificate, rsa_key, PemError, "the.key: a key of type .*; an EC key is accepted"),
        (certificate, create_ca("x", now=NOW, days=1).key_pem(), KeyMismatchError, "the.key: .* in the.crt"),
    ]
    for certificate_pem, key_pem, error, text in cases:
        with pytest.raises(error, match=text):
            read_pair(certificate_pem, key_pem, certificate_source="the.crt", key_source="the.key")
    with pytest.raises(PemError, match=r"tls\.crt: CN=a\.b is no CA certificate"):
        read_ca(issue_serving(ca, ["a.b"], now=NOW, days=1).certificate_pem(), "tls.crt")


def test_files_are_whole_and_the_key_is_private(ca: Pair, tmp_path: Path) -> None:
    certificate, key = tmp_path / "ca.crt", tmp_path / "ca.key"
    key.write_bytes(b"old")
    key.chmod(0o644)
    write_pair(ca, certificate, key)
    assert (certificate.read_bytes(), key.read_bytes()) == (ca.certificate_pem(), ca.key_pem())
    assert (certificate.stat().st_mode & 0o777, key.stat().st_mode & 0o777) == (0o644, 0o600)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ca.crt", "ca.key"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    target.mkdir()
    (target / "kept").touch()
    with pytest.raises(OSError, match="folder"):
        write_atomically(target, b"new", mode=0o600)  # a file cannot replace a folder
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    assert (target / "kept").exists()


def test_a_ca_made_elsewhere_without_a_key_id_can_sign() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "elsewhere")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(NOW)
        .not_valid_after(NOW + timedelta(days=9))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    leaf = issue_serving(Pair(certificate, key), ["a.b"], now=NOW, days=1).certificate
    leaf.verify_directly_issued_by(certificate)
    authority = leaf.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value
    assert authority == x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())


def test_hosts_that_cannot_be_read_are_an_error_and_none_is_not() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    plain = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(x509.Name([]))
        .public_key(key.public_key())
        .serial_number(0xAB)
        .not_valid_before(NOW)
        .not_valid_after(NOW + timedelta(days=1))
    )
    garbled = plain.add_extension(x509.UnrecognizedExtension(x509.SubjectAlternativeName.oid, b"xx"), critical=False)
    assert hosts_of(plain.sign(key, hashes.SHA256())) == ()
    with pytest.raises(PemError, match="serial ab: unreadable extensions"):
        hosts_of(garbled.sign(key, hashes.SHA256()))
    with pytest.raises(PemError, match="is no CA certificate"):
        read_ca(plain.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM), "x.crt")
