"""How a node says which cards it has: the JSON list, the older text list, pair scores and the cordon list.

A card that cannot be used is left out with a reason; only a list that is no list at all is an error for the whole node. Cards come
out ordered by (index, UUID), whatever order the plugin wrote them in.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated

import msgspec
import orjson

from devices.errors import RegistrationError
from devices.model import Card, MigProfile, Placement

__all__ = [
    "SEPARATORS",
    "CardList",
    "Fields",
    "cordoned",
    "distinct",
    "encode_text",
    "ordered",
    "parse_bool",
    "read_cards",
    "read_json",
    "read_pair_scores",
    "read_text",
    "with_pair_scores",
]

_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})
_INT32 = 2**31 - 1
_DIGITS = 10
SEPARATORS = frozenset(",:;")
"""What the allocation text is made with."""
_SHORT, _LONG = 7, 9


@dataclass(frozen=True, slots=True)
class CardList:
    """The usable cards of one vendor on one node, and what was left out and why."""

    cards: tuple[Card, ...] = ()
    problems: tuple[str, ...] = ()


def parse_bool(text: str) -> bool | None:
    """The booleans Go's strconv accepts; None for anything else."""
    if text in _TRUE:
        return True
    return False if text in _FALSE else None


def ordered(cards: Iterable[Card]) -> tuple[Card, ...]:
    """By index, then UUID: the last tie-break of every choice."""
    return tuple(sorted(cards, key=lambda card: (card.index, card.uuid)))


class Fields:
    """One JSON object read as Go reads it: names in any case, absent and null alike, numbers whole.

    Every reading raises `RegistrationError` naming the field and what is accepted.
    """

    def __init__(self, where: str, document: object) -> None:
        if not isinstance(document, dict):
            raise RegistrationError(f"{where}: expected an object, got {_kind(document)}")
        self._where = where
        # Of names that differ in case alone the last one counts, and null says nothing.
        self._values = {name.lower(): value for name, value in document.items() if value is not None}

    def text(self, name: str) -> str:
        """Text, empty when absent."""
        value = self._values.get(name.lower())
        if value is None:
            return ""
        if not isinstance(value, str):
            raise RegistrationError(f"{self._where}: field {name!r} must be text, got {_kind(value)}")
        return value

    def number(self, name: str, low: int = -_INT32 - 1, high: int = _INT32) -> int:
        """A whole number, 0 when absent."""
        value = self._values.get(name.lower(), 0)
        if isinstance(value, bool) or not isinstance(value, int):
            raise RegistrationError(f"{self._where}: field {name!r} must be a whole number, got {_kind(value)}")
        if not low <= value <= high:
            raise RegistrationError(f"{self._where}: field {name!r} is {value}, accepted are {low} to {high}")
        return value

    def flag(self, name: str) -> bool:
        """A boolean, false when absent."""
        value = self._values.get(name.lower())
        if value is None:
            return False
        if not isinstance(value, bool):
            raise RegistrationError(f"{self._where}: field {name!r} must be true or false, got {_kind(value)}")
        return value

    def items(self, name: str) -> list[object]:
        """A list, empty when absent."""
        value = self._values.get(name.lower())
        if value is None:
            return []
        if not isinstance(value, list):
            raise RegistrationError(f"{self._where}: field {name!r} must be a list, got {_kind(value)}")
        return value

    def mapping(self, name: str) -> Mapping[str, object]:
        """An object, empty when absent."""
        value = self._values.get(name.lower())
        if value is None:
            return MappingProxyType({})
        if not isinstance(value, dict):
            raise RegistrationError(f"{self._where}: field {name!r} must be an object, got {_kind(value)}")
        return MappingProxyType(value)


def _kind(value: object) -> str:
    names = {
        dict: "an object",
        list: "a list",
        str: "text",
        bool: "a boolean",
        int: "a number",
        float: "a fraction",
        type(None): "null",
    }
    return names.get(type(value), type(value).__name__)


def _profile(where: str, document: object) -> MigProfile:
    fields = Fields(where, document)
    placements = []
    for position, item in enumerate(fields.items("placements")):
        spot = Fields(f"{where}.placements[{position}]", item)
        placements.append(Placement(spot.number("start", 0), spot.number("size", 1)))
    return MigProfile(
        fields.text("name"),
        fields.number("memoryMB", 0),
        fields.number("core", 0),
        fields.number("sliceCount", 0),
        tuple(placements),
    )


