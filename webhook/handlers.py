"""AdmissionReview in, AdmissionReview out: decode, call, encode."""

import base64
import logging
from collections.abc import Callable, Collection, Coroutine
from time import perf_counter

import msgspec
import orjson
from aiohttp import web

from serving.access_log import OUTCOME
from serving.answer import json_answer
from serving.limits import read_json_body
from serving.quick import QUICK, Answered
from webhook.admission import CREATE, Verdict
from webhook.errors import BadReviewError
from webhook.metrics import AdmissionMetrics
from webhook.requester import NOBODY, Requester
from webhook.validators import RefusalReason
from webhook.wire import (
    KNOWN_VERSIONS,
    AdmissionResponse,
    AdmissionReview,
    JsonObject,
    Status,
)

__all__ = ["BODY_LIMIT_BYTES", "Judge", "Review", "Waiting", "add_reviews", "answer_of", "decode_review"]

logger = logging.getLogger(__name__)

BODY_LIMIT_BYTES = 7 * 2**20
"""(HAMi v2.10 wire contract: admission.)"""

_FAULT = "internal error of the admission webhook, see its log"
_LOGGED_MAX = 300
_REASONS = {
    400: "BadRequest",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    422: "Invalid",
    500: "InternalError",
    503: "ServiceUnavailable",
}
"""Kubernetes' own words for the codes."""


class Review(msgspec.Struct, frozen=True):  # a dataclass of as many fields takes five times as long to make
    """A request for admission."""

    api_version: str
    uid: str
    kind: str
    operation: str
    namespace: str
    dry_run: bool
    pod: JsonObject | None
    """The object as it came; None where there is none (DELETE)."""
    old: JsonObject | None = None
    """The object as it is stored; None where none is."""
    resource: str = "pods"
    """With its sub-resource, as in `pods/binding`."""
    object_name: str = ""
    """The name in the request; empty while one is still to be generated."""
    requester: Requester = NOBODY

    @property
    def name(self) -> str:
        """`namespace/name` for the log; a name still to be generated ends in `*`."""
        metadata = (self.pod or {}).get("metadata")
        metadata = metadata if isinstance(metadata, dict) else {}
        return f"{self.namespace}/{metadata.get('name') or str(metadata.get('generateName') or '') + '*'}"


Waiting = Coroutine[None, None, Verdict]
Judge = Callable[[Review, JsonObject], Verdict | Waiting]
"""The verdict on a pod, or what has to be waited for until there is one."""


def _text(document: JsonObject, key: str, default: str = "") -> str:
    value = document.get(key)
    if value is None:
        return default
    if not isinstance(value, str):
        raise BadReviewError(f"not an AdmissionReview: request.{key} must be a text")
    return value


def _object(document: JsonObject, key: str) -> JsonObject | None:
    value = document.get(key)
    if value is not None and not isinstance(value, dict):
        raise BadReviewError(f"not an AdmissionReview: request.{key} must be an object")
    return value


def _resource(request: JsonObject) -> str:
    named = _object(request, "resource")
    plural = _text(named, "resource", "pods") if named is not None else "pods"
    sub = _text(request, "subResource")
    return f"{plural}/{sub}" if sub else plural


def _requester(request: JsonObject) -> Requester:
    user = _object(request, "userInfo")
    if user is None:
        return NOBODY
    groups = user.get("groups") or []
    if not isinstance(groups, list) or not all(isinstance(group, str) for group in groups):
        raise BadReviewError("not an AdmissionReview: request.userInfo.groups must be a list of texts")
    return Requester(_text(user, "username"), frozenset(groups))


def decode_review(body: bytes) -> Review:
    """The review in a body. Raises `BadReviewError` in one line: not JSON, another document, a version we do not speak."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadReviewError(f"the body is not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("kind") != "AdmissionReview":
        raise BadReviewError("not an AdmissionReview: kind must be AdmissionReview")
    version = document.get("apiVersion")
    if version not in KNOWN_VERSIONS:
        raise BadReviewError(f"not an AdmissionReview: apiVersion must be one of {', '.join(KNOWN_VERSIONS)}")
    request = document.get("request")
    if not isinstance(request, dict):
        raise BadReviewError("not an AdmissionReview: request must be an object")
    uid = _text(request, "uid")
    if not uid:
        raise BadReviewError("not an AdmissionReview: request.uid is missing")
    kind = _object(request, "kind")
    return Review(
        api_version=version,
        uid=uid,
        kind=_text(kind, "kind", "Pod") if kind is not None else "Pod",
        operation=_text(request, "operation", CREATE),
        namespace=_text(request, "namespace"),
        dry_run=request.get("dryRun") is True,
        pod=_object(request, "object"),
        old=_object(request, "oldObject"),
        resource=_resource(request),
        object_name=_text(request, "name"),
        requester=_requester(request),
    )


def answer_of(review: Review, verdict: Verdict) -> AdmissionReview:
    """The answer in the caller's own version."""
    response: AdmissionResponse = {"uid": review.uid, "allowed": verdict.allowed}
    if not verdict.allowed:
        status: Status = {"code": verdict.code, "message": verdict.message, "status": "Failure"}
        if verdict.code in _REASONS:
            status["reason"] = _REASONS[verdict.code]
        response["status"] = status
    elif verdict.message:
        response["status"] = {"code": verdict.code, "message": verdict.message}
    if verdict.patch:
        response["patch"] = base64.b64encode(orjson.dumps(verdict.patch)).decode()
        response["patchType"] = "JSONPatch"
    if verdict.warnings:
        response["warnings"] = list(verdict.warnings)
    return {"apiVersion": review.api_version, "kind": "AdmissionReview", "response": response}


