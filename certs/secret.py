"""What a Secret with a CA and a serving certificate has to hold next: a plain function of what is there, seen and asked for.

A CA is replaced in steps, so that at each moment everybody trusts what anybody serves:

1. a new CA joins the trusted ones (`ca.crt`), its key waits under `next-ca.key`;
2. once it has been in every `caBundle` for the overlap, it takes over (`ca.key`) and signs a new serving certificate;
3. once that has been in the Secret for the overlap, the old CA leaves.

A part that is absent asks for a new one; one that cannot be read is damage, and what was there before is put back.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization

from certs.errors import CertError, KeyMismatchError
from certs.pki import Pair, create_ca, issue_serving, read_ca, read_certificates, read_pair
from certs.renewal import Why, decide, held
from certs.settings import KeptCertificates

__all__ = [
    "CA",
    "CA_KEY",
    "CERTIFICATE",
    "KEY",
    "NEXT_CA_KEY",
    "Contents",
    "Observed",
    "Plan",
    "fingerprint",
    "pem_of",
    "plan",
    "read",
]

CA: Final = "ca.crt"
CA_KEY: Final = "ca.key"
NEXT_CA_KEY: Final = "next-ca.key"
CERTIFICATE: Final = "tls.crt"
KEY: Final = "tls.key"

_PARTS: Final = (CA, CA_KEY, NEXT_CA_KEY, CERTIFICATE, KEY)


@dataclass(frozen=True)
class Contents:
    """What a Secret holds, as far as it can be read; `problems` name the parts that cannot."""

    trusted: tuple[x509.Certificate, ...] = ()
    """Every CA that clients are told to trust, the newest first."""
    signing: Pair | None = None
    """The CA that signs."""
    upcoming: Pair | None = None
    """The CA that will sign."""
    serving: Pair | None = None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Observed:
    """What whoever asks has seen itself, without a gap, in seconds of its own clock."""

    published_s: Mapping[bytes, float]
    """By fingerprint of a CA: how long every `caBundle` has held it."""
    served_s: float
    """How long the Secret has held the serving certificate that it holds."""


@dataclass(frozen=True)
class Plan:
    """What the Secret must hold, and what changes by that and why; nothing in `changes`: it stays as it is."""

    data: Mapping[str, bytes]
    changes: tuple[str, ...]
    next_look_s: float
    """Seconds after which time alone may ask for the next change."""


def fingerprint(certificate: x509.Certificate) -> bytes:
    """What a certificate is told by."""
    return certificate.fingerprint(hashes.SHA256())


def read(data: Mapping[str, bytes], source: str) -> Contents:
    """The parts of a Secret called `source`; never raises for what is in it."""
    problems: list[str] = []
    trusted: tuple[x509.Certificate, ...] = ()
    serving: Pair | None = None
    if CA in data:
        try:
            found = read_certificates(data[CA], f"{source}: {CA}")
            trusted = tuple(read_ca(pem_of([certificate]), f"{source}: {CA}") for certificate in found)
        except CertError as error:
            problems.append(str(error))
    if CERTIFICATE in data or KEY in data:
        try:
            serving = read_pair(
                data.get(CERTIFICATE, b""),
                data.get(KEY, b""),
                certificate_source=f"{source}: {CERTIFICATE}",
                key_source=f"{source}: {KEY}",
            )
        except CertError as error:
            problems.append(str(error))
    signing = _authority(data, CA_KEY, trusted, source, problems)
    upcoming = _authority(data, NEXT_CA_KEY, trusted, source, problems)
    return Contents(trusted, signing, upcoming, serving, tuple(problems))


def _authority(
    data: Mapping[str, bytes], part: str, trusted: Iterable[x509.Certificate], source: str, problems: list[str]
) -> Pair | None:
    if part not in data:
        return None
    for certificate in trusted:
        try:
            return read_pair(pem_of([certificate]), data[part], certificate_source=CA, key_source=f"{source}: {part}")
        except KeyMismatchError:
            continue
        except CertError as error:
            problems.append(str(error))
            return None
    problems.append(f"{source}: {part}: the key belongs to no certificate in {CA}")
    return None


def pem_of(certificates: Iterable[x509.Certificate]) -> bytes:
    """The certificates one after the other, as PEM."""
    return b"".join(certificate.public_bytes(serialization.Encoding.PEM) for certificate in certificates)


def plan(
    data: Mapping[str, bytes] | None,
    *,
    now: datetime,
    settings: KeptCertificates,
    observed: Observed,
    remembered: Mapping[str, bytes] | None = None,
) -> Plan:
    """What a Secret that holds `data` (None: there is no such Secret) must hold.

    `remembered` is what it held when it was last without fault; it is put back where the Secret is gone or damaged. Keys
    of the Secret that are not ours stay. Where no change is due the data comes back as it is.
    """
    changes: list[str] = []
    before = dict(data or {})
    contents = read(before, settings.secret)
    if data is None or contents.problems:
        why = "; ".join(contents.problems) or "the Secret was missing"
        if remembered is not None:
            before = {**before, **remembered}
            contents = read(before, settings.secret)
            changes.append(f"put back what was there ({why})")
        elif contents.problems:
            changes.append(f"replaced what could not be read ({why})")
    rotation = _Rotation(contents, now, settings, observed, changes, fresh=bool(changes))
    rotation.choose_authority()
    rotation.choose_serving()
    rotation.forget_authorities()
    if not changes:
        return Plan(before, (), rotation.next_look_s())
    kept = {key: value for key, value in before.items() if key not in _PARTS}
    return Plan({**kept, **rotation.data()}, tuple(changes), rotation.next_look_s())


class _Rotation:
    """One pass over the steps above; what is decided goes to `changes`."""

    def __init__(
        self,
        contents: Contents,
        now: datetime,
        settings: KeptCertificates,
        observed: Observed,
        changes: list[str],
        *,
        fresh: bool,
    ) -> None:
        self._now = now
        self._settings = settings
        self._observed = observed
        self._changes = changes
        self._served_s = 0.0 if fresh else observed.served_s
        self._looks_s: list[float] = []
        self.trusted = [certificate for certificate in contents.trusted if self._lasts(certificate)]
        for certificate in contents.trusted:
            if certificate not in self.trusted:
                changes.append(f"CA {_shown(certificate)} has expired: no longer trusted")
        self.signing = self._lasting(contents.signing)
        self.upcoming = self._lasting(contents.upcoming)
        serving = self._lasting(contents.serving)
        self.serving = serving if serving is not None and self._issuer(serving) is not None else None
        self._had_serving = contents.serving is not None

    def _lasts(self, certificate: x509.Certificate) -> bool:
        return self._now < certificate.not_valid_after_utc

    def _lasting(self, pair: Pair | None) -> Pair | None:
        return pair if pair is not None and self._lasts(pair.certificate) else None

    def _issuer(self, pair: Pair) -> x509.Certificate | None:
        for certificate in self.trusted:
            try:
                pair.certificate.verify_directly_issued_by(certificate)
            except (ValueError, TypeError, InvalidSignature):
                continue
            return certificate
        return None

    def choose_authority(self) -> None:
        """Steps 1 and 2: which CA signs, and which will."""
        if self.signing is None and self.upcoming is None:
            authority = self._new_authority()
            if self.serving is None:
                self.signing = authority
                self._changes.append(f"made CA {_shown(authority.certificate)}")
            else:
                self.upcoming = authority
                self._changes.append(
                    f"made CA {_shown(authority.certificate)}, since the key of the CA in use is not there"
                )
        elif self.upcoming is None and self.signing is not None and self._is_due(self.signing):
            self.upcoming = self._new_authority()
            self._changes.append(
                f"made CA {_shown(self.upcoming.certificate)}, since {_shown(self.signing.certificate)} is due"
            )
        elif self.upcoming is not None:
            left_s = self._settings.overlap_s - self._observed.published_s.get(
                fingerprint(self.upcoming.certificate), 0.0
            )
            # Without a certificate that anybody trusts there is nothing to keep up.
            if left_s <= 0 or (self.signing is None and self.serving is None):
                self.signing, self.upcoming = self.upcoming, None
                self._changes.append(f"CA {_shown(self.signing.certificate)} signs from now on")
            else:
                self._looks_s.append(left_s)

    def _is_due(self, authority: Pair) -> bool:
        renewal = decide(
            held(authority.certificate, authority.certificate),
            now=self._now,
            needed_hosts=(),
            renew_before=self._settings.renew_ca_before,
        )
        # One that is not valid yet is so for us alone: our clock is behind that of whoever made it.
        if renewal.renew and renewal.why is not Why.NOT_YET_VALID:
            return True
        self._looks_s.append((renewal.due - self._now).total_seconds())
        return False

    def _new_authority(self) -> Pair:
        name = f"slotwise CA {self._now:%Y-%m-%dT%H:%M:%SZ}"
        authority = create_ca(name, now=self._now, days=self._settings.ca_days)
        self.trusted.insert(0, authority.certificate)
        return authority

    def choose_serving(self) -> None:
        """A serving certificate of the CA that signs."""
        if self.signing is None:
            if self.serving is not None:
                self._looks_s.append((self.serving.certificate.not_valid_after_utc - self._now).total_seconds())
            return
        why = "there was none that anybody trusts" if self._had_serving else "there was none"
        if self.serving is not None:
            renewal = decide(
                held(self.serving.certificate, self.signing.certificate),
                now=self._now,
                needed_hosts=self._settings.hosts,
                renew_before=self._settings.renew_before,
            )
            if not renewal.renew or renewal.why is Why.NOT_YET_VALID:
                self._looks_s.append((renewal.due - self._now).total_seconds())
                return
            missing = f": {', '.join(renewal.missing)}" if renewal.missing else ""
            why = f"the old one: {renewal.why.value}{missing}"
        self.serving = issue_serving(self.signing, self._settings.hosts, now=self._now, days=self._settings.cert_days)
        self._served_s = 0.0
        certificate = self.serving.certificate
        self._changes.append(f"issued certificate {_shown(certificate)} ({why})")
        left = certificate.not_valid_after_utc - self._now
        self._looks_s.append(max(left - self._settings.renew_before, left / 2).total_seconds())

    def forget_authorities(self) -> None:
        """Step 3: CAs leave that neither sign, nor will, nor have signed what may still be served."""
        needed = {fingerprint(pair.certificate) for pair in (self.signing, self.upcoming) if pair is not None}
        if self.serving is not None and (issuer := self._issuer(self.serving)) is not None:
            needed.add(fingerprint(issuer))
        spare = [certificate for certificate in self.trusted if fingerprint(certificate) not in needed]
        if not spare:
            return
        left_s = self._settings.overlap_s - self._served_s
        if left_s > 0 or self.serving is None:
            self._looks_s.append(left_s)
            return
        for certificate in spare:
            self.trusted.remove(certificate)
            self._changes.append(f"CA {_shown(certificate)} has signed nothing that is served: no longer trusted")

    def data(self) -> dict[str, bytes]:
        """The parts as they are now."""
        parts = {CA: pem_of(self.trusted)}
        if self.signing is not None:
            parts[CA_KEY] = self.signing.key_pem()
        if self.upcoming is not None:
            parts[NEXT_CA_KEY] = self.upcoming.key_pem()
        if self.serving is not None:
            parts[CERTIFICATE] = self.serving.certificate_pem()
            parts[KEY] = self.serving.key_pem()
        return parts

    def next_look_s(self) -> float:
        """Seconds until the first of the moments that the steps wait for; something always is."""
        ends = [(certificate.not_valid_after_utc - self._now).total_seconds() for certificate in self.trusted]
        return max(0.0, min([*self._looks_s, *ends], default=timedelta(hours=1).total_seconds()))


def _shown(certificate: x509.Certificate) -> str:
    return f"{certificate.serial_number:x} (until {certificate.not_valid_after_utc:%Y-%m-%dT%H:%M:%SZ})"
