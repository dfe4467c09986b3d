"""NVIDIA GPUs: shared cards (hami-core, mps) and dynamic MIG."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec

from devices.annotations import decode_mig, encode_mig
from devices.choose import best_linked
from devices.errors import ConfigError, RegistrationError
from devices.fit import (
    Candidates,
    Refusal,
    Walk,
    beyond_quota,
    compute_left,
    enough_cores,
    enough_memory,
    free_slot,
    healthy,
    idle_for_exclusive_policy,
    idle_for_whole_compute,
    not_cordoned,
    right_type,
    right_uuid,
    within_quota,
)
from devices.mig import MODE as MIG
from devices.mig import instance, is_mig, wanted_memory
from devices.model import Card, CardState, Entry, MigReservation
from devices.objects import Node
from devices.reasons import Reason
from devices.registration import CardList, parse_bool, read_json, read_pair_scores, with_pair_scores
from devices.requests import Cluster, DeviceRequest, Resources, optional_whole
from devices.selection import Selection
from devices.vendor import Admission, Family, FamilySettings, Hooks, Placed, Quick, Vendor

__all__ = ["FAMILY"]

KEY = "NVIDIA"
REGISTER = "hami.io/node-nvidia-register"
PAIR_SCORES = "hami.io/node-nvidia-score"
MIG_ALLOCATIONS = "hami.io/vgpu-mig-allocations"
NUMA_BIND = "nvidia.com/numa-bind"
VGPU_MODE = "nvidia.com/vgpu-mode"

_INT32 = 2**31 - 1
_WHOLE = 100
_CORE_POLICIES = ("", "default", "force", "disable")


class MigModels(FamilySettings, frozen=True):
    """One entry of `migProfileAllowlist`: which instance sizes the plugin may offer on which models."""

    models: list[str]
    profiles: list[str]


class Settings(FamilySettings, frozen=True, kw_only=True):
    """The section `nvidia` (HAMi v2.10 device config). What follows `migProfileAllowlist` is the plugin's own."""

    resource_count_name: str = "nvidia.com/gpu"
    resource_memory_name: str = "nvidia.com/gpumem"
    resource_memory_percentage_name: str = "nvidia.com/gpumem-percentage"
    resource_core_name: str = "nvidia.com/gpucores"
    resource_priority_name: str = "nvidia.com/priority"
    overwrite_env: bool = False
    default_memory: int = 0
    default_cores: int = 0
    default_gpu_num: int = msgspec.field(name="defaultGPUNum", default=1)
    memory_factor: int = 1
    gpu_core_policy: str = "default"
    runtime_class_name: str = ""
    mig_profile_allowlist: list[MigModels] = []
    device_split_count: int = 10
    device_memory_scaling: float = 1
    device_core_scaling: float = 1
    pre_configured_device_memory: int = 0
    enable_numa_topology: bool = False
    lib_cuda_log_level: int | str = 1
    disable_core_limit: bool = False


def _check(settings: Settings) -> None:
    for name, value in (
        ("defaultMemory", settings.default_memory),
        ("defaultCores", settings.default_cores),
        ("defaultGPUNum", settings.default_gpu_num),
        ("memoryFactor", settings.memory_factor),
    ):
        if not 0 <= value <= _INT32:
            raise ConfigError(f"{name}: {value} is out of range, accepted are 0 to {_INT32}")
    if not settings.resource_count_name:
        raise ConfigError("resourceCountName: must not be empty")
    keys: dict[str, str] = {}
    for key, name in (
        ("resourceCountName", settings.resource_count_name),
        ("resourceMemoryName", settings.resource_memory_name),
        ("resourceMemoryPercentageName", settings.resource_memory_percentage_name),
        ("resourceCoreName", settings.resource_core_name),
        ("resourcePriorityName", settings.resource_priority_name),
    ):
        if name and keys.setdefault(name, key) != key:
            raise ConfigError(f"{key}: {name} is {keys[name]} already")
    if settings.gpu_core_policy not in _CORE_POLICIES:
        raise ConfigError(
            f"gpuCorePolicy: {settings.gpu_core_policy!r} is unknown, accepted are default, force, disable or empty text"
        )
    for entry in settings.mig_profile_allowlist:
        if not entry.models or not entry.profiles:
            raise ConfigError("migProfileAllowlist: every entry needs at least one model and one profile")
        for profile in entry.profiles:
            head, dot, rest = profile.partition(".")
            if not (dot and rest and head.endswith("g") and head[:-1].isdigit()):
                raise ConfigError(f"migProfileAllowlist: profile {profile!r} must look like 1g.5gb")


def _percentage(settings: Settings, container: Resources, high: int) -> int | None:
    return optional_whole(container, settings.resource_memory_percentage_name, 0, high)


