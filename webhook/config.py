"""The webhook's settings, and reading them from the command line (HAMi v2.10's flag names where one exists)."""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from certs.settings import KeptCertificates
from devices.admission_objects import SCHEDULER_ACCOUNTS, WRITER_ACCOUNTS
from devices.ledger import PLACED, QUOTA_COUNTS
from serving.flags import FlagParser, add_bool_flag, hyphened, names, value
from serving.process import Ports, ProcessSettings, add_process_flags, process_settings
from webhook.certificate_flags import add_certificate_flags, kept_certificates
from webhook.errors import SettingsError

__all__ = ["AdmissionSettings", "Settings", "parse"]

IGNORED_DEVICE_PODS = ("deny", "warn", "allow")
ANY_SCHEDULER = "*"
DEFAULT_NAMESPACE = "slotwise-system"
NAMESPACE_VARIABLE = "POD_NAMESPACE"
FOREIGN_VARIABLE = "SLOTWISE_FOREIGN_SCHEDULERS"
IGNORED_VARIABLE = "SLOTWISE_IGNORED_DEVICE_PODS"
SCHEDULER_ACCOUNTS_VARIABLE = "SLOTWISE_SCHEDULER_ACCOUNTS"
KEY_WRITERS_VARIABLE = "SLOTWISE_KEY_WRITERS"
"""The manifests fill these from the ConfigMap that the admission policy has its parameters from, so that both say the same."""
PORTS = Ports(
    main=("0.0.0.0", 8443),
    main_use="where /webhook and /validate listen",
    plain=("0.0.0.0", 8080),
    plain_use="where /healthz, /readyz, /metrics and /quotas listen",
    drain_s=25.0,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionSettings:
    """What decides about pods. Raises `SettingsError` for a value that is not accepted."""

    scheduler_name: str = "hami-scheduler"
    """Put into device pods; empty: pods keep the scheduler they name."""
    force_overwrite_default_scheduler: bool = True
    """Whether `default-scheduler` counts as no choice of the user's."""
    foreign_schedulers: frozenset[str] = frozenset()
    """Schedulers besides ours that `/validate` lets have device pods; `*` stands for all."""
    ignored_device_pods: str = "deny"
    """What `/validate` does to a pod that asks for a device and carries `hami.io/webhook: ignore`: deny, warn or allow."""
    scheduler_accounts: frozenset[str] = frozenset(SCHEDULER_ACCOUNTS)
    """Users and groups whose Bindings are taken as they are."""
    key_writers: frozenset[str] = frozenset(WRITER_ACCOUNTS)
    """Users and groups that may change what is written by the system alone."""
    quota_in_webhook: bool = False
    """Check quota in `/webhook` too, where no validating webhook is installed."""
    quota_counts: str = PLACED
    """Which pods count as used quota: `placed`, those that hold cards; `admitted`, every live pod from its creation."""

    def __post_init__(self) -> None:
        if self.ignored_device_pods not in IGNORED_DEVICE_PODS:
            raise SettingsError(
                f"--ignored-device-pods: {self.ignored_device_pods!r} is not accepted: expected {', '.join(IGNORED_DEVICE_PODS)}"
            )
        if self.quota_counts not in QUOTA_COUNTS:
            raise SettingsError(
                f"--quota-counts: {self.quota_counts!r} is not accepted: expected {', '.join(QUOTA_COUNTS)}"
            )

    def lets_pass(self, scheduler: str) -> bool:
        """Whether a device pod may go to this scheduler, which is not ours."""
        return ANY_SCHEDULER in self.foreign_schedulers or scheduler in self.foreign_schedulers


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(ProcessSettings):
    """Everything the service is started with. Raises `SettingsError` for values that do not go together.

    Without a certificate its port speaks plain HTTP: for tests, and behind a proxy that ends TLS.
    """

    port: int = PORTS.main[1]
    plain_port: int = PORTS.plain[1]
    drain_timeout_s: float = PORTS.drain_s
    admission: AdmissionSettings = field(default_factory=AdmissionSettings)
    own_namespace: str = DEFAULT_NAMESPACE
    """Slotwise's own namespace, where admissions are recorded with `--quota-counts=admitted`."""
    quota_annotation: bool = False
    """Write what is used into an annotation of each ResourceQuota."""
    certificates: KeptCertificates | None = None
    """Serve a certificate kept in a Secret instead of one in files."""

    def __post_init__(self) -> None:
        for problem in self.unacceptable():
            raise SettingsError(problem)
        if self.certificates is not None and self.cert_file is not None:
            raise SettingsError("a certificate comes from files or from a Secret, not from both")


def _parser() -> argparse.ArgumentParser:
    parser = FlagParser(
        prog="python -m webhook",
        description="Admission of device pods: POST /webhook fills in scheduler name, defaults and environment; POST /validate"
        " refuses what must not run (privileged device pods, values that cannot be used, forged allocations, quota).",
        epilog="Example: python -m webhook --cert_file=/tls/tls.crt --key_file=/tls/tls.key --scheduler-name=hami-scheduler"
        " --device-config-file=/device-config.yaml. Flags may be written with '-' or '_'.",
    )
    pods = parser.add_argument_group("pods")
    pods.add_argument(
        "--scheduler-name", default="hami-scheduler", help="put into device pods (default hami-scheduler)"
    )
    add_bool_flag(
        pods, "--force-overwrite-default-scheduler", True, "take over device pods that name default-scheduler"
    )
    pods.add_argument(
        "--foreign-schedulers",
        type=value(names),
        metavar="NAME,NAME",
        help=f"other schedulers that may have device pods, * for all (default ${FOREIGN_VARIABLE}, else none)",
    )
    pods.add_argument(
        "--ignored-device-pods",
        choices=IGNORED_DEVICE_PODS,
        help="what /validate does to device pods labelled hami.io/webhook: ignore"
        f" (default ${IGNORED_VARIABLE}, else deny)",
    )
    for flag, variable, listed, use in (
        (
            "--scheduler-accounts",
            SCHEDULER_ACCOUNTS_VARIABLE,
            SCHEDULER_ACCOUNTS,
            "whose Bindings are taken as they are",
        ),
        ("--key-writers", KEY_WRITERS_VARIABLE, WRITER_ACCOUNTS, "who may change annotations that are the system's"),
    ):
        pods.add_argument(
            flag,
            type=value(names),
            metavar="NAME,NAME",
            help=f"users and groups {use} (default ${variable}, else {', '.join(listed)})",
        )
    pods.add_argument(
        "--quota-counts",
        default=PLACED,
        help="which pods count as used quota: placed (default), those with cards; admitted, every live pod from its creation",
    )
    pods.add_argument(
        "--own-namespace",
        default="",
        metavar="NAME",
        help=f"Slotwise's namespace, for admission records (default ${NAMESPACE_VARIABLE}, else {DEFAULT_NAMESPACE})",
    )
    add_bool_flag(
        pods, "--quota-annotation", False, "write what is used to the annotation slotwise.io/quota-used of quotas"
    )
    add_bool_flag(pods, "--quota-in-webhook", False, "check quota in /webhook too, beside /validate")
    add_process_flags(parser, PORTS, also=("--bind-address",))
    add_certificate_flags(parser)
    return parser


def _listed(given: frozenset[str] | None, variable: str | None, default: Sequence[str]) -> frozenset[str]:
    """A flag wins over its variable; a variable that is there and empty lists nobody."""
    if given is not None:
        return given
    return frozenset(default) if variable is None else names(variable)


def parse(argv: Sequence[str], environment: Mapping[str, str] = os.environ) -> Settings:
    """The settings from command line arguments; argparse exits 2 on flags that are unknown or unreadable.

    Raises `SettingsError` for values that are readable but not accepted.
    """
    given = _parser().parse_args([hyphened(argument) for argument in argv])
    own_namespace = given.own_namespace or environment.get(NAMESPACE_VARIABLE) or DEFAULT_NAMESPACE
    return Settings(
        admission=AdmissionSettings(
            scheduler_name=given.scheduler_name,
            force_overwrite_default_scheduler=given.force_overwrite_default_scheduler,
            foreign_schedulers=_listed(given.foreign_schedulers, environment.get(FOREIGN_VARIABLE), ()),
            ignored_device_pods=given.ignored_device_pods or environment.get(IGNORED_VARIABLE) or "deny",
            scheduler_accounts=_listed(
                given.scheduler_accounts, environment.get(SCHEDULER_ACCOUNTS_VARIABLE), SCHEDULER_ACCOUNTS
            ),
            key_writers=_listed(given.key_writers, environment.get(KEY_WRITERS_VARIABLE), WRITER_ACCOUNTS),
            quota_in_webhook=given.quota_in_webhook,
            quota_counts=given.quota_counts,
        ),
        own_namespace=own_namespace,
        quota_annotation=given.quota_annotation,
        certificates=kept_certificates(given, own_namespace),
        **process_settings(given),
    )
