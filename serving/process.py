"""A service as a process of its own: what both have in settings, flags and life, from the command line to the last connection."""

import argparse
import asyncio
import logging
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from prometheus_client import CollectorRegistry

from devices.config import DeviceConfig, default_config, load
from devices.errors import DeviceError
from devices.kube.client import ClientSettings, KubeClient
from devices.kube.config import load_access
from devices.kube.errors import ConfigError, KubeError
from devices.kube.feed import LedgerFeed
from devices.kube.freshness import own_pod
from devices.ledger import Ledger
from serving.collection import Collection, Idle, collecting
from serving.drain import Drain
from serving.errors import ServingError
from serving.flags import (
    add_cluster_flags,
    add_log_flags,
    address,
    duration,
    enabled_families,
    value,
)
from serving.log import start_log
from serving.loop_watch import LoopWatch
from serving.server import Listener, run, serve, stop_on_signals

__all__ = ["Ports", "ProcessSettings", "Service", "add_process_flags", "live", "process_settings", "run_process"]

_BAD_INPUT = 2
_UNREACHABLE = 1
_PORT_MAX = 65535
_KLOG_DEBUG = 4
"""klog's verbosity from which it is chatty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings:
    """What every service is started with; a service adds its own fields and checks `unacceptable` with them."""

    host: str = "0.0.0.0"
    """Address of the port that the API server or kube-scheduler calls."""
    port: int = 0
    """0 takes a free one."""
    cert_file: Path | None = None
    """PEM chain; without it and the key the port speaks plain HTTP."""
    key_file: Path | None = None
    plain_host: str = "0.0.0.0"
    """Address of health, metrics and read-only views."""
    plain_port: int = 0
    device_config_file: str = ""
    """YAML of the accelerator families; empty: the shipped defaults."""
    enabled_families: frozenset[str] = frozenset()
    """Which of the families that are off by default are on."""
    node_selector: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Labels a node must have for its cards to count."""
    kubeconfig: str | None = None
    kube_qps: float = 500.0
    kube_burst: int = 1000
    kube_timeout_s: float = 0.0
    """Longest call to the API server; 0: the client's own bound."""
    drain_timeout_s: float = 25.0
    """What requests under way have to end when the process is told to."""
    debug: bool = False

    def unacceptable(self) -> Iterator[str]:
        """What of these values is not accepted, naming flag, value and what is."""
        if (self.cert_file is None) != (self.key_file is None):
            yield "--cert_file and --key_file belong together: give both or neither"
        for flag, port in (("--http_bind", self.port), ("--metrics-bind-address", self.plain_port)):
            if not 0 <= port <= _PORT_MAX:
                yield f"{flag}: port {port} is out of range, accepted are 0 to {_PORT_MAX}"
        if self.kube_timeout_s < 0:
            yield f"--kube-timeout: {self.kube_timeout_s:g} s is not accepted: expected 0 or more"
        if self.kube_qps > 0 and self.kube_burst < 1:
            yield f"--kube-burst: {self.kube_burst} is not accepted: with --kube-qps above 0 it must be at least 1"
        if self.drain_timeout_s <= 0:
            yield f"--drain-timeout: {self.drain_timeout_s:g} s is not accepted: expected a duration above 0"


@dataclass(frozen=True, slots=True)
class Ports:
    """Where a service listens by default, and what its two ports are for."""

    main: tuple[str, int]
    main_use: str
    plain: tuple[str, int]
    plain_use: str
    drain_s: float


def add_process_flags(parser: argparse.ArgumentParser, ports: Ports, also: Sequence[str] = ()) -> None:
    """The flags of `ProcessSettings`; `also` are further names of `--http-bind`."""
    serving = parser.add_argument_group("serving")
    serving.add_argument(
        "--http-bind",
        *also,
        type=value(address),
        default=ports.main,
        metavar="HOST:PORT",
        help=f"{ports.main_use} (default {ports.main[0]}:{ports.main[1]})",
    )
    serving.add_argument(
        "--cert-file", type=Path, metavar="FILE", help="certificate chain, PEM; re-read when it changes"
    )
    serving.add_argument("--key-file", type=Path, metavar="FILE", help="its key, PEM")
    serving.add_argument(
        "--metrics-bind-address",
        type=value(address),
        default=ports.plain,
        metavar="HOST:PORT",
        help=f"{ports.plain_use}, plain HTTP (default :{ports.plain[1]})",
    )
    serving.add_argument(
        "--drain-timeout",
        type=value(duration),
        default=ports.drain_s,
        metavar="DURATION",
        help=f"what requests under way have to end at SIGTERM (default {ports.drain_s:g}s)",
    )
    add_cluster_flags(parser)
    add_log_flags(parser)


