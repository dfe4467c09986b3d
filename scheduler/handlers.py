"""The extender's HTTP handlers: decode, call, encode. Failures travel in `Error` with status 200, as kube-scheduler expects."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

import orjson
from aiohttp import web

from devices.errors import DeviceError
from devices.ledger import Ledger
from devices.objects import Pod
from devices.reasons import NODE_UNREGISTERED, Reason
from scheduler.bind import PodBinder
from scheduler.clock import Clock
from scheduler.engine import Engine, Filtered
from scheduler.errors import BindError, RequestError
from scheduler.events import EventSink
from scheduler.lead import Lead
from scheduler.metrics import DecisionMetrics
from scheduler.ring import described
from scheduler.wire import (
    FilterArgs,
    FilterDecoder,
    FilterResult,
    decode_bind,
    decode_filter,
    encode_filter,
    failed_filter,
)
from serving.access_log import OUTCOME
from serving.answer import json_answer
from serving.errors import BodyTooLargeError
from serving.limits import read_body
from serving.quick import Answered, Quick

__all__ = ["BODY_LIMIT_BYTES", "ExtenderHandlers", "ViewHandlers"]

_LOG = logging.getLogger(__name__)
BODY_LIMIT_BYTES = 16 * 2**20
CALLER_TIMEOUT_S = 30.0
"""kube-scheduler's `httpTimeout` in the shipped configuration; what we wait for ends before it."""
SYNC_WAIT_S = 25.0
"""A call that comes before the books are complete waits so long: less than kube-scheduler does."""
_NO_BODY = "Please send a request body"


@dataclass(frozen=True, slots=True)
class Synced:
    """Whether the books show the cluster as it is, and waiting until they do."""

    reason: Callable[[], str | None]
    wait: Callable[[], Awaitable[None]]

    async def within(self, seconds: float) -> str | None:
        """None as soon as the books are complete, else why they are not after `seconds`."""
        if self.reason() is None:
            return None
        try:
            async with asyncio.timeout(seconds):
                await self.wait()
        except TimeoutError:
            return self.reason()
        return self.reason()


async def _body(request: web.Request) -> bytes:
    body = await read_body(request, BODY_LIMIT_BYTES)
    if not body:
        raise web.HTTPBadRequest(text=_NO_BODY)
    return body


def _answer(document: object) -> web.Response:
    return web.Response(body=orjson.dumps(document), content_type="application/json")


def _answered(request: web.Request, answer: Answered) -> web.StreamResponse:
    request[OUTCOME] = answer.outcome
    return json_answer(request, answer.body)


def _named(pod: Pod) -> str:
    return f"{pod.namespace}/{pod.name}"


_FilterOutcome = tuple[FilterResult, str, str]
"""The result, what it counts as, and its words for the log."""


def _malformed(error: Exception) -> _FilterOutcome:
    return failed_filter(str(error)), "malformed", str(error)


