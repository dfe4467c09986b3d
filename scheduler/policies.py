"""Policies: small functions in two visible mappings.

A card policy is a sort key, smaller first: the preferred card comes first. `mutex` and `topology-aware` filter as well, see
`devices.fit` and `devices.choose`. Ties go to the card registered last, except in a chain, whose last key is the higher index.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from devices.model import CardState

__all__ = [
    "CARD_POLICIES",
    "DEFAULT_CARD_POLICY",
    "NODE_POLICIES",
    "Key",
    "card_keys",
    "card_order",
    "policy_tokens",
    "unknown_defaults",
    "unknown_tokens",
]

DEFAULT_CARD_POLICY = "spread"
Key = Callable[[CardState, float], float]


def binpack(state: CardState, score: float) -> float:
    """Highest score (slots, compute, memory in use) first."""
    return -score


def spread(state: CardState, score: float) -> float:
    """Lowest score first."""
    return score


def numa(state: CardState, score: float) -> float:
    """Highest NUMA number first."""
    return -state.card.numa


def lowest_numa(state: CardState, score: float) -> float:
    """Lowest NUMA number first: where `binpack` alone meets numa-bind."""
    return state.card.numa


def mutex(state: CardState, score: float) -> float:
    """Fewest tenants first."""
    return state.used_slots


def index(state: CardState, score: float) -> float:
    """Highest index first: the last key of every chain."""
    return -state.card.index


CARD_POLICIES: Mapping[str, Key] = MappingProxyType({"binpack": binpack, "spread": spread, "numa": numa})
"""The words that are sort keys in a chain."""
FILTER_WORDS = frozenset({"mutex", "topology-aware"})

NODE_POLICIES: Mapping[str, int] = MappingProxyType({"binpack": -1, "spread": 1})
"""Factor of the node score, smaller first: binpack takes the highest score, spread the lowest."""


def policy_tokens(policy: str) -> tuple[str, ...]:
    """The words of a policy in written order, trimmed."""
    return tuple(word for word in (part.strip() for part in policy.split(",")) if word)


def unknown_tokens(policy: str) -> tuple[str, ...]:
    """Words that are no policy; they sort as `spread` (case counts)."""
    return tuple(word for word in policy_tokens(policy) if word not in CARD_POLICIES and word not in FILTER_WORDS)


def unknown_defaults(card_policy: str, node_policy: str) -> tuple[str, ...]:
    """A warning for each word of the two flags that is no policy, naming what it acts as."""
    cards, nodes = ", ".join((*CARD_POLICIES, *sorted(FILTER_WORDS))), ", ".join(NODE_POLICIES)
    found = tuple(
        f"--gpu-scheduler-policy: {word!r} is unknown and acts as spread; known are {cards}"
        for word in unknown_tokens(card_policy)
    )
    if node_policy.strip() in NODE_POLICIES:
        return found
    return (*found, f"--node-scheduler-policy: {node_policy!r} is unknown and acts as binpack; known are {nodes}")


def _chain(policy: str, numa_bind: bool) -> tuple[Key, ...]:
    words = dict.fromkeys(word for word in policy_tokens(policy) if word in CARD_POLICIES) or {
        DEFAULT_CARD_POLICY: None
    }
    if numa_bind:
        words = {"numa": None, **words}
    return (*(CARD_POLICIES[word] for word in words), index)


def card_keys(policy: str, numa_bind: bool) -> tuple[Key, ...]:
    """The sort keys of a policy value, outermost first (HAMi v2.10 scheduling, card order)."""
    if "," in policy or policy == "numa":
        return _chain(policy, numa_bind)
    if policy == "mutex":
        return (mutex, numa)
    if policy == "binpack":
        return (lowest_numa, binpack) if numa_bind else (binpack, numa)
    return (numa, spread) if numa_bind else (spread, numa)


def card_order(
    states: Sequence[CardState], scores: Mapping[tuple[str, str], float], policy: str, numa_bind: bool
) -> list[CardState]:
    """The cards in walk order, preferred first; equal ones keep their present order.

    `scores` by (vendor, UUID). Worked: idle cards 0 to 3 given in walk order 3, 2, 1, 0 stay so under every policy.
    """
    keys = card_keys(policy, numa_bind)

    def key(state: CardState) -> tuple[float, ...]:
        score = scores[state.card.vendor, state.card.uuid]
        return tuple([k(state, score) for k in keys])

    return sorted(states, key=key)
