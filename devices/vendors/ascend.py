"""Ascend NPUs, one vendor a chip: templates (hard split), soft split, network groups, and the pairs of the 910C super pod."""

from collections.abc import Mapping, Sequence

import msgspec
import orjson

from devices.chips import named_after_chip
from devices.errors import ConfigError, MalformedValue
from devices.fit import (
    Candidates,
    Refusal,
    Walk,
    compute_left,
    enough_cores,
    enough_memory,
    free_slot,
    healthy,
    idle_for_exclusive_policy,
    idle_for_whole_compute,
    right_uuid,
    within_quota,
)
from devices.model import Card, CardState, Entry
from devices.reasons import Reason
from devices.requests import Cluster, DeviceRequest, Resources, optional_rounded, optional_whole
from devices.selection import Selection
from devices.vendor import (
    INT32,
    WHOLE,
    Admission,
    Family,
    FamilySettings,
    Hooks,
    Placed,
    ScoreContext,
    Vendor,
    json_registration,
)
from devices.zones import from_largest_zones, picked, share_of_largest_zones, zones_of

__all__ = ["FAMILY"]

MODE = "huawei.com/vnpu-mode"
SOFT_SPLIT = "hami-core"
NODE_SOFT_SPLIT = "hami-vnpu-core"
PREDICATE_TIME = "predicate-time"
VISIBLE_DEVICES = "ASCEND_VISIBLE_DEVICES"
_GROUPED = "Ascend910"
_PAIRED = "Ascend910C"
_PAIR = 2
_INT64 = 2**63 - 1


class Template(FamilySettings, frozen=True, kw_only=True):
    """A size that a chip can be split into; memory in MiB. Its AI cores and CPUs are the plugin's own."""

    name: str
    memory: int
    ai_core: int = 0
    ai_cpu: int = msgspec.field(name="aiCPU", default=0)


class Chip(FamilySettings, frozen=True, kw_only=True):
    """One entry of `configs`; memory in MiB. `commonWord` is the vendor key and part of every name."""

    common_word: str
    resource_name: str
    resource_memory_name: str = ""
    resource_core_name: str = ""
    chip_name: str = ""
    memory_allocatable: int
    memory_capacity: int
    memory_factor: int = 1
    ai_core: int = 0
    ai_cpu: int = msgspec.field(name="aiCPU", default=0)
    runtime_class_name: str = ""
    overwrite_env: bool = False
    super_pod: bool = False
    templates: list[Template] = []


Size = tuple[str, int, int, int]
"""Name, memory in MiB, AI cores and AI CPUs of a template."""


def _chip(name: str, word: str, memory_mib: tuple[int, int], ai: tuple[int, int], *sizes: Size) -> Chip:
    """A chip of the shipped file: `memory_mib` is what can be given and what it has, `ai` its cores and CPUs."""
    return Chip(
        chip_name=name,
        common_word=word,
        resource_name=f"huawei.com/{word}",
        resource_memory_name=f"huawei.com/{word}-memory",
        resource_core_name=f"huawei.com/{word}-core",
        memory_allocatable=memory_mib[0],
        memory_capacity=memory_mib[1],
        ai_core=ai[0],
        ai_cpu=ai[1],
        super_pod=word == _PAIRED,
        templates=[Template(name=n, memory=memory, ai_core=core, ai_cpu=cpu) for n, memory, core, cpu in sizes],
    )


