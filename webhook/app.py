"""The aiohttp applications: admission on one port, health and metrics on the other."""

import logging
from collections.abc import Callable

from aiohttp import web
from prometheus_client import CollectorRegistry

from devices.kube.protocols import PodReader
from serving.app import new_app
from serving.drain import Drain
from serving.health import NotReady, add_health
from serving.metrics import RequestMetrics, metrics_handler
from webhook.admission import CREATE, UPDATE, Admission, Verdict, not_the_last
from webhook.bindings import Bindings
from webhook.handlers import BODY_LIMIT_BYTES, Review, Waiting, add_reviews
from webhook.metrics import AdmissionMetrics
from webhook.quota_gate import Admitter, settled
from webhook.quota_views import QuotaViews
from webhook.wire import JsonObject

__all__ = ["ADMISSION", "METRICS", "add_drop_in_routes", "add_routes", "admission_app", "plain_app"]

ADMISSION = web.AppKey("admission", Admission)
METRICS = web.AppKey("metrics", AdmissionMetrics)

_access = logging.getLogger("webhook.access")
_PLAIN_BODY_LIMIT_BYTES = 2**16


def add_routes(
    app: web.Application,
    admission: Admission,
    metrics: AdmissionMetrics,
    admitter: Admitter | None = None,
    pods: PodReader | None = None,
) -> None:
    """Serve `POST /webhook` (mutating) and `POST /validate` (validating) on `app`.

    `admitter` has the last word on quota, `pods` tells what a Binding is about; without it the Bindings of others are refused.
    """
    app[ADMISSION], app[METRICS] = admission, metrics

    def mutate(review: Review, pod: JsonObject) -> Verdict:
        return admission.mutate(_of_kind(review, pod), review.namespace, operation=review.operation)

    add_reviews(app, "/webhook", mutate, metrics)
    _add_validate(app, admission, admission.validate, metrics, admitter, pods)


def add_drop_in_routes(
    app: web.Application, admission: Admission, metrics: AdmissionMetrics, pods: PodReader | None = None
) -> None:
    """Serve `POST /webhook` as HAMi does, mutation and validation in one, on `app`; and `/validate` for those who register it later."""
    app[ADMISSION], app[METRICS] = admission, metrics

    def drop_in(review: Review, pod: JsonObject) -> Verdict:
        return admission.drop_in(_of_kind(review, pod), review.namespace, operation=review.operation)

    add_reviews(app, "/webhook", drop_in, metrics)

    def validate(pod: JsonObject, namespace: str) -> Verdict:
        return not_the_last(admission.validate(pod, namespace))

    _add_validate(app, admission, validate, metrics, None, pods)


def _add_validate(
    app: web.Application,
    admission: Admission,
    validate_new: Callable[[JsonObject, str], Verdict],
    metrics: AdmissionMetrics,
    admitter: Admitter | None,
    pods: PodReader | None,
) -> None:
    bindings = Bindings(admission.settings, admission.config, pods)

    def validate(review: Review, pod: JsonObject) -> Verdict | Waiting:
        if review.kind == "Binding":
            return bindings.judge(pod, review.namespace, review.object_name, review.resource, review.requester)
        if review.kind != "Pod":
            # Refusing what somebody's rules send here by mistake would stop objects that are no business of ours.
            warning = f"slotwise checks pods and their Bindings only, this {review.kind} was let through unseen"
            return Verdict(True, "", 200, pod, [], (warning,))
        if review.operation == UPDATE:
            return admission.validate_update(pod, review.old, review.resource, review.requester)
        verdict = validate_new(pod, review.namespace)
        return verdict if admitter is None else settled(verdict, admitter, dry_run=review.dry_run)

    add_reviews(app, "/validate", validate, metrics, (CREATE, UPDATE), waits=admitter is not None)


def _of_kind(review: Review, pod: JsonObject) -> JsonObject:
    """The object with the kind its request names, where it names none itself."""
    return pod if review.kind == "Pod" else {"kind": review.kind, **pod}


def admission_app(
    admission: Admission,
    metrics: AdmissionMetrics,
    request_metrics: RequestMetrics,
    admitter: Admitter | None = None,
    pods: PodReader | None = None,
) -> web.Application:
    """The application of the TLS port."""
    app = new_app(client_max_size=BODY_LIMIT_BYTES, metrics=request_metrics, log=_access)
    add_routes(app, admission, metrics, admitter, pods)
    return app


def plain_app(
    registry: CollectorRegistry,
    request_metrics: RequestMetrics,
    not_ready: NotReady,
    drain: Drain,
    quotas: QuotaViews,
) -> web.Application:
    """The application of the plain port: `/healthz`, `/readyz`, `/metrics`, `/quotas`."""
    app = new_app(client_max_size=_PLAIN_BODY_LIMIT_BYTES, metrics=request_metrics, log=_access)
    add_health(app, not_ready, drain)
    app.router.add_get("/metrics", metrics_handler(registry))
    app.add_routes(quotas.routes())
    return app
