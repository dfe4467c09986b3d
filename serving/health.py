"""`/healthz` and `/readyz`."""

from collections.abc import Callable, Sequence

from aiohttp import web

from serving.access_log import OUTCOME
from serving.drain import Drain

__all__ = ["NotReady", "add_health"]

NotReady = Callable[[], Sequence[str]]
"""Answers why the process cannot serve right now, one short text a reason; nothing means ready."""


def add_health(app: web.Application, not_ready: NotReady, drain: Drain) -> None:
    """Serve `/healthz` (200, empty, while the process answers at all) and `/readyz` on `app`.

    `/readyz` is 200 and empty if `not_ready` gives no reason and the process is not shutting down, else 503 with
    the reasons one a line. It asks anew each time: readiness is never remembered.
    """

    async def healthz(request: web.Request) -> web.Response:
        return web.Response()

    async def readyz(request: web.Request) -> web.Response:
        reasons = [" ".join(reason.split()) for reason in not_ready()]
        if drain.began:
            reasons.insert(0, "shutting down")
        if not reasons:
            return web.Response()
        request[OUTCOME] = "; ".join(reasons)
        return web.Response(status=503, text="".join(f"{reason}\n" for reason in reasons))

    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
