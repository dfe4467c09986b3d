"""Playing a scenario: the services' own admission, engine, binder and ledger on the scenario's cluster."""

import asyncio
import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from devices.config import DeviceConfig, default_config, optional_families, read
from devices.errors import AllocationError, BindingMetadataError, ConfigError
from devices.keys import VGPU_NODE
from devices.ledger import Ledger, decode_allocation
from devices.model import NO_CHARGE
from devices.objects import Pod, pod_of
from lab.replay.cluster import Cluster, StillClock, merge_patch
from lab.replay.compare import differences
from lab.replay.errors import ReplayError
from lab.replay.scenario import FLAGS, Json, Scenario, Step
from scheduler.allocate import carried
from scheduler.ask import Defaults
from scheduler.bind import BindRequest, BindSettings, PodBinder
from scheduler.diagnosis import EventText
from scheduler.engine import Engine
from scheduler.errors import BindError
from scheduler.nodelock import LockSettings, NodeLocks, lock_formats
from serving.flags import duration, labels
from webhook.admission import Admission
from webhook.config import AdmissionSettings

__all__ = ["Difference", "Played", "play"]

_EVERY_NODE = 1_000_000
_ENABLE = "enable-"
"""Beginning of the flags that switch on families which are off by default."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One step that came out otherwise."""

    step: int
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Played:
    """A scenario after playing: its differences, and the document with what came in place of what was expected."""

    scenario: Scenario
    differences: tuple[Difference, ...]
    came: Json


class _Said:
    """An event sink that keeps what was said of each pod."""

    def __init__(self) -> None:
        self.events: list[list[str]] = []

    def emit(self, pod: Pod, event: EventText) -> None:
        self.events.append([event.type, event.reason, event.message])

    def later(self, work: Callable[[], None]) -> None:
        work()


def _config(scenario: Scenario) -> DeviceConfig:
    wanted = [name.removeprefix(_ENABLE) for name, on in scenario.flags.items() if name.startswith(_ENABLE) and on]
    enabled = [family for family in wanted if family in optional_families()]
    if enabled != wanted:
        raise ReplayError(f"{scenario.where}.flags: {', '.join(wanted)}: a family is not in this version")
    try:
        config = read(json.dumps(scenario.device_config), enabled)
    except ConfigError as error:
        raise ReplayError(f"{scenario.where}.device_config: {error}") from error
    if config.warnings:
        raise ReplayError(f"{scenario.where}.device_config: {config.warnings[0]}")
    return config


def _text(flags: Mapping[str, object], name: str) -> str:
    return str(flags[name])


