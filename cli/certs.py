"""`slotwise certs`: make the CA and the serving certificate, and look at certificates."""

import enum
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from rich.console import Console
from rich.table import Table
from rich.text import Text

from certs.errors import CertError
from certs.files import write_pair
from certs.pki import Pair, create_ca, hosts_of, issue_serving, read_ca, read_certificates, read_pair, san_of
from certs.renewal import Renewal, decide, held

__all__ = ["app"]

app = typer.Typer(
    help="Make the CA and the serving certificate of the webhook, and look at certificates.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

_BAD_INPUT = 2
_CA_NAME = "slotwise CA"


class Action(enum.Enum):
    """What `create` did with one of the two pairs."""

    CREATED = "created"
    RENEWED = "renewed"
    KEPT = "kept"


@dataclass(frozen=True)
class _Paths:
    """The four files of one folder."""

    folder: Path

    @property
    def ca_certificate(self) -> Path:
        return self.folder / "ca.crt"

    @property
    def ca_key(self) -> Path:
        return self.folder / "ca.key"

    @property
    def certificate(self) -> Path:
        return self.folder / "tls.crt"

    @property
    def key(self) -> Path:
        return self.folder / "tls.key"

    def every(self) -> tuple[Path, ...]:
        return self.ca_certificate, self.ca_key, self.certificate, self.key


@dataclass(frozen=True)
class _Outcome:
    """One pair after `create`: what was done with it, why, and the certificate that is there now."""

    action: Action
    why: str
    certificate: x509.Certificate


class _RefusedError(Exception):
    """Input that leads nowhere; the text tells what is wrong and how to repair it."""


@app.command()
def create(
    folder: Annotated[
        Path, typer.Option("--dir", metavar="DIR", help="Folder for the four files; made if it is not there.")
    ],
    hosts: Annotated[
        list[str],
        typer.Option(
            "--host",
            metavar="NAME",
            help="DNS name or IP address that clients reach the server under; repeat for each.",
        ),
    ],
    days: Annotated[int, typer.Option(min=1, help="Days the serving certificate is good for.")] = 365,
    ca_days: Annotated[int, typer.Option(min=1, help="Days the CA is good for.")] = 3650,
    force: Annotated[
        bool, typer.Option("--force", help="Replace everything there, the CA too: every client needs the new ca.crt.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Say what was done as one JSON object.")] = False,
) -> None:
    """Write a CA (ca.crt, ca.key) and a serving certificate it signed (tls.crt, tls.key) to a folder.

    What is there and still good is kept: run it again at any time. A serving certificate is renewed, under the same CA,
    when a third of its life is left, when a host is missing, or when another CA signed it.

    The webhook serves tls.crt with tls.key; ca.crt, base64-encoded, is the caBundle of the webhook configuration.
    Nobody but this command needs ca.key: keep it out of the cluster.

    [bold]Example:[/bold]

    slotwise certs create --dir ./tls --host slotwise-webhook.slotwise-system.svc --host 127.0.0.1
    """
    paths = _Paths(folder)
    try:
        ca, serving = _create(paths, hosts, days=days, ca_days=ca_days, force=force, now=datetime.now(UTC))
    except (_RefusedError, CertError) as error:
        raise _stop(str(error)) from error
    except OSError as error:
        raise _stop(
            f"{error.filename or folder}: {error.strerror}; --dir needs a folder that can be written"
        ) from error
    if as_json:
        report = {
            "ca": _outcome_json(ca, paths.ca_certificate, paths.ca_key),
            "serving": _outcome_json(serving, paths.certificate, paths.key),
        }
        typer.echo(json.dumps(report))
        return
    for outcome, path in ((ca, paths.ca_certificate), (serving, paths.certificate)):
        until = f"valid until {_moment(outcome.certificate.not_valid_after_utc)}"
        typer.echo(f"{outcome.action.value} {path} ({outcome.why}), {until}")


@app.command()
def show(
    files: Annotated[list[Path], typer.Argument(metavar="PATH…", help="PEM files with certificates.")],
    as_json: Annotated[bool, typer.Option("--json", help="A JSON list, one object a certificate.")] = False,
) -> None:
    """Show whom certificates name, who signed them, and how long they are good.

    Every certificate of every file, in order: a table on a terminal, plain lines in a pipe.

    [bold]Example:[/bold]

    slotwise certs show ./tls/ca.crt ./tls/tls.crt
    """
    now = datetime.now(UTC)
    try:
        found = [(path, certificate) for path in files for certificate in _read(path)]
    except (_RefusedError, CertError) as error:
        raise _stop(str(error)) from error
    rows = [_row(path, certificate, now) for path, certificate in found]
    if as_json:
        typer.echo(json.dumps(rows))
        return
    console = Console(highlight=False)
    if console.is_terminal:
        console.print(_table(rows))
        return
    typer.echo("\n\n".join("\n".join(f"{_label(key)}: {_plain(value)}" for key, value in row.items()) for row in rows))


def _create(
    paths: _Paths, hosts: Sequence[str], *, days: int, ca_days: int, force: bool, now: datetime
) -> tuple[_Outcome, _Outcome]:
    for host in hosts:
        san_of(host)  # before anything is written
    present = [path for path in paths.every() if path.exists()]
    if force or not present:
        why = "--force" if present else "none was there"
        ca = create_ca(_CA_NAME, now=now, days=ca_days)
        return _write_both(paths, ca, Action.CREATED, why, issue_serving(ca, hosts, now=now, days=days), why)
    try:
        return _keep_or_renew(paths, hosts, days=days, ca_days=ca_days, now=now)
    except CertError as error:
        raise _RefusedError(f"{error}; put the right file there, or start over with --force (new CA too)") from error


def _keep_or_renew(
    paths: _Paths, hosts: Sequence[str], *, days: int, ca_days: int, now: datetime
) -> tuple[_Outcome, _Outcome]:
    authority = read_ca(_bytes(paths.ca_certificate), str(paths.ca_certificate))
    authority_renewal = decide(held(authority, authority), now=now, needed_hosts=())
    if authority_renewal.renew:
        ca = create_ca(_CA_NAME, now=now, days=ca_days)
        serving = issue_serving(ca, hosts, now=now, days=days)
        return _write_both(
            paths, ca, Action.RENEWED, f"the old CA was {_why(authority_renewal)}", serving, "signed by the new CA"
        )
    kept_ca = _Outcome(Action.KEPT, _why(authority_renewal), authority)
    why = "none was there"
    action = Action.CREATED
    if paths.certificate.exists() or paths.key.exists():
        current = _read_pair(paths.certificate, paths.key).certificate
        renewal = decide(held(current, authority), now=now, needed_hosts=hosts)
        if not renewal.renew:
            return kept_ca, _Outcome(Action.KEPT, _why(renewal), current)
        why = f"the old one was {_why(renewal)}" if not renewal.missing else _why(renewal)
        action = Action.RENEWED
    serving = issue_serving(_read_pair(paths.ca_certificate, paths.ca_key), hosts, now=now, days=days)
    write_pair(serving, paths.certificate, paths.key)
    return kept_ca, _Outcome(action, why, serving.certificate)


def _write_both(
    paths: _Paths, ca: Pair, action: Action, ca_why: str, serving: Pair, serving_why: str
) -> tuple[_Outcome, _Outcome]:
    paths.folder.mkdir(parents=True, exist_ok=True)
    write_pair(ca, paths.ca_certificate, paths.ca_key)
    write_pair(serving, paths.certificate, paths.key)
    return _Outcome(action, ca_why, ca.certificate), _Outcome(action, serving_why, serving.certificate)


def _why(renewal: Renewal) -> str:
    missing = f": {', '.join(renewal.missing)}" if renewal.missing else ""
    return f"{renewal.why.value}{missing}" if renewal.renew else f"{renewal.why.value}, due {_moment(renewal.due)}"


def _read_pair(certificate: Path, key: Path) -> Pair:
    return read_pair(_bytes(certificate), _bytes(key), certificate_source=str(certificate), key_source=str(key))


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise _RefusedError(
            f"{path} is missing while others of its folder are there; put it back, or --force"
        ) from error


def _read(path: Path) -> tuple[x509.Certificate, ...]:
    if path.is_dir():
        raise _RefusedError(f"{path} is a folder; name a file, as {path / 'tls.crt'}")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _RefusedError(f"{path}: {error.strerror}; name a PEM file that can be read") from error
    if b"PRIVATE KEY-----" in content and b"-----BEGIN CERTIFICATE-----" not in content:
        raise _RefusedError(f"{path} is a private key; name the certificate beside it")
    return read_certificates(content, str(path))


def _row(path: Path, certificate: x509.Certificate, now: datetime) -> dict[str, str | int | list[str]]:
    return {
        "file": str(path),
        "subject": certificate.subject.rfc4514_string(),
        "issuer": certificate.issuer.rfc4514_string(),
        "hosts": list(hosts_of(certificate)),
        "not_before": _moment(certificate.not_valid_before_utc),
        "not_after": _moment(certificate.not_valid_after_utc),
        "days_left": (certificate.not_valid_after_utc - now).days,
        "key": _key_type(certificate),
        "serial": f"{certificate.serial_number:x}",
        "sha256": certificate.fingerprint(hashes.SHA256()).hex(":"),
    }


def _table(rows: Sequence[dict[str, str | int | list[str]]]) -> Table:
    # One column a certificate: the values are long, and there are seldom more than two.
    table = Table(show_header=False)
    table.add_column(style="bold", no_wrap=True)
    for _ in rows:
        table.add_column(overflow="fold")
    for key in rows[0]:
        table.add_row(_label(key), *(Text(_plain(row[key])) for row in rows))
    return table


def _plain(value: str | int | list[str]) -> str:
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return str(value)


def _label(key: str) -> str:
    return key.replace("_", " ")


def _key_type(certificate: x509.Certificate) -> str:
    key = certificate.public_key()
    if isinstance(key, ec.EllipticCurvePublicKey):
        return f"EC {key.curve.name}"
    if isinstance(key, rsa.RSAPublicKey):
        return f"RSA {key.key_size}"
    return type(key).__name__.removesuffix("PublicKey")


def _outcome_json(outcome: _Outcome, certificate: Path, key: Path) -> dict[str, str | list[str]]:
    return {
        "action": outcome.action.value,
        "why": outcome.why,
        "certificate": str(certificate),
        "key": str(key),
        "hosts": list(hosts_of(outcome.certificate)),
        "not_after": _moment(outcome.certificate.not_valid_after_utc),
    }


def _moment(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def _stop(text: str) -> typer.Exit:
    typer.echo(f"error: {text}", err=True)
    return typer.Exit(_BAD_INPUT)
