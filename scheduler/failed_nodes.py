"""The entries of `FailedNodes` and `FailedAndUnresolvableNodes`: thousands in every refusal, written as JSON without a dict in between."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
import orjson
from numpy.typing import NDArray

from devices.reasons import NODE_UNREGISTERED
from scheduler.columns import Numbers
from scheduler.evaluate import NotFit
from scheduler.offer import Offer

__all__ = ["FailedNodes"]


class FailedNodes(Mapping[str, str]):
    """Why nodes of an offer are refused, by name in the order offered, those without cards last; a dict once it is read.

    `codes` say by place in the offer which of `verdicts` a node has. Shown are all nodes, or with `hopeless` those that no freed card
    would help (true) or all others (false).
    """

    def __init__(
        self, offer: Offer, codes: Numbers, verdicts: Mapping[int, NotFit], hopeless: bool | None = None
    ) -> None:
        self._offer = offer
        self._codes = codes
        self._verdicts = verdicts
        self._missing = () if hopeless is False else offer.unregistered
        self._places: Numbers | None = None
        """Those that are shown; None for all."""
        shown = [code for code, verdict in verdicts.items() if hopeless in (None, verdict.is_unresolvable)]
        if len(shown) < len(verdicts):
            is_shown = np.zeros(max(verdicts) + 1, np.bool_)
            is_shown[shown] = True
            self._places = np.flatnonzero(is_shown[codes])

    @classmethod
    def of(cls, offer: Offer, codes: Numbers, verdicts: Sequence[NotFit]) -> "FailedNodes":
        """All of them; most of `verdicts` may be no node's."""
        return cls(offer, codes, {code: verdicts[code] for code in np.flatnonzero(np.bincount(codes)).tolist()})

    @property
    def resolvable(self) -> "FailedNodes":
        """The nodes that may fit once cards are freed."""
        return FailedNodes(self._offer, self._codes, self._verdicts, hopeless=False)

    @property
    def unresolvable(self) -> "FailedNodes":
        """The nodes that no freed card would help."""
        return FailedNodes(self._offer, self._codes, self._verdicts, hopeless=True)

    def json(self) -> bytes:
        """As a JSON object, equal to the mapping."""
        names, codes = self._shown(self._offer.encoded)
        more = orjson.dumps(dict.fromkeys(self._missing, NODE_UNREGISTERED))
        if not len(names):
            return more
        # What follows a name, up to where the next one begins.
        after = np.zeros(max(self._verdicts) + 1, object)
        for code, verdict in self._verdicts.items():
            after[code] = b'":' + orjson.dumps(verdict.text) + b',"'
        written = np.empty(2 * len(names), object)
        written[0::2], written[1::2] = names, after[codes]
        parts = written.tolist()
        parts[0] = b'{"' + parts[0]
        parts[-1] = parts[-1][:-1] + more[1:] if self._missing else parts[-1][:-2] + b"}"
        return b"".join(parts)

    def _shown(self, names: NDArray[np.object_]) -> tuple[NDArray[np.object_], Numbers]:
        return (names, self._codes) if self._places is None else (names[self._places], self._codes[self._places])

    @cached_property
    def _texts(self) -> dict[str, str]:
        text = {code: verdict.text for code, verdict in self._verdicts.items()}
        names, codes = self._shown(self._offer.array)
        found = dict(zip(names.tolist(), map(text.__getitem__, codes.tolist()), strict=True))
        found.update(dict.fromkeys(self._missing, NODE_UNREGISTERED))
        return found

    def __getitem__(self, name: str) -> str:
        return self._texts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._codes if self._places is None else self._places) + len(self._missing)