def process_settings(given: argparse.Namespace) -> dict[str, Any]:
    """The fields of `ProcessSettings` as the flags of `add_process_flags` give them."""
    return {
        "host": given.http_bind[0],
        "port": given.http_bind[1],
        "cert_file": given.cert_file,
        "key_file": given.key_file,
        "plain_host": given.metrics_bind_address[0],
        "plain_port": given.metrics_bind_address[1],
        "device_config_file": given.device_config_file,
        "enabled_families": enabled_families(given),
        "node_selector": MappingProxyType(given.node_label_selector),
        "kubeconfig": given.kubeconfig,
        "kube_qps": given.kube_qps,
        "kube_burst": given.kube_burst,
        "kube_timeout_s": given.kube_timeout,
        "drain_timeout_s": given.drain_timeout,
        "debug": given.debug or given.verbosity >= _KLOG_DEBUG,
    }


class Service(Protocol):
    """What a process runs."""

    @property
    def drain(self) -> Drain: ...
    def listeners(self) -> list[Listener]: ...
    async def start(self) -> None: ...
    async def stop(self) -> None: ...


S = TypeVar("S", bound=ProcessSettings)
Compose = Callable[[S, KubeClient, Ledger, LedgerFeed, CollectorRegistry], Service]


def _device_config(settings: ProcessSettings, log: logging.Logger) -> DeviceConfig:
    path, enabled = settings.device_config_file, settings.enabled_families
    config = load(path, enabled) if path else default_config(enabled)
    for warning in config.warnings:
        log.warning("%s: %s", path, warning)
    return config


async def live(settings: S, name: str, books: Callable[[S, DeviceConfig], Ledger], compose: Compose[S]) -> None:
    """A service's life until it is told to stop: `books` makes its ledger, `compose` the service around it.

    Raises `DeviceError` and `ConfigError` for files that cannot be used, `KubeError` where the cluster cannot be reached.
    """
    log = logging.getLogger(name)
    ledger = books(settings, _device_config(settings, log))
    client_settings = ClientSettings(
        user_agent=f"slotwise-{name}",
        timeout_s=settings.kube_timeout_s,
        qps=settings.kube_qps,
        burst=settings.kube_burst,
    )
    stop, registry = asyncio.Event(), CollectorRegistry()
    access = await load_access(settings.kubeconfig)
    async with KubeClient(access, client_settings, registry=registry) as client:
        feed = LedgerFeed(client, ledger, time.time, own_pod=own_pod(), registry=registry)
        service = compose(settings, client, ledger, feed, registry)
        idle = Idle()
        with stop_on_signals(stop), collecting(Collection(idle, registry), feed.wait_synced):
            watching = asyncio.create_task(LoopWatch(registry).run())
            await feed.start()
            await service.start()
            try:
                listeners = service.listeners()
                idle.follow(listeners[0].app)
                await serve(
                    listeners,
                    stop=stop,
                    drain=service.drain,
                    drain_timeout_s=settings.drain_timeout_s,
                    on_bound=lambda addresses: log.info(
                        "listening on %s", ", ".join(f"{host}:{port}" for host, port in addresses)
                    ),
                    handle_signals=False,
                )
            finally:
                await service.stop()
                await feed.stop()
                watching.cancel()


def run_process(
    name: str,
    argv: Sequence[str] | None,
    parse: Callable[[Sequence[str]], S],
    service: Callable[[S], Coroutine[object, None, None]],
    bad_input: type[Exception],
) -> int:
    """Run `service` (see `live`) with the settings of the command line.

    Exit status 2 for flags or files that cannot be used (errors of type `bad_input` among them), 1 where the cluster cannot be
    reached; the reason goes to standard error.
    """
    try:
        settings = parse(sys.argv[1:] if argv is None else argv)
        start_log(logging.DEBUG if settings.debug else logging.INFO)
        run(service(settings))
    except (bad_input, DeviceError, ServingError, ConfigError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return _BAD_INPUT
    except KubeError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return _UNREACHABLE
    return 0