def _memory(settings: Settings, container: Resources) -> int:
    factor = max(settings.memory_factor, 1)
    return (optional_whole(container, settings.resource_memory_name, 0, _INT32 // factor) or 0) * factor


class _Nvidia:
    """The hooks, with their section at hand."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def request(self, vendor: Vendor, container: Resources, cluster: Cluster) -> DeviceRequest | None:
        """Defaults in the order of the reference; 0 counts as absent for memory and percentage."""
        settings = self._settings
        count = optional_whole(container, vendor.count_resource, 0, _INT32) or 0
        memory = _memory(settings, container)
        percentage = _percentage(settings, container, _INT32)
        cores = optional_whole(container, vendor.core_resource, 0, _INT32)
        percentage = min(percentage, _WHOLE) if percentage else None
        if percentage is None and memory == 0:
            memory, percentage = (settings.default_memory, None) if settings.default_memory else (0, _WHOLE)
        cores = settings.default_cores if cores is None else cores
        return DeviceRequest(vendor.key, count, memory, percentage, cores) if count else None

    def admit(self, vendor: Vendor, container: Admission) -> bool:
        """Count and compute defaults, environment and runtime class (HAMi v2.10 wire contract, admission)."""
        settings, resources = self._settings, container.resources
        _percentage(settings, resources, _WHOLE)
        requested = vendor.request(resources)
        for name in (vendor.memory_resource, vendor.percentage_resource):
            if optional_whole(resources, name, 0, _INT32) == 0:
                container.warn(f"container {resources.name}: {name} 0 counts as not given")
        limits = resources.limits
        priority = limits.get(settings.resource_priority_name) if settings.resource_priority_name else None
        if priority is not None:
            number = optional_whole(resources, settings.resource_priority_name, 0, _INT32)
            container.append_env("CUDA_TASK_PRIORITY", str(number))
        found = vendor.count_resource in limits
        shares = (vendor.core_resource, vendor.memory_resource, vendor.percentage_resource)
        if not found and any(name and name in limits for name in shares):
            if vendor.count_resource in resources.requests:
                found = True  # a default would override what was asked for, and a second run would add one to the first's result
            elif settings.default_gpu_num > 0:
                container.set_limit(vendor.count_resource, settings.default_gpu_num)
                found = True
        if container.resources is not resources:
            requested = vendor.request(container.resources)
        if self._is_exclusive_by_default(vendor, container.resources, requested):
            container.set_limit(vendor.core_resource, _WHOLE)
            found = True
            requested = vendor.request(container.resources)
        if requested is not None and requested.cores > _WHOLE:
            container.warn(
                f"container {resources.name}: {vendor.core_resource} {requested.cores} counts as {_WHOLE}, one whole card"
            )
        if (found or requested is not None) and settings.gpu_core_policy not in ("", "default"):
            container.append_env("GPU_CORE_UTILIZATION_POLICY", settings.gpu_core_policy)
        if found and settings.runtime_class_name:
            container.default_runtime_class(settings.runtime_class_name)
        if requested is None and not found and settings.overwrite_env:
            container.append_env("NVIDIA_VISIBLE_DEVICES", "none")
        return found

    @staticmethod
    def _is_exclusive_by_default(vendor: Vendor, container: Resources, request: DeviceRequest | None) -> bool:
        """All memory of a card and no word about compute: the card is meant to be one's own, whatever `defaultCores` says."""
        if not vendor.core_resource:
            return False
        if vendor.core_resource in container.requests or vendor.core_resource in container.limits:
            return False
        return request is not None and request.wants_whole_memory

    def read_node(self, vendor: Vendor, node: Node) -> CardList:
        """The JSON list, with pair scores where they can be read."""
        text = node.annotations.get(REGISTER)
        if text is None:
            raise RegistrationError(f"annotation {REGISTER} is missing")
        listed = read_json(text, vendor.key)
        scores = node.annotations.get(PAIR_SCORES)
        if scores is None:
            return listed
        try:
            return CardList(with_pair_scores(listed.cards, read_pair_scores(scores)), listed.problems)
        except RegistrationError as error:
            return CardList(listed.cards, (*listed.problems, f"annotation {PAIR_SCORES} is ignored: {error}"))


def _wanted_memory(request: DeviceRequest, card: Card) -> int:
    return wanted_memory(card, request) if is_mig(card) else request.memory_on(card.memory_mib)


def _entry(vendor: Vendor, state: CardState, walk: Walk) -> Entry:
    """A MIG card gives the profile's own size; where none is free, what was wanted stands for the quota test."""
    if is_mig(state.card):
        found = instance(state, walk.request, vendor.key, walk.before)
        if found is not None:
            return found
    return Entry(state.card.uuid, vendor.key, _wanted_memory(walk.request, state.card), walk.cores)


def _allows_mode(selection: Selection, card: Card) -> bool:
    """The card's mode is named in the annotation, if there is one; a card without mode always passes."""
    allowed = selection.annotations or {}
    return VGPU_MODE not in allowed or card.mode in allowed[VGPU_MODE]


def _selects(selection: Selection, card: Card) -> bool:
    return selection.allows_type(card) and _allows_mode(selection, card) and selection.allows_uuid(card)


def _right_mode(state: CardState, walk: Walk) -> Reason | None:
    return None if _allows_mode(walk.selection, state.card) else Reason.CARD_TYPE_MISMATCH


def _free_instance(state: CardState, walk: Walk) -> Reason | None:
    """A profile that is large enough has a free placement beside what this container already has of the card."""
    if not is_mig(state.card):
        return None
    if instance(state, walk.request, KEY, walk.before) is None:
        return Reason.CARD_MIG_INFEASIBLE
    mine = sum(entry.uuid == state.card.uuid for entry in walk.before)
    return None if state.used_slots + mine < state.card.slots else Reason.CARD_SLOTS_EXHAUSTED


CHECKS = (
    healthy,
    not_cordoned,
    right_type,
    _right_mode,
    right_uuid,
    free_slot,
    idle_for_exclusive_policy,
    within_quota,
    enough_memory,
    enough_cores,
    idle_for_whole_compute,
    compute_left,
    _free_instance,
)


def _gives_several(state: CardState, selection: Selection) -> bool:
    allowed = selection.annotations or {}
    return is_mig(state.card) and (VGPU_MODE not in allowed or MIG in allowed[VGPU_MODE])


def _groups_by_numa(selection: Selection) -> bool:
    return parse_bool(selection.value(NUMA_BIND)) is True


def _collects_all(walk: Walk) -> bool:
    return "topology-aware" in walk.policies


def _choose(
    vendor: Vendor, groups: Sequence[Candidates], walk: Walk, counts: Mapping[Reason, int]
) -> Candidates | Refusal | None:
    enough = [group for group in groups if len(group.entries) >= walk.request.count]
    if not enough:
        return None
    return best_linked(enough, walk, vendor.price) or beyond_quota(enough[-1], walk, counts)


def _annotations(vendor: Vendor, entries: Sequence[tuple[Entry, ...]], placed: Placed) -> Mapping[str, str]:
    """MIG instances beside the text; empty where there are none, so that an older attempt's value does not stay."""
    reservations = [
        MigReservation(container, device, entry.uuid, entry.profile, entry.placement)
        for container, cards in enumerate(entries)
        for device, entry in enumerate(cards)
        if entry.placement is not None
    ]
    return MappingProxyType({MIG_ALLOCATIONS: encode_mig(reservations)})


def _reservations(annotations: Mapping[str, str]) -> tuple[MigReservation, ...]:
    return decode_mig(annotations.get(MIG_ALLOCATIONS, ""))


def _build(settings: Settings) -> tuple[Vendor, ...]:
    _check(settings)
    nvidia = _Nvidia(settings)
    return (
        Vendor(
            key=KEY,
            count_resource=settings.resource_count_name,
            memory_resource=settings.resource_memory_name,
            percentage_resource=settings.resource_memory_percentage_name,
            core_resource=settings.resource_core_name,
            other_resources=(settings.resource_priority_name,),
            allocated="hami.io/vgpu-devices-allocated",
            to_allocate="hami.io/vgpu-devices-to-allocate",
            outputs=(MIG_ALLOCATIONS,),
            inputs=(NUMA_BIND, VGPU_MODE),
            changes_other_pods=settings.overwrite_env,
            device_variables=("NVIDIA_IMEX_CHANNELS", "NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES"),
            node_inputs=(),
            registration=(REGISTER, PAIR_SCORES),
            handshake="hami.io/node-handshake",
            uuid_keys=(("nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid"),),
            type_keys=("nvidia.com/use-gputype", "nvidia.com/nouse-gputype"),
            node_lock="hami.io/mutex.lock",
            memory_factor=max(settings.memory_factor, 1),
            checks=CHECKS,
            quick=Quick(
                by_kind=frozenset({_right_mode}),
                mig_only=frozenset({_free_instance}),
                entry_by_kind=True,
                takes_what_passes=True,
            ),
            hooks=Hooks(
                request=nvidia.request,
                admit=nvidia.admit,
                read_node=nvidia.read_node,
                selects=_selects,
                reservations=_reservations,
                entry=_entry,
                wanted_memory=_wanted_memory,
                gives_several=_gives_several,
                groups_by_numa=_groups_by_numa,
                collects_all=_collects_all,
                choose=_choose,
                annotate=_annotations,
            ),
        ),
    )


FAMILY = Family("nvidia", Settings, _build)