def _shipped() -> list[Chip]:
    small, large = (32768, 32768), (65536, 65536)
    sixteenths = (("vir02", 2184, 2, 0), ("vir04", 4369, 4, 0), ("vir08", 8738, 8, 0), ("vir16", 17476, 16, 0))
    eighths = (("vir03_1c_8g", 8192, 3, 1), ("vir06_1c_16g", 16384, 6, 1), ("vir12_3c_32g", 32768, 12, 3))
    large_quarters = (("vir05_1c_16g", 16384, 5, 1), ("vir10_3c_32g", 32768, 10, 3))
    small_quarters = (("vir05_1c_8g", 8192, 5, 1), ("vir10_3c_16g", 16384, 10, 3))
    sevenths = (("vir01", 3072, 1, 1), ("vir02", 6144, 2, 2), ("vir04", 12288, 4, 4))
    return [
        _chip("910A", "Ascend910A", small, (30, 0), *sixteenths),
        _chip("910B2", "Ascend910B2", large, (24, 6), *eighths),
        _chip("910B3", "Ascend910B3", large, (20, 7), *large_quarters),
        _chip("910B4-1", "Ascend910B4-1", large, (20, 7), *large_quarters),
        _chip("910B4", "Ascend910B4", small, (20, 7), *small_quarters),
        _chip("310P3", "Ascend310P", (21527, 24576), (8, 7), *sevenths),
        _chip("Ascend910", "Ascend910C", large, (20, 7), *large_quarters),
    ]


class Settings(FamilySettings, frozen=True, kw_only=True):
    """The section `vnpus`. `hamiVnpuCore`: whether nodes that do not say so themselves can split softly."""

    hami_vnpu_core: bool = False
    configs: list[Chip] = msgspec.field(default_factory=_shipped)


def _check(settings: Settings) -> None:
    words: set[str] = set()
    for position, chip in enumerate(settings.configs):
        where = f"configs[{position}]"
        if not chip.common_word or chip.common_word in words:
            raise ConfigError(f"{where}.commonWord: {chip.common_word!r} must be a name of its own")
        words.add(chip.common_word)
        if not chip.resource_name:
            raise ConfigError(f"{where}.resourceName: must not be empty")
        for name, value, low in (
            ("memoryAllocatable", chip.memory_allocatable, 1),
            ("memoryCapacity", chip.memory_capacity, 1),
            ("memoryFactor", chip.memory_factor, 0),
            *((f"templates: {template.name}: memory", template.memory, 1) for template in chip.templates),
        ):
            if not low <= value <= INT32:
                raise ConfigError(f"{where}.{name}: {value} is out of range, accepted are {low} to {INT32}")


def _is_soft(annotations: Mapping[str, str] | None) -> bool:
    return (annotations or {}).get(MODE) == SOFT_SPLIT


def _network(card: Card) -> int | None:
    """The group of cards that are linked closely."""
    number = card.custom.get("NetworkID")
    return int(number) if isinstance(number, int | float) and not isinstance(number, bool) else None


def _total_cores(card: Card, selection: Selection) -> int:
    """Soft split shares a card in percent, whatever the number of its AI cores."""
    return WHOLE if _is_soft(selection.annotations) else card.cores


def _enough_for_template(state: CardState, walk: Walk) -> Reason | None:
    """Room for what the request comes to once it is rounded to a template."""
    wanted = walk.family.entry(state, walk).memory_mib
    return None if wanted <= state.free_memory_mib else Reason.CARD_INSUFFICIENT_MEMORY


