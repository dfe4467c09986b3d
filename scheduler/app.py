"""The aiohttp applications: the extender for kube-scheduler, and health, metrics and views for people and Prometheus."""

import logging

from aiohttp import web
from prometheus_client import CollectorRegistry

from scheduler.handlers import BODY_LIMIT_BYTES, ExtenderHandlers, ViewHandlers
from scheduler.metrics_page import LedgerPage
from serving.app import new_app
from serving.drain import Drain
from serving.health import NotReady, add_health
from serving.metrics import RequestMetrics, metrics_handler
from serving.quick import QUICK

__all__ = ["EXTENDER", "VIEWS", "extender_app", "plain_app"]

EXTENDER = web.AppKey("extender", ExtenderHandlers)
VIEWS = web.AppKey("views", ViewHandlers)

_access = logging.getLogger("scheduler.access")


def extender_app(handlers: ExtenderHandlers, metrics: RequestMetrics) -> web.Application:
    """`/filter`, `/prioritize`, `/bind`."""
    app = new_app(client_max_size=BODY_LIMIT_BYTES, metrics=metrics, log=_access)
    app[EXTENDER] = handlers
    app.add_routes(handlers.routes())
    for path, quick in handlers.quick_routes().items():
        app[QUICK].add(path, quick)
    return app


def plain_app(
    views: ViewHandlers,
    registry: CollectorRegistry,
    ledger_page: LedgerPage,
    metrics: RequestMetrics,
    not_ready: NotReady,
    drain: Drain,
) -> web.Application:
    """`/healthz`, `/readyz`, `/metrics`, `/decisions`, `/simulate`."""
    app = new_app(client_max_size=BODY_LIMIT_BYTES, metrics=metrics, log=_access)
    app[VIEWS] = views
    app.add_routes(views.routes())
    add_health(app, not_ready, drain)
    app.router.add_get("/metrics", metrics_handler(registry, ledger_page.blocks))
    return app
