"""The webhook's settings, and reading them from the command line (HAMi v2.10's flag names where one exists)."""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from devices.ledger import PLACED, QUOTA_COUNTS
from serving.flags import (
    add_bool_flag,
    add_cluster_flags,
    add_log_flags,
    address,
    duration,
    enabled_families,
    hyphened,
    names,
    value,
)
from webhook.errors import SettingsError

__all__ = ["AdmissionSettings", "Settings", "parse"]

IGNORED_DEVICE_PODS = ("deny", "warn", "allow")
ANY_SCHEDULER = "*"
DEFAULT_NAMESPACE = "slotwise-system"
NAMESPACE_VARIABLE = "POD_NAMESPACE"
KLOG_DEBUG = 4
"""klog's verbosity from which it is chatty."""
_PORT_MAX = 65535


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
class Settings:
    """Everything the service is started with. Raises `SettingsError` for values that do not go together."""

    admission: AdmissionSettings = field(default_factory=AdmissionSettings)
    host: str = "0.0.0.0"
    """Address that `/webhook` and `/validate` listen on."""
    port: int = 8443
    """0 takes a free one."""
    cert_file: Path | None = None
    """PEM chain; without it and the key the port speaks plain HTTP, for tests and behind a proxy that ends TLS."""
    key_file: Path | None = None
    plain_host: str = "0.0.0.0"
    """Address that `/healthz`, `/readyz` and `/metrics` listen on."""
    plain_port: int = 8080
    device_config_file: str = ""
    """YAML of the accelerator families; empty: the shipped defaults."""
    enabled_families: frozenset[str] = frozenset()
    """Which of the families that are off by default are on."""
    node_selector: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Labels a node must have for its cards to count in quota arithmetic and advice."""
    own_namespace: str = DEFAULT_NAMESPACE
    """Slotwise's own namespace, where admissions are recorded with `--quota-counts=admitted`."""
    quota_annotation: bool = False
    """Write what is used into an annotation of each ResourceQuota."""
    kubeconfig: str | None = None
    kube_qps: float = 500.0
    kube_burst: int = 1000
    kube_timeout_s: float = 0.0
    """Longest call to the API server; 0: the client's own bound."""
    drain_timeout_s: float = 25.0
    """What requests under way have to end when the process is told to."""
    debug: bool = False

    def __post_init__(self) -> None:
        if (self.cert_file is None) != (self.key_file is None):
            raise SettingsError("--cert_file and --key_file belong together: give both or neither")
        for flag, port in (("--http_bind", self.port), ("--metrics-bind-address", self.plain_port)):
            if not 0 <= port <= _PORT_MAX:
                raise SettingsError(f"{flag}: port {port} is out of range, accepted are 0 to {_PORT_MAX}")
        if self.kube_timeout_s < 0 or self.drain_timeout_s < 0:
            raise SettingsError("--kube-timeout and --drain-timeout must not be negative")
        if self.kube_qps > 0 and self.kube_burst < 1:
            raise SettingsError(
                f"--kube-burst: {self.kube_burst} is not accepted: with --kube-qps above 0 it must be at least 1"
            )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m webhook",
        description="Admission of device pods: POST /webhook fills in scheduler name, defaults and environment; POST /validate"
        " refuses what must not run (privileged device pods, values that cannot be used, forged allocations, quota).",
        epilog="Example: python -m webhook --cert_file=/tls/tls.crt --key_file=/tls/tls.key --scheduler-name=hami-scheduler"
        " --device-config-file=/device-config.yaml. Flags may be written with '-' or '_'.",
        allow_abbrev=False,
    )
    serve = parser.add_argument_group("serving")
    serve.add_argument(
        "--http-bind",
        "--bind-address",
        type=value(address),
        default=("0.0.0.0", 8443),
        metavar="HOST:PORT",
        help="where /webhook and /validate listen (default 0.0.0.0:8443)",
    )
    serve.add_argument("--cert-file", type=Path, metavar="FILE", help="certificate chain, PEM; re-read when it changes")
    serve.add_argument("--key-file", type=Path, metavar="FILE", help="its key, PEM")
    serve.add_argument(
        "--metrics-bind-address",
        type=value(address),
        default=("0.0.0.0", 8080),
        metavar="HOST:PORT",
        help="where /healthz, /readyz and /metrics listen, plain HTTP (default :8080)",
    )
    serve.add_argument(
        "--drain-timeout",
        type=value(duration),
        default=25.0,
        metavar="DURATION",
        help="what requests under way have to end at SIGTERM (default 25s)",
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
        default=frozenset(),
        metavar="NAME,NAME",
        help="other schedulers that may have device pods, * for all (default none)",
    )
    pods.add_argument(
        "--ignored-device-pods",
        choices=IGNORED_DEVICE_PODS,
        default="deny",
        help="what /validate does to device pods labelled hami.io/webhook: ignore (default deny)",
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
    add_cluster_flags(parser)
    add_log_flags(parser)
    return parser


def parse(argv: Sequence[str], environment: Mapping[str, str] = os.environ) -> Settings:
    """The settings from command line arguments; argparse exits 2 on flags that are unknown or unreadable.

    Raises `SettingsError` for values that are readable but not accepted.
    """
    given = _parser().parse_args([hyphened(argument) for argument in argv])
    return Settings(
        admission=AdmissionSettings(
            scheduler_name=given.scheduler_name,
            force_overwrite_default_scheduler=given.force_overwrite_default_scheduler,
            foreign_schedulers=given.foreign_schedulers,
            ignored_device_pods=given.ignored_device_pods,
            quota_in_webhook=given.quota_in_webhook,
            quota_counts=given.quota_counts,
        ),
        host=given.http_bind[0],
        port=given.http_bind[1],
        cert_file=given.cert_file,
        key_file=given.key_file,
        plain_host=given.metrics_bind_address[0],
        plain_port=given.metrics_bind_address[1],
        device_config_file=given.device_config_file,
        enabled_families=enabled_families(given),
        node_selector=MappingProxyType(given.node_label_selector),
        own_namespace=given.own_namespace or environment.get(NAMESPACE_VARIABLE) or DEFAULT_NAMESPACE,
        quota_annotation=given.quota_annotation,
        kubeconfig=given.kubeconfig,
        kube_qps=given.kube_qps,
        kube_burst=given.kube_burst,
        kube_timeout_s=given.kube_timeout,
        drain_timeout_s=given.drain_timeout,
        debug=given.debug or given.verbosity >= KLOG_DEBUG,
    )
