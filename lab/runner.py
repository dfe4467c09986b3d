"""Plays scenarios step by step against a cluster and compares what comes with what the file expects."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from devices.kube.errors import ApiStatusError
from lab.amounts import same_amounts
from lab.audit import CardUsage, placements
from lab.burst import BurstOptions, run_burst
from lab.cluster import Cluster, ClusterSettings
from lab.errors import LabError
from lab.outcome import Outcome, denial_of, outcome_of, wait_for_event, wait_for_outcome
from lab.pods import pod_document, pod_key
from lab.records import BurstResult, Record, ScenarioBegan, ScenarioDone, StepDone
from lab.scenario import Expect, Flood, PodForm, Scenario, Step

__all__ = ["run_scenario"]

_NO_STEP: Final = 0
_SIX_DECIMALS: Final = 5e-7


@dataclass
class _Tally:
    """What a scenario has come to so far."""

    steps: int = 0
    placed: int = 0
    refused: int = 0
    denied: int = 0
    problems: list[str] = field(default_factory=list)
    burst: BurstResult | None = None


@dataclass(frozen=True)
class _Played:
    """What became of one step."""

    text: str
    problems: list[str]
    changed: bool = True


async def run_scenario(scenario: Scenario, settings: ClusterSettings | None = None) -> AsyncIterator[Record]:
    """Play all rounds, each on fresh clusters, and tell what happens; the last record is a `ScenarioDone`.

    A step whose expectation does not hold does not end the scenario. Raises `LabError` only if a cluster does not come up.
    """
    began = time.monotonic()
    tally = _Tally()
    first: list[dict[str, str]] = []
    for number in range(1, scenario.rounds + 1):
        yield ScenarioBegan(scenario.name, scenario.title, number, scenario.rounds)
        taken: list[dict[str, str]] = []
        async with _Round(scenario, settings or ClusterSettings(), tally, taken) as played:
            for position, step in enumerate(scenario.steps, 1):
                async for record in played.play(position, step):
                    yield record
        if number == 1:
            first = taken
        elif taken != first:
            tally.problems.append(f"round {number} did not take the same cards as round 1: {_difference(first, taken)}")
    yield ScenarioDone(
        scenario.name,
        scenario.title,
        tally.steps,
        tally.placed,
        tally.refused,
        tally.denied,
        tuple(tally.problems),
        time.monotonic() - began,
        tally.burst,
    )


def _difference(first: list[dict[str, str]], second: list[dict[str, str]]) -> str:
    for one, other in zip(first, second, strict=True):
        for pod in sorted({*one, *other}):
            if one.get(pod) != other.get(pod):
                return f"{pod} took {one.get(pod)}, then {other.get(pod)}"
    return "the clusters differ"


class _Round:
    """One round: a cluster that `fresh_cluster` steps replace."""

    def __init__(
        self, scenario: Scenario, settings: ClusterSettings, tally: _Tally, taken: list[dict[str, str]]
    ) -> None:
        self._scenario = scenario
        self._settings = settings
        self._tally = tally
        self._taken = taken
        self._stack = AsyncExitStack()
        self._cluster: Cluster | None = None

    async def __aenter__(self) -> "_Round":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end_cluster()

    async def play(self, number: int, step: Step) -> AsyncIterator[Record]:
        """Play one step; the last record tells what came of it."""
        if step.burst is not None:
            await self._end_cluster()
            async for record in self._burst(number, step):
                yield record
            return
        cards: tuple[CardUsage, ...] = ()
        try:
            if step.fresh_cluster:
                await self._end_cluster()
            cluster = await self._ready()
            played = await self._act(cluster, step)
            cards = cluster.usage()
            played.problems.extend(f"{v.node} {v.card}: {v.text}" for v in cluster.violations())
        except (LabError, ApiStatusError) as error:
            played = _Played(f"{step.action} failed", [str(error)])
        yield self._done(number, step, played, cards)

    def _done(self, number: int, step: Step, played: _Played, cards: tuple[CardUsage, ...]) -> StepDone:
        self._tally.steps += 1
        self._tally.problems.extend(f"step {number}: {problem}" for problem in played.problems)
        return StepDone(
            self._scenario.name, number, step.title, played.text, tuple(played.problems), cards, played.changed
        )

    async def _ready(self) -> Cluster:
        if self._cluster is None:
            settings = replace(self._settings, webhooks=self._scenario.webhooks)
            cluster = await self._stack.enter_async_context(Cluster(settings))
            for namespace in self._scenario.namespaces:
                await cluster.add_namespace(namespace)
            for node in self._scenario.nodes:
                await cluster.add_node(node)
            self._cluster = cluster
        return self._cluster

    async def _end_cluster(self) -> None:
        if self._cluster is not None:
            self._taken.append(placements(self._cluster.all_pods(), self._cluster.ledger.config.vendors))
            self._cluster = None
        await self._stack.aclose()

    # --- the actions ---

    async def _act(self, cluster: Cluster, step: Step) -> _Played:
        if step.create is not None:
            return await self._create(cluster, step.create, step.expect)
        if step.create_together is not None:
            return await self._create_together(cluster, step.create_together, step.expect or Expect())
        if step.flood is not None:
            return await self._flood(cluster, step.flood, step.expect or Expect())
        if step.pod is not None:
            namespace, name = pod_key(step.pod, self._scenario.pod)
            return await self._check(cluster, namespace, name, step.expect or Expect(), count=False)
        if step.delete is not None:
            await cluster.delete_pod(*pod_key(step.delete, self._scenario.pod))
            return _Played(f"{step.delete} is deleted", [])
        if step.finish is not None:
            await cluster.finish_pod(*pod_key(step.finish, self._scenario.pod))
            return _Played(f"{step.finish} has finished", [])
        if step.finish_init is not None:
            await cluster.finish_init(*pod_key(step.finish_init, self._scenario.pod))
            return _Played(f"the init containers of {step.finish_init} have finished", [])
        return await self._look_or_set(cluster, step)

    async def _look_or_set(self, cluster: Cluster, step: Step) -> _Played:
        if step.node is not None:
            await cluster.annotate_node(step.node.name, dict(step.node.annotations))
            shown = ", ".join(f"{key}: {value}" for key, value in step.node.annotations.items())
            return _Played(f"node {step.node.name} is annotated {shown}", [])
        if step.quota is not None:
            hard = {name: str(value) for name, value in step.quota.hard.items()}
            await cluster.put_quota(step.quota.namespace, step.quota.name, hard)
            shown = ", ".join(f"{name} {value}" for name, value in hard.items())
            return _Played(f"quota {step.quota.namespace}/{step.quota.name}: {shown}", [], changed=False)
        if step.usage is not None:
            return await _check_usage(cluster, step)
        if step.quota_used is not None:
            return await _check_quota(cluster, step)
        if step.scores is not None:
            return await self._check_scores(cluster, step)
        return _Played("an empty cluster", [])

    async def _create(self, cluster: Cluster, form: PodForm, expect: Expect | None) -> _Played:
        document = pod_document(form, self._scenario.pod)
        namespace, name = form.namespace or self._scenario.pod.namespace or "default", form.name
        try:
            await cluster.create_pod(document, namespace)
        except ApiStatusError as error:
            denial = denial_of(error)
            if denial is None:
                raise
            self._tally.denied += 1
            wanted = expect.denied if expect is not None else None
            problems = [] if denial == wanted else [f"denied: expected {wanted!r}, got {denial!r}"]
            return _Played(f"{name} is denied: {denial}", problems)
        return await self._check(cluster, namespace, name, expect, count=True)

    async def _check(
        self, cluster: Cluster, namespace: str, name: str, expect: Expect | None, *, count: bool
    ) -> _Played:
        wanted = expect or Expect()
        outcome = await wait_for_outcome(cluster, namespace, name, _reached(wanted))
        if count:
            self._tally.placed += outcome.node is not None
            self._tally.refused += outcome.pending is not None
        problems = _problems(wanted, outcome)
        for event in wanted.events:
            problems += await wait_for_event(cluster, namespace, name, event)
        return _Played(f"{name} {outcome.described}", problems, changed=count or outcome.node is not None)

    async def _create_together(self, cluster: Cluster, forms: list[PodForm], expect: Expect) -> _Played:
        keys = []
        for form in forms:
            document = pod_document(form, self._scenario.pod)
            namespace = form.namespace or self._scenario.pod.namespace or "default"
            await cluster.create_pod(document, namespace)
            keys.append((namespace, form.name))
        wanted_placed, wanted_waiting = expect.placed or 0, expect.waiting or 0

        def outcomes() -> list[Outcome]:
            return [outcome_of(cluster, *key) for key in keys]

        def reached() -> bool:
            seen = outcomes()
            placed, waiting = sum(o.is_running for o in seen), sum(o.pending is not None for o in seen)
            return (placed, waiting) == (wanted_placed, wanted_waiting)

        await cluster.pods.wait_for(reached, cluster.settings.settle_s)
        seen = outcomes()
        placed, waiting = sum(o.is_running for o in seen), sum(o.pending is not None for o in seen)
        self._tally.placed += placed
        self._tally.refused += waiting
        problems = _compare("placed", wanted_placed, placed) + _compare("waiting", wanted_waiting, waiting)
        return _Played(f"{len(forms)} pods at once: {placed} placed, {waiting} refused", problems)

    async def _flood(self, cluster: Cluster, flood: Flood, expect: Expect) -> _Played:
        """Create all pods at the same moment; what is denied must be denied for quota."""
        namespace = flood.pod.namespace or self._scenario.pod.namespace or "default"
        forms = [msgspec.structs.replace(flood.pod, name=f"{flood.pod.name}-{n}") for n in range(1, flood.pods + 1)]

        async def create(form: PodForm) -> str | None:
            try:
                await cluster.create_pod(pod_document(form, self._scenario.pod), namespace)
            except ApiStatusError as error:
                return denial_of(error) or str(error)
            return None

        denials = await asyncio.gather(*(create(form) for form in forms))
        let_in = [form.name for form, denial in zip(forms, denials, strict=True) if denial is None]

        def outcomes() -> list[Outcome]:
            return [outcome_of(cluster, namespace, name) for name in let_in]

        await cluster.pods.wait_for(
            lambda: all(o.is_running or o.pending is not None for o in outcomes()), cluster.settings.settle_s
        )
        placed, denied = sum(o.is_running for o in outcomes()), flood.pods - len(let_in)
        waiting = len(let_in) - placed
        self._tally.placed += placed
        self._tally.refused += waiting
        self._tally.denied += denied
        problems = _compare("placed", expect.placed, placed) + _compare("denied", expect.denied_pods, denied)
        problems += _compare("waiting", expect.waiting, waiting)
        problems += [d for d in denials if d is not None and not d.startswith("exceeding resource quota: ")]
        return _Played(f"{flood.pods} pods at once: {placed} placed, {waiting} waiting, {denied} denied", problems)

    async def _check_scores(self, cluster: Cluster, step: Step) -> _Played:
        assert step.scores is not None
        namespace, name = pod_key(step.scores.pod, self._scenario.pod)
        scores = await cluster.card_scores(namespace, name)
        problems = []
        for uuid, wanted in step.scores.cards.items():
            score = scores.get(uuid)
            if score is None or abs(score - wanted) > _SIX_DECIMALS:
                problems.append(
                    f"score of {uuid}: expected {wanted:.6f}, got {'none' if score is None else f'{score:.6f}'}"
                )
        shown = ", ".join(f"{uuid} {score:.6f}" for uuid, score in scores.items())
        return _Played(f"scores when {name} was placed: {shown}", problems, changed=False)

    async def _burst(self, number: int, step: Step) -> AsyncIterator[Record]:
        assert step.burst is not None
        form = step.burst
        # One after the other: a scenario takes the same cards whenever it is played.
        options = BurstOptions(nodes=form.nodes, cards=form.cards, pods=form.pods, gpumem=form.gpumem, creators=1)
        async for record in run_burst(options, self._settings):
            if not isinstance(record, BurstResult):
                yield record
                continue
            self._tally.burst = record
            self._tally.placed += record.placed
            problems = [*record.violations, *_compare("placed", form.placed, record.placed)]
            if record.writes_per_pod not in (1, None):
                problems.append(f"writes per placed pod: expected 1, got {record.writes_per_pod:g}")
            text = (
                f"{record.placed} of {record.pods} pods placed in {record.seconds:.1f} s, "
                f"{record.per_second:.0f} a second, {record.writes_text}, cards {record.digest}"
            )
            yield self._done(number, step, _Played(text, problems, changed=False), ())


def _reached(expect: Expect) -> Callable[[Outcome], bool]:
    """When waiting may end: the outcome is what is expected, or can no longer become it."""

    def reached(outcome: Outcome) -> bool:
        if expect.pending is not None:
            return outcome.pending == expect.pending or outcome.node is not None
        if expect.phase is not None:
            return outcome.phase == expect.phase
        if expect.is_placed:
            return outcome.is_running
        return outcome.is_running or outcome.pending is not None

    return reached


def _problems(expect: Expect, outcome: Outcome) -> list[str]:
    problems = _compare("denied", expect.denied, None)
    problems += _compare("pending", expect.pending, outcome.pending)
    problems += _compare("node", expect.node, outcome.node)
    problems += _compare("allocated", expect.allocated, outcome.allocated)
    problems += _compare("cards", expect.cards, outcome.cards)
    problems += _compare("phase", expect.phase, outcome.phase)
    for key, value in expect.annotations.items():
        if outcome.annotations.get(key) != value:
            problems.append(f"annotation {key}: expected {value!r}, got {outcome.annotations.get(key)!r}")
    if expect.limits is not None:
        wanted = {name: str(value) for name, value in expect.limits.items()}
        if outcome.limits is None or not same_amounts(wanted, outcome.limits):
            problems += _compare("limits", wanted, outcome.limits)
    if expect.is_placed and expect.phase is None and outcome.node is not None and not outcome.is_running:
        problems.append(f"the fake kubelet did not run it: phase {outcome.phase} {outcome.message}")
    return problems


def _compare(what: str, wanted: object, came: object) -> list[str]:
    if wanted is None or wanted == came:
        return []
    return [f"{what}: expected {wanted!r}, got {came!r}"]


async def _check_usage(cluster: Cluster, step: Step) -> _Played:
    wanted = step.usage or {}

    def by_annotations() -> dict[str, tuple[int, int, int]]:
        return {f"{c.node}/{c.uuid}": (c.used_slots, c.used_memory_mib, c.used_cores) for c in cluster.usage()}

    expected = {card: (form.slots, form.memory_mib, form.cores) for card, form in wanted.items()}
    await cluster.pods.wait_for(lambda: expected.items() <= by_annotations().items(), cluster.settings.settle_s)
    await cluster.settled(lambda: expected.items() <= cluster.booked().items())
    problems = []
    for source, found in (("annotations", by_annotations()), ("ledger", cluster.booked())):
        for card, amounts in expected.items():
            problems += [
                f"{source}, {text}" for text in _compare(f"{card} (slots, MiB, cores)", amounts, found.get(card))
            ]
    shown = ", ".join(
        f"{card} {amounts[0]} slots {amounts[1]} MiB {amounts[2]} %" for card, amounts in expected.items()
    )
    return _Played(f"in use: {shown}", problems, changed=False)


async def _check_quota(cluster: Cluster, step: Step) -> _Played:
    assert step.quota_used is not None
    form = step.quota_used
    wanted = (form.memory_mib, form.cores, form.cards)
    await cluster.settled(lambda: cluster.quota_used(form.namespace) == wanted)
    view = await cluster.quota_view(form.namespace)
    used = cluster.quota_used(form.namespace)
    problems = _compare(f"quota used by {form.namespace} (MiB, cores, cards)", wanted, used)
    if view is not None:
        problems += _compare("what the webhook shows as recorded and not seen", [], view["recorded"])
    text = f"{form.namespace} has {used[0]} MiB, {used[1]} % compute and {used[2]} cards in use"
    return _Played(text, problems, changed=False)
