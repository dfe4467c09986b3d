"""MetaX: whole GPUs, and shared ones (sGPU) with service classes, online and offline apps, and link zones."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from types import MappingProxyType

import orjson

from devices.capacity import numbered_cards
from devices.errors import MalformedValue, RegistrationError
from devices.fit import (
    STANDARD_CHECKS,
    Candidates,
    Check,
    Refusal,
    Walk,
    compute_left,
    enough_cores,
    enough_memory,
    free_slot,
    idle_for_exclusive_policy,
    idle_for_whole_compute,
    only_when,
    right_uuid,
    within_quota,
)
from devices.model import Card, CardState, Entry, Tenant
from devices.objects import Node
from devices.reasons import Reason
from devices.registration import CardList, Fields, parse_bool, read_cards
from devices.requests import Cluster, DeviceRequest, Resources, limits_alone, optional_whole
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
    every_card,
)
from devices.zones import picked, zones_of

__all__ = ["FAMILY"]

LOSSES = "metax-tech.com/gpu.topology.losses"
SCORES = "metax-tech.com/gpu.topology.scores"
REGISTER = "metax-tech.com/node-gpu-devices"
QOS_POLICY = "metax-tech.com/sgpu-qos-policy"
APP_CLASS = "metax-tech.com/sgpu-app-class"
TOPOLOGY_AWARE = "metax-tech.com/sgpu-topology-aware"
DEVICES = "metax-tech.com/gpu-devices-allocated"
PREDICATE_TIME = "metax-tech.com/predicate-time"

ONLINE, OFFLINE = "online", "offline"
_DEFAULT_QOS = "best-effort"
_QOS_POLICIES = (_DEFAULT_QOS, "fixed-share", "burst-share")
_BEST_SCORE = 2000
_GIB = 1024
"""MiB."""
_MIB = 1024 * 1024
"""Bytes."""


class Settings(FamilySettings, frozen=True, kw_only=True):
    """The section `metax`."""

    resource_count_name: str = "metax-tech.com/gpu"
    resource_v_count_name: str = "metax-tech.com/sgpu"
    resource_v_memory_name: str = "metax-tech.com/vmemory"
    resource_v_core_name: str = "metax-tech.com/vcore"
    sgpu_topology_aware: bool = False


# Whole GPUs


def _read_gpus(vendor: Vendor, node: Node) -> CardList:
    like = Card("", vendor.key, slots=1, memory_mib=65536, cores=WHOLE, model=vendor.key, healthy=True)
    return numbered_cards(node, vendor.count_resource, "metax", like)


def _table_score(vendor: Vendor, entries: Sequence[tuple[Entry, ...]], context: ScoreContext) -> float:
    """What the node's own table says of so many cards; one that the table does not know scores best."""
    text = context.node.facts.get(LOSSES if context.policy == "binpack" else SCORES)
    if text is None:
        return 0.0
    return float(_BEST_SCORE - _table(text).get(str(sum(len(container) for container in entries)), 0))


def _table(text: str) -> Mapping[str, int]:
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    if not isinstance(document, dict):
        return {}
    numbers = [isinstance(value, int) and not isinstance(value, bool) for value in document.values()]
    return document if all(numbers) else {}


# Shared GPUs


def _memory(vendor: Vendor, container: Resources) -> int:
    """MiB. A plain number is GiB; one with a suffix is bytes, as is a multiple of 1000, which the API server writes with a `k`."""
    asked = optional_whole(container, vendor.memory_resource, 0, 2**63 - 1)
    if not asked:
        return 0
    text = str(container.limits[vendor.memory_resource])
    in_bytes = re.search("[A-Za-z]", text) is not None or asked % 1000 == 0
    memory = asked // _MIB if in_bytes else asked * _GIB
    if memory > INT32:
        most = f"{INT32 // _GIB}Gi"
        raise MalformedValue(
            f"invalid {vendor.memory_resource} value {text} in container {container.name}: must be at most {most}"
        )
    return memory


def _request(vendor: Vendor, container: Resources, cluster: Cluster) -> DeviceRequest | None:
    """From limits alone; all memory and all compute where they are not named."""
    limits = limits_alone(container)
    count = optional_whole(limits, vendor.count_resource, 0, INT32)
    memory = _memory(vendor, limits)
    cores = optional_whole(limits, vendor.core_resource, 0, INT32)
    if not count:
        return None
    return DeviceRequest(vendor.key, count, memory, None if memory else WHOLE, WHOLE if cores is None else cores)