def _pairs(found: Candidates, walk: Walk, counts: Mapping[Reason, int]) -> Candidates | Refusal:
    """Whole modules (two neighbouring indexes) only, lowest first; the refusal counts against the number asked, as recorded."""
    places: list[int] = []
    count = walk.request.count
    for module in zones_of(found, lambda card: card.index // _PAIR).values():
        if len(module) == _PAIR and len(places) < count:
            places += module
    if len(places) != count:
        return Refusal({**counts, Reason.CARDS_INSUFFICIENT: len(places)}, count)
    return picked(found, places)


def _score(vendor: Vendor, entries: Sequence[tuple[Entry, ...]], context: ScoreContext) -> float:
    cards = {state.card.uuid: state.card for state in context.node.cards if state.card.vendor == vendor.key}
    return 10 * share_of_largest_zones(entries, cards, _network)


class _Npu:
    """The hooks of one chip, with its configuration at hand."""

    def __init__(self, chip: Chip, settings: Settings) -> None:
        self._chip = chip
        self._factor = max(chip.memory_factor, 1)
        self._templates = sorted(chip.templates, key=lambda template: template.memory)
        self._softly_by_default = settings.hami_vnpu_core
        self._chips = frozenset(other.resource_name for other in settings.configs)

    def _rounded(self, memory_mib: int) -> int | None:
        """The smallest template that is large enough, else the whole card; None above its capacity."""
        sizes = (template.memory for template in self._templates if memory_mib <= template.memory)
        whole = self._chip.memory_allocatable if memory_mib <= self._chip.memory_capacity else None
        return next(sizes, whole)

    def request(self, vendor: Vendor, container: Resources, cluster: Cluster) -> DeviceRequest | None:
        """Memory as asked, times the factor; what it is rounded to depends on the pod's mode."""
        count = optional_whole(container, vendor.count_resource, 0, INT32)
        memory = optional_whole(container, vendor.memory_resource, 0, INT32 // self._factor) or 0
        cores = optional_rounded(container, vendor.core_resource, 0, INT32) or 0
        if not count:
            return None
        return DeviceRequest(vendor.key, count, memory * self._factor, None if memory else WHOLE, cores)

    def admit(self, vendor: Vendor, container: Admission) -> bool:
        """Pairs for super pods, template sizes as limits and requests, environment and runtime class."""
        chip, resources = self._chip, container.resources
        if vendor.count_resource not in resources.limits:
            vendor.request(resources)
            if chip.overwrite_env and self._chips.isdisjoint((*resources.limits, *resources.requests)):
                container.append_env(VISIBLE_DEVICES, "")
            return False
        count = optional_whole(resources, vendor.count_resource, 0, INT32) or 0
        if chip.super_pod and vendor.key == _PAIRED and count % _PAIR:
            if count > 1:
                raise MalformedValue(f"{vendor.key} device request must be 1 or 2*n, got {count}")
            container.set_limit(vendor.count_resource, _PAIR)
        soft = _is_soft(container.annotations)
        cores = optional_rounded(resources, vendor.core_resource, 0, INT32) or 0
        if cores > 0 and not soft:
            raise MalformedValue(f"{vendor.core_resource} is only supported in hami-core (soft split) mode")
        if cores > WHOLE:
            container.warn(
                f"container {resources.name}: {vendor.core_resource} {cores} counts as {WHOLE}, one whole card"
            )
        self._admit_memory(vendor, container, count, soft)
        vendor.request(container.resources)
        if chip.runtime_class_name:
            container.default_runtime_class(chip.runtime_class_name)
        return True

    def _admit_memory(self, vendor: Vendor, container: Admission, count: int, soft: bool) -> None:
        resources, memory = container.resources, self._chip.memory_allocatable
        if vendor.memory_resource and vendor.memory_resource in resources.limits:
            asked = optional_whole(resources, vendor.memory_resource, 0, _INT64 // self._factor) or 0
            if soft:
                memory = asked * self._factor
                if not asked:
                    container.warn(f"container {resources.name}: {vendor.memory_resource} 0 counts as not given")
            else:
                rounded = self._rounded(asked * self._factor)
                if rounded is None:
                    raise MalformedValue(f"{vendor.memory_resource} {asked} is invalid")
                memory = rounded
        if count > 1 and not soft and memory != self._chip.memory_allocatable:
            raise MalformedValue("vNPU not supported for multiple devices")
        if vendor.memory_resource:
            # Limits are in the unit that users write; reading them multiplies by the factor again.
            container.set_limit(vendor.memory_resource, memory // self._factor)
            container.set_request(vendor.memory_resource, memory // self._factor)

    def gate(self, vendor: Vendor, walk: Walk) -> Refusal | None:
        """A pod that splits softly needs a node that can."""
        if not _is_soft(walk.selection.annotations):
            return None
        said = walk.node_facts.get(NODE_SOFT_SPLIT)
        able = self._softly_by_default if said is None else said == "true"
        return None if able else Refusal({Reason.MODE_NOT_FIT: 1}, len(walk.cards))

    def entry(self, vendor: Vendor, state: CardState, walk: Walk) -> Entry:
        """A template's memory, the whole card's, or what a soft split asks."""
        memory = walk.request.memory_on(state.card.memory_mib)
        if walk.request.memory_mib and not _is_soft(walk.selection.annotations):
            memory = max(self._rounded(memory) or 0, memory)
        return Entry(state.card.uuid, vendor.key, memory, walk.cores)

    def _is_paired(self, walk: Walk) -> bool:
        return self._chip.common_word == _PAIRED and walk.request.count > 1

    def collects_all(self, walk: Walk) -> bool:
        """Pairs, and cards that all say which network group they are in."""
        grouped = self._chip.common_word.startswith(_GROUPED)
        return self._is_paired(walk) or (grouped and all("NetworkID" in state.card.custom for state in walk.cards))

    def choose(
        self, vendor: Vendor, groups: Sequence[Candidates], walk: Walk, counts: Mapping[Reason, int]
    ) -> Candidates | Refusal | None:
        """Pairs first, then the largest network groups."""
        if self._is_paired(walk):
            return _pairs(groups[0], walk, counts)
        return from_largest_zones(groups[0], walk, counts, _network)

    def annotate(self, vendor: Vendor, entries: Sequence[tuple[Entry, ...]], placed: Placed) -> Mapping[str, str]:
        """All cards in one list, as the container runtime reads it: with the template, and no field that is 0."""
        names = {} if _is_soft(placed.pod.annotations) else {t.memory: t.name for t in self._templates}
        devices = [
            {"UUID": entry.uuid}
            | ({"temp": names[entry.memory_mib]} if entry.memory_mib in names else {})
            | ({"memory": entry.memory_mib} if entry.memory_mib else {})
            | ({"core": entry.cores} if entry.cores else {})
            for container in entries
            for entry in container
        ]
        return {
            PREDICATE_TIME: str(int(placed.now_s)),
            f"huawei.com/{vendor.key}": orjson.dumps(devices).decode(),
        }


def _vendor(chip: Chip, settings: Settings) -> Vendor:
    word, npu = chip.common_word, _Npu(chip, settings)
    return Vendor(
        key=word,
        count_resource=chip.resource_name,
        memory_resource=chip.resource_memory_name,
        core_resource=chip.resource_core_name,
        outputs=(PREDICATE_TIME, f"huawei.com/{word}"),
        inputs=(MODE,),
        changes_other_pods=chip.overwrite_env,
        device_variables=("ASCEND_VNPU_SPECS",),
        node_inputs=(NODE_SOFT_SPLIT,),
        registration=(f"hami.io/node-register-{word}",),
        memory_factor=max(chip.memory_factor, 1),
        checks=(
            healthy,
            right_uuid,
            free_slot,
            idle_for_exclusive_policy,
            within_quota,
            enough_memory,
            _enough_for_template,
            enough_cores,
            idle_for_whole_compute,
            compute_left,
        ),
        hooks=Hooks(
            request=npu.request,
            admit=npu.admit,
            read_node=json_registration,
            gate=npu.gate,
            total_cores=_total_cores,
            entry=npu.entry,
            collects_all=npu.collects_all,
            choose=npu.choose,
            annotate=npu.annotate,
            score=_score if word.startswith(_GROUPED) else None,
        ),
    )


def _build(settings: Settings) -> tuple[Vendor, ...]:
    _check(settings)
    return tuple(named_after_chip(_vendor(chip, settings)) for chip in settings.configs)


FAMILY = Family("vnpus", Settings, _build, flag="ascend")