class _Player:
    """Everything that lives for one scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        flags = {**FLAGS, **scenario.flags}
        self._config = _config(scenario)
        try:
            selector = labels(_text(flags, "node-label-selector"))
            expiry_s = duration(_text(flags, "node-lock-timeout"))
            gang_wait_s = duration(_text(flags, "node-lock-retry-timeout"))
        except ValueError as error:
            raise ReplayError(f"{scenario.where}.flags: {error}") from error
        clock = self._clock = StillClock()
        self._ledger = Ledger(self._config, selector)
        self._cluster = Cluster(self._ledger, clock)
        self._admission = Admission(
            AdmissionSettings(
                scheduler_name=_text(flags, "scheduler-name"),
                force_overwrite_default_scheduler=bool(flags["force-overwrite-default-scheduler"]),
            ),
            self._config,
            self._ledger,
        )
        defaults = Defaults(_text(flags, "gpu-scheduler-policy"), _text(flags, "node-scheduler-policy"))
        self._engine = Engine(self._ledger, defaults)
        self._said = _Said()
        settings = LockSettings(expiry_s, gang_wait_s=gang_wait_s)
        locks = NodeLocks(self._cluster, clock, settings, lock_formats(self._config.vendors))
        self._binder = PodBinder(self._engine, self._cluster, locks, clock, self._said, BindSettings())
        for node in scenario.nodes:
            self._cluster.put_node(copy.deepcopy(node))
        for quota in scenario.quotas:
            self._cluster.put_quota(copy.deepcopy(quota))

    def step(self, step: Step, where: str, runner: asyncio.Runner) -> Json | None:
        """Do one step; what it answers, for steps that answer."""
        self._said.events.clear()
        value = step.value
        if step.kind == "delete_node":
            self._cluster.delete_node(str(value))
            return None
        assert isinstance(value, dict)
        match step.kind:
            case "put_pod":
                self._put_pod(value, where)
            case "put_node":
                self._cluster.put_node(self._cluster.resolve(value, self._cluster.nodes.get))
            case "put_quota":
                self._cluster.put_quota(copy.deepcopy(value))
            case "delete_pod":
                self._cluster.delete_pod(str(value["namespace"]), str(value["name"]))
            case "delete_quota":
                self._ledger.delete_quota(str(value["namespace"]), str(value["name"]))
            case "admit":
                return self._admit(value, where)
            case "filter":
                return self._filter(value, where)
            case "bind":
                return runner.run(self._bind(value))
            case "usage":
                return self._usage(str(value["node"]))
            case "quota":
                return self._quota(str(value["namespace"]))
            case other:
                raise AssertionError(other)
        return None

    def _put_pod(self, value: Json, where: str) -> Json:
        document = self._cluster.resolve(value, self._cluster.pod_by_ref)
        self._check_families(document, where)
        return self._cluster.put_pod(document)

    def _check_families(self, document: Json, where: str) -> None:
        """A resource that looks like a device's and that no family here manages would make the comparison meaningless."""
        pod = pod_of(document)
        # A scenario may rename resources and show that the old names then mean nothing.
        known = self._config.resources | default_config(optional_families()).resources
        for container in (*pod.init_containers, *pod.containers):
            for name in (*container.limits, *container.requests):
                domain, slash, _ = name.partition("/")
                if slash and not domain.endswith("kubernetes.io") and name not in known:
                    raise ReplayError(f"{where}: resource {name} belongs to no accelerator family of this version")

    def _admit(self, value: Json, where: str) -> Json:
        namespace = str(value["namespace"])
        document = copy.deepcopy(value["pod"])
        assert isinstance(document, dict)
        metadata = document.setdefault("metadata", {})
        metadata.setdefault("namespace", namespace)
        self._check_families(document, where)
        verdict = self._admission.drop_in(document, namespace)
        came: Json = {"allowed": verdict.allowed}
        if verdict.allowed:
            self._cluster.put_pod(copy.deepcopy(verdict.pod))
            came["pod"] = verdict.pod
        else:
            came["code"] = verdict.code
        if verdict.message:
            came["message"] = verdict.message
        return came

    def _filter(self, value: Json, where: str) -> Json:
        given = value["pod"]
        assert isinstance(given, dict)
        known = self._cluster.pod_by_ref(str(given["ref"])) if set(given) == {"ref"} else None
        document = known if known is not None else self._put_pod(given, where)
        pod = pod_of(document)
        names = value["nodes"]
        assert isinstance(names, list)
        filtered = self._engine.filter(pod, names, self._clock.now())
        for event in self._engine.events(filtered, _EVERY_NODE):
            self._said.emit(pod, event)
        nodes = filtered.nodes
        if filtered.allocation is not None and nodes:
            document = self._carry(document, pod, nodes[0])
        annotations = pod_of(document).annotations
        return {
            "node": nodes[0] if nodes else None,
            "error": filtered.error,
            "failed": {**(filtered.failed or {}), **(filtered.unresolvable or {})} if not nodes else {},
            "allocation": self._allocation(pod_of(document)) if nodes else {},
            "annotations": dict(annotations),
            "events": [list(event) for event in self._said.events],
        }

    def _carry(self, document: Json, pod: Pod, node: str) -> Json:
        """From the filter on the stored pod shows what its Binding will carry."""
        holding = self._ledger.holding(pod.uid)
        assert holding is not None
        extra = carried(node, holding.allocation, self._config, pod, self._ledger.state(node), self._clock.now())
        merged = merge_patch(
            document, {"metadata": {"annotations": dict(extra.annotations), "labels": dict(extra.labels)}}
        )
        assert isinstance(merged, dict)
        return self._cluster.put_pod(merged)

    def _allocation(self, pod: Pod) -> Json:
        if not pod.annotations.get(VGPU_NODE):
            return {}
        found: Json = {}
        for vendor in self._config.vendors:
            positions = decode_allocation(pod, [vendor])
            if any(positions):
                found[vendor.key] = [
                    [{"uuid": e.uuid, "memory": e.memory_mib, "cores": e.cores} for e in entries]
                    for entries in positions
                ]
        return found

    async def _bind(self, value: Json) -> Json:
        request = BindRequest(str(value["namespace"]), str(value["name"]), str(value["uid"]), str(value["node"]))
        try:
            await self._binder.bind(request)
        except BindError as error:
            return {"error": str(error)}
        return {"error": ""}

    def _usage(self, node: str) -> Json:
        return {
            uuid: {"used": hold.slots, "memory": hold.memory_mib, "cores": hold.cores}
            for (_, uuid), hold in self._ledger.usage(node).items()
        }

    def _quota(self, namespace: str) -> Json:
        limits, used = self._ledger.limits(namespace), self._ledger.used(namespace)
        rows: Json = {}
        for vendor in self._config.vendors:
            charge = used.get(vendor.key, NO_CHARGE)
            amounts = (
                (vendor.memory_resource, charge.memory_mib),
                (vendor.core_resource, charge.cores),
                (vendor.count_resource, charge.cards),
            )
            for name, amount in amounts:
                if name:
                    limit = limits.get(name)
                    rows[name] = {"used": amount, "limit": limit.value if limit is not None else None}
        return rows


def play(scenario: Scenario, runner: asyncio.Runner) -> Played:
    """Play all steps. Raises `ReplayError` for a scenario that cannot be played."""
    came_steps: list[Json] = []
    found: list[Difference] = []
    try:
        player = _Player(scenario)
        for number, step in enumerate(scenario.steps):
            came = player.step(step, f"{scenario.where}.steps[{number}]", runner)
            recorded: Json = {step.kind: step.value}
            if came is not None and step.expect is not None:
                recorded["expect"] = came
                found += [Difference(number, step.kind, text) for text in differences(step.kind, step.expect, came)]
            came_steps.append(recorded)
    except (ValueError, AllocationError, BindingMetadataError) as error:
        raise ReplayError(f"{scenario.where}: {error}") from error
    return Played(scenario, tuple(found), {**scenario.document, "steps": came_steps})
