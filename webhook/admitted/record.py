"""The record of admissions that a tenant namespace's pods may not show yet, and the rules for it. Values only: nothing waits here.

One record a namespace, written by compare-and-swap. What the namespace uses is the union by UID of the pods a view shows and of
the record's entries. The rules, each of which an overrun waits behind:

- Whoever takes an entry out because its own watch has shown the pod raises `seen_through` to the revision it was shown at; a view
  that has not come so far decides nothing (`reached`).
- An entry that no watch has shown stays, and counts, until it is so old that its pod can no longer come into being; only a view that
  rests on a list made after that may take it out. Where that list shows the pod, watches have missed it: `listed_through` is raised
  and a view must rest on a list at least that new.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, Generic, Protocol, TypeVar
from urllib.parse import quote, unquote

from devices.model import NO_CHARGE, Charge
from devices.quota import Standing
from devices.scopes import EVERY_POD, Scope, ScopeFacts, covers

__all__ = [
    "Asked",
    "Decision",
    "Entry",
    "Outstanding",
    "Record",
    "RecordError",
    "View",
    "decide",
    "decode",
    "encode",
    "entry_bytes",
    "merged",
    "pruned",
    "reached",
]


NO_FACTS = ScopeFacts()


class RecordError(ValueError):
    """The text of a record cannot be read."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An admission: what the pod is charged by vendor key, what decides which quotas cover it, and its name for people."""

    charges: Mapping[str, Charge]
    facts: ScopeFacts = NO_FACTS
    pod: str = ""


def _no_entries() -> Mapping[str, Entry]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Record:
    """One namespace's admissions by UID, in the order they came."""

    seen_through: int = 0
    """A view must have come to this revision of the pods."""
    listed_through: int = 0
    """A view must rest on a list at least this new."""
    entries: Mapping[str, Entry] = field(default_factory=_no_entries)


class View(Protocol):
    """What one replica knows of the namespace's pods at one moment."""

    @property
    def revision(self) -> int:
        """Every change of a pod up to this one is in it."""
        ...

    @property
    def listed(self) -> int:
        """Revision of the last full list it rests on."""
        ...

    def shown(self, uid: str) -> int | None:
        """The revision at which the watch has shown the pod, living or ended; None for one it has not."""
        ...

    def counts(self, uid: str) -> bool:
        """Whether the pod is among those the view counts as used, however it came to know of it."""
        ...

    def is_over(self, uid: str) -> bool:
        """Whether the pod is known to have ended."""
        ...


def reached(record: Record, view: View) -> bool:
    """Whether a decision may rest on the view: it shows every pod whose entry was ever taken out."""
    return view.revision >= record.seen_through and view.listed >= record.listed_through


def merged(record: Record, entries: Mapping[str, Entry]) -> Record:
    """The record with further admissions; one of a UID that is there already replaces it."""
    return replace(record, entries=MappingProxyType({**record.entries, **entries})) if entries else record


def pruned(record: Record, view: View, expired: AbstractSet[str] = frozenset()) -> Record:
    """The record without entries that the view has shown, and without expired ones that it has not.

    `expired` are UIDs too old to come into being; the view must rest on a list made after they became so.
    """
    kept: dict[str, Entry] = {}
    seen_through, listed_through = record.seen_through, record.listed_through
    for uid, entry in record.entries.items():
        at = view.shown(uid)
        if at is not None:
            seen_through = max(seen_through, at)
        elif uid not in expired:
            kept[uid] = entry
        elif view.counts(uid) or view.is_over(uid):
            listed_through = max(listed_through, view.listed)
    if len(kept) == len(record.entries):
        return record
    return Record(seen_through, listed_through, MappingProxyType(kept))


class Outstanding:
    """What the admissions cost that a view does not count, by scope; admissions of the decision under way are added."""

    def __init__(self, record: Record, view: View) -> None:
        self._by_facts: dict[ScopeFacts, dict[str, Charge]] = {}
        for uid, entry in record.entries.items():
            if view.shown(uid) is None and not view.counts(uid) and not view.is_over(uid):
                self.add(entry)

    def add(self, entry: Entry) -> None:
        """One admission more."""
        total = self._by_facts.setdefault(entry.facts, {})
        for vendor, charge in entry.charges.items():
            total[vendor] = total.get(vendor, NO_CHARGE) + charge

    def under(self, scope: Scope = EVERY_POD) -> Mapping[str, Charge]:
        """Their cost as far as the scope covers them, by vendor key."""
        found: dict[str, Charge] = {}
        for facts, total in self._by_facts.items():
            if covers(scope, facts):
                for vendor, charge in total.items():
                    found[vendor] = found.get(vendor, NO_CHARGE) + charge
        return found

    def on_top_of(self, standings: Sequence[Standing]) -> tuple[Standing, ...]:
        """The standings with this use added."""
        return tuple(
            replace(
                standing,
                used={
                    key: standing.used.get(key, NO_CHARGE) + more.get(key, NO_CHARGE) for key in {*standing.used, *more}
                },
            )
            if (more := self.under(standing.scope))
            else standing
            for standing in standings
        )


