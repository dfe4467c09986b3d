"""Placements a second through a real kube-scheduler with Slotwise, beside those of kube-scheduler alone, in one run.

A private control plane (etcd, kube-apiserver, kube-scheduler) runs on loopback. Each round begins with no pods: kube-scheduler is stopped
(SIGSTOP) while the pods are created, and the clock runs from its release to the moment the last pod is bound.
"""

import asyncio
import contextlib
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from devices.config import default_config
from devices.kube.client import ClientSettings, KubeClient
from devices.kube.config import load_access
from devices.kube.errors import KubeError
from devices.kube.protocols import JsonObject
from devices.kube.resources import NODES, PODS
from devices.managed import managed_resources
from lab.bench.process import BenchError
from lab.control_plane import ADMIN, ControlPlane, Programs, cache_folder
from lab.nodes import node_document, uniform_nodes
from lab.processes import LOOPBACK, Child, StartError, answers
from lab.services import SCHEDULER_NAME

__all__ = ["ClusterBench", "bench_cluster", "find_programs"]

T = TypeVar("T")

PLAIN_RESOURCE: Final = "example.com/card"
_DEFAULT_SCHEDULER: Final = "default-scheduler"
_NAMESPACE: Final = "default"
_AT_ONCE: Final = 24
_START_S: Final = 60.0
_LISTENING: Final = re.compile(r"listening on 127\.0\.0\.1:(\d+), 127\.0\.0\.1:(\d+)")
_QPS: Final = {"qps": 5000, "burst": 10000}
"""kube-scheduler's own limits (50 and 100) would be what is measured."""


@dataclass(frozen=True)
class ClusterBench:
    """How large a cluster, how many pods and rounds, and how long a round may last. Raises `ValueError`."""

    nodes: int = 100
    cards: int = 8
    pods: int = 2000
    rounds: int = 3
    round_timeout_s: float = 300.0

    def __post_init__(self) -> None:
        slots = self.nodes * self.cards * 10
        if self.pods > slots:
            raise ValueError(
                f"--pods: {self.pods} do not fit; {self.nodes} nodes of {self.cards} cards have {slots} slots"
            )


def find_programs(folders: str, environment: Mapping[str, str] = os.environ) -> Programs:
    """etcd, kube-apiserver and kube-scheduler from these folders (as in PATH), else the newest in the cache of the tests.

    Raises `BenchError` naming what is not there, or does not go together, and how to get it.
    """
    cached = sorted(cache_folder(environment).glob("*-*/"), key=_age)
    path = folders or os.pathsep.join((*map(str, cached), environment.get("PATH", "")))
    found = {name: shutil.which(name, path=path) for name in ("etcd", "kube-apiserver", "kube-scheduler")}
    missing = [name for name, place in found.items() if place is None]
    if missing:
        raise BenchError(
            f"{', '.join(missing)} not found: name their folders with --programs DIR[:DIR], or build them from a checkout with"
            " `python -m tests.cluster.build`"
        )
    places = {name: Path(place or "") for name, place in found.items()}
    version, other = (_version(places[name]) for name in ("kube-apiserver", "kube-scheduler"))
    if version != other:
        raise BenchError(
            f"{places['kube-apiserver']} is {version}, {places['kube-scheduler']} is {other}: name a folder that has both"
            " with --programs"
        )
    return Programs(
        etcd=places["etcd"],
        apiserver=places["kube-apiserver"],
        controllers=places["kube-apiserver"].with_name("kube-controller-manager"),
        scheduler=places["kube-scheduler"],
        kubectl=places["kube-apiserver"].with_name("kubectl"),
        version=version,
    )


def _age(folder: Path) -> tuple[bool, list[int]]:
    """By the version in its name, newest first; last what is only being built, which has no kube-scheduler yet."""
    is_begun = (folder / "kube-apiserver").exists() and not (folder / "kube-scheduler").exists()
    return is_begun, [-int(number) for number in re.findall(r"\d+", folder.name)]


def _version(program: Path) -> str:
    """As in `1.37.2`, in the program's own words (`Kubernetes v1.37.2`). Raises `BenchError`."""
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"v(\d\S+)", said)
    if found is None:
        raise BenchError(f"{program} --version tells no version: {said.strip()!r}; name another folder with --programs")
    return found[1]


class _Spec(msgspec.Struct, rename="camel"):
    node_name: str = ""


class _Metadata(msgspec.Struct):
    uid: str = ""


