"""Names with a text each as JSON, put together from passages that were written before: most of a refusal is said again in the next."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import numpy as np
import orjson
from numpy.typing import NDArray

from scheduler.columns import Numbers

__all__ = ["Passages"]

_NAMES = 64
"""In a passage."""
_KEPT = 8
"""Versions of a passage, on average."""
_TEXTS_KEPT = 10_000


class Passages:
    """One list of names, each told once. Within, texts have numbers, and 0 is none."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = [orjson.dumps(name)[:-1] for name in names]
        self._numbers: dict[str, int] = {}
        self._texts: list[bytes] = [b""]
        self._written: OrderedDict[tuple[int, bytes], bytes] = OrderedDict()

    def json(self, codes: Numbers, texts: Mapping[int, str], more: Mapping[str, str]) -> bytes:
        """A JSON object: the names of which `codes`, by place, have a text, with that, and then `more`."""
        if len(self._texts) > _TEXTS_KEPT:
            self._numbers.clear()
            self._written.clear()
            del self._texts[1:]
        number_of = np.zeros(int(codes.max(initial=0)) + 1, np.int32)
        for code, text in texts.items():
            number_of[code] = self._number(text)
        numbers = number_of[codes]
        starts = range(0, len(self._names), _NAMES)
        found = [self._passage(start, numbers[start : start + _NAMES]) for start in starts]
        while len(self._written) > _KEPT * len(starts):
            self._written.popitem(last=False)
        said = [passage for passage in found if passage]
        if more:
            said.append(orjson.dumps(dict(more))[1:-1])
        return b"{" + b",".join(said) + b"}"

    def _number(self, text: str) -> int:
        number = self._numbers.get(text)
        if number is None:
            number = self._numbers[text] = len(self._texts)
            self._texts.append(b'":' + orjson.dumps(text))
        return number

    def _passage(self, start: int, numbers: NDArray[np.int32]) -> bytes:
        key = (start, numbers.tobytes())
        known = self._written.get(key)
        if known is None:
            names, texts = self._names[start : start + _NAMES], self._texts
            said = zip(names, numbers.tolist(), strict=True)
            known = self._written[key] = b",".join([name + texts[number] for name, number in said if number])
        else:
            self._written.move_to_end(key)
        return known