def _outcome(verdict: Verdict) -> str:
    if verdict.allowed:
        return "patched" if verdict.patch else "allowed"
    return "error" if verdict.reason is RefusalReason.FAULT else "denied"


def _log_words(review: Review, verdict: Verdict, outcome: str) -> str:
    words = [outcome, review.operation, review.name]
    if review.resource != "pods":
        words.insert(2, review.resource)
    if review.dry_run:
        words.append("dry-run")
    if verdict.reason:
        words.append(f"{verdict.reason.value}:")
    if verdict.message:
        words.append(verdict.message)
    if verdict.warnings:
        words.append(f"({len(verdict.warnings)} warnings)")
    return " ".join(words)[:_LOGGED_MAX]


class _Reviews:
    """Of one path."""

    def __init__(self, path: str, judge: Judge, metrics: AdmissionMetrics, operations: Collection[str]) -> None:
        self._path = path
        self._judge = judge
        self._metrics = metrics
        self._operations = operations

    async def handle(self, request: web.Request) -> web.StreamResponse:
        review = decode_review(await read_json_body(request, BODY_LIMIT_BYTES))
        began = perf_counter()
        verdict = self._judged(review)
        if not isinstance(verdict, Verdict):
            verdict = await self._waited(review, verdict)
        answered = self._answered(review, verdict, began)
        request[OUTCOME] = answered.outcome
        return json_answer(request, answered.body)

    def at_once(self, body: bytes) -> Answered | None:
        review = decode_review(body)
        began = perf_counter()
        verdict = self._judged(review)
        if not isinstance(verdict, Verdict):
            verdict.close()  # not begun yet
            return None
        return self._answered(review, verdict, began)

    def _judged(self, review: Review) -> Verdict | Waiting:
        """The verdict; a fault of ours refuses the pod without a word about the inside, and is logged once."""
        pod = review.pod
        if review.operation not in self._operations:
            return Verdict(True, "", 200, pod or {}, [])
        if pod is None:
            return Verdict(
                False, f"object is not a {review.kind}: there is none", 400, {}, [], reason=RefusalReason.NOT_A_POD
            )
        try:
            return self._judge(review, pod)
        except Exception:
            return self._fault(review)

    async def _waited(self, review: Review, waiting: Waiting) -> Verdict:
        try:
            return await waiting
        except Exception:
            return self._fault(review)

    def _fault(self, review: Review) -> Verdict:
        """To be called where the exception is handled."""
        logger.exception("%s: judging %s %s failed", self._path, review.kind.lower(), review.name)
        return Verdict(False, _FAULT, 500, review.pod or {}, [], reason=RefusalReason.FAULT)

    def _answered(self, review: Review, verdict: Verdict, began: float) -> Answered:
        outcome = _outcome(verdict)
        self._metrics.answered(self._path, outcome, perf_counter() - began)
        if outcome == "denied" and verdict.reason is not None:
            self._metrics.denied(self._path, verdict.reason)
        if verdict.ask is not None and not review.dry_run:
            self._metrics.quota_answered(verdict.ask, verdict.allowed, verdict.excesses)
        return Answered(orjson.dumps(answer_of(review, verdict)), _log_words(review, verdict, outcome))


def add_reviews(
    app: web.Application,
    path: str,
    judge: Judge,
    metrics: AdmissionMetrics,
    operations: Collection[str] = (CREATE,),
    *,
    waits: bool = False,
) -> None:
    """Serve `POST` of reviews at `path`: `judge` is asked about the `operations` named. With `waits` most verdicts have to be waited for."""
    reviews = _Reviews(path, judge, metrics, operations)
    app.router.add_post(path, reviews.handle)
    if not waits:
        app[QUICK].add(path, reviews.at_once)
