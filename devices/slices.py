"""Cards that are cut into slices, in sizes that the node names: `3g.24gb` is three slices and 24 GB."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from devices.errors import RegistrationError

__all__ = ["GIB_MIB", "Size", "by_slices", "by_spec", "sizes_of"]

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
