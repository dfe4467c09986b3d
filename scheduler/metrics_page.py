"""The ledger's part of the metrics page, put together in slices between which decisions are answered.

Each node's text is kept until the node changes, so a scrape costs what has changed since the last one. All nodes and pods on a page are as
they were at one moment, unless changes come faster than they can be written; what namespaces use is read just before.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from time import perf_counter

from devices.ledger import Ledger
from scheduler.metric_lines import (
    NODE_FAMILIES,
    QUOTA_FAMILIES,
    GaugeFamily,
    namespace_lines,
    node_lines,
)
from serving.page import Block

__all__ = ["LedgerPage"]

_SLICE_S = 0.002
_UNHURRIED_SLICE_S = 0.001
_PAUSE_S = 0.0025
"""Between two slices of what nobody waits for: done some seconds after a start, and most decisions meet none."""
_ROUNDS = 20
"""Changes that come while a page is caught up with are caught up with again so often; what then is left waits for the next page."""
_LEFT_OUT = "slotwise_metrics_series_left_out"


@dataclass(frozen=True, slots=True)
class _Text:
    """One node's lines, a text and a number of series a gauge."""

    texts: tuple[bytes, ...]
    series: tuple[int, ...]


class LedgerPage:
    """The gauges that HAMi names. `max_series` 0 sets no limit; above it whole gauges are left out, the least needed first.

    Shown while `leads`: over two replicas every sum would double.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        legacy: bool = False,
        max_series: int = 0,
        leads: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._ledger = ledger
        self._legacy = legacy
        self._max_series = max_series
        self._leads = leads
        self._clock = clock
        self._names = _names(NODE_FAMILIES, legacy)
        self._quota_names = _names(QUOTA_FAMILIES, legacy)
        self._nodes: dict[str, _Text] = {}
        """In the order of their names, unless any are `_unsorted`."""
        self._unsorted = False
        self._series = [0] * len(self._names)
        self._seen = -1
        self._stale: dict[str, None] = {}
        """Nodes whose text is not what it should be, the first that changed first."""
        self._one_at_a_time = asyncio.Lock()
        self._slice_ends_s = 0.0
        self._hurried = True

    async def blocks(self) -> Sequence[Block]:
        """Every gauge as text, in the order in which a limit leaves them out from the end."""
        if not self._leads():
            return ()
        self._hurried = True  # also whoever prepares at the moment
        async with self._one_at_a_time:
            self._begin_slice()
            quotas = await self._quotas()
            await self._catch_up()
            if self._unsorted:
                self._nodes, self._unsorted = dict(sorted(self._nodes.items(), key=itemgetter(0))), False
            # From here on nothing changes on this page.
            nodes, series = list(self._nodes.values()), tuple(self._series)
        found = [
            Block(name, text, _pieces(nodes, position) if series[position] else (), series[position])
            for position, (name, text) in enumerate(self._names.items())
        ]
        return self._within_limit([*quotas, *found])

    async def prepare(self) -> None:
        """Make every node's text beforehand, so that the first page takes as long as any other; in no hurry until one is asked for.

        What changes meanwhile is left to that page.
        """
        if self._leads():
            async with self._one_at_a_time:
                self._hurried = False
                self._begin_slice()
                await self._write_stale()

    def _within_limit(self, found: Sequence[Block]) -> Sequence[Block]:
        """As many as the limit allows, and how many series it leaves out."""
        kept: list[Block] = []
        left_out: list[str] = []
        room = self._max_series or sum(block.series for block in found)
        for block in found:
            if left_out or block.series > room:
                left_out.append(block.name)
            else:
                kept.append(block)
                room -= block.series
        missing = sum(block.series for block in found if block.name in left_out)
        text = "Series that --metrics-max-series leaves out of this page" + (
            f": {', '.join(left_out)}." if left_out else "."
        )
        return [*kept, Block(_LEFT_OUT, text, (f"{_LEFT_OUT} {float(missing)}\n".encode(),), 1)]

    async def _quotas(self) -> list[Block]:
        lines: dict[str, list[str]] = {name: [] for name in self._quota_names}
        for namespace in self._ledger.namespaces():
            for name, more in namespace_lines(self._ledger, namespace, self._legacy).items():
                lines[name] += more
            await self._give_way()
        return [
            Block(name, text, tuple(line.encode() for line in lines[name]), len(lines[name]))
            for name, text in self._quota_names.items()
        ]

    async def _catch_up(self) -> None:
        """Until no change has come while the last ones were written."""
        for _ in range(_ROUNDS):
            await self._write_stale()
            if not self._stale:
                return

    async def _write_stale(self) -> None:
        """One round through what has changed. Who ends it midway loses nothing: the rest stays stale, as does what changes meanwhile."""
        self._follow()
        for name in tuple(self._stale):
            self._write(name)
            del self._stale[name]
            if await self._give_way():
                self._follow()  # a round may take longer than the ledger remembers what has changed

    def _follow(self) -> None:
        changed = self._ledger.changed_since(self._seen)
        if changed is None:
            changed = {*self._ledger.held_nodes(), *self._nodes}
        self._stale.update(dict.fromkeys(changed))
        self._seen = self._ledger.version

    async def _give_way(self) -> bool:
        """Let others run once a slice is over; whether they did."""
        if self._clock() < self._slice_ends_s:
            return False
        await asyncio.sleep(0.0 if self._hurried else _PAUSE_S)
        self._begin_slice()
        return True

    def _begin_slice(self) -> None:
        self._slice_ends_s = self._clock() + (_SLICE_S if self._hurried else _UNHURRIED_SLICE_S)

    def _write(self, name: str) -> None:
        found = node_lines(self._ledger, name, self._legacy)
        series = tuple(len(found[family]) for family in self._names)
        before = self._nodes.get(name)
        if any(series):
            self._unsorted |= before is None
            self._nodes[name] = _Text(tuple("".join(found[family]).encode() for family in self._names), series)
        else:
            self._nodes.pop(name, None)
        for position, count in enumerate(series):
            self._series[position] += count - (before.series[position] if before is not None else 0)


def _pieces(nodes: Iterable[_Text], position: int) -> Iterator[bytes]:
    """One gauge's part of each node, taken out when it is written: there are thousands."""
    return (node.texts[position] for node in nodes)


def _names(families: Sequence[GaugeFamily], legacy: bool) -> Mapping[str, str]:
    """Names and help texts; old names after all others, since a limit takes those first."""
    found = {family.name: family.text for family in families}
    if legacy:
        found.update((family.old_name, family.text) for family in families if family.old_name)
    return found