class Asked(Protocol):
    """A pod that asks to be admitted."""

    @property
    def uid(self) -> str: ...
    @property
    def entry(self) -> Entry: ...


A = TypeVar("A", bound=Asked)


@dataclass(frozen=True, slots=True)
class Decision(Generic[A]):
    """What became of those that asked together, and the entries that must be stored before anybody is told yes."""

    admitted: tuple[A, ...]
    refused: tuple[A, ...]
    crowded: tuple[A, ...]
    """Refused because the record has no room for more."""
    entries: Mapping[str, Entry]


def decide(
    record: Record,
    view: View,
    asking: Iterable[A],
    fits: Callable[[A, Outstanding], bool],
    room_bytes: int,
) -> Decision[A]:
    """Decide on all that wait, in their order, each on top of those before it. The view must have `reached` the record.

    A UID that is recorded or counted already was admitted before: asking again changes nothing. `fits` answers for one pod given
    what else is under way. `room_bytes`: what `encode` may come to.
    """
    outstanding = Outstanding(record, view)
    left = room_bytes - sum(entry_bytes(uid, entry) for uid, entry in record.entries.items())
    admitted: list[A] = []
    refused: list[A] = []
    crowded: list[A] = []
    entries: dict[str, Entry] = {}
    for one in asking:
        if one.uid in record.entries or one.uid in entries or view.counts(one.uid):
            admitted.append(one)
        elif not fits(one, outstanding):
            refused.append(one)
        elif (size := entry_bytes(one.uid, one.entry)) > left:
            crowded.append(one)
        else:
            left -= size
            entries[one.uid] = one.entry
            outstanding.add(one.entry)
            admitted.append(one)
    return Decision(tuple(admitted), tuple(refused), tuple(crowded), MappingProxyType(entries))


# The text: one line an entry, so that `kubectl get configmap -o yaml` can be read, and quotes are not escaped twice.

_PLAIN: Final = re.compile(r"[A-Za-z0-9._~-]+").fullmatch
_FLAGS = (("T", "terminating"), ("B", "best_effort"), ("C", "cross_namespace"))


def _quoted(text: str) -> str:
    return text if _PLAIN(text) else quote(text, safe="")


def _line(uid: str, entry: Entry) -> str:
    flags = "".join(letter for letter, name in _FLAGS if getattr(entry.facts, name))
    charges = ",".join(
        f"{_quoted(key)}:{charge.memory_mib}:{charge.cores}:{charge.cards}"
        for key, charge in sorted(entry.charges.items())
    )
    named = _quoted(entry.facts.priority_class)
    return f"{_quoted(uid)} {_quoted(entry.pod) or '-'} {named}/{flags} {charges}"


def entry_bytes(uid: str, entry: Entry) -> int:
    """What an entry adds to the stored object, the escaped end of its line included."""
    return len(_line(uid, entry)) + 2


def encode(record: Record) -> dict[str, str]:
    """The record as `data` of a ConfigMap."""
    return {
        "seenThrough": str(record.seen_through),
        "listedThrough": str(record.listed_through),
        "entries": "".join(f"{_line(uid, entry)}\n" for uid, entry in record.entries.items()),
    }


def decode(data: Mapping[str, object]) -> Record:
    """The record of a ConfigMap's `data`. Raises `RecordError` naming key, line and what is accepted."""
    entries: dict[str, Entry] = {}
    text = data.get("entries", "")
    if not isinstance(text, str):
        raise RecordError("entries must be a text")
    for number, line in enumerate(text.splitlines(), 1):
        parts = line.split(" ")
        if len(parts) != 4:
            raise RecordError(
                f"entries, line {number}: {line!r} has {len(parts)} parts, expected UID, pod, facts, charges"
            )
        uid, pod, facts, charges = parts
        entries[unquote(uid)] = Entry(
            _charges(charges, number), _facts(facts, number), "" if pod == "-" else unquote(pod)
        )
    return Record(_number(data, "seenThrough"), _number(data, "listedThrough"), MappingProxyType(entries))


def _number(data: Mapping[str, object], key: str) -> int:
    text = data.get(key, "0")
    if not isinstance(text, str) or not (text.isascii() and text.isdigit()):
        raise RecordError(f"{key} is {text!r}, expected a whole number of 0 or more")
    return int(text)


def _facts(text: str, number: int) -> ScopeFacts:
    named, slash, flags = text.partition("/")
    if not slash or set(flags) - {letter for letter, _ in _FLAGS}:
        raise RecordError(
            f"entries, line {number}: facts {text!r}, expected priority class, a slash and letters of TBC"
        )
    return ScopeFacts(unquote(named), **{name: letter in flags for letter, name in _FLAGS})


def _charges(text: str, number: int) -> Mapping[str, Charge]:
    found: dict[str, Charge] = {}
    for part in text.split(",") if text else ():
        key, *amounts = part.split(":")
        if len(amounts) != 3 or not all(a.isascii() and a.isdigit() for a in amounts):
            raise RecordError(f"entries, line {number}: charge {part!r}, expected vendor:MiB:cores:cards")
        memory, cores, cards = map(int, amounts)
        found[unquote(key)] = Charge(memory, cores, cards)
    return MappingProxyType(found)