def _check_uuid(where: str, uuid: str) -> str:
    if not uuid:
        raise RegistrationError(f"{where}: the card has no id")
    if SEPARATORS & set(uuid):
        raise RegistrationError(f"{where}: id {uuid!r} must not contain ',', ':' or ';'")
    return uuid


def _json_card(position: int, fields: Fields, vendor: str) -> Card:
    where = f"card {position}"
    profiles = [_profile(f"{where}: migProfiles[{i}]", item) for i, item in enumerate(fields.items("migProfiles"))]
    return Card(
        uuid=fields.text("id"),
        vendor=vendor,
        index=fields.number("index", 0),
        slots=fields.number("count", 0),
        memory_mib=fields.number("devmem", 0),
        cores=fields.number("devcore", 0),
        model=fields.text("type"),
        numa=fields.number("numa"),
        mode=fields.text("mode"),
        healthy=fields.flag("health"),
        mig_profiles=tuple(profiles),
        custom=fields.mapping("custominfo"),
    )


def distinct(cards: Iterable[Card], problems: list[str]) -> tuple[Card, ...]:
    """The cards in their order, each UUID once; what is left out goes to `problems`."""
    seen: dict[str, Card] = {}
    for card in cards:
        if card.uuid in seen:
            problems.append(f"card {card.uuid}: registered twice, the first one counts")
        else:
            seen[card.uuid] = card
    return ordered(seen.values())


def read_json(text: str, vendor: str) -> CardList:
    """Cards from the JSON list (HAMi v2.10 wire contract, registration, JSON form).

    A malformed element is left out with its reason. Raises `RegistrationError` when the text is no JSON list or has no element.
    """
    quick = _quick_cards(text, vendor)
    if quick is not None:
        return quick
    return read_cards(text, lambda position, fields: _json_card(position, fields, vendor))


_Natural = Annotated[int, msgspec.Meta(ge=0, le=_INT32)]
_Whole = Annotated[int, msgspec.Meta(ge=-_INT32 - 1, le=_INT32)]


