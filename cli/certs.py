"""`slotwise certs`: make the CA and the serving certificate, tell the API server, and look at certificates."""

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from rich.console import Console
from rich.table import Table
from rich.text import Text

from certs.errors import CertError
from certs.pki import hosts_of, read_certificates
from cli.certs_cluster import ClusterError, create_in_cluster, in_cluster, patch_webhooks
from cli.certs_files import Outcome, Paths, RefusedError, create_in_folder, moment
from devices.kube.client import KubeClient
from devices.kube.errors import ConfigError, KubeError
from serving.flags import boolean
from serving.server import run as run_on_uvloop

__all__ = ["app"]

app = typer.Typer(
    help="Make the CA and the serving certificate of the webhook, and look at certificates.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

_BAD_INPUT = 2
_FAILED = 1
_NAMESPACE = "slotwise-system"

T = TypeVar("T")
Kubeconfig = Annotated[
    str | None,
    typer.Option("--kubeconfig", metavar="FILE", help="Default: $KUBECONFIG, ~/.kube/config, then in-cluster."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be written, write nothing.")]


@app.command()
def create(
    hosts: Annotated[
        list[str],
        typer.Option(
            "--host",
            metavar="NAME",
            help="DNS name or IP address that clients reach the server under; repeat for each, or join them by commas.",
        ),
    ],
    folder: Annotated[
        Path | None, typer.Option("--dir", metavar="DIR", help="Folder for the four files; made if it is not there.")
    ] = None,
    days: Annotated[int, typer.Option(min=1, help="Days the serving certificate is good for.")] = 365,
    ca_days: Annotated[int, typer.Option(min=1, help="Days the CA is good for.")] = 3650,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="With --dir: replace everything there, the CA too: every client needs the new ca.crt."
        ),
    ] = False,
    secret_name: Annotated[
        str, typer.Option("--secret-name", metavar="NAME", help="Instead of --dir: a Secret in the cluster.")
    ] = "",
    namespace: Annotated[str, typer.Option(help="Namespace of the Secret.")] = _NAMESPACE,
    cert_name: Annotated[str, typer.Option(metavar="KEY", help="Key of the certificate in the Secret.")] = "tls.crt",
    key_name: Annotated[str, typer.Option(metavar="KEY", help="Key of its private key in the Secret.")] = "tls.key",
    kubeconfig: Kubeconfig = None,
    dry_run: DryRun = False,
    as_json: Annotated[bool, typer.Option("--json", help="Say what was done as one JSON object.")] = False,
) -> None:
    """Make a CA and a serving certificate it signed: in a folder (ca.crt, ca.key, tls.crt, tls.key), or in a Secret.

    In a folder, what is there and still good is kept: run it again at any time. A serving certificate is renewed, under the same CA,
    when a third of its life is left, when a host is missing, or when another CA signed it.

    The webhook serves tls.crt with tls.key; ca.crt, base64-encoded, is the caBundle of the webhook configuration.
    Nobody but this command needs ca.key: keep it out of the cluster.

    A Secret that is there is kept as it is. It gets the CA's certificate (ca.crt, ca), not its key. This is what the certificate
    Jobs of HAMi's chart do, with the same arguments.

    [bold]Examples:[/bold]

    slotwise certs create --dir ./tls --host slotwise-webhook.slotwise-system.svc --host 127.0.0.1

    slotwise certs create --secret-name=hami-scheduler-tls --namespace=kube-system --host=hami-scheduler.kube-system.svc,127.0.0.1
    """
    hosts = [host for given in hosts for host in given.split(",") if host]
    if (folder is None) == (not secret_name):
        raise _stop("give either --dir, for files, or --secret-name, for a Secret in the cluster")
    if folder is None:
        if force:
            raise _stop("--force goes with --dir; a Secret is replaced by deleting it first")
        _create_secret(
            SecretPlace(secret_name, namespace, cert_name, key_name),
            hosts,
            days=days,
            ca_days=ca_days,
            kubeconfig=kubeconfig,
            dry_run=dry_run,
            as_json=as_json,
        )
        return
    if dry_run or kubeconfig is not None:
        raise _stop("--dry-run and --kubeconfig go with --secret-name")
    paths = Paths(folder)
    try:
        ca, serving = create_in_folder(paths, hosts, days=days, ca_days=ca_days, force=force, now=datetime.now(UTC))
    except (RefusedError, CertError) as error:
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
        until = f"valid until {moment(outcome.certificate.not_valid_after_utc)}"
        typer.echo(f"{outcome.action.value} {path} ({outcome.why}), {until}")


@dataclass(frozen=True)
class SecretPlace:
    """Which Secret, and under which keys it holds certificate and key."""

    name: str
    namespace: str
    certificate_key: str
    key_key: str


def _create_secret(
    place: SecretPlace,
    hosts: Sequence[str],
    *,
    days: int,
    ca_days: int,
    kubeconfig: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    outcome = _in_cluster(
        kubeconfig,
        lambda client: create_in_cluster(
            client,
            place.namespace,
            place.name,
            hosts,
            certificate_key=place.certificate_key,
            key_key=place.key_key,
            days=days,
            ca_days=ca_days,
            now=datetime.now(UTC),
            dry_run=dry_run,
        ),
    )
    action = "kept" if not outcome.created else "would create" if dry_run else "created"
    names, until = hosts_of(outcome.certificate), moment(outcome.certificate.not_valid_after_utc)
    if as_json:
        report = {"action": action, "secret": place.name, "namespace": place.namespace}
        typer.echo(json.dumps({**report, "hosts": list(names), "not_after": until}))
        return
    typer.echo(f"{action} Secret {place.namespace}/{place.name}: {', '.join(names)}, valid until {until}")


@app.command()
def patch(
    webhook_name: Annotated[str, typer.Option(metavar="NAME", help="Name of the webhook configurations.")] = "slotwise",
    secret_name: Annotated[
        str, typer.Option(metavar="NAME", help="The Secret with the CA, as ca.crt or ca.")
    ] = "slotwise-webhook-tls",
    namespace: Annotated[str, typer.Option(help="Namespace of the Secret.")] = _NAMESPACE,
    patch_mutating: Annotated[
        str, typer.Option(metavar="BOOL", help="Write the MutatingWebhookConfiguration of that name.")
    ] = "true",
    patch_validating: Annotated[
        str, typer.Option(metavar="BOOL", help="Write the ValidatingWebhookConfiguration of that name.")
    ] = "true",
    kubeconfig: Kubeconfig = None,
    dry_run: DryRun = False,
    as_json: Annotated[bool, typer.Option("--json", help="Say what was done as one JSON object.")] = False,
) -> None:
    """Copy the CA of a Secret into the caBundle of every webhook of the configurations, so that the API server trusts it.

    Not needed where the webhook keeps its own certificate (--cert-secret), nor with cert-manager's cainjector.

    [bold]Example:[/bold]

    slotwise certs patch --webhook-name=hami-webhook --namespace=kube-system --secret-name=hami-scheduler-tls --patch-validating=false
    """
    mutating, validating = (
        _boolean("--patch-mutating", patch_mutating),
        _boolean("--patch-validating", patch_validating),
    )
    if not mutating and not validating:
        raise _stop("--patch-mutating=false and --patch-validating=false leave nothing to do: keep one of them")
    done = _in_cluster(
        kubeconfig,
        lambda client: patch_webhooks(
            client,
            namespace,
            secret_name,
            webhook_name,
            mutating=mutating,
            validating=validating,
            dry_run=dry_run,
        ),
    )
    if as_json:
        configurations = [{"resource": one.resource.plural, "webhooks": list(one.webhooks)} for one in done]
        typer.echo(json.dumps({"name": webhook_name, "dry_run": dry_run, "configurations": configurations}))
        return
    for one in done:
        if one.webhooks:
            did = "would write" if dry_run else "wrote"
            typer.echo(f"{did} caBundle in {one.resource.plural} {webhook_name}: {', '.join(one.webhooks)}")
        else:
            typer.echo(f"{one.resource.plural} {webhook_name}: every webhook has this CA already")


def _boolean(option: str, text: str) -> bool:
    try:
        return boolean(text)
    except ValueError as error:
        raise _stop(f"{option}: {error}") from error


def _in_cluster(kubeconfig: str | None, work: Callable[[KubeClient], Awaitable[T]]) -> T:
    try:
        return run_on_uvloop(in_cluster(kubeconfig, work))
    except (CertError, ClusterError, ConfigError) as error:
        raise _stop(str(error)) from error
    except KubeError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(_FAILED) from error


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
    except (RefusedError, CertError) as error:
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


def _read(path: Path) -> tuple[x509.Certificate, ...]:
    if path.is_dir():
        raise RefusedError(f"{path} is a folder; name a file, as {path / 'tls.crt'}")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RefusedError(f"{path}: {error.strerror}; name a PEM file that can be read") from error
    if b"PRIVATE KEY-----" in content and b"-----BEGIN CERTIFICATE-----" not in content:
        raise RefusedError(f"{path} is a private key; name the certificate beside it")
    return read_certificates(content, str(path))


def _row(path: Path, certificate: x509.Certificate, now: datetime) -> dict[str, str | int | list[str]]:
    return {
        "file": str(path),
        "subject": certificate.subject.rfc4514_string(),
        "issuer": certificate.issuer.rfc4514_string(),
        "hosts": list(hosts_of(certificate)),
        "not_before": moment(certificate.not_valid_before_utc),
        "not_after": moment(certificate.not_valid_after_utc),
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


def _outcome_json(outcome: Outcome, certificate: Path, key: Path) -> dict[str, str | list[str]]:
    return {
        "action": outcome.action.value,
        "why": outcome.why,
        "certificate": str(certificate),
        "key": str(key),
        "hosts": list(hosts_of(outcome.certificate)),
        "not_after": moment(outcome.certificate.not_valid_after_utc),
    }


def _stop(text: str) -> typer.Exit:
    typer.echo(f"error: {text}", err=True)
    return typer.Exit(_BAD_INPUT)
