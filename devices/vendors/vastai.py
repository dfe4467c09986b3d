"""Vastai accelerators: whole cards, or single dies that the dies of their physical card (AIC) keep together."""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from devices.fit import (
    Candidates,
    Refusal,
    Walk,
    free_slot,
    healthy,
    idle_for_exclusive_policy,
    right_uuid,
    within_quota,
)
from devices.model import Card, CardState, Entry
from devices.objects import Node
from devices.reasons import Reason
from devices.registration import CardList
from devices.vendor import (
    WHOLE,
    Bound,
    Family,
    FamilySettings,
    Hooks,
    ScoreContext,
    Vendor,
    json_registration,
    no_memory,
)
from devices.zones import from_largest_zones, share_of_largest_zones

__all__ = ["FAMILY"]


class Settings(FamilySettings, frozen=True, kw_only=True):
    """The section `vastai`."""

    resource_count_name: str = "vastaitech.com/va"


def _read_node(vendor: Vendor, node: Node) -> CardList:
    listed = json_registration(vendor, node)
    return CardList(tuple(replace(card, cores=WHOLE) for card in listed.cards), listed.problems)


def _is_die(card: Card) -> bool:
    return card.custom.get("DeviceStrategy") == "die"


def _aic(card: Card) -> str | None:
    """The physical card that a die sits on."""
    name = card.custom.get("AIC")
    return name if isinstance(name, str) and name else None


def _die_aic(card: Card) -> str | None:
    return _aic(card) if _is_die(card) else None


def _hands_out_dies(walk: Walk) -> bool:
    """One card decides for the node: the last of the list, which the walk takes from its end."""
    return bool(walk.cards) and _is_die(walk.cards[-1].card)


def _idle_physical_card(state: CardState, walk: Walk) -> Reason | None:
    """Under `mutex` a die needs the whole physical card idle."""
    if "mutex" not in walk.policies or not _hands_out_dies(walk):
        return None
    mine = _aic(state.card)
    shared = mine is not None and any(_aic(s.card) == mine for s in walk.cards if s.used_slots > 0)
    return Reason.EXCLUSIVE_CONFLICT if shared else None


def _choose(
    vendor: Vendor, groups: Sequence[Candidates], walk: Walk, counts: Mapping[Reason, int]
) -> Candidates | Refusal | None:
    return from_largest_zones(groups[0], walk, counts, _aic)


def _score(vendor: Vendor, entries: Sequence[tuple[Entry, ...]], context: ScoreContext) -> float:
    cards = {state.card.uuid: state.card for state in context.node.cards if state.card.vendor == vendor.key}
    return share_of_largest_zones(entries, cards, _die_aic)


def _build(settings: Settings) -> tuple[Vendor, ...]:
    return (
        Vendor(
            key="Vastai",
            count_resource=settings.resource_count_name,
            allocated="hami.io/Vastai-devices-allocated",
            to_allocate="hami.io/Vastai-devices-to-allocate",
            registration=("hami.io/node-va-register",),
            handshake="hami.io/node-handshake-va",
            uuid_keys=(("vastaitech.com/use-gpuuuid", "vastaitech.com/nouse-gpuuuid"),),
            node_lock="hami.io/mutex.lock",
            constant=(0, WHOLE, 0),
            bounds=frozenset({Bound.SLOTS}),
            checks=(healthy, right_uuid, free_slot, idle_for_exclusive_policy, _idle_physical_card, within_quota),
            hooks=Hooks(
                read_node=_read_node,
                wanted_memory=no_memory,
                collects_all=_hands_out_dies,
                choose=_choose,
                score=_score,
            ),
        ),
    )


FAMILY = Family("vastai", Settings, _build)