class ExtenderHandlers:
    """What kube-scheduler calls."""

    def __init__(
        self,
        engine: Engine,
        binder: PodBinder,
        events: EventSink,
        clock: Clock,
        metrics: DecisionMetrics,
        synced: Synced,
        lead: Lead,
        *,
        node_choice: str,
        event_nodes: int,
        answered: Callable[[Pod, Filtered], None],
    ) -> None:
        self._engine = engine
        self._binder = binder
        self._events = events
        self._clock = clock
        self._metrics = metrics
        self._synced = synced
        self._lead = lead
        self._choose = engine.filter if node_choice == "extender" else engine.feasible
        self._event_nodes = event_nodes
        self._answered = answered
        self._decoder = FilterDecoder()

    def routes(self) -> Sequence[web.RouteDef]:
        """`/filter`, `/prioritize` and `/bind`."""
        return [
            web.post("/filter", self.filter),
            web.post("/prioritize", self.prioritize),
            web.post("/bind", self.bind),
        ]

    def quick_routes(self) -> Mapping[str, Quick]:
        """Those that need not wait, a filter as long as this replica leads and its books are complete."""
        return {"/filter": self.filter_at_once, "/prioritize": self._scores}

    async def filter(self, request: web.Request) -> web.StreamResponse:
        """`ExtenderArgs` in, `ExtenderFilterResult` out."""
        began = perf_counter()
        return _answered(request, self._counted(began, await self._filter(request)))

    def filter_at_once(self, body: bytes) -> Answered | None:
        """The same of a body, where there is nothing to wait for."""
        if not self._lead.leads or self._synced.reason() is not None:
            return None
        began = perf_counter()
        try:
            outcome = self._filtered(self._decoder.decode(body))
        except RequestError as error:
            outcome = _malformed(error)
        return self._counted(began, outcome)

    def _counted(self, began: float, outcome: _FilterOutcome) -> Answered:
        result, kind, words = outcome
        self._metrics.filter_seconds.labels(kind).observe(perf_counter() - began)
        return Answered(orjson.dumps(result), words)

    async def _filter(self, request: web.Request) -> _FilterOutcome:
        try:
            args = self._decoder.decode(await _body(request))
        except (RequestError, BodyTooLargeError) as error:
            return _malformed(error)
        not_now = await self._not_now()
        if not_now is not None:
            text, outcome = not_now
            return failed_filter(text), outcome, f"{_named(args.pod)} {text}"
        return self._filtered(args)

    def _filtered(self, args: FilterArgs) -> _FilterOutcome:
        if self._is_what_if(args):
            # Nothing is reserved and no Event says otherwise.
            filtered = self._engine.simulate(args.pod, args.nodes or (), ())
            result = encode_filter(filtered, args, every_refusal=True)
        else:
            filtered = self._decide(args)
            result = encode_filter(filtered, args, self._choose == self._engine.feasible)
        return result, filtered.outcome, self._words(args.pod, filtered)

    async def _not_now(self) -> tuple[str, str] | None:
        """Text and outcome of a call that cannot be answered; None as soon as it can, which is waited for."""
        began = self._clock.now()
        why = await self._lead.within(SYNC_WAIT_S)
        if why is not None:
            return why, "notleading"
        behind = await self._synced.within(SYNC_WAIT_S - (self._clock.now() - began))
        return (f"the books are not complete yet: {behind}", "unsynced") if behind is not None else None

    def _is_what_if(self, args: FilterArgs) -> bool:
        """Whether any node is given whole that does not exist (yet)."""
        return any(self._engine.ledger.node_object(node.name) is None for node in args.nodes or ())

    def _decide(self, args: FilterArgs) -> Filtered:
        names = args.names if args.nodes is None else [node.name for node in args.nodes]
        filtered = self._choose(args.pod, names or (), self._clock.now())
        self._answered(args.pod, filtered)
        self._events.later(lambda: self._say(args.pod, filtered))
        return filtered

    def _say(self, pod: Pod, filtered: Filtered) -> None:
        for event in self._engine.events(filtered, self._event_nodes):
            self._events.emit(pod, event)

    def _words(self, pod: Pod, filtered: Filtered) -> str:
        if filtered.error:
            return f"{_named(pod)} {filtered.outcome}: {filtered.error}"
        if filtered.nodes is not None:
            shown = filtered.nodes[0] if len(filtered.nodes) == 1 else f"{len(filtered.nodes)} nodes"
            return f"{_named(pod)} {filtered.outcome} {shown}"
        most = sorted(self._texts(filtered).items(), key=lambda item: (-item[1], item[0]))[:3]
        return f"{_named(pod)} {filtered.outcome} " + "; ".join(f"{count} nodes {text}" for text, count in most)

    def _texts(self, filtered: Filtered) -> Mapping[str, int]:
        """How many nodes were refused with each text; the reasons in them are counted for the metrics."""
        if filtered.decision is None:
            return Counter((filtered.failed or {}).values())
        counts = Counter({NODE_UNREGISTERED: len(filtered.decision.unregistered)})
        reasons: Counter[Reason] = Counter()
        for verdict, nodes in filtered.decision.verdict_counts:
            counts[verdict.text] += nodes
            for reason, cards in verdict.refusal.counts.items():
                reasons[reason] += cards * nodes
        for reason, total in reasons.items():
            self._metrics.refusals.labels(reason).inc(total)
        return +counts

    async def prioritize(self, request: web.Request) -> web.StreamResponse:
        """`ExtenderArgs` in, `HostPriorityList` out: 0 to 10, the better the node the higher."""
        try:
            body = await _body(request)
        except BodyTooLargeError as error:
            raise web.HTTPBadRequest(text=str(error)) from error
        return _answered(request, self._scores(body))

    def _scores(self, body: bytes) -> Answered:
        try:
            args = self._decoder.decode(body)
            names = args.names if args.names is not None else [node.name for node in args.nodes or ()]
            scores = self._engine.scores(args.pod, names)
        except (RequestError, DeviceError) as error:
            # This verb has no place for an error; kube-scheduler leaves out an extender that answers so.
            raise web.HTTPBadRequest(text=str(error)) from error
        listed = [{"Host": name, "Score": score} for name, score in scores.items()]
        return Answered(orjson.dumps(listed), f"{_named(args.pod)} {len(scores)} nodes")

    async def bind(self, request: web.Request) -> web.StreamResponse:
        """`ExtenderBindingArgs` in, `ExtenderBindingResult` out."""
        began = perf_counter()
        error, outcome, who = await self._bind(request)
        self._metrics.bind_seconds.labels(outcome).observe(perf_counter() - began)
        return _answered(request, Answered(orjson.dumps({"Error": error}), " ".join((who, outcome, error))))

    async def _bind(self, request: web.Request) -> tuple[str, str, str]:
        try:
            asked = replace(decode_bind(await _body(request)), deadline_s=self._clock.now() + CALLER_TIMEOUT_S)
        except (RequestError, BodyTooLargeError) as error:
            return str(error), "malformed", ""
        who = f"{asked.namespace}/{asked.name} {asked.node}"
        not_now = await self._not_now()
        if not_now is not None:
            return *not_now, who
        try:
            await self._binder.bind(asked)
        except BindError as error:
            return str(error), type(error).__name__.removesuffix("Error").lower(), who
        return "", "bound", who