class _WrittenCard(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A card as plugins write it. Whatever else a list may hold and still be read is for the slower reading."""

    id: str = ""
    index: _Natural = 0
    count: _Natural = 0
    devmem: _Natural = 0
    devcore: _Natural = 0
    type: str = ""
    numa: _Whole = 0
    mode: str = ""
    health: bool = False


_WRITTEN = msgspec.json.Decoder(list[_WrittenCard])


def _quick_cards(text: str, vendor: str) -> CardList | None:
    """The list where every card is written as plugins write them and no two have one UUID; None leaves it to the other reading."""
    try:
        written = _WRITTEN.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    uuids = {card.id for card in written}
    if len(uuids) < len(written) or not written or "" in uuids or any(SEPARATORS & set(uuid) for uuid in uuids):
        return None
    intern = sys.intern  # a cluster has thousands of cards of a few models
    return CardList(
        ordered(
            Card(
                card.id,
                vendor,
                card.index,
                card.count,
                card.devmem,
                card.devcore,
                intern(card.type),
                card.numa,
                intern(card.mode),
                card.health,
            )
            for card in written
        )
    )


def read_cards(text: str, card: Callable[[int, Fields], Card]) -> CardList:
    """Cards from a JSON list of objects of a family's own form; `card` reads one of them, given its position.

    A malformed element is left out with its reason, and so is a card whose UUID the allocation text cannot hold. Raises
    `RegistrationError` when the text is no JSON list or has no element.
    """
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise RegistrationError(f"the card list is not JSON: {error}") from error
    if not isinstance(document, list):
        raise RegistrationError(f"the card list must be a JSON list, got {_kind(document)}")
    if not document:
        raise RegistrationError("the card list is empty")
    cards: list[Card] = []
    problems: list[str] = []
    for position, item in enumerate(document):
        try:
            read = card(position, Fields(f"card {position}", item))
            _check_uuid(f"card {position}", read.uuid)
            cards.append(read)
        except RegistrationError as error:
            problems.append(str(error))
    return CardList(distinct(cards, problems), tuple(problems))


def _text_number(name: str, text: str) -> int:
    # int() would also accept blanks, underscores and digits of other scripts.
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdigit()) or len(digits) > _DIGITS or abs(number := int(text)) > _INT32:
        raise RegistrationError(f"invalid {name} field: {text!r}")
    return number


def _text_card(segment: str, vendor: str) -> Card:
    if "," not in segment:
        raise RegistrationError(f'malformed node annotation segment: "{segment}"')
    fields = segment.split(",")
    if len(fields) not in (_SHORT, _LONG):
        raise RegistrationError(f"unexpected field count {len(fields)} in node annotation")
    uuid, count, memory, cores, model, numa, health = fields[:_SHORT]
    healthy = parse_bool(health)
    numbers = [
        _text_number(name, text)
        for name, text in (("count", count), ("memory", memory), ("core", cores), ("numa", numa))
    ]
    if healthy is None:
        raise RegistrationError(f"invalid health field: {health!r}")
    index, mode = 0, "hami-core"
    if len(fields) == _LONG:
        index, mode = _text_number("index", fields[7]), fields[8]
        if index < 0:
            raise RegistrationError(f"index field must not be negative: {index}")
    return Card(
        uuid=_check_uuid("card", uuid),
        vendor=vendor,
        index=index,
        slots=max(numbers[0], 0),
        memory_mib=max(numbers[1], 0),
        cores=max(numbers[2], 0),
        model=model,
        numa=numbers[3],
        mode=mode,
        healthy=healthy,
    )


def read_text(text: str, vendor: str) -> CardList:
    """Cards from the older text list, e.g. `DCU-1,4,32768,100,DCU-K100,0,true,0,hami-core:`.

    A malformed segment is left out with its reason (`unexpected field count 5 in node annotation`). Raises `RegistrationError`
    when there is no separator at all.
    """
    if ":" not in text:
        raise RegistrationError("node annotation missing device separator")
    cards: list[Card] = []
    problems: list[str] = []
    for segment in text.split(":"):
        if segment:
            try:
                cards.append(_text_card(segment, vendor))
            except RegistrationError as error:
                problems.append(str(error))
    return CardList(distinct(cards, problems), tuple(problems))


def encode_text(cards: Iterable[Card]) -> str:
    """The text list as plugins write it: nine fields and a closing `:` a card."""
    return "".join(
        f"{c.uuid},{c.slots},{c.memory_mib},{c.cores},{c.model},{c.numa},{'true' if c.healthy else 'false'},{c.index},{c.mode}:"
        for c in cards
    )


def read_pair_scores(text: str) -> dict[str, dict[str, int]]:
    """Pair scores by UUID and peer UUID. Raises `RegistrationError`; the cards stay usable without them."""
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise RegistrationError(f"the pair scores are not JSON: {error}") from error
    if not isinstance(document, list):
        raise RegistrationError(f"the pair scores must be a JSON list, got {_kind(document)}")
    scores: dict[str, dict[str, int]] = {}
    for position, item in enumerate(document):
        fields = Fields(f"pair scores [{position}]", item)
        row: dict[str, int] = {}
        for peer, value in fields.mapping("score").items():
            if isinstance(value, bool) or not isinstance(value, int) or abs(value) > _INT32:
                raise RegistrationError(
                    f"pair scores [{position}]: the score of {peer!r} must be a whole number, got {value!r}"
                )
            row[peer] = value
        scores[fields.text("uuid")] = row
    return scores


def with_pair_scores(cards: Iterable[Card], scores: Mapping[str, Mapping[str, int]]) -> tuple[Card, ...]:
    """The cards with the scores towards their peers; a card without a row keeps none."""
    return tuple(
        msgspec.structs.replace(card, pair_scores=MappingProxyType(dict(scores[card.uuid])))
        if card.uuid in scores
        else card
        for card in cards
    )


def cordoned(text: str) -> frozenset[str]:
    """UUIDs of the comma list in `hami.io/device-cordon`: trimmed, empty ones ignored."""
    return frozenset(item for item in (part.strip() for part in text.split(",")) if item)
