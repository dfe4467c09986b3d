"""Node names as they come in a request: thousands, in another order every time, and told apart without making strings of them."""

from collections.abc import Iterator, Sequence
from typing import Final, overload

import msgspec
import numpy as np
from numpy.typing import NDArray

__all__ = ["NameIndex", "OfferedNames"]

Words = NDArray[np.uint64]
"""A line a name: its bytes by eight, with zeros behind them."""
_QUOTE, _COMMA, _SPACE = b'", '
_WORD: Final = 8
_HALF: Final = np.uint64(32)
_LONGEST: Final = 253
"""Bytes that a node's name may have (a DNS subdomain)."""
_FACTORS: Final = np.random.default_rng(1).integers(2**63, size=32, dtype=np.uint64) * 2 + 1
"""Odd, so that names of one word all have keys of their own."""
_LIST = msgspec.json.Decoder(tuple[str, ...])


class OfferedNames(Sequence[str]):
    """A JSON list of ASCII strings in which nothing is escaped and nothing but commas stands between them.

    Equal to the tuple of its strings, which it reads when it is first asked for all of them.
    """

    __slots__ = ("_data", "_json", "_lengths", "_read", "_starts")

    def __init__(self, json: bytes) -> None:
        """Raises `ValueError` for a list that is not as plain as that, the empty one among them."""
        data = np.frombuffer(json, np.uint8)
        quotes = np.flatnonzero(data == _QUOTE)
        first, last = quotes[0::2], quotes[1::2]
        if (
            not len(quotes)
            or len(first) != len(last)
            or not json.isascii()
            or b"\\" in json
            or data.min() < _SPACE
            or json[:2] != b'["'
            or json[-2:] != b'"]'
            or not (first[1:] - last[:-1] == len('",')).all()
            or not (data[last[:-1] + 1] == _COMMA).all()
        ):
            raise ValueError("not a plain list of names")
        self._json = json
        self._data = data
        self._starts = first + 1
        self._lengths = last - self._starts
        self._read: tuple[str, ...] | None = None

    def words(self, width: int) -> Words:
        """So many words a name; all zero if it is longer than that."""
        return _words(self._data, self._starts, self._lengths, width)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """In bytes."""
        return self._lengths

    def _all(self) -> tuple[str, ...]:
        if self._read is None:
            self._read = _LIST.decode(self._json)
        return self._read

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[str, ...]: ...
    def __getitem__(self, place: int | slice) -> str | tuple[str, ...]:
        if self._read is not None or isinstance(place, slice):
            return self._all()[place]
        start = int(self._starts[place])
        return self._json[start : start + int(self._lengths[place])].decode()

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, OfferedNames):
            return self._json == other._json
        return self._all() == other

    def __hash__(self) -> int:
        return hash(self._all())


class NameIndex:
    """Places of names in a list, each there once, for many names at once."""

    def __init__(self, names: Sequence[str]) -> None:
        # Others are in no plain list, or no node's.
        usual = [place for place, name in enumerate(names) if name.isascii() and len(name) <= _LONGEST]
        encoded = [names[place].encode() for place in usual]
        lengths = np.array([len(name) for name in encoded], np.int64)
        self._width = -(-int(lengths.max(initial=0)) // _WORD)
        starts = np.cumsum(lengths) - lengths
        words = _words(np.frombuffer(b"".join(encoded) + b"\0", np.uint8), starts, lengths, self._width)
        keys = _keys(words)
        order = np.argsort(keys, kind="stable")
        self._keys, self._lengths = keys[order], lengths[order]
        self._words = [np.ascontiguousarray(column) for column in words[order].T]
        self._places = np.array(usual, np.int64)[order]
        self._tells = len(usual) == len(names) > 0 and bool((self._keys[1:] != self._keys[:-1]).all())
        # Of the keys that begin alike the first one; nearly all begin in their own way.
        self._shift = np.uint64(64 - _bits(len(keys)))
        self._first = np.zeros(1 << _bits(len(keys)), np.int64)
        self._first[(self._keys >> self._shift)[::-1]] = np.arange(len(keys))[::-1]

    def of(self, names: OfferedNames) -> NDArray[np.int64] | None:
        """The place of each, -1 for one that is not in the list; None where names are such that this cannot tell."""
        if not self._tells:
            return None
        words = names.words(self._width)
        keys = _keys(words)
        found = self._first[keys >> self._shift]
        other = np.flatnonzero(self._keys[found] != keys)
        if len(other):
            found[other] = np.minimum(np.searchsorted(self._keys, keys[other]), len(self._keys) - 1)
        # A key proves nothing: the names have to be the same.
        same = self._lengths[found] == names.lengths
        for place, known in enumerate(self._words):
            same &= known[found] == words[:, place]
        return np.where(same, self._places[found], -1)


def _bits(count: int) -> int:
    """So many leading bits of a key that names of this number hardly ever share them."""
    return max(count, 1).bit_length() + 4


def _keys(words: Words) -> Words:
    keys = np.zeros(len(words), np.uint64)
    for place in range(words.shape[1]):
        mixed = words[:, place] * _FACTORS[place]
        # Else what tells two names apart at the end of a word would stay in the same few bits, and words cancel each other out.
        mixed ^= mixed >> _HALF
        keys += mixed * _FACTORS[place - 1]
    return keys


def _words(data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64], width: int) -> Words:
    """Longer names than `width` words have lines of zeros."""
    longest = int(lengths.max(initial=0))
    padded = np.zeros((len(starts), width * _WORD), np.uint8)
    step = longest + len('","')
    if len(starts) and longest <= width * _WORD and (lengths == longest).all() and (np.diff(starts) == step).all():
        # As in most clusters: the names are of one length, and stand at equal distances.
        lines = np.lib.stride_tricks.as_strided(data[starts[0] :], (len(starts), longest), (step, 1), writeable=False)
        padded[:, :longest] = lines
    else:
        for length in np.unique(lengths[lengths <= width * _WORD]).tolist():
            mine = np.flatnonzero(lengths == length)
            padded[mine, :length] = data[starts[mine][:, np.newaxis] + np.arange(length)]
    return padded.view(np.uint64)
