"""The entries of `FailedNodes` and `FailedAndUnresolvableNodes`: thousands in every refusal, written as JSON without a dict in between."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from devices.reasons import NODE_UNREGISTERED
from scheduler.columns import Numbers
from scheduler.evaluate import NotFit
from scheduler.passages import Passages

__all__ = ["FailedNodes"]


class FailedNodes(Mapping[str, str]):
    """Why nodes are refused, by name in their order, those without cards last; a dict once it is read.

    `codes` say by place in `names` which of `verdicts` a node has; each of those is some node's. `missing` are nodes without cards.
    Shown are all nodes, or with `hopeless` those that no freed card would help (true) or all others (false).
    """

    def __init__(
        self,
        names: NDArray[np.object_],
        codes: Numbers,
        verdicts: Mapping[int, NotFit],
        missing: Sequence[str],
        passages: Passages | None = None,
        hopeless: bool | None = None,
    ) -> None:
        self._names = names
        self._codes = codes
        self._verdicts = verdicts
        self._missing = missing
        self._passages = passages
        self._nowhere = dict.fromkeys(missing if hopeless is not False else (), NODE_UNREGISTERED)
        self._text_of = {code: v.text for code, v in verdicts.items() if hopeless in (None, v.is_unresolvable)}

    @property
    def resolvable(self) -> "FailedNodes":
        """The nodes that may fit once cards are freed."""
        return self._only(hopeless=False)

    @property
    def unresolvable(self) -> "FailedNodes":
        """The nodes that no freed card would help."""
        return self._only(hopeless=True)

    def _only(self, hopeless: bool) -> "FailedNodes":
        return FailedNodes(self._names, self._codes, self._verdicts, self._missing, self._passages, hopeless)

    def json(self) -> bytes:
        """As a JSON object, equal to the mapping."""
        passages = self._passages or Passages(self._names.tolist())
        return passages.json(self._codes, self._text_of, self._nowhere)

    @cached_property
    def _texts(self) -> dict[str, str]:
        text_of = self._text_of
        said = zip(self._names.tolist(), self._codes.tolist(), strict=True)
        return {**{name: text_of[code] for name, code in said if code in text_of}, **self._nowhere}

    def __getitem__(self, name: str) -> str:
        return self._texts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        said = len(self._codes)
        if len(self._text_of) < len(self._verdicts):
            said = int(np.isin(self._codes, list(self._text_of)).sum()) if self._text_of else 0
        return said + len(self._nowhere)