def _admit(vendor: Vendor, container: Admission) -> bool:
    """Check app class and service class, and give the latter its default; online apps need none."""
    resources = container.resources
    request = vendor.request(resources)
    if not vendor.count_resource or vendor.count_resource not in resources.limits:
        return False
    given = resources.limits.get(vendor.memory_resource)
    if request is not None and given is not None and not request.memory_mib:
        container.warn(f"container {resources.name}: {vendor.memory_resource} {given} counts as not given")
    app_class = container.annotations.get(APP_CLASS)
    if app_class is not None:
        if app_class not in (ONLINE, OFFLINE):
            raise MalformedValue(f"{APP_CLASS} must be set one of [{ONLINE}, {OFFLINE}]")
        if request is None or request.count != 1:
            raise MalformedValue("app-class pod must request single device")
    if app_class != ONLINE:
        qos = container.annotations.get(QOS_POLICY)
        if qos is None:
            container.set_annotation(QOS_POLICY, _DEFAULT_QOS)
        elif qos not in _QOS_POLICIES:
            raise MalformedValue(f"{QOS_POLICY} must be set one of [{', '.join(_QOS_POLICIES)}]")
    return True


def _read_shared(vendor: Vendor, node: Node) -> CardList:
    text = node.annotations.get(REGISTER)
    if text is None:
        raise RegistrationError(f"annotation {REGISTER} is missing")

    def card(position: int, fields: Fields) -> Card:
        return Card(
            uuid=fields.text("uuid"),
            vendor=vendor.key,
            index=position,
            slots=fields.number("totalDevCount", 0),
            memory_mib=fields.number("totalVRam", 0),
            cores=fields.number("totalCompute", 0),
            model=vendor.key,
            numa=fields.number("numa"),
            healthy=fields.flag("healthy"),
            custom=MappingProxyType(
                {
                    "QosPolicy": fields.text("qosPolicy"),
                    "Model": fields.text("model"),
                    "LinkZone": fields.number("linkZone"),
                }
            ),
        )

    return read_cards(text, card)


def _zone(card: Card) -> int | None:
    """The group of linked cards that this one is in."""
    zone = card.custom.get("LinkZone")
    return zone if isinstance(zone, int) and zone > 0 else None


def _is_online(walk: Walk) -> bool:
    return walk.selection.value(APP_CLASS) == ONLINE


def _holds_compute(walk: Walk) -> bool:
    return not _is_online(walk)


def _tenants(state: CardState, app_class: str) -> int:
    return sum(tenant.facts.get(APP_CLASS) == app_class for tenant in state.tenants)


def _healthy(state: CardState, walk: Walk) -> Reason | None:
    """As `healthy`, in the word of this family."""
    return None if state.healthy else Reason.CARD_UNHEALTHY


def _right_app_class(state: CardState, walk: Walk) -> Reason | None:
    """Online apps join any app with a class, offline ones only each other, the others only others."""
    if state.used_slots == 0:
        return None
    online, offline = _tenants(state, ONLINE) > 0, _tenants(state, OFFLINE) > 0
    mine = walk.selection.value(APP_CLASS)
    joins = (online or offline) == (mine in (ONLINE, OFFLINE)) and not (mine == OFFLINE and online)
    return None if joins else Reason.CARD_APP_CLASS_MISMATCH


def _qos_of(state: CardState) -> str:
    """What holds for the card's next tenant: as the newest one that is not online wants it, else as reported."""
    deciding = [tenant for tenant in state.tenants if tenant.facts.get(APP_CLASS) != ONLINE]
    return _wanted_qos(deciding[-1]) if deciding else str(state.card.custom.get("QosPolicy", ""))


def _wanted_qos(tenant: Tenant) -> str:
    """A tenant with all compute leaves the policy open."""
    return "" if tenant.cores == WHOLE else tenant.facts.get(QOS_POLICY, "")


def _right_qos(state: CardState, walk: Walk) -> Reason | None:
    """Tenants that share compute share it under one policy."""
    if state.used_slots == 0 or walk.cores == WHOLE or _is_online(walk):
        return None
    return None if _qos_of(state) in ("", walk.selection.value(QOS_POLICY)) else Reason.CARD_QOS_MISMATCH


def _entry(vendor: Vendor, state: CardState, walk: Walk) -> Entry:
    memory = walk.request.memory_on(state.card.memory_mib)
    return Entry(state.card.uuid, vendor.key, memory, 0 if _is_online(walk) else walk.cores)


def _tenant_facts(annotations: Mapping[str, str]) -> Mapping[str, str]:
    return {key: annotations[key] for key in (APP_CLASS, QOS_POLICY) if key in annotations}


def _choose(
    vendor: Vendor, groups: Sequence[Candidates], walk: Walk, counts: Mapping[Reason, int]
) -> Candidates | Refusal | None:
    """Online apps go where the fewest apps are, whole cards to as few link zones as they can; the others take the preferred cards."""
    found, count = groups[0], walk.request.count
    if len(found.entries) < count:
        return None
    places: Iterable[int] = range(len(found.entries))
    if len(found.entries) > count:
        if _is_online(walk):
            places = sorted(places, key=lambda place: _crowd(found.states[place]))
        elif not walk.selection.value(APP_CLASS) and walk.cores == WHOLE:
            places = _by_zone(found, count)
    return picked(found, list(places)[:count])


