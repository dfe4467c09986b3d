"""Remembered verdicts: per request shape and node version, so that an unchanged node is not evaluated twice."""

from collections import OrderedDict
from collections.abc import Hashable

from scheduler.evaluate import Verdict

__all__ = ["Memo"]


class Memo:
    """At most `shapes` request shapes, least recently used go: users choose annotations, so their number has no bound."""

    def __init__(self, shapes: int = 256) -> None:
        self._limit = shapes
        self._shapes: OrderedDict[Hashable, dict[str, tuple[int, Verdict]]] = OrderedDict()

    def of(self, shape: Hashable) -> dict[str, tuple[int, Verdict]]:
        """Verdicts of one shape by node name, each with the node version it holds for."""
        known = self._shapes.get(shape)
        if known is None:
            known = self._shapes[shape] = {}
            if len(self._shapes) > self._limit:
                self._shapes.popitem(last=False)
        else:
            self._shapes.move_to_end(shape)
        return known

    def forget_node(self, name: str) -> None:
        """A node that is gone: with nodes that come and go, what was remembered of them would only pile up."""
        for verdicts in self._shapes.values():
            verdicts.pop(name, None)

    def __len__(self) -> int:
        return len(self._shapes)
