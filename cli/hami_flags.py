"""The command line of HAMi's extender container, as its chart writes it, read into the settings of both services."""

import argparse
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import scheduler.config
from devices.ledger import PLACED
from scheduler.errors import SettingsError
from serving.flags import FlagParser, add_bool_flag, boolean, duration_text, hyphened, value
from serving.process import Ports
from webhook.config import ANY_SCHEDULER, AdmissionSettings

__all__ = ["PORTS", "Settings", "new_parser", "parse"]

PORTS: Final = Ports(
    main=("127.0.0.1", 8080),
    main_use="/filter, /bind, /webhook, /healthz, /readyz",
    plain=("0.0.0.0", 9395),
    plain_use="metrics, /decisions, /quotas, /simulate",
    # The chart leaves Kubernetes' 30 s until SIGKILL; what is cancelled at the end of the drain needs some of them.
    drain_s=25.0,
)
_LONGEST_LOCK_WAIT_S: Final = scheduler.config.CALLER_TIMEOUT_S - 1

_KLOG_BOOLEANS: Final = (
    "--add-dir-header",
    "--alsologtostderr",
    "--logtostderr",
    "--one-output",
    "--skip-headers",
    "--skip-log-headers",
)
_KLOG_VALUES: Final = (
    "--log-backtrace-at",
    "--log-dir",
    "--log-file",
    "--log-file-max-size",
    "--stderrthreshold",
    "--vmodule",
)
_NAME_FLAG: Final = re.compile(r"--(cambricon-mlu|dcu|mthreads|metax|kunlun|enflame)-[a-z-]+")
"""Resource names as flags: HAMi overrides them with the device configuration, too."""
_SWITCHES: Final[Mapping[str, str]] = {
    "--profiling": "there is no pprof in Python; use py-spy on the process",
    "--sgpu-topology-aware": "the device configuration says it: metax.sgpuTopologyAware",
}
"""Booleans of HAMi's that change nothing here, and what to do instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(scheduler.config.Settings):
    """Everything the process is started with: the extender's settings and what decides about pods."""

    admission: AdmissionSettings = field(default_factory=AdmissionSettings)
    notices: tuple[str, ...] = ()
    """What of the command line has no effect, or another than asked, for the log."""


def new_parser() -> argparse.ArgumentParser:
    """Every flag but those of resource names, which only the pattern knows."""
    parser = FlagParser(
        prog="scheduler",
        description="Slotwise in the place of HAMi's extender: admission (/webhook) and placing (/filter, /bind) in one process, with"
        " HAMi's flags and rights. `scheduler version` prints the version.",
        epilog="Example: scheduler --http_bind=0.0.0.0:443 --cert_file=/tls/tls.crt --key_file=/tls/tls.key"
        " --scheduler-name=hami-scheduler --device-config-file=/device-config.yaml --leader-elect=true"
        " --leader-elect-resource-name=hami-scheduler --leader-elect-resource-namespace=kube-system."
        " Flags may be written with '-' or '_'. Also taken, without effect: klog's flags beside -v, and resource names as flags"
        " (--dcu-name=…), which the device configuration overrides in HAMi as well.",
    )
    pods = parser.add_argument_group("pods")
    add_bool_flag(
        pods, "--force-overwrite-default-scheduler", True, "take over device pods that name default-scheduler"
    )
    scheduler.config.add_flags(parser, PORTS)
    parser.set_defaults(scheduler_name="")
    for flag in _KLOG_BOOLEANS:
        parser.add_argument(flag, type=value(boolean), nargs="?", const=True, help=argparse.SUPPRESS)
    for flag in _KLOG_VALUES:
        parser.add_argument(flag, help=argparse.SUPPRESS)
    parser.add_argument("--sgpu-topology-aware", type=value(boolean), nargs="?", const=True, help=argparse.SUPPRESS)
    return parser


def parse(argv: Sequence[str], environment: Mapping[str, str] = os.environ) -> Settings:
    """The settings from command line and environment; argparse exits 2 on flags that are unknown or unreadable.

    Raises `SettingsError` for values that are readable but not accepted.
    """
    notices: list[str] = []
    given = new_parser().parse_args(list(_without_names([hyphened(argument) for argument in argv], notices)))
    notices += [f"{flag} has no effect here" for flag in (*_KLOG_BOOLEANS, *_KLOG_VALUES) if _get(given, flag)]
    notices += [f"{flag} has no effect here: {instead}" for flag, instead in _SWITCHES.items() if _get(given, flag)]
    given.profiling = False
    if given.quota_counts != PLACED:
        raise SettingsError(
            f"--quota-counts: {given.quota_counts!r} is not accepted here: HAMi's account may not write the records that need it."
            " Install Slotwise's own manifests for it"
        )
    if given.node_lock_retry_timeout > _LONGEST_LOCK_WAIT_S:
        asked, longest = duration_text(given.node_lock_retry_timeout), duration_text(_LONGEST_LOCK_WAIT_S)
        notices.append(
            f"--node-lock-retry-timeout: {longest} instead of {asked}, so that a bind ends before its caller gives up"
        )
        given.node_lock_retry_timeout = _LONGEST_LOCK_WAIT_S
    try:
        given.node_lock_timeout = scheduler.config.lock_timeout_s(given.node_lock_timeout, environment)
    except SettingsError as error:
        # HAMi never looks at it, so whatever stands there has worked until now.
        given.node_lock_timeout = scheduler.config.DEFAULT_LOCK_TIMEOUT_S
        notices.append(f"{error}; {duration_text(given.node_lock_timeout)} instead")
    admission = AdmissionSettings(
        scheduler_name=given.scheduler_name,
        force_overwrite_default_scheduler=given.force_overwrite_default_scheduler,
        # As HAMi, which has no validating webhook: pods of others, and pods kept away from the webhook, are let through.
        foreign_schedulers=frozenset({ANY_SCHEDULER}),
        ignored_device_pods="allow",
        quota_counts=PLACED,
    )
    return Settings(**scheduler.config.fields(given, environment), admission=admission, notices=tuple(notices))


def _get(given: argparse.Namespace, flag: str) -> object:
    return getattr(given, flag.removeprefix("--").replace("-", "_"))


def _without_names(argv: Sequence[str], notices: list[str]) -> Iterator[str]:
    """The arguments without resource names, each of which leaves a notice. Raises `SettingsError` for one without its value."""
    rest = iter(argv)
    for argument in rest:
        flag, equals, _ = argument.partition("=")
        if not _NAME_FLAG.fullmatch(flag):
            yield argument
            continue
        if not equals and next(rest, None) is None:
            raise SettingsError(f"{flag}: a value is missing: expected a resource name")
        notices.append(f"{flag} has no effect: resource names come from the device configuration, as with HAMi")
