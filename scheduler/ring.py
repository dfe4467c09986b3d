"""The last decisions, kept for people who ask why: which cards were looked at, with which scores, and what refused them."""

from collections import OrderedDict
from dataclasses import dataclass

from devices.config import DeviceConfig
from devices.model import CardState
from devices.objects import Pod
from devices.reasons import Reason
from scheduler.diagnosis import unresolvable
from scheduler.evaluate import NotFit, evaluate, sort_scores
from scheduler.pipeline import Decision
from scheduler.policies import card_order

__all__ = ["Recorded", "Ring", "described"]

_NODES_SHOWN = 100
_NODES_TRACED = 10
"""Refused nodes for which every card is listed with the reason that refused it."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """One decision with the pod it was for and when."""

    namespace: str
    name: str
    uid: str
    at_s: float
    decision: Decision
    weight: int = 0
    """Verdicts in it, when it was kept."""


class Ring:
    """At most `size` decisions, the newest per pod, and at most `verdicts` verdicts on nodes in all of them.

    A refusal has a verdict on every node offered: in a large cluster fewer of those are kept.
    """

    def __init__(self, size: int = 512, verdicts: int = 200_000) -> None:
        self._size = size
        self._limit = verdicts
        self._verdicts = 0
        self._kept: OrderedDict[tuple[str, str], Recorded] = OrderedDict()

    def record(self, pod: Pod, decision: Decision, now_s: float) -> None:
        """Keep a decision; the oldest ones go when the ring is full. States in it are frozen, so keeping them costs no copy."""
        key = (pod.namespace, pod.name)
        self._forget(self._kept.pop(key, None))
        recorded = Recorded(pod.namespace, pod.name, pod.uid, now_s, decision.kept(_NODES_TRACED), decision.evaluated)
        self._kept[key] = recorded
        self._verdicts += recorded.weight
        while len(self._kept) > self._size or (self._verdicts > self._limit and len(self._kept) > 1):
            self._forget(self._kept.popitem(last=False)[1])

    def _forget(self, recorded: Recorded | None) -> None:
        self._verdicts -= recorded.weight if recorded is not None else 0

    def of(self, namespace: str, name: str) -> Recorded | None:
        """The newest decision for a pod of this name."""
        return self._kept.get((namespace, name))


def described(recorded: Recorded, config: DeviceConfig) -> dict[str, object]:
    """A decision as JSON. Under `cards` per card of the chosen node the score and place in the walk of the first asking container."""
    decision = recorded.decision
    hopeless = unresolvable(decision)
    failed = sorted(decision.failed.items())
    return {
        "namespace": recorded.namespace,
        "pod": recorded.name,
        "uid": recorded.uid,
        "time": recorded.at_s,
        "node": decision.node.name if decision.node is not None else None,
        "offered": decision.offered,
        "evaluated": decision.evaluated,
        "cardPolicy": decision.ask.card_policy,
        "nodePolicy": decision.ask.node_policy,
        "containers": _containers(decision),
        "cards": _cards(decision, config),
        "fitting": dict(sorted(decision.fitting.items())[:_NODES_SHOWN]),
        "failed": [
            {
                "node": name,
                "reasons": text,
                "unresolvable": name in hopeless,
                **(_looked_at(decision, name, config) if number < _NODES_TRACED else {}),
            }
            for number, (name, text) in enumerate(failed[:_NODES_SHOWN])
        ],
        "failedNotShown": max(len(failed) - _NODES_SHOWN, 0),
        "warnings": list(decision.ask.warnings),
    }


def _containers(decision: Decision) -> list[dict[str, object]]:
    allocation = decision.fit.allocation if decision.fit is not None else ()
    rows: list[dict[str, object]] = []
    for position, container in enumerate(decision.ask.request.containers):
        entries = allocation[position] if allocation else ()
        rows.append(
            {
                "name": container.name,
                "role": container.role.value,
                "requests": [
                    {
                        "vendor": d.vendor,
                        "count": d.count,
                        "memoryMiB": d.memory_mib,
                        "percentage": d.percentage,
                        "cores": d.cores,
                    }
                    for d in container.devices
                ],
                "cards": [
                    {"uuid": e.uuid, "vendor": e.vendor, "memoryMiB": e.memory_mib, "cores": e.cores} for e in entries
                ],
            }
        )
    return rows


def _looked_at(decision: Decision, name: str, config: DeviceConfig) -> dict[str, object]:
    """The failing container of a refused node, and each look at a card; evaluated again on the states of that moment."""
    state, verdict = decision.states.get(name), decision.verdicts.get(name)
    if state is None or not isinstance(verdict, NotFit):
        return {}
    looks: list[tuple[str, dict[str, object]]] = []

    def note(container: str, card: CardState, reason: Reason | None) -> None:
        looks.append((container, {"uuid": card.card.uuid, "refused": reason.value if reason is not None else None}))

    evaluate(state, decision.ask, config, decision.headrooms, note)
    return {
        "container": verdict.container,
        "cards": [look for container, look in looks if container == verdict.container],
    }


def _cards(decision: Decision, config: DeviceConfig) -> list[dict[str, object]]:
    if decision.node is None:
        return []
    ask = decision.ask
    states = list(reversed(decision.node.cards))
    devices = next((c.devices for c in ask.request.containers if c.devices), ())
    scores = sort_scores(states, ask, devices)
    vendor = config.vendor(devices[0].vendor) if devices else None
    numa_bind = vendor is not None and vendor.groups_by_numa(ask.selections[vendor.key])
    return [
        {
            "node": decision.node.name,
            "uuid": state.card.uuid,
            "score": round(scores[state.card.vendor, state.card.uuid], 6),
            "place": place,
            "usedSlots": state.used_slots,
            "usedMemoryMiB": state.used_memory_mib,
            "usedCores": state.used_cores,
            "memoryMiB": state.card.memory_mib,
            "healthy": state.healthy,
            "cordoned": state.cordoned,
        }
        for place, state in enumerate(card_order(states, scores, ask.card_policy, numa_bind))
    ]
