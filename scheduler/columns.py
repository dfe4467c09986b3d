"""The cluster's cards as numpy columns, brought up to date by what changed: one row a card, one slot a node.

Nothing is decided here. `follow` costs by the number of changed nodes; everything that asks all cards at once is a few passes over
arrays. Values are MiB and percent as in `devices.model`.
"""

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from devices.model import Card, CardState, NodeState
from scheduler.policies import NODE_POLICIES
from scheduler.roster import Roster

__all__ = [
    "CORDONED",
    "LARGEST",
    "NOBODY",
    "UNHEALTHY",
    "Cluster",
    "Columns",
    "Flags",
    "Numbers",
    "Small",
    "States",
    "bounded",
]

Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]
Small = NDArray[np.uint8]

UNHEALTHY, CORDONED = 1, 2
"""Bits of the `closed` column."""
LARGEST = 2**62
"""No number in the columns is larger: what nodes and pods write has no bound of its own."""
NOBODY = 0
"""The slot of rows that no node has (any more), and the kind of their cards."""
_FIRST_NODES, _FIRST_ROWS = 64, 512
_LEAF = 64
"""States that are copied together: with 5,000 nodes there are as many leaves as states in one."""
_FLOAT, _BITS = Struct("<f"), Struct("<i")


class Cluster(Protocol):
    """What decisions need of the books; `devices.ledger.Ledger` has it."""

    @property
    def version(self) -> int: ...
    def changed_since(self, version: int) -> Iterable[str] | None: ...
    def node_names(self) -> Iterable[str]: ...
    def state(self, name: str) -> NodeState | None: ...
    def largest_memory_mib(self, vendor: str) -> int: ...


def bounded(number: int) -> int:
    """The number as the columns can hold it."""
    return number if -LARGEST <= number <= LARGEST else max(-LARGEST, min(LARGEST, number))


Scalar = TypeVar("Scalar", bound=np.generic)


def _longer(array: NDArray[Scalar], length: int) -> NDArray[Scalar]:
    grown = np.zeros(length, array.dtype)
    grown[: len(array)] = array
    return grown


def _kind_key(card: Card) -> tuple[object, ...]:
    """All that two cards of one kind share: everything registered but identity, place and links."""
    details = repr(sorted(card.custom.items())) if card.custom else ""
    return (card.vendor, card.model, card.slots, card.memory_mib, card.cores, card.mode, card.mig_profiles, details)


