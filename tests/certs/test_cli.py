"""`slotwise certs create` and `show`, as a user runs them."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from typer.testing import CliRunner, Result

from certs.files import write_pair
from certs.pki import Pair, create_ca, hosts_of, issue_serving, read_certificates, read_pair
from cli.certs import app

FILES = ("ca.crt", "ca.key", "tls.crt", "tls.key")


def slotwise(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def done(*arguments: str | Path) -> str:
    result = slotwise(*arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def pair_in(folder: Path, name: str) -> Pair:
    files = [folder / f"{name}.{kind}" for kind in ("crt", "key")]
    return read_pair(*(file.read_bytes() for file in files), certificate_source=name, key_source=name)


def made(folder: Path, *, age_days: int = 0, ca_age_days: int = 0) -> None:
    """Pairs of 365 days (serving, host a.svc) and 3650 days (CA) that were made that many days ago."""
    now = datetime.now(UTC)
    ca = create_ca("slotwise CA", now=now - timedelta(days=ca_age_days), days=3650)
    serving = issue_serving(ca, ["a.svc"], now=now - timedelta(days=age_days), days=365)
    write_pair(ca, folder / "ca.crt", folder / "ca.key")
    write_pair(serving, folder / "tls.crt", folder / "tls.key")


def test_create_then_create_again(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "tls"
    arguments = ("create", "--dir", folder, "--host", "a.svc", "--host", "127.0.0.1")
    first = done(*arguments)
    assert first.startswith(f"created {folder}/ca.crt (none was there), valid until ")
    assert f"\ncreated {folder}/tls.crt (none was there), valid until " in first
    before = contents(folder)
    assert sorted(before) == sorted(FILES)
    serving, ca = pair_in(folder, "tls"), pair_in(folder, "ca")
    serving.certificate.verify_directly_issued_by(ca.certificate)
    assert hosts_of(serving.certificate) == ("a.svc", "127.0.0.1")
    assert {name: (folder / name).stat().st_mode & 0o777 for name in FILES} == {
        "ca.crt": 0o644,
        "ca.key": 0o600,
        "tls.crt": 0o644,
        "tls.key": 0o600,
    }
    second = done(*arguments)
    assert second.startswith(f"kept {folder}/ca.crt (still good, due ")
    assert f"\nkept {folder}/tls.crt (still good, due " in second
    assert contents(folder) == before


def test_days(tmp_path: Path) -> None:
    done("create", "--dir", tmp_path, "--host", "a.svc", "--days", "7", "--ca-days", "30")
    left = {name: pair_in(tmp_path, name).certificate.not_valid_after_utc - datetime.now(UTC) for name in ("tls", "ca")}
    assert {name: round(rest / timedelta(days=1)) for name, rest in left.items()} == {"tls": 7, "ca": 30}


RENEWALS: dict[str, tuple[int, int, list[str], tuple[str, str], tuple[str, str]]] = {
    "serving due": (250, 0, ["a.svc"], ("kept", "still good"), ("renewed", "the old one was due")),
    "serving expired": (400, 400, ["a.svc"], ("kept", "still good"), ("renewed", "the old one was expired")),
    "host missing": (0, 0, ["a.svc", "b.svc"], ("kept", "still good"), ("renewed", "a host is missing: b.svc")),
    "CA due": (0, 2500, ["a.svc"], ("renewed", "the old CA was due"), ("renewed", "signed by the new CA")),
}


@pytest.mark.parametrize(("age_days", "ca_age_days", "hosts", "ca", "serving"), RENEWALS.values(), ids=RENEWALS)
def test_renewal(
    age_days: int, ca_age_days: int, hosts: list[str], ca: tuple[str, str], serving: tuple[str, str], tmp_path: Path
) -> None:
    made(tmp_path, age_days=age_days, ca_age_days=ca_age_days)
    before = contents(tmp_path)
    options = [option for host in hosts for option in ("--host", host)]
    report = json.loads(done("create", "--dir", tmp_path, *options, "--json"))
    for key, (action, why), name in (("ca", ca, "ca"), ("serving", serving, "tls")):
        assert report[key]["action"] == action
        assert report[key]["why"].startswith(why)
        assert report[key]["certificate"] == str(tmp_path / f"{name}.crt")
        assert (contents(tmp_path)[f"{name}.crt"] == before[f"{name}.crt"]) is (action == "kept")
    assert report["serving"]["hosts"] == hosts
    pair_in(tmp_path, "tls").certificate.verify_directly_issued_by(pair_in(tmp_path, "ca").certificate)


def test_a_certificate_of_another_ca_is_renewed(tmp_path: Path) -> None:
    made(tmp_path)
    write_pair(create_ca("slotwise CA", now=datetime.now(UTC), days=99), tmp_path / "ca.crt", tmp_path / "ca.key")
    assert "tls.crt (the old one was signed by another CA)" in done("create", "--dir", tmp_path, "--host", "a.svc")


def test_force_replaces_everything(tmp_path: Path) -> None:
    made(tmp_path)
    (tmp_path / "ca.crt").write_bytes(b"broken")
    before = contents(tmp_path)
    assert f"created {tmp_path}/ca.crt (--force)" in done("create", "--dir", tmp_path, "--host", "a.svc", "--force")
    assert all(contents(tmp_path)[name] != before[name] for name in FILES)


def test_a_good_pair_needs_no_ca_key(tmp_path: Path) -> None:
    made(tmp_path)
    (tmp_path / "ca.key").unlink()
    assert "kept" in done("create", "--dir", tmp_path, "--host", "a.svc")
    assert sorted(contents(tmp_path)) == ["ca.crt", "tls.crt", "tls.key"]


DAMAGES = {
    "CA certificate broken": ("ca.crt", b"broken", ["a.svc"], "ca.crt: no readable PEM certificate"),
    "CA certificate missing": ("ca.crt", None, ["a.svc"], "ca.crt is missing while others of its folder are there"),
    "key missing": ("tls.key", None, ["a.svc"], "tls.key is missing while others"),
    "key broken": ("tls.key", b"broken", ["a.svc"], "tls.key: no readable PEM private key"),
    "CA key missing when needed": ("ca.key", None, ["b.svc"], "ca.key is missing while others"),
}


@pytest.mark.parametrize(("name", "content", "hosts", "text"), DAMAGES.values(), ids=DAMAGES)
def test_damage_is_named_with_its_repair_and_nothing_is_written(
    name: str, content: bytes | None, hosts: list[str], text: str, tmp_path: Path
) -> None:
    made(tmp_path)
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content)
    before = contents(tmp_path)
    result = slotwise("create", "--dir", tmp_path, *(option for host in hosts for option in ("--host", host)))
    assert result.exit_code == 2
    assert text in result.stderr
    assert "--force" in result.stderr
    assert contents(tmp_path) == before


BAD_INPUT = {
    "no host": (["create", "--dir", "."], "--host"),
    "no folder": (["create", "--host", "a.svc"], "--dir"),
    "host that is none": (["create", "--dir", "x", "--host", "1.2.3.400"], "host '1.2.3.400': neither a DNS name"),
    "no days": (["create", "--dir", "x", "--host", "a.svc", "--days", "0"], "--days"),
    "too many days": (["create", "--dir", "x", "--host", "a.svc", "--ca-days", "99999999"], "days: 99999999"),
    "folder in a file": (["create", "--dir", "file/x", "--host", "a.svc"], "--dir needs a folder that can be written"),
    "show nothing": (["show"], "PATH"),
    "show what is not there": (["show", "nowhere.crt"], "nowhere.crt: No such file or directory; name a PEM file"),
    "show a folder": (["show", "."], "is a folder; name a file, as tls.crt"),
    "show no certificate": (["show", "file"], "file: no readable PEM certificate (it starts with 'plain')"),
    "unknown command": (["renew"], "No such command"),
}


@pytest.mark.parametrize(("arguments", "text"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input(arguments: list[str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_bytes(b"plain")
    result = slotwise(*arguments)
    assert result.exit_code == 2
    assert text in result.stderr
    assert "Traceback" not in result.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_show_in_a_pipe(tmp_path: Path) -> None:
    made(tmp_path, age_days=1)
    shown = done("show", tmp_path / "tls.crt", tmp_path / "ca.crt")
    first, second = (dict(line.split(": ", 1) for line in block.splitlines()) for block in shown.split("\n\n"))
    (certificate,) = read_certificates((tmp_path / "tls.crt").read_bytes(), "tls.crt")
    assert (first["subject"], first["issuer"], first["hosts"]) == ("CN=a.svc", "CN=slotwise CA", "a.svc")
    assert (first["days left"], first["key"]) == ("363", "EC secp256r1")
    assert first["not after"] == f"{certificate.not_valid_after_utc:%Y-%m-%dT%H:%M:%SZ}"
    assert first["serial"] == f"{certificate.serial_number:x}"
    assert (second["file"], second["hosts"]) == (str(tmp_path / "ca.crt"), "none")


def test_show_as_json_and_for_chains(tmp_path: Path) -> None:
    made(tmp_path)
    chain = tmp_path / "chain.pem"
    chain.write_bytes((tmp_path / "tls.crt").read_bytes() + (tmp_path / "ca.crt").read_bytes())
    rows = json.loads(done("show", chain, "--json"))
    assert [(row["file"], row["subject"], row["hosts"], row["days_left"]) for row in rows] == [
        (str(chain), "CN=a.svc", ["a.svc"], 364),
        (str(chain), "CN=slotwise CA", [], 3649),
    ]


def test_show_a_key_names_what_to_do(tmp_path: Path) -> None:
    made(tmp_path)
    result = slotwise("show", tmp_path / "tls.key")
    assert result.exit_code == 2
    assert "is a private key; name the certificate beside it" in result.stderr
    assert b"PRIVATE" not in result.stderr_bytes


def test_show_on_a_terminal_draws_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    shown = done("show", tmp_path / "ca.crt", tmp_path / "tls.crt")
    assert "│" in shown
    assert "CN=a.svc" in shown


@pytest.mark.parametrize("command", ["create", "show"])
def test_help_teaches_by_example(command: str) -> None:
    shown = done(command, "--help")
    assert f"slotwise certs {command} " in shown
    assert "Example" in shown


def test_show_names_other_kinds_of_keys(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    lines = []
    for key in (rsa.generate_private_key(65537, 2048), ed25519.Ed25519PrivateKey.generate()):
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([]))
            .issuer_name(x509.Name([]))
            .public_key(key.public_key())
            .serial_number(1)
            .not_valid_before(now)
            .not_valid_after(now)
            .sign(key, hashes.SHA256() if isinstance(key, rsa.RSAPrivateKey) else None)
        )
        file = tmp_path / "other.crt"
        file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        lines += [line for line in done("show", file).splitlines() if line.startswith("key: ")]
    assert lines == ["key: RSA 2048", "key: Ed25519"]
