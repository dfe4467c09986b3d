"""The algorithm that remembers nothing: every call counts all placed pods anew and evaluates every offered node.

It is here to be measured against; the answers are the same.
"""

from collections.abc import Mapping, Sequence

from devices.ledger import Ledger
from devices.model import Card, NodeState
from devices.objects import Pod
from devices.score import node_score
from devices.usage import Tenancy, card_states
from scheduler.ask import Defaults, ask_of
from scheduler.evaluate import Fit, evaluate
from scheduler.policies import NODE_POLICIES

__all__ = ["Rebuilding"]


class Rebuilding:
    """Decides from a list of cards and a list of tenants, as they were when it was made."""

    def __init__(self, ledger: Ledger) -> None:
        self._config = ledger.config
        self._cards: Mapping[str, tuple[Card, ...]] = {
            name: tuple(s.card for s in state.cards)
            for name in ledger.node_names()
            if (state := ledger.state(name)) is not None
        }
        holdings = (ledger.holding(pod.uid) for pod in ledger.pods())
        self._tenants: Sequence[tuple[str, Tenancy]] = [(h.node, h.tenancy) for h in holdings if h is not None]

    def choose(self, pod: Pod, names: Sequence[str]) -> str | None:
        """The best of the named nodes."""
        ask = ask_of(pod, self._config, Defaults())
        tenants: dict[str, list[Tenancy]] = {}
        for node, tenancy in self._tenants:
            tenants.setdefault(node, []).append(tenancy)
        factor = NODE_POLICIES[ask.node_policy]
        fitting = []
        for name in names:
            cards = self._cards.get(name)
            if cards is None:
                continue
            states = card_states(cards, frozenset(), tenants.get(name, ()))
            verdict = evaluate(NodeState(name, 0, states, node_score(states)), ask, self._config, {})
            if isinstance(verdict, Fit):
                fitting.append((factor * verdict.score, name))
        return min(fitting)[1] if fitting else None