class States:
    """The states of all slots as they were at one moment. What has not changed since is shared with earlier and later ones."""

    def __init__(self, leaves: tuple[tuple[NodeState | None, ...], ...]) -> None:
        self._leaves = leaves

    def of(self, slot: int) -> NodeState | None:
        """The node that was in this slot."""
        return self._leaves[slot // _LEAF][slot % _LEAF]


class Columns:
    """Nodes by slot and cards by row.

    `sequence` rises with every change, `changed_at` says per slot when; `layout` rises when a node comes or goes. Slot 0 is nobody's.
    With a new `epoch` slots, rows and kinds have been numbered afresh.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.sequence = 0
        self.layout = 0
        self.slot_of: dict[str, int] = {}
        self._shown = -1
        self._clear()

    def _clear(self) -> None:
        self.slot_of.clear()
        self.states: list[NodeState | None] = [None]
        self._leaves: list[tuple[NodeState | None, ...]] = []
        self._outdated: set[int] = {0}
        self.changed_at: Numbers = np.zeros(_FIRST_NODES, np.int64)
        self._scores: NDArray[np.float32] = np.zeros(_FIRST_NODES, np.float32)
        self._ranks: Numbers = np.zeros(_FIRST_NODES, np.int64)
        self.order: dict[str, Numbers] = {policy: np.zeros(_FIRST_NODES, np.int64) for policy in NODE_POLICIES}
        self._free: list[int] = []
        self._spans: list[range] = [range(0)]
        self._unranked = False
        self.kinds: list[Card] = [Card("", "")]
        self._kind_of: dict[tuple[object, ...], int] = {}
        self.rows = 0
        self._dead = 0
        self.cards: list[Card | None] = []
        self._rows_by_uuid: dict[str, list[int]] | None = None
        self._starts_and_counts: tuple[Numbers, Numbers] | None = None
        self._roster: Roster | None = None
        self._roster_at = -1
        self._owner: Numbers = np.zeros(_FIRST_ROWS, np.int64)
        self._kind: Numbers = np.zeros(_FIRST_ROWS, np.int64)
        self._numa: Numbers = np.zeros(_FIRST_ROWS, np.int64)
        self._index: Numbers = np.zeros(_FIRST_ROWS, np.int64)
        self._free_memory: Numbers = np.zeros(_FIRST_ROWS, np.int64)
        self._used_slots: Numbers = np.zeros(_FIRST_ROWS, np.int64)
        self._used_cores: Numbers = np.zeros(_FIRST_ROWS, np.int64)
        self._closed: Small = np.zeros(_FIRST_ROWS, np.uint8)

    @property
    def slots(self) -> int:
        """Length of every array by slot."""
        return len(self.changed_at)

    @property
    def owner(self) -> Numbers:
        """Slot of the node, by row."""
        return self._owner[: self.rows]

    @property
    def kind(self) -> Numbers:
        """Index into `kinds`, by row."""
        return self._kind[: self.rows]

    @property
    def numa(self) -> Numbers:
        """NUMA number of the card, by row."""
        return self._numa[: self.rows]

    @property
    def index(self) -> Numbers:
        """Index of the card on its node, by row."""
        return self._index[: self.rows]

    @property
    def free_memory(self) -> Numbers:
        """MiB, by row."""
        return self._free_memory[: self.rows]

    @property
    def used_slots(self) -> Numbers:
        """Tenants, by row."""
        return self._used_slots[: self.rows]

    @property
    def used_cores(self) -> Numbers:
        """Percent in use, by row."""
        return self._used_cores[: self.rows]

    @property
    def closed(self) -> Small:
        """`UNHEALTHY` and `CORDONED`, by row."""
        return self._closed[: self.rows]

    def present(self) -> States:
        """The states as they are, for those who ask after they have changed."""
        for leaf in sorted(self._outdated):
            self._leaves[leaf : leaf + 1] = [tuple(self.states[leaf * _LEAF : (leaf + 1) * _LEAF])]
        self._outdated.clear()
        return States(tuple(self._leaves))

    def _put(self, slot: int, state: NodeState | None) -> None:
        self.states[slot] = state
        self._outdated.add(slot // _LEAF)
        self.changed_at[slot] = self.sequence

    @property
    def roster(self) -> Roster:
        """All nodes by name."""
        if self._roster is None or self._roster_at != self.layout:
            self._roster, self._roster_at = Roster(self.slot_of), self.layout
        return self._roster

    def rows_of(self, slots: Iterable[int]) -> Numbers:
        """The rows of these nodes."""
        found: list[int] = []
        for slot in slots:
            found += self._spans[slot]
        return np.array(found, np.int64)

    def rows_named(self, uuids: Iterable[str]) -> Numbers:
        """The rows of the cards with these UUIDs, which several nodes may write."""
        known = self._rows_by_uuid
        if known is None:
            known = self._rows_by_uuid = {}
            for row, card in enumerate(self.cards):
                if card is not None:
                    known.setdefault(card.uuid, []).append(row)
        return np.array([row for uuid in uuids for row in known.get(uuid, ())], np.int64)

    def spans(self) -> tuple[Numbers, Numbers]:
        """By slot: the first row of the node's cards, which are in a row, and how many they are."""
        known = self._starts_and_counts
        if known is None:
            owner = self.owner
            start = np.zeros(self.slots, np.int64)
            first = np.flatnonzero(owner[1:] != owner[:-1]) + 1
            start[owner[first]] = first
            known = self._starts_and_counts = start, np.bincount(owner, minlength=self.slots)
        return known

    def follow(self, cluster: Cluster) -> None:
        """Show the cluster as it is now."""
        version = cluster.version
        if version == self._shown:
            return
        names = cluster.changed_since(self._shown)
        if names is None or self._dead > self.rows // 2 + _FIRST_ROWS:
            # Too long ago, or more rows of the past than of the present.
            names = self._anew(cluster)
        self.sequence += 1
        for name in names:
            self._show(name, cluster.state(name))
        if self._unranked:
            self._rank()
        self._shown = version

    def _anew(self, cluster: Cluster) -> Sequence[str]:
        self._clear()
        self.epoch += 1
        self.layout += 1
        return tuple(cluster.node_names())

    def _show(self, name: str, state: NodeState | None) -> None:
        slot = self.slot_of.get(name)
        if state is None:
            if slot is not None:
                self._drop(name, slot)
            return
        if slot is None:
            slot = self._new_slot(name)
        before = self.states[slot]
        if before is state:
            return
        self._put(slot, state)
        self._scores[slot] = state.score
        self._place(slot, state.score)
        self._write(slot, state.cards, before.cards if before is not None else ())

    def _new_slot(self, name: str) -> int:
        if self._free:
            slot = self._free.pop()
        else:
            slot = len(self.states)
            self.states.append(None)
            self._spans.append(range(0))
            if slot >= self.slots:
                length = 2 * self.slots
                self._starts_and_counts = None
                self.changed_at = _longer(self.changed_at, length)
                self._scores = _longer(self._scores, length)
                self._ranks = _longer(self._ranks, length)
                self.order = {policy: _longer(keys, length) for policy, keys in self.order.items()}
        self.slot_of[name] = slot
        self.layout += 1
        self._unranked = True
        return slot

    def _drop(self, name: str, slot: int) -> None:
        del self.slot_of[name]
        self._abandon(slot)
        self._put(slot, None)
        self._free.append(slot)
        self.layout += 1

    def _abandon(self, slot: int) -> None:
        span = self._spans[slot]
        self._owner[span.start : span.stop] = NOBODY
        self._kind[span.start : span.stop] = NOBODY
        for row in span:
            self.cards[row] = None
        self._rows_by_uuid = self._starts_and_counts = None
        self._dead += len(span)
        self._spans[slot] = range(0)

    def _rank(self) -> None:
        for rank, name in enumerate(sorted(self.slot_of)):
            self._ranks[self.slot_of[name]] = rank
        for slot in self.slot_of.values():
            self._place(slot, float(self._scores[slot]))
        self._unranked = False

    def _place(self, slot: int, score: float) -> None:
        """The node order as one number: score as the policy wants it, then the name's rank. Scores are single precision."""
        # Floats of one sign order as their bits do; -0.0 becomes 0.0 first.
        (bits,) = _BITS.unpack(_FLOAT.pack(score + 0.0))
        ordered = bits ^ 0x7FFFFFFF if bits < 0 else bits
        rank = int(self._ranks[slot])
        for policy, factor in NODE_POLICIES.items():
            self.order[policy][slot] = (factor * ordered << 32) + rank

    def _write(self, slot: int, states: Sequence[CardState], before: Sequence[CardState]) -> None:
        span = self._spans[slot]
        if len(span) != len(states):
            self._abandon(slot)
            span = self._spans[slot] = self._new_rows(len(states))
            self._owner[span.start : span.stop] = slot
            before = ()
        # A placement changes one card of its node, as a rule.
        for row, state, was in zip(span, states, before or (None,) * len(states), strict=True):
            if state != was:
                self._write_card(row, state)

    def _write_card(self, row: int, state: CardState) -> None:
        card = state.card
        if self.cards[row] is not card:
            self.cards[row] = card
            self._rows_by_uuid = None
            self._kind[row] = self._kind_number(card)
            self._numa[row] = bounded(card.numa)
            self._index[row] = bounded(card.index)
        self._free_memory[row] = bounded(card.memory_mib - state.used_memory_mib)
        self._used_slots[row] = bounded(state.used_slots)
        self._used_cores[row] = bounded(state.used_cores)
        self._closed[row] = UNHEALTHY * (not state.healthy) + CORDONED * state.cordoned

    def _new_rows(self, count: int) -> range:
        first = self.rows
        self.rows += count
        self.cards += [None] * count
        if self.rows > len(self._owner):
            length = max(2 * len(self._owner), self.rows)
            self._owner = _longer(self._owner, length)
            self._kind = _longer(self._kind, length)
            self._numa = _longer(self._numa, length)
            self._index = _longer(self._index, length)
            self._free_memory = _longer(self._free_memory, length)
            self._used_slots = _longer(self._used_slots, length)
            self._used_cores = _longer(self._used_cores, length)
            self._closed = _longer(self._closed, length)
        return range(first, self.rows)

    def _kind_number(self, card: Card) -> int:
        key = _kind_key(card)
        number = self._kind_of.get(key)
        if number is None:
            number = self._kind_of[key] = len(self.kinds)
            self.kinds.append(card)
        return number
