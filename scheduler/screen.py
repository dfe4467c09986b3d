"""A quick pass over nodes that may only drop what cannot fit.

It asks of each node whether any single card could still serve the largest request; which questions count follows from the family's
own checks. The property tests hold it against the exact evaluator.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from devices.config import DeviceConfig
from devices.fit import enough_cores, enough_memory, free_slot, healthy, idle_for_exclusive_policy, not_cordoned
from devices.model import CardState, NodeState
from devices.vendor import Vendor
from scheduler.ask import Ask

__all__ = ["Screen"]


@dataclass(frozen=True, slots=True)
class _Best:
    """The most that any open card of one vendor offers, each quantity for itself."""

    free_memory_mib: int = -1
    free_cores: int = -1
    has_idle: bool = False


class Screen:
    """Remembers per node version what its best cards offer."""

    def __init__(self, config: DeviceConfig) -> None:
        self._config = config
        self._best: dict[str, tuple[int, dict[str, _Best]]] = {}

    def may_fit(self, node: NodeState, ask: Ask) -> bool:
        """False only if the exact evaluator would refuse the node."""
        best = self._of(node)
        for container in ask.request.containers:
            for request in container.devices:
                vendor = self._config.vendor(request.vendor)
                offer = best.get(request.vendor)
                if vendor is None or offer is None:
                    return False
                checks = vendor.checks
                if enough_memory in checks and request.memory_mib > offer.free_memory_mib:
                    return False
                if (
                    enough_cores in checks
                    and vendor.hooks.total_cores is None
                    and vendor.clamped(request.cores) > offer.free_cores
                ):
                    return False
                if idle_for_exclusive_policy in checks and "mutex" in ask.policies and not offer.has_idle:
                    return False
        return True

    def forget(self, name: str) -> None:
        """A node that is gone."""
        self._best.pop(name, None)

    def _of(self, node: NodeState) -> dict[str, _Best]:
        known = self._best.get(node.name)
        if known is not None and known[0] == node.version and node.version:
            return known[1]
        cards: dict[str, list[CardState]] = {}
        for state in node.cards:
            cards.setdefault(state.card.vendor, []).append(state)
        best = {}
        for key, states in cards.items():
            vendor = self._config.vendor(key)
            found = _best(states, vendor) if vendor is not None else None
            if found is not None:
                best[key] = found
        if node.version:
            self._best[node.name] = (node.version, best)
        return best


def _best(states: Sequence[CardState], vendor: Vendor) -> _Best | None:
    """None when no card of the vendor passes the questions that do not depend on the request."""
    checks = vendor.checks
    memory, cores, idle, found = -1, -1, False, False
    for state in states:
        if (
            (healthy in checks and not state.healthy)
            or (not_cordoned in checks and state.cordoned)
            or (free_slot in checks and state.used_slots >= state.card.slots)
        ):
            continue
        found = True
        memory, cores = max(memory, state.free_memory_mib), max(cores, state.free_cores)
        idle = idle or state.used_slots == 0
    return _Best(memory, cores, idle) if found else None
