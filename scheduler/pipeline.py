"""One decision, top to bottom: order the nodes, screen them, evaluate best first, stop at the first that fits.

Nothing here waits, reads a clock, calls a client or logs: same nodes, same ask, same answer. What the caller may do with a decision
is elsewhere: reserve it (`engine`), word it (`diagnosis`), bind it (`bind`).
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from devices.config import DeviceConfig
from devices.model import NodeState
from devices.reasons import NODE_UNREGISTERED
from scheduler.ask import Ask
from scheduler.evaluate import Fit, Headrooms, NotFit, Verdict, evaluate
from scheduler.memo import Memo
from scheduler.policies import NODE_POLICIES
from scheduler.screen import Screen

__all__ = ["Decision", "Pipeline"]


@dataclass(slots=True)
class Decision:
    """The answer for one pod: the chosen node, or why every offered one is refused.

    `verdicts` holds the nodes evaluated so far; `complete()` evaluates the rest on the same frozen states.
    """

    ask: Ask
    offered: int
    node: NodeState | None
    fit: Fit | None
    verdicts: dict[str, Verdict]
    unregistered: tuple[str, ...]
    states: Mapping[str, NodeState] = field(default_factory=dict)
    """The offered nodes as they were at this moment."""
    headrooms: Headrooms = field(default_factory=dict)
    _rest: list[NodeState] = field(default_factory=list)
    _evaluate: Callable[[NodeState], Verdict] | None = None

    @property
    def evaluated(self) -> int:
        """How many of the offered nodes the answer rests on."""
        return len(self.verdicts) + len(self.unregistered)

    @property
    def failed(self) -> Mapping[str, str]:
        """Why each evaluated node was refused, as `FailedNodes` words it."""
        refused = {name: verdict.text for name, verdict in self.verdicts.items() if isinstance(verdict, NotFit)}
        return {**refused, **dict.fromkeys(self.unregistered, NODE_UNREGISTERED)}

    @property
    def fitting(self) -> Mapping[str, float]:
        """Scores of the evaluated nodes that fit, the chosen one among them."""
        return {name: verdict.score for name, verdict in self.verdicts.items() if isinstance(verdict, Fit)}

    def kept(self, refused: int) -> "Decision":
        """The decision as it may be kept: with the states of `refused` refused nodes, and as many not evaluated yet."""
        names = sorted(name for name, verdict in self.verdicts.items() if isinstance(verdict, NotFit))[:refused]
        later = [state.name for state in self._rest[:refused]]
        states = {name: self.states[name] for name in (*names, *later)}
        return replace(self, states=states, _rest=[], _evaluate=None)

    def complete(self) -> "Decision":
        """Evaluate what the answer did not need: the cluster may have moved on, the states here have not."""
        if self._evaluate is not None:
            for state in self._rest:
                self.verdicts[state.name] = self._evaluate(state)
            self._rest.clear()
        return self


class Pipeline:
    """Screen, evaluator and memory over one device configuration."""

    def __init__(self, config: DeviceConfig, shapes: int = 256) -> None:
        self._config = config
        self._screen = Screen(config)
        self._memo = Memo(shapes)

    def decide(
        self,
        ask: Ask,
        names: Sequence[str],
        state_of: Callable[[str], NodeState | None],
        headrooms: Headrooms,
        largest_memory_mib: Callable[[str], int],
    ) -> Decision:
        """Choose among the named nodes; a node without cards is unregistered.

        `largest_memory_mib` answers for a vendor key the largest card there is: it bounds what the request may cost its namespace.
        """
        states, unregistered = self._offered(names, state_of)
        remembered = self._memo.of((ask.shape, self._quota_key(ask, headrooms, largest_memory_mib)))

        def verdict_on(state: NodeState) -> Verdict:
            known = remembered.get(state.name)
            if known is not None and known[0] == state.version and state.version:
                return known[1]
            verdict = evaluate(state, ask, self._config, headrooms)
            if state.version:
                remembered[state.name] = (state.version, verdict)
            return verdict

        verdicts: dict[str, Verdict] = {}
        chosen = None
        screened: list[NodeState] = []
        queue = self._best_first(states, ask)
        if self._scores_depend_on_cards(ask):
            # A family adds to the node score what only the evaluated cards show: every node is evaluated.
            verdicts = {state.name: verdict_on(state) for state in queue}
            queue, chosen = [], self._best_of(queue, verdicts, ask)
        looked_at = 0
        for state in queue:
            looked_at += 1
            if not self._screen.may_fit(state, ask):
                screened.append(state)
                continue
            verdict = verdicts[state.name] = verdict_on(state)
            if isinstance(verdict, Fit):
                chosen = state
                break
        rest = [*screened, *queue[looked_at:]]
        fit = verdicts[chosen.name] if chosen is not None else None
        decision = Decision(
            ask,
            len(states) + len(unregistered),
            chosen,
            fit if isinstance(fit, Fit) else None,
            verdicts,
            unregistered,
            {state.name: state for state in states},
            headrooms,
            rest,
            verdict_on,
        )
        # A refusal names the reasons of every node, also of those that the screen dropped.
        return decision.complete() if chosen is None else decision

    def forget_node(self, name: str) -> None:
        """A node that is gone."""
        self._screen.forget(name)
        self._memo.forget_node(name)

    @staticmethod
    def _offered(
        names: Sequence[str], state_of: Callable[[str], NodeState | None]
    ) -> tuple[list[NodeState], tuple[str, ...]]:
        states, unregistered = [], []
        for name in dict.fromkeys(names):
            state = state_of(name)
            if state is None:
                unregistered.append(name)
            else:
                states.append(state)
        return states, tuple(unregistered)

    @staticmethod
    def _best_first(states: Sequence[NodeState], ask: Ask) -> list[NodeState]:
        """By score as the node policy wants it, ties by name."""
        factor = NODE_POLICIES[ask.node_policy]
        return sorted(states, key=lambda state: (factor * state.score, state.name))

    @staticmethod
    def _best_of(states: Sequence[NodeState], verdicts: Mapping[str, Verdict], ask: Ask) -> NodeState | None:
        factor = NODE_POLICIES[ask.node_policy]
        fitting = [(factor * v.score, s.name, s) for s in states if isinstance(v := verdicts[s.name], Fit)]
        return min(fitting, key=lambda entry: entry[:2])[2] if fitting else None

    def _scores_depend_on_cards(self, ask: Ask) -> bool:
        asked = (self._config.vendor(key) for key in ask.request.vendors)
        return any(vendor is not None and vendor.hooks.score is not None for vendor in asked)

    def _quota_key(self, ask: Ask, headrooms: Headrooms, largest_memory_mib: Callable[[str], int]) -> Hashable:
        """None while nothing the request could cost would exceed the headroom: the outcome without quota is then exact."""
        if not headrooms:
            return None
        for container in ask.request.containers:
            for request in container.devices:
                headroom = headrooms.get(request.vendor)
                if headroom is None:
                    continue
                # Every container at once, each at the largest card: more than any phase of the pod can cost.
                same = [d for c in ask.request.containers for d in c.devices if d.vendor == request.vendor]
                memory = sum(d.count * max(d.memory_mib, largest_memory_mib(d.vendor)) for d in same)
                cores = sum(d.count * max(d.cores, 100) for d in same)
                cards = sum(d.count for d in same)
                limits = ((headroom.memory_mib, memory), (headroom.cores, cores), (headroom.cards, cards))
                if any(limit is not None and cost > limit for limit, cost in limits):
                    return tuple(sorted(headrooms.items(), key=lambda item: item[0]))
        return None
