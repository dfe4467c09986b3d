"""The CA and the serving certificate in a folder: made, kept or renewed."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography import x509

from certs.errors import CertError
from certs.files import write_pair
from certs.pki import Pair, create_ca, issue_serving, read_ca, read_pair, san_of
from certs.renewal import Renewal, decide, held

__all__ = ["Outcome", "Paths", "RefusedError", "create_in_folder", "moment"]

_CA_NAME = "slotwise CA"


class Action(enum.Enum):
    """What `create` did with one of the two pairs."""

    CREATED = "created"
    RENEWED = "renewed"
    KEPT = "kept"


@dataclass(frozen=True)
class Paths:
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
class Outcome:
    """One pair after `create`: what was done with it, why, and the certificate that is there now."""

    action: Action
    why: str
    certificate: x509.Certificate


class RefusedError(Exception):
    """Input that leads nowhere; the text tells what is wrong and how to repair it."""


def create_in_folder(
    paths: Paths, hosts: Sequence[str], *, days: int, ca_days: int, force: bool, now: datetime
) -> tuple[Outcome, Outcome]:
    """What became of the CA and of the serving certificate. Raises `RefusedError`, `CertError`, OSError."""
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
        raise RefusedError(f"{error}; put the right file there, or start over with --force (new CA too)") from error


def _keep_or_renew(
    paths: Paths, hosts: Sequence[str], *, days: int, ca_days: int, now: datetime
) -> tuple[Outcome, Outcome]:
    authority = read_ca(_bytes(paths.ca_certificate), str(paths.ca_certificate))
    authority_renewal = decide(held(authority, authority), now=now, needed_hosts=())
    if authority_renewal.renew:
        ca = create_ca(_CA_NAME, now=now, days=ca_days)
        serving = issue_serving(ca, hosts, now=now, days=days)
        return _write_both(
            paths, ca, Action.RENEWED, f"the old CA was {_why(authority_renewal)}", serving, "signed by the new CA"
        )
    kept_ca = Outcome(Action.KEPT, _why(authority_renewal), authority)
    why = "none was there"
    action = Action.CREATED
    if paths.certificate.exists() or paths.key.exists():
        current = _read_pair(paths.certificate, paths.key).certificate
        renewal = decide(held(current, authority), now=now, needed_hosts=hosts)
        if not renewal.renew:
            return kept_ca, Outcome(Action.KEPT, _why(renewal), current)
        why = f"the old one was {_why(renewal)}" if not renewal.missing else _why(renewal)
        action = Action.RENEWED
    serving = issue_serving(_read_pair(paths.ca_certificate, paths.ca_key), hosts, now=now, days=days)
    write_pair(serving, paths.certificate, paths.key)
    return kept_ca, Outcome(action, why, serving.certificate)


def _write_both(
    paths: Paths, ca: Pair, action: Action, ca_why: str, serving: Pair, serving_why: str
) -> tuple[Outcome, Outcome]:
    paths.folder.mkdir(parents=True, exist_ok=True)
    write_pair(ca, paths.ca_certificate, paths.ca_key)
    write_pair(serving, paths.certificate, paths.key)
    return Outcome(action, ca_why, ca.certificate), Outcome(action, serving_why, serving.certificate)


def _why(renewal: Renewal) -> str:
    missing = f": {', '.join(renewal.missing)}" if renewal.missing else ""
    return f"{renewal.why.value}{missing}" if renewal.renew else f"{renewal.why.value}, due {moment(renewal.due)}"


def _read_pair(certificate: Path, key: Path) -> Pair:
    return read_pair(_bytes(certificate), _bytes(key), certificate_source=str(certificate), key_source=str(key))


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise RefusedError(
            f"{path} is missing while others of its folder are there; put it back, or --force"
        ) from error


def moment(moment: datetime) -> str:
    """As every output of the command shows one."""
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"
