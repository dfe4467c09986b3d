"""Cards that are cut into slices, in sizes that the node names: `3g.24gb` is three slices and 24 GB."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import orjson

from devices.errors import RegistrationError
from devices.model import Card
from devices.registration import CardList, Fields, distinct

__all__ = ["GIB_MIB", "MINOR", "SLICES", "Size", "by_slices", "by_spec", "read_sliced", "sizes", "sizes_of"]

SLICES, MINOR, _SIZES = "slices", "minor", "profiles"
"""What a sliced card says of itself beyond the usual: its number of slices, its device number, its sizes."""

GIB_MIB = 1024
_PERCENT = 100
_INT32 = 2**31 - 1


@dataclass(frozen=True, slots=True, order=True)
class Size:
    """A size that a card can be cut into; sorted smallest first."""

    slices: int
    memory_gib: int
    name: str
    id: str
    percent: int = 0
    """Share of the card, rounded up: one of six slices is 17 %."""

    @property
    def memory_mib(self) -> int:
        """As cards and requests count it."""
        return self.memory_gib * GIB_MIB


def _number(text: str, suffix: str) -> int:
    digits = text.removesuffix(suffix)
    short = len(digits) <= len(str(_INT32))
    return int(digits) if digits.isascii() and digits.isdigit() and short and int(digits) <= _INT32 else 0


def sizes_of(named: Mapping[str, object]) -> tuple[Size, ...]:
    """The sizes by name and id, smallest first. Suffixes may be missing, case does not count, a second dot ends the name.

    Raises `RegistrationError` where no name says how many slices there are.
    """
    found = []
    for name, number in named.items():
        slices, _, rest = name.lower().partition(".")
        memory = rest.partition(".")[0]
        found.append(Size(_number(slices, "g"), _number(memory, "gb"), name, str(number)))
    most = max((size.slices for size in found), default=0)
    if most <= 0:
        raise RegistrationError("no profile such as 3g.24gb says how many slices a card has")
    return tuple(sorted(replace(size, percent=-(-_PERCENT * size.slices // most)) for size in found))


def _usable(sizes: Sequence[Size]) -> list[Size]:
    return [size for size in sizes if size.slices > 0 and size.memory_gib > 0]


def by_slices(sizes: Sequence[Size], slices: int) -> Size | None:
    """The smallest size of exactly so many slices."""
    return next((size for size in _usable(sizes) if size.slices == slices), None)


def by_spec(sizes: Sequence[Size], memory: int, percent: int) -> Size | None:
    """The smallest size with so much memory and compute; 0 asks for none of it.

    A memory value of more than twice the largest size's GB counts as MiB: with 48 GB at most, 96 are GB and 97 are MiB.
    """
    usable = _usable(sizes)
    if usable and memory > 2 * usable[-1].memory_gib:
        memory = -(-memory // GIB_MIB)
    return next((size for size in usable if size.memory_gib >= memory and size.percent >= percent), None)


def sizes(card: Card) -> tuple[Size, ...]:
    """The sizes of a card of `read_sliced`."""
    found = card.custom[_SIZES]
    return found if isinstance(found, tuple) else ()


def _index(written: str, position: int) -> int:
    """Its number where it is one, else its place in the list."""
    is_number = written.isascii() and written.isdigit() and len(written) <= len(str(_INT32))
    return int(written) if is_number and int(written) <= _INT32 else position


def _card(vendor: str, name: str, position: int, document: object, sizes: tuple[Size, ...]) -> Card:
    fields = Fields(f"device {position}", document)
    index = _index(fields.text("index"), position)
    try:
        slots = int(fields.text("capacity"))
    except (RegistrationError, ValueError):
        slots = fields.number("capacity")
    if not 0 < slots <= _INT32:
        raise RegistrationError(f"device {position}: field 'capacity' is {slots}, accepted are 1 to {_INT32}")
    slices = max(size.slices for size in sizes)
    return Card(
        f"{name}-{index}",
        vendor,
        index,
        slots,
        max(size.memory_mib for size in sizes) or slices * GIB_MIB,
        _PERCENT,
        vendor,
        healthy=True,
        custom={MINOR: fields.text("minor") or str(index), _SIZES: sizes, SLICES: slices},
    )


def read_sliced(vendor: str, text: str, where: str, name: str) -> CardList:
    """Cards `<name>-<index>` from a JSON text with `devices`, and `profiles` that count for all of them.

    A malformed device is left out with its reason. Raises `RegistrationError`, naming `where`, for a text that cannot be read.
    """
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise RegistrationError(f"{where} is not JSON: {error}") from error
    fields = Fields(where, document)
    found = sizes_of(fields.mapping("profiles"))
    cards: list[Card] = []
    problems: list[str] = []
    for position, device in enumerate(fields.items("devices")):
        try:
            cards.append(_card(vendor, name, position, device, found))
        except RegistrationError as error:
            problems.append(str(error))
    if not cards and not problems:
        raise RegistrationError(f"{where} names no device")
    return CardList(distinct(cards, problems), tuple(problems))
