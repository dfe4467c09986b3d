"""The extender's settings, and reading them from the command line (HAMi v2.10's flag names where one exists)."""

import argparse
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from devices.kube.freshness import OwnPod, own_pod
from devices.ledger import PLACED, QUOTA_COUNTS
from scheduler.errors import SettingsError
from serving.flags import FlagParser, add_bool_flag, duration, hyphened, value
from serving.process import Ports, ProcessSettings, add_process_flags, process_settings

__all__ = ["CALLER_TIMEOUT_S", "DEFAULT_LOCK_TIMEOUT_S", "Settings", "add_flags", "fields", "lock_timeout_s", "parse"]

NODE_CHOICES = ("extender", "scheduler")
NODE_LOCKS = ("auto", "always", "never")
HANDSHAKES = ("auto", "always", "never")
DEFAULT_LOCK_TIMEOUT_S = 300.0
LOCK_TIMEOUT_VARIABLE = "HAMI_NODELOCK_EXPIRE"
CALLER_TIMEOUT_S = 30.0
"""kube-scheduler's `httpTimeout` in the shipped configuration: every wait must end before it."""


PORTS = Ports(
    main=("127.0.0.1", 8888),
    main_use="where kube-scheduler calls: /filter, /prioritize, /bind",
    plain=("0.0.0.0", 9395),
    plain_use="health, metrics, /decisions and /simulate",
    drain_s=30.0,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(ProcessSettings):
    """Everything the service is started with. Raises `SettingsError` naming flag, value and what is accepted.

    Without a certificate its port speaks plain HTTP, which is right on loopback.
    """

    host: str = PORTS.main[0]
    port: int = PORTS.main[1]
    plain_port: int = PORTS.plain[1]
    drain_timeout_s: float = PORTS.drain_s
    scheduler_name: str = "hami-scheduler"
    """Source of Events."""
    node_scheduler_policy: str = "binpack"
    gpu_scheduler_policy: str = "spread"
    node_choice: str = "extender"
    """`extender`: filter returns one node. `scheduler`: all that fit; the cards are chosen at bind."""
    node_lock: str = "auto"
    """`auto`: take the lock except on nodes annotated `slotwise.io/node-lock: none`."""
    node_lock_timeout_s: float = DEFAULT_LOCK_TIMEOUT_S
    """A node lock older than this is nobody's."""
    node_lock_wait_s: float = 2.0
    """How long a bind waits for the node's lock."""
    node_lock_retry_timeout_s: float = 28.0
    """How long the bind of a gang member waits for it; 0 or less: as any other pod."""
    bind_timeout_s: float = 5.0
    """Longest Binding request, kept by the API server as well."""
    reservation_timeout_s: float = 660.0
    """How long a reservation counts that is not seen bound."""
    handshake: str = "auto"
    """`auto`: answer only device plugins that still use the handshake; `always` as HAMi; `never`."""
    quota_counts: str = PLACED
    """Which pods count as used quota, `placed` or `admitted`: the same as the webhook's."""
    legacy_metrics: bool = False
    """Also the gauges' names from before HAMi 2.10."""
    metrics_max_series: int = 0
    """Most series of cards, pods and quotas on a metrics page; 0: all there are."""
    retry_waiting: float = 20.0
    """Most refused pods a second that kube-scheduler is asked to try again once room was made for them; 0: none."""
    event_nodes: int = 100
    """Up to this many offered nodes the Event of a placement lists all that fit."""
    decisions_kept: int = 512
    """How many decisions can be asked for at `/decisions`."""
    leader_elect: bool = False
    """Decide and bind only while the kube-scheduler beside us holds the Lease."""
    leader_elect_resource_name: str = ""
    leader_elect_resource_namespace: str = ""
    leader_elect_margin_s: float = 1.0
    """What must be left of the Lease beyond a Binding's own time-out."""
    own_pod: OwnPod | None = None
    """The pod this process runs in, which takes the role label and the take-over stamp."""

    def __post_init__(self) -> None:
        for flag, given, accepted in (
            ("--node-choice", self.node_choice, NODE_CHOICES),
            ("--node-lock", self.node_lock, NODE_LOCKS),
            ("--handshake", self.handshake, HANDSHAKES),
            ("--quota-counts", self.quota_counts, QUOTA_COUNTS),
        ):
            if given not in accepted:
                raise SettingsError(f"{flag}: {given!r} is not accepted: expected {', '.join(accepted)}")
        for problem in self.unacceptable():
            raise SettingsError(problem)
        for flag, seconds in (
            ("--node-lock-timeout", self.node_lock_timeout_s),
            ("--bind-timeout", self.bind_timeout_s),
            ("--reservation-timeout", self.reservation_timeout_s),
            ("--leader-elect-margin", self.leader_elect_margin_s),
        ):
            if seconds <= 0:
                raise SettingsError(f"{flag}: {seconds:g} s is not accepted: expected a duration above 0")
        if self.leader_elect:
            self._check_election()
        longest_s = max(self.node_lock_retry_timeout_s, self.node_lock_wait_s)
        if longest_s >= CALLER_TIMEOUT_S:
            raise SettingsError(
                f"--node-lock-retry-timeout, --node-lock-wait: {longest_s:g} s is not accepted: expected less than the"
                f" {CALLER_TIMEOUT_S:g} s for which kube-scheduler waits for an answer"
            )
        for flag, number in (
            ("--event-nodes", self.event_nodes),
            ("--decisions-kept", self.decisions_kept),
            ("--metrics-max-series", self.metrics_max_series),
            ("--retry-waiting", self.retry_waiting),
        ):
            if not 0 <= number < math.inf:
                raise SettingsError(f"{flag}: {number:g} is not accepted: expected 0 or more")

    def _check_election(self) -> None:
        for flag, text, which in (
            ("--leader-elect-resource-name", self.leader_elect_resource_name, "resourceName"),
            ("--leader-elect-resource-namespace", self.leader_elect_resource_namespace, "resourceNamespace"),
        ):
            if not text or "/" in text:
                raise SettingsError(
                    f"{flag}: {text!r} is not accepted: with --leader-elect it must be leaderElection.{which}"
                    " of the kube-scheduler beside this extender"
                )
        if self.own_pod is None:
            raise SettingsError(
                "--leader-elect: $POD_NAME and $POD_NAMESPACE must name the pod this process runs in"
                " (downward API: metadata.name and metadata.namespace)"
            )


_NOT_HERE: Mapping[str, str] = MappingProxyType(
    {
        "--profiling": "there is no pprof in Python; use py-spy on the process",
    }
)
"""Flags of HAMi's that promise what this version does not have: false is taken, true refused."""


def _parser() -> argparse.ArgumentParser:
    parser = FlagParser(
        prog="python -m scheduler",
        description="kube-scheduler extender for shares of accelerators: POST /filter chooses node and cards and reserves them,"
        " POST /bind writes the allocation with the Binding, in one write.",
        epilog="Example: python -m scheduler --http_bind=127.0.0.1:8888 --scheduler-name=hami-scheduler"
        " --device-config-file=/device-config.yaml --gpu-scheduler-policy=binpack. Flags may be written with '-' or '_'.",
    )
    add_flags(parser, PORTS)
    return parser


def add_flags(parser: argparse.ArgumentParser, ports: Ports) -> None:
    """The flags of `Settings`, for this service and for those that hold it; `fields` reads them."""
    placing = parser.add_argument_group("placing")
    placing.add_argument("--scheduler-name", default="hami-scheduler", help="source of Events (default %(default)s)")
    placing.add_argument(
        "--node-scheduler-policy", default="binpack", help="binpack or spread, where a pod names none (default binpack)"
    )
    placing.add_argument(
        "--gpu-scheduler-policy",
        default="spread",
        help="binpack, spread, numa, mutex, topology-aware or a comma chain, where a pod names none (default spread)",
    )
    placing.add_argument(
        "--node-choice",
        default="extender",
        help="extender: filter returns one node; scheduler: all that fit, kube-scheduler chooses (default extender)",
    )
    placing.add_argument(
        "--quota-counts",
        default=PLACED,
        help="which pods count as used quota, as for the webhook: placed (default) or admitted",
    )
    placing.add_argument(
        "--reservation-timeout", type=value(duration), default=660.0, metavar="DURATION", help="default 11m"
    )
    placing.add_argument(
        "--bind-timeout",
        type=value(duration),
        default=5.0,
        metavar="DURATION",
        help="of one Binding request (default 5s)",
    )
    placing.add_argument(
        "--retry-waiting",
        type=float,
        default=20.0,
        metavar="N",
        help="touch at most N refused pods a second once there is room for them, so that kube-scheduler tries them again;"
        " 0: none (default 20)",
    )
    placing.add_argument(
        "--event-nodes", type=int, default=100, metavar="N", help="list all fitting nodes up to N offered (default 100)"
    )
    placing.add_argument(
        "--decisions-kept", type=int, default=512, metavar="N", help="decisions readable at /decisions (default 512)"
    )
    placing.add_argument(
        "--metrics-max-series",
        type=int,
        default=0,
        metavar="NUMBER",
        help="most series of cards, pods and quotas on a metrics page, 0 for all (default 0)",
    )
    plugins = parser.add_argument_group("device plugins")
    plugins.add_argument(
        "--node-lock", default="auto", help="auto, always or never take the node's lock (default auto)"
    )
    plugins.add_argument(
        "--node-lock-timeout",
        type=value(duration),
        default=None,
        metavar="DURATION",
        help=f"expiry of a node lock (default ${LOCK_TIMEOUT_VARIABLE}, else 5m)",
    )
    plugins.add_argument(
        "--node-lock-wait",
        type=value(duration),
        default=2.0,
        metavar="DURATION",
        help="a bind waits so long for the lock (default 2s)",
    )
    plugins.add_argument(
        "--node-lock-retry-timeout",
        type=value(duration),
        default=28.0,
        metavar="DURATION",
        help="a gang member's bind (default 28s)",
    )
    plugins.add_argument(
        "--handshake", default="auto", help="auto, always or never answer the plugins' handshake (default auto)"
    )
    election = parser.add_argument_group("several replicas")
    add_bool_flag(
        election,
        "--leader-elect",
        False,
        "decide and bind only while the kube-scheduler beside this process holds the Lease; needs $POD_NAME and $POD_NAMESPACE",
    )
    election.add_argument(
        "--leader-elect-resource-name", default="", metavar="NAME", help="the Lease that kube-scheduler competes for"
    )
    election.add_argument("--leader-elect-resource-namespace", default="", metavar="NAME", help="its namespace")
    election.add_argument(
        "--leader-elect-margin",
        type=value(duration),
        default=1.0,
        metavar="DURATION",
        help="what must be left of the Lease beyond --bind-timeout for a Binding to go out (default 1s)",
    )
    add_process_flags(parser, ports)
    more = parser.add_argument_group("more of HAMi's flags")
    add_bool_flag(more, "--legacy-metrics", False, "also the metric names from before HAMi 2.10")
    for flag, instead in _NOT_HERE.items():
        add_bool_flag(more, flag, False, f"true is refused: {instead}")


def lock_timeout_s(given: float | None, environment: Mapping[str, str]) -> float:
    """The flag, else the environment, else five minutes. Raises `SettingsError` for a variable that is no duration."""
    if given is not None:
        return given
    text = environment.get(LOCK_TIMEOUT_VARIABLE, "")
    if not text:
        return DEFAULT_LOCK_TIMEOUT_S
    try:
        return duration(text)
    except ValueError as error:
        raise SettingsError(f"${LOCK_TIMEOUT_VARIABLE}: {error}") from error


def parse(argv: Sequence[str], environment: Mapping[str, str] | None = None) -> Settings:
    """The settings from command line arguments; argparse exits 2 on flags that are unknown or unreadable.

    Raises `SettingsError` for values that are readable but not accepted.
    """
    given = _parser().parse_args([hyphened(argument) for argument in argv])
    return Settings(**fields(given, os.environ if environment is None else environment))


def fields(given: argparse.Namespace, environment: Mapping[str, str]) -> dict[str, Any]:
    """The fields of `Settings` as the flags of `add_flags` and the environment give them. Raises `SettingsError`."""
    for flag, instead in _NOT_HERE.items():
        if getattr(given, flag.removeprefix("--").replace("-", "_")):
            raise SettingsError(f"{flag}: true is not available: {instead}")
    return dict(
        scheduler_name=given.scheduler_name,
        node_scheduler_policy=given.node_scheduler_policy,
        gpu_scheduler_policy=given.gpu_scheduler_policy,
        node_choice=given.node_choice,
        node_lock=given.node_lock,
        node_lock_timeout_s=lock_timeout_s(given.node_lock_timeout, environment),
        node_lock_wait_s=given.node_lock_wait,
        node_lock_retry_timeout_s=given.node_lock_retry_timeout,
        bind_timeout_s=given.bind_timeout,
        reservation_timeout_s=given.reservation_timeout,
        handshake=given.handshake,
        quota_counts=given.quota_counts,
        legacy_metrics=given.legacy_metrics,
        metrics_max_series=given.metrics_max_series,
        event_nodes=given.event_nodes,
        retry_waiting=given.retry_waiting,
        decisions_kept=given.decisions_kept,
        leader_elect=given.leader_elect,
        leader_elect_resource_name=given.leader_elect_resource_name,
        leader_elect_resource_namespace=given.leader_elect_resource_namespace,
        leader_elect_margin_s=given.leader_elect_margin,
        own_pod=own_pod(environment),
        **process_settings(given),
    )