def _crowd(state: CardState) -> tuple[bool, int, int]:
    """Cards with offline apps alone come last."""
    online, offline = _tenants(state, ONLINE), _tenants(state, OFFLINE)
    return (offline > 0 and not online, online, offline)


def _by_zone(found: Candidates, count: int) -> list[int]:
    """The smallest zone that is large enough, else the zones from the smallest on, then cards without zone."""
    zones = sorted(zones_of(found, _zone).values(), key=len)
    enough = next((zone for zone in zones if len(zone) >= count), None)
    if enough is not None:
        return enough
    free = [place for place, state in enumerate(found.states) if _zone(state.card) is None]
    return [*(place for zone in zones for place in zone), *free]


def _json(document: object) -> str:
    return orjson.dumps(document).decode()


def _annotations(vendor: Vendor, entries: Sequence[tuple[Entry, ...]], placed: Placed) -> Mapping[str, str]:
    """The allocation once more, as the vendor's own plugin reads it: no field that is 0."""
    devices = [
        [
            {"uuid": e.uuid}
            | ({"compute": e.cores} if e.cores else {})
            | ({"vRam": e.memory_mib} if e.memory_mib else {})
            for e in container
        ]
        for container in entries
    ]
    return {DEVICES: _json(devices), PREDICATE_TIME: str(int(placed.now_s * 1e9))}


def _links(cards: Iterable[Card]) -> int:
    """10 for every two cards of one zone."""
    zones = [zone for zone in map(_zone, cards) if zone is not None]
    return 10 * sum(one == other for one, other in combinations(zones, 2))


class _Shared:
    """The score, with its section at hand."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def score(self, vendor: Vendor, entries: Sequence[tuple[Entry, ...]], context: ScoreContext) -> float:
        """Online apps: away from other apps. Whole cards, where topology is asked for: links won less links broken."""
        given = {entry.uuid: entry for container in entries for entry in container}
        states = [state for state in context.node.cards if state.card.vendor == vendor.key]
        if context.selection.value(APP_CLASS) == ONLINE:
            return float(sum(_loneliness(state) for state in states if state.card.uuid in given))
        taken = {entry.uuid for container in entries for entry in container if entry.cores == WHOLE}
        wanted = parse_bool(context.selection.value(TOPOLOGY_AWARE))
        if not taken or not (self._settings.sgpu_topology_aware if wanted is None else wanted):
            return 0.0
        idle = [state.card for state in states if state.used_slots == 0]
        mine = [state.card for state in states if state.card.uuid in taken]
        won = _links(mine)
        broken = _links(idle) - won - _links(card for card in idle if card.uuid not in taken)
        return float(10 * won - broken)


def _loneliness(state: CardState) -> int:
    online, offline = _tenants(state, ONLINE), _tenants(state, OFFLINE)
    return -20 * online - 2 * offline if online else -100 * offline


_COMPUTE: tuple[Check, ...] = (enough_cores, idle_for_whole_compute, compute_left)


def _build(settings: Settings) -> tuple[Vendor, ...]:
    return (
        Vendor(
            key="Metax-GPU",
            count_resource=settings.resource_count_name,
            allocated="hami.io/metax-gpu-devices-allocated",
            to_allocate="hami.io/metax-gpu-devices-to-allocate",
            node_inputs=(LOSSES, SCORES),
            constant=(0, WHOLE, WHOLE),
            checks=STANDARD_CHECKS,
            hooks=Hooks(read_node=_read_gpus, score=_table_score),
        ),
        Vendor(
            key="Metax-SGPU",
            count_resource=settings.resource_v_count_name,
            memory_resource=settings.resource_v_memory_name,
            core_resource=settings.resource_v_core_name,
            allocated="hami.io/metax-sgpu-devices-allocated",
            to_allocate="hami.io/metax-sgpu-devices-to-allocate",
            outputs=(DEVICES, PREDICATE_TIME),
            inputs=(QOS_POLICY, APP_CLASS, TOPOLOGY_AWARE),
            admission_outputs=(QOS_POLICY,),
            registration=(REGISTER,),
            uuid_keys=(("metax-tech.com/use-gpuuuid", "metax-tech.com/nouse-gpuuuid"),),
            node_lock="hami.io/mutex.lock",
            memory_factor=_GIB,
            default_cores=WHOLE,
            max_cores=None,
            score_is_neutral=True,
            checks=(
                _healthy,
                _right_app_class,
                _right_qos,
                right_uuid,
                free_slot,
                idle_for_exclusive_policy,
                within_quota,
                enough_memory,
                *(only_when(_holds_compute, check) for check in _COMPUTE),
            ),
            hooks=Hooks(
                request=_request,
                admit=_admit,
                read_node=_read_shared,
                entry=_entry,
                collects_all=every_card,
                choose=_choose,
                tenant_facts=_tenant_facts,
                annotate=_annotations,
                score=_Shared(settings).score,
            ),
        ),
    )


FAMILY = Family("metax", Settings, _build)
