"""The API server itself: its version, and whether our clock agrees with its."""

import re
from collections.abc import Iterator
from typing import Final

from cli.doctor.facts import Facts
from cli.doctor.findings import Finding, problem, unknown, warning, well

__all__ = ["OLDEST_MINOR", "TRIED_MINORS", "api_server", "clock", "minor_of"]

OLDEST_MINOR: Final = 34
TRIED_MINORS: Final = (34, 35, 36, 37)
"""Kubernetes minors that Slotwise's own tests run on."""
_SKEW_LIMIT_S: Final = 5.0
# Creation times are whole seconds.
_RESOLUTION_S: Final = 1.0


def minor_of(version: str) -> int | None:
    """37 of `v1.37.2`; None for what is no such version."""
    found = re.match(r"v?1\.(\d+)", version)
    return int(found[1]) if found else None


def api_server(facts: Facts) -> Iterator[Finding]:
    """Is its version one that Slotwise is tested with?"""
    minor = minor_of(facts.version)
    if minor is None:
        yield unknown("api-server", f"its version {facts.version!r} cannot be read", "look at kubectl version")
    elif minor < OLDEST_MINOR:
        yield problem(
            "api-server",
            f"Kubernetes {facts.version} is older than 1.{OLDEST_MINOR}, the oldest that Slotwise works on",
            "upgrade the cluster before relying on Slotwise",
        )
    elif minor > TRIED_MINORS[-1]:
        yield warning(
            "api-server",
            f"Kubernetes {facts.version} is newer than 1.{TRIED_MINORS[-1]}, the newest that this version is tested on",
            "look for a newer release of Slotwise",
        )
    else:
        yield well("api-server", f"Kubernetes {facts.version} answers")


def clock(facts: Facts) -> Iterator[Finding]:
    """Certificates and lock expiries need clocks that agree."""
    if facts.server_time is None:
        yield unknown("clock", "no answer of the API server told its time", "see the findings about dry-run pods")
        return
    apart_s = (facts.now - facts.server_time).total_seconds()
    if -_SKEW_LIMIT_S <= apart_s <= _SKEW_LIMIT_S + _RESOLUTION_S:
        yield well("clock", "this machine's clock and the API server's agree")
        return
    side = "ahead of" if apart_s > 0 else "behind"
    yield problem(
        "clock",
        f"this machine's clock is {abs(apart_s):.0f} s {side} the API server's",
        "let both follow NTP: node-lock expiries and certificates are judged by these clocks",
    )
