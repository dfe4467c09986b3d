"""Why a card or a node was refused: counted as values, worded once at the edge."""

from collections.abc import Mapping
from enum import StrEnum

__all__ = ["NODE_INSUFFICIENT_DEVICE", "NODE_UNREGISTERED", "Reason", "summary"]

NODE_INSUFFICIENT_DEVICE = "NodeInsufficientDevice"
NODE_UNREGISTERED = "node unregistered"


class Reason(StrEnum):
    """The recorded names (HAMi v2.10 scheduling, card checks); clients match on them."""

    CARD_NOT_HEALTHY = "CardNotHealth"
    CARD_CORDONED = "CardCordoned"
    CARD_TYPE_MISMATCH = "CardTypeMismatch"
    CARD_UUID_MISMATCH = "CardUuidMismatch"
    CARD_SLOTS_EXHAUSTED = "CardTimeSlicingExhausted"
    EXCLUSIVE_CONFLICT = "ExclusiveDeviceAllocateConflict"
    QUOTA_NOT_FIT = "ResourceQuotaNotFit"
    CARD_INSUFFICIENT_MEMORY = "CardInsufficientMemory"
    CARD_INSUFFICIENT_CORES = "CardInsufficientCore"
    CARD_COMPUTE_EXHAUSTED = "CardComputeUnitsExhausted"
    CARD_MIG_INFEASIBLE = "CardMigTopologyInfeasible"
    CARD_FILTERED = "CardNotFoundCustomFilterRule"
    NUMA_NOT_FIT = "NumaNotFit"
    CARDS_INSUFFICIENT = "AllocatedCardsInsufficientRequest"
    MODE_NOT_FIT = "ModeNotFit"
    CARD_UNHEALTHY = "CardUnhealthy"
    CARD_QOS_MISMATCH = "CardQosPolicyMismatch"
    CARD_APP_CLASS_MISMATCH = "CardAppClassMismatch"


def summary(counts: Mapping[Reason, int], cards: int) -> str:
    """`<count>/<cards> <Reason>` items joined by `, ` and sorted as plain text: `10/12 X` before `2/12 Y`.

    Nothing counted is left out, but "none of the cards taken" is said where a family says so.
    """
    shown = ((reason, count) for reason, count in counts.items() if count or reason is Reason.CARDS_INSUFFICIENT)
    return ", ".join(sorted(f"{count}/{cards} {reason}" for reason, count in shown))
