"""A quick pass over all nodes that may only drop what cannot fit, remembered per request shape.

A node stays when for every request enough of its cards could serve it, each on its own. Only nodes that changed since the shape was
last seen are asked again. The property tests hold it against the exact evaluator.
"""

from collections.abc import Iterable

import numpy as np

from devices.config import DeviceConfig
from devices.requests import DeviceRequest
from scheduler.ask import Ask
from scheduler.columns import Columns, Flags
from scheduler.needs import Needs, Rows

__all__ = ["WORTH_ALL", "Screen", "needs_of"]

WORTH_ALL = 4
"""From a quarter of the nodes on it is cheaper to ask all of them."""


def needs_of(ask: Ask, config: DeviceConfig) -> tuple[Needs, ...]:
    """The different requests of a pod as the columns can answer them."""
    requests: Iterable[DeviceRequest] = dict.fromkeys(d for c in ask.request.containers for d in c.devices)
    found = []
    for request in requests:
        vendor = config.vendor(request.vendor)
        if vendor is None:
            raise AssertionError(f"a request for unknown vendor {request.vendor}")
        found.append(Needs(vendor, request, ask.selections[vendor.key], ask.policies))
    return tuple(found)


class Screen:
    """Which nodes may fit one request shape."""

    def __init__(self, needs: tuple[Needs, ...]) -> None:
        self.needs = needs
        self._may: Flags = np.zeros(0, np.bool_)
        self._seen = -1

    def may_fit(self, columns: Columns) -> Flags:
        """By slot: false only if the exact evaluator would refuse the node. To be read, and only until the columns move on."""
        if len(self._may) < columns.slots:
            grown = np.zeros(columns.slots, np.bool_)
            grown[: len(self._may)] = self._may
            self._may = grown
        if self._seen == columns.sequence:
            return self._may
        changed = np.flatnonzero(columns.changed_at > self._seen)
        if len(changed) * WORTH_ALL > len(columns.slot_of):
            self._may = self._asked(columns, slice(None))
        elif len(changed):
            self._may[changed] = self._asked(columns, columns.rows_of(changed.tolist()))[changed]
        self._seen = columns.sequence
        return self._may

    def _asked(self, columns: Columns, rows: Rows) -> Flags:
        may = np.ones(columns.slots, np.bool_)
        for need in self.needs:
            need.learn(columns.kinds)
            passing = need.passing(columns, rows)
            owner = columns.owner[rows]
            least = need.request.count if need.takes_what_passes else 1
            enough: Flags = np.bincount(owner[passing], minlength=columns.slots) >= least
            if need.any_special:
                # Such a card may give as many entries as are asked.
                enough[owner[passing & need.special[columns.kind[rows]]]] = True
            may &= enough
        return may