class ViewHandlers:
    """The read-only port: decisions explained, and what-if questions without side effects."""

    def __init__(self, engine: Engine, ledger: Ledger) -> None:
        self._engine = engine
        self._ledger = ledger

    def routes(self) -> Sequence[web.RouteDef]:
        """`/decisions/{namespace}/{pod}` and `/simulate`."""
        return [web.get("/decisions/{namespace}/{pod}", self.decision), web.post("/simulate", self.simulate)]

    async def decision(self, request: web.Request) -> web.Response:
        """The newest decision for a pod of this name, while it is kept."""
        namespace, name = request.match_info["namespace"], request.match_info["pod"]
        recorded = self._engine.ring.of(namespace, name)
        if recorded is None:
            text = f"no decision is kept for pod {namespace}/{name}: it was not filtered here, or too many others were since"
            return web.json_response({"error": text}, status=404)
        return _answer(described(recorded, self._ledger.config))

    async def simulate(self, request: web.Request) -> web.Response:
        """`ExtenderArgs` in, all fitting nodes out with the reasons of all others; never a side effect."""
        try:
            args = decode_filter(await _body(request))
        except (RequestError, BodyTooLargeError) as error:
            return _answer(failed_filter(str(error)))
        filtered = self._engine.simulate(args.pod, args.nodes or (), args.names or ())
        return _answer(encode_filter(filtered, args, every_refusal=True))
