"""One request as limits per kind of card, so that a few comparisons of columns answer it for every card of the cluster.

Which limits there are follows from the family's own tuple of checks. `passing` may let through what the evaluator refuses, never
the other way round; `reasons` is exact, and `tells_reasons` says for which requests it can be.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from devices.fit import (
    WHOLE_COMPUTE,
    Candidates,
    Check,
    Walk,
    collect,
    compute_left,
    enough_cores,
    enough_memory,
    free_slot,
    healthy,
    idle,
    idle_for_exclusive_policy,
    idle_for_whole_compute,
    not_cordoned,
    right_type,
    right_uuid,
    within_quota,
)
from devices.mig import is_mig
from devices.model import NO_CHARGE, Card, CardState, Charge, Entry
from devices.reasons import Reason
from devices.requests import DeviceRequest
from devices.selection import Selection
from devices.vendor import Vendor
from scheduler.card_table import CardTable
from scheduler.columns import (
    CORDONED,
    LARGEST,
    UNHEALTHY,
    Columns,
    Flags,
    Numbers,
    bounded,
)

__all__ = ["CODE", "FOREIGN", "REASONS", "Codes", "Needs", "Rows"]

Rows = slice | Numbers
"""Some or all rows of the columns."""
Codes = NDArray[np.int64]

REASONS: tuple[Reason, ...] = tuple(Reason)
"""What a code of `reasons` stands for: code n is reason n - 1, 0 passes."""
FOREIGN = len(REASONS) + 1
"""The code of a card that the request is never shown."""
CODE = {reason: number for number, reason in enumerate(REASONS, 1)}
"""The other way round."""
_NEVER = LARGEST + 1

STANDARD: frozenset[Check] = frozenset(
    {
        healthy,
        not_cordoned,
        right_type,
        right_uuid,
        free_slot,
        idle_for_exclusive_policy,
        idle,
        within_quota,
        enough_memory,
        enough_cores,
        idle_for_whole_compute,
        compute_left,
    }
)


class Needs:
    """What one container asks of one vendor, in terms of the columns."""

    def __init__(self, vendor: Vendor, request: DeviceRequest, selection: Selection, policies: frozenset[str]) -> None:
        self.vendor = vendor
        self.request = request
        self._selection = selection
        self._cores = vendor.clamped(request.cores)
        self._policies = policies
        self._walk = Walk(vendor, request, self._cores, selection, policies)
        self._asks_of_kind = [c for c in vendor.checks if c is right_type or c in vendor.quick.by_kind]
        self._mutex = "mutex" in policies
        self._names_cards = right_uuid in vendor.checks and bool(selection.use_uuids or selection.nouse_uuids)
        self._kinds = 0
        self.any_special = False
        self._offered: Flags = np.zeros(0, np.bool_)
        self.special: Flags = np.zeros(0, np.bool_)
        """Kinds that may give several entries, or hand out instances: left to the exact evaluation."""
        self._wanted: Numbers = np.zeros(0, np.int64)
        self._slots: Numbers = np.zeros(0, np.int64)
        self._total_cores: Numbers = np.zeros(0, np.int64)
        self._least: tuple[Numbers, Numbers, Numbers] = (self._wanted, self._slots, self._total_cores)
        self.several: Flags = np.zeros(0, np.bool_)
        """Kinds that may give several entries."""
        self.mig: Flags = np.zeros(0, np.bool_)
        """Kinds that hand out instances."""
        self.entry: tuple[Numbers, Numbers, Numbers] = self._least
        """MiB, slots and percent that a card of each kind gives, special ones apart; see `gives_by_kind`."""
        self.price: tuple[Numbers, Numbers, Numbers] = self._least
        """MiB, percent and cards that it costs the namespace."""
        self._closed = UNHEALTHY * (healthy in vendor.checks) + CORDONED * (not_cordoned in vendor.checks)

    @property
    def takes_what_passes(self) -> bool:
        """No node fits with fewer passing cards than are asked, special kinds apart."""
        return self.vendor.hooks.collects_all is None or self.vendor.quick.takes_what_passes

    @property
    def grouped(self) -> bool:
        """All cards of a container come from one NUMA node."""
        return self.vendor.groups_by_numa(self._selection)

    @property
    def greedy(self) -> bool:
        """The first cards in walk order that pass are those the container gets."""
        return not self.vendor.collects_all(self._walk)

    @property
    def gives_by_kind(self) -> bool:
        """What a card gives, and what that costs, follows from its kind, special kinds apart."""
        return self.vendor.gives_by_kind

    @property
    def tells_reasons(self) -> bool:
        """Whether `reasons` knows every check of the family, and a node has no other ways to refuse."""
        vendor = self.vendor
        known = STANDARD | vendor.quick.by_kind | vendor.quick.mig_only
        return known.issuperset(vendor.checks) and vendor.hooks.gate is None and self.takes_what_passes

    def learn(self, kinds: list[Card]) -> None:
        """Take in kinds of cards that are new."""
        if self._kinds == len(kinds):
            return
        offered = [self._is_offered(card) for card in kinds]
        known = list(zip(kinds, offered, strict=True))
        self._kinds = len(kinds)
        self._offered = np.array(offered, np.bool_)
        special = [mine and self._is_special(card) for card, mine in known]
        self.special, self.any_special = np.array(special, np.bool_), any(special)
        self.several = np.array([mine and self._gives_several(card) for card, mine in known], np.bool_)
        self.mig = np.array([mine and is_mig(card) for card, mine in known], np.bool_)
        self._wanted = self._numbers(known, lambda card: self.vendor.wanted_memory(self.request, card))
        self._slots = self._numbers(known, lambda card: card.slots)
        self._total_cores = self._numbers(known, lambda card: self.vendor.total_cores(card, self._selection))
        self._least = self._limits(known)
        if self.gives_by_kind:
            given = [
                self._given(card) if mine and not odd else _NOTHING
                for (card, mine), odd in zip(known, special, strict=True)
            ]
            entries = [[bounded(n) for n in (entry.memory_mib, entry.slots, entry.cores)] for entry, _ in given]
            prices = [[bounded(n) for n in (price.memory_mib, price.cores, price.cards)] for _, price in given]
            self.entry, self.price = _columns(entries), _columns(prices)

    def _is_offered(self, card: Card) -> bool:
        return self.vendor.offers(card)

    def _is_special(self, card: Card) -> bool:
        return is_mig(card) or self._gives_several(card)

    def _gives_several(self, card: Card) -> bool:
        return self.vendor.gives_several(CardState(card), self._selection)

    def _given(self, card: Card) -> tuple[Entry, Charge]:
        entry = self.vendor.entry(CardState(card), self._walk)
        return entry, self.vendor.price(entry)

    @staticmethod
    def _numbers(known: list[tuple[Card, bool]], of: Callable[[Card], int]) -> Numbers:
        return np.array([bounded(of(card)) if mine else 0 for card, mine in known], np.int64)

    def _reason_of_kind(self, card: Card, check: Check) -> Reason | None:
        return check(CardState(card), self._walk)

    def _limits(self, known: list[tuple[Card, bool]]) -> tuple[Numbers, Numbers, Numbers]:
        """Least free memory, most tenants and most compute in use with which a card of each kind can still serve the request."""
        checks = self.vendor.checks
        memory: list[int] = []
        slots: list[int] = []
        cores: list[int] = []
        for number, (card, mine) in enumerate(known):
            if not mine or any(self._reason_of_kind(card, check) for check in self._asks_of_kind):
                memory.append(_NEVER)
                slots.append(0)
                cores.append(0)
                continue
            total = int(self._total_cores[number])
            memory.append(int(self._wanted[number]) if enough_memory in checks else -_NEVER)
            most = int(self._slots[number]) - 1 if free_slot in checks else LARGEST
            alone = (
                (self._mutex and idle_for_exclusive_policy in checks)
                or idle in checks
                or (idle_for_whole_compute in checks and self._cores == total == WHOLE_COMPUTE)
            )
            slots.append(min(most, 0) if alone else most)
            left = total - self._cores if enough_cores in checks else LARGEST
            if compute_left in checks and enough_cores in checks and self._cores == 0 and total > 0:
                left = total - 1
            cores.append(left)
        return np.array(memory, np.int64), np.array(slots, np.int64), np.array(cores, np.int64)

    def passing(self, columns: Columns, rows: Rows) -> Flags:
        """Cards that may serve the request on their own."""
        kind = columns.kind[rows]
        memory, slots, cores = self._least
        ok: Flags = columns.free_memory[rows] >= memory[kind]
        ok &= columns.used_slots[rows] <= slots[kind]
        ok &= columns.used_cores[rows] <= cores[kind]
        if self._closed:
            ok &= (columns.closed[rows] & self._closed) == 0
        if self._names_cards:
            ok &= self._named(columns)[rows]
        return ok

    def _named(self, columns: Columns) -> Flags:
        """By row: the cards that the pod's UUID lists accept."""
        wanted = self._selection.use_uuids
        found: Flags = np.full(columns.rows, not wanted)
        if wanted:
            found[columns.rows_named(frozenset.intersection(*wanted))] = True
        found[columns.rows_named(self._selection.nouse_uuids)] = False
        return found

    def given(self, state: CardState) -> tuple[int, int]:
        """How many entries a card that may give several would, and the code of the check that refuses a further one."""
        found = collect((state,), Walk(self.vendor, self.request, self._cores, self._selection, self._policies))
        if isinstance(found, Candidates):
            return len(found.entries), 0
        (reason,) = found.counts.keys() - {Reason.CARDS_INSUFFICIENT}
        return found.counts.get(Reason.CARDS_INSUFFICIENT, 0), CODE[reason]

    def reasons(self, cards: CardTable) -> tuple[Codes, Flags]:
        """Per card the code of the first check that refuses it, 0 where all pass, `FOREIGN` for other families' cards; and which

        cards would be asked for their price before that. The quota and what instances are free on a card are not looked at.
        """
        codes: Codes = np.where(self._offered[cards.kind], 0, FOREIGN)
        priced: Flags = np.zeros(codes.shape, np.bool_)
        for check in self.vendor.checks:
            if check in self._asks_of_kind:
                self._refuse_by_kind(check, cards, codes)
            elif check is within_quota:
                priced = codes == 0
            elif check is right_uuid:
                if self._names_cards:
                    foreign = ~self._named(cards.columns)[cards.row]
                    codes[foreign & (codes == 0)] = CODE[Reason.CARD_UUID_MISMATCH]
            elif check not in self.vendor.quick.mig_only:
                where, reason = self._failing(check, cards)
                codes[where & (codes == 0)] = CODE[reason]
        return codes, priced

    def _refuse_by_kind(self, check: Check, cards: CardTable, codes: Codes) -> None:
        refusals = [
            CODE[reason] if mine and (reason := self._reason_of_kind(card, check)) is not None else 0
            for card, mine in zip(cards.columns.kinds, self._offered.tolist(), strict=True)
        ]
        if any(refusals):
            of_card = np.array(refusals, np.int64)[cards.kind]
            codes[(codes == 0) & (of_card > 0)] = of_card[(codes == 0) & (of_card > 0)]

    def _failing(self, check: Check, cards: CardTable) -> tuple[Flags, Reason]:
        """The standard check over all cards at once, and its reason."""
        kind, tenants, used = cards.kind, cards.used_slots, cards.used_cores
        if check is healthy:
            return (cards.closed & UNHEALTHY) != 0, Reason.CARD_NOT_HEALTHY
        if check is not_cordoned:
            return (cards.closed & CORDONED) != 0, Reason.CARD_CORDONED
        if check is free_slot:
            return tenants >= self._slots[kind], Reason.CARD_SLOTS_EXHAUSTED
        if check is idle_for_exclusive_policy:
            return (tenants > 0) & self._mutex, Reason.EXCLUSIVE_CONFLICT
        if check is idle:
            return tenants > 0, Reason.EXCLUSIVE_CONFLICT
        if check is enough_memory:
            return self._wanted[kind] > cards.free_memory, Reason.CARD_INSUFFICIENT_MEMORY
        total = self._total_cores[kind]
        if check is enough_cores:
            return self._cores > total - used, Reason.CARD_INSUFFICIENT_CORES
        if check is idle_for_whole_compute:
            whole = self._cores == WHOLE_COMPUTE
            return (tenants > 0) & (total == WHOLE_COMPUTE) & whole, Reason.EXCLUSIVE_CONFLICT
        if check is compute_left:
            return (used != 0) & (used == total) & (self._cores == 0), Reason.CARD_COMPUTE_EXHAUSTED
        raise AssertionError(f"check {check} cannot be asked of all cards at once")


_NOTHING = (Entry("", "", 0, 0, slots=0), NO_CHARGE)


def _columns(lines: Sequence[Sequence[int]]) -> tuple[Numbers, Numbers, Numbers]:
    table = np.array(lines, np.int64).reshape(-1, 3)
    return table[:, 0], table[:, 1], table[:, 2]
