"""Whatever happens in whatever order: no decision takes a card beyond what it has, or a namespace beyond its quota."""

from collections.abc import Mapping, Sequence

import msgspec
import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from devices.ledger import Ledger
from devices.mig import is_mig
from devices.model import NO_CHARGE, Charge
from devices.objects import Node, Pod, pod_of
from lab.replay.cluster import merge_patch
from scheduler.allocate import carried
from scheduler.ask import Defaults
from scheduler.engine import Engine, Filtered
from scheduler.wire import FilterArgs, encode_filter
from tests.builders import quota
from tests.scheduler.builders import CONFIG
from tests.scheduler.histories import NAMESPACES, NODES, Step, nodes, steps

WHATS = ("filter",) * 6 + (
    "bind",
    "bind",
    "finish",
    "delete",
    "unschedulable",
    "init done",
    "node",
    "gone",
    "quota",
    "time",
)
Usage = Mapping[tuple[str, str], tuple[int, int, int]]


class Cluster:
    """The books and the pods they are about, as the API server would have them."""

    def __init__(self, listed: Sequence[Node]) -> None:
        self.ledger = Ledger(CONFIG)
        self.engine = Engine(self.ledger, Defaults())
        self.now_s = 0.0
        self.version = 100
        self.pods: dict[str, Pod] = {}
        self.answers: list[bytes] = []
        self.generation = 0
        for node in listed:
            self.ledger.put_node(node)

    def usage(self) -> Usage:
        return {
            (name, s.card.uuid): (s.used_slots, s.used_memory_mib, s.used_cores)
            for name in NODES
            if (state := self.ledger.state(name)) is not None
            for s in state.cards
        }

    def charged(self) -> dict[str, Charge]:
        return {space: self.ledger.used(space).get("NVIDIA", NO_CHARGE) for space in NAMESPACES}

    def seen(self, pod: Pod, **changes: object) -> Pod:
        """The pod with changes laid over it, as a newer version that the watch shows."""
        self.version += 1
        stamped = merge_patch(changes, {"metadata": {"resourceVersion": str(self.version)}})
        changed = pod_of(merge_patch(msgspec.to_builtins(pod), stamped))
        self.pods[pod.name] = changed
        self.ledger.put_pod(changed, self.now_s)
        return changed

    def do(self, step: Step) -> Filtered | None:
        known = self.pods.get(step.pod.name)
        if step.what == "filter":
            return self.filter(known if known is not None else self.made(step.pod), step.names)
        if step.what == "node":
            self.ledger.put_node(step.node)
        elif step.what == "gone":
            self.ledger.delete_node(step.node.name)
        elif step.what == "quota":
            self.ledger.put_quota(quota("q", step.pod.namespace, gpumem=step.limit, gpu=4))
        elif step.what == "time":
            self.now_s += step.seconds
            self.ledger.expire(self.now_s)
        elif known is not None:
            self.live(step.what, known)
        return None

    def made(self, pod: Pod) -> Pod:
        """A new pod: one of the name that was here before was another."""
        return pod_of(merge_patch(msgspec.to_builtins(pod), {"metadata": {"uid": f"{pod.uid}-{self.generation}"}}))

    def filter(self, pod: Pod, names: Sequence[str]) -> Filtered:
        pod = self.seen(pod)
        found = self.engine.filter(pod, names, self.now_s)
        self.answers.append(orjson.dumps(encode_filter(found, FilterArgs(pod, tuple(names), None))))
        return found

    def live(self, what: str, pod: Pod) -> None:
        reservation = self.ledger.reservation(pod.uid)
        if what == "bind" and reservation is not None and not pod.bound_node:
            if self.engine.still_good(reservation):
                extra = carried(reservation.node, reservation.allocation, CONFIG, pod, None, self.now_s)
                self.seen(pod, metadata={"annotations": dict(extra.annotations)}, spec={"nodeName": reservation.node})
        elif what == "finish":
            self.seen(pod, status={"phase": "Succeeded"})
            self.pods.pop(pod.name)
            self.generation += 1
        elif what == "delete":
            self.ledger.delete_pod(pod.uid)
            self.pods.pop(pod.name)
            self.generation += 1
        elif what == "unschedulable" and not pod.bound_node:
            self.seen(pod, status={"conditions": [{"type": "PodScheduled", "status": "False"}]})
        elif what == "init done" and pod.bound_node:
            ended = [
                {"name": c.name, "state": {"terminated": {"exitCode": 0}}}
                for c in pod.init_containers
                if c.restart_policy != "Always"
            ]
            self.seen(pod, status={"initContainerStatuses": ended})


def check(cluster: Cluster, step: Step, found: Filtered | None, before: Usage, spent: Mapping[str, Charge]) -> None:
    now, charged = cluster.usage(), cluster.charged()
    mine = set()
    # Init containers are placed each on a copy: their instances may lie where an app's will be.
    on_copies = any(len(pod.init_containers) > 0 for pod in cluster.pods.values())
    if found is not None and found.allocation is not None and found.nodes is not None:
        (name,) = found.nodes
        assert name in step.names
        mine = {(name, entry.uuid) for entries in found.allocation for entry in entries}
        state = cluster.ledger.state(name)
        assert state is not None
        for s in state.cards:
            if (name, s.card.uuid) in mine:
                assert s.healthy
                assert not s.cordoned
                assert s.used_slots <= s.card.slots
                assert s.used_memory_mib <= s.card.memory_mib
                assert s.used_cores <= s.card.cores or is_mig(s.card)
                assert on_copies or not any(
                    a.conflicts(b) for n, a in enumerate(s.placements) for b in s.placements[:n]
                )
        limits = cluster.ledger.limits(step.pod.namespace)
        charge = charged[step.pod.namespace]
        for key, amount in (("nvidia.com/gpumem", charge.memory_mib), ("nvidia.com/gpu", charge.cards)):
            assert key not in limits or amount <= limits[key].value
    for place, used in now.items():
        if step.what != "node" and place not in mine:
            assert all(after <= was for after, was in zip(used, before[place], strict=True))
    if found is None or found.allocation is None:
        for space in NAMESPACES:
            assert charged[space].memory_mib <= spent[space].memory_mib


@settings(max_examples=200)
@given(st.lists(nodes(), min_size=1, max_size=4), st.lists(steps(WHATS), min_size=1, max_size=30))
def test_never_beyond_cards_or_quota_and_the_same_history_answers_the_same_bytes(
    listed: list[Node], history: list[Step]
) -> None:
    one, again = Cluster(listed), Cluster(listed)
    for step in history:
        before, spent = one.usage(), one.charged()
        check(one, step, one.do(step), before, spent)
        again.do(step)
    assert one.answers == again.answers
    for name in list(one.pods):
        one.ledger.delete_pod(one.pods[name].uid)
    one.ledger.expire(one.now_s + 100_000)
    assert not any(slots for slots, _, _ in one.usage().values())
    assert one.charged() == dict.fromkeys(NAMESPACES, NO_CHARGE)
