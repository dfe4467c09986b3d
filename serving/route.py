"""What a request counts as, in metrics and logs."""

from aiohttp import web

__all__ = ["CALLER_GONE", "route_of"]

CALLER_GONE = 499
"""The code counted and logged for a request whose caller hung up before the answer (nothing is sent)."""


def route_of(request: web.Request) -> str:
    """The pattern that matched (`/decisions/{namespace}/{pod}`), or `unmatched`: never text of the caller's choice."""
    resource = request.match_info.route.resource
    return "unmatched" if resource is None else resource.canonical