class _Pod(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    spec: _Spec = msgspec.field(default_factory=_Spec)


class _Pods(msgspec.Struct):
    items: list[_Pod] = []


async def bench_cluster(
    bench: ClusterBench, programs: Programs, say: Callable[[str], None] = lambda _: None
) -> dict[str, object]:
    """The figures of all rounds; `ratio` is the median of the rounds' own ratios.

    Raises `BenchError` where a part does not start, a pod is not placed in time, or one was placed where it may not be.
    """
    with tempfile.TemporaryDirectory(prefix="slotwise-bench-") as folder, ExitStack() as stack:
        plane = ControlPlane(programs, Path(folder))
        try:
            say("starting the control plane")
            plane.start(controllers=False)
            stack.callback(plane.stop)
            access = await load_access(str(plane.kubeconfig()))
            settings = ClientSettings(user_agent="slotwise-bench", qps=0, timeout_s=60)
            async with KubeClient(access, settings) as client:
                say(f"creating {bench.nodes} nodes")
                await _create_nodes(client, plane, bench)
                return await _rounds(client, plane, bench, stack, say)
        except (StartError, KubeError) as error:
            raise BenchError(f"{error}\n{plane.report()}") from error


async def _create_nodes(client: KubeClient, plane: ControlPlane, bench: ClusterBench) -> None:
    plain = {PLAIN_RESOURCE: str(bench.cards * 10)}
    specs = [replace(spec, capacity=plain) for spec in uniform_nodes(bench.nodes, bench.cards)]
    await _each(specs, lambda spec: client.create(NODES, node_document(spec)))
    # Every new node is tainted as not ready, and the controller that would take that off does not run here.
    await _each(specs, lambda spec: client.merge_patch(NODES, spec.name, {"spec": {"taints": None}}))


async def _each(items: Iterable[T], work: Callable[[T], Awaitable[object]]) -> None:
    """Some at a time; raises the first error."""
    limit = asyncio.Semaphore(_AT_ONCE)

    async def one(item: T) -> None:
        async with limit:
            await work(item)

    await asyncio.gather(*(one(item) for item in items))


async def _rounds(
    client: KubeClient, plane: ControlPlane, bench: ClusterBench, stack: ExitStack, say: Callable[[str], None]
) -> dict[str, object]:
    extender = _start_extender(plane, stack)
    ours, alone, writes = [], [], []
    for number in range(1, bench.rounds + 1):
        say(f"round {number} of {bench.rounds}: kube-scheduler alone")
        alone.append(await _round(client, plane, bench, _alone(), _plain_pod))
        say(f"round {number} of {bench.rounds}: with Slotwise")
        before = _writes(plane)
        ours.append(await _round(client, plane, bench, _with_slotwise(extender), _device_pod))
        writes.append(_writes(plane) - before)
    return {
        "bench": "cluster",
        "nodes": bench.nodes,
        "cards": bench.cards,
        "pods": bench.pods,
        "rounds": bench.rounds,
        "kubernetes": plane.programs.version,
        "per_second": round(statistics.median(ours), 1),
        "alone_per_second": round(statistics.median(alone), 1),
        "ratio": round(statistics.median(mine / other for mine, other in zip(ours, alone, strict=True)), 3),
        "per_second_of_rounds": [round(rate, 1) for rate in ours],
        "alone_per_second_of_rounds": [round(rate, 1) for rate in alone],
        "writes_per_pod": round(statistics.median(writes) / bench.pods, 3),
    }


def _start_extender(plane: ControlPlane, stack: ExitStack) -> str:
    """Slotwise's extender as a process of its own; returns its base address."""
    child = Child(
        "extender",
        [
            *(sys.executable, "-m", "scheduler", f"--kubeconfig={plane.kubeconfig(ADMIN.name)}"),
            *(f"--http-bind={LOOPBACK}:0", f"--metrics-bind-address={LOOPBACK}:0", "--kube-qps=0"),
        ],
        plane.folder / "extender.log",
        {**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    stack.callback(child.stop)
    child.wait_until(lambda: _LISTENING.search(child.log.read_text()) is not None, _START_S, "it listens")
    found = _LISTENING.search(child.log.read_text())
    assert found is not None
    port, plain = int(found[1]), int(found[2])
    child.wait_until(lambda: answers(plain, "/readyz"), _START_S, "it is ready")
    return f"http://{LOOPBACK}:{port}"


def _alone() -> dict[str, object]:
    return {
        "percentageOfNodesToScore": 100,
        "profiles": [{"schedulerName": _DEFAULT_SCHEDULER}],
        "clientConnection": dict(_QPS),
    }


def _with_slotwise(extender: str) -> dict[str, object]:
    asked = {
        "urlPrefix": extender,
        "filterVerb": "filter",
        "bindVerb": "bind",
        "nodeCacheCapable": True,
        "weight": 1,
        "httpTimeout": "30s",
        "managedResources": managed_resources(default_config()),
    }
    return {**_alone(), "extenders": [asked], "profiles": [{"schedulerName": SCHEDULER_NAME}]}


def _pod(name: str, scheduler: str, limits: Mapping[str, str]) -> JsonObject:
    container = {"name": "main", "image": "registry.k8s.io/pause:3.10", "resources": {"limits": dict(limits)}}
    return {
        "metadata": {"name": name, "namespace": _NAMESPACE},
        "spec": {"schedulerName": scheduler, "containers": [container]},
    }


def _device_pod(name: str) -> JsonObject:
    return _pod(name, SCHEDULER_NAME, {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000"})


def _plain_pod(name: str) -> JsonObject:
    return _pod(name, _DEFAULT_SCHEDULER, {PLAIN_RESOURCE: "1"})


async def _round(
    client: KubeClient,
    plane: ControlPlane,
    bench: ClusterBench,
    configuration: Mapping[str, object],
    pod: Callable[[str], JsonObject],
) -> float:
    """Pods bound a second, from kube-scheduler's release to the last of them. All are deleted afterwards."""
    scheduler = await asyncio.to_thread(plane.start_scheduler, configuration)
    try:
        bound = _Bound(client, bench.pods)
        await bound.start()
        names = [f"p-{number:06}" for number in range(bench.pods)]
        scheduler.signal(signal.SIGSTOP)
        try:
            await _each(names, lambda name: client.create(PODS, pod(name), _NAMESPACE))
        finally:
            scheduler.signal(signal.SIGCONT)
        released = time.monotonic()
        await bound.wait(bench.round_timeout_s)
        rate = bench.pods / (bound.last_at - released)
        await bound.stop()
        await _each(names, lambda name: client.delete(PODS, name, _NAMESPACE, grace_s=0))
        return rate
    finally:
        await asyncio.to_thread(scheduler.stop)


class _Bound:
    """Watches until so many pods are bound, and when the last one was."""

    def __init__(self, client: KubeClient, wanted: int) -> None:
        self._client = client
        self._wanted = wanted
        self._seen: set[str] = set()
        self._complete = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.last_at = 0.0

    async def start(self) -> None:
        """Begin to watch; returns once what was there before is known."""
        version = await self._list()
        self._task = asyncio.create_task(self._follow(version))

    async def _list(self) -> str:
        version = ""
        decoder = msgspec.json.Decoder(_Pods)
        async for page in self._client.list_pages(PODS, _NAMESPACE):
            version = page.resource_version
            for pod in decoder.decode(page.raw).items:
                self._look_at(pod)
        return version

    async def _follow(self, version: str) -> None:
        """The API server ends watches of whoever it finds slow, and on a busy machine that is anybody: list and watch again then."""
        decoder = msgspec.json.Decoder(_Pod)
        while True:
            with contextlib.suppress(KubeError):
                events = self._client.watch(PODS, _NAMESPACE, resource_version=version, timeout_s=3600)
                async with aclosing(events):
                    async for event in events:
                        if event.type in ("ADDED", "MODIFIED"):
                            self._look_at(decoder.decode(event.raw))
            version = await self._list()

    def _look_at(self, pod: _Pod) -> None:
        if pod.spec.node_name and pod.metadata.uid not in self._seen:
            self._seen.add(pod.metadata.uid)
            self.last_at = time.monotonic()
            if len(self._seen) >= self._wanted:
                self._complete.set()

    async def wait(self, timeout_s: float) -> None:
        """Return once all are bound. Raises `BenchError` after the time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._complete.wait()
        except TimeoutError as error:
            raise BenchError(f"after {timeout_s:g} s {len(self._seen)} of {self._wanted} pods are bound") from error

    async def stop(self) -> None:
        """Stop watching."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task


def _writes(plane: ControlPlane) -> int:
    """Writes that kube-scheduler and the extender have made so far, Events apart."""
    return sum(
        call.is_write
        and call.resource != "events"
        and call.user_agent.startswith(("slotwise-scheduler", "kube-scheduler"))
        for call in plane.audited()
    )
