"""What is remembered from one decision for the next: per request shape, and per node as long as it does not change."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from devices.model import NodeState
from scheduler.evaluate import Verdict

__all__ = ["Memo", "Verdicts"]

T = TypeVar("T")


class Memo(Generic[T]):
    """At most `shapes` request shapes, least recently used go: users choose annotations, so their number has no bound."""

    def __init__(self, shapes: int = 256) -> None:
        self._limit = shapes
        self._shapes: OrderedDict[Hashable, T] = OrderedDict()

    def of(self, shape: Hashable, make: Callable[[], T]) -> T:
        """What is remembered of a shape, made where nothing is."""
        known = self._shapes.get(shape)
        if known is None:
            known = self._shapes[shape] = make()
            if len(self._shapes) > self._limit:
                self._shapes.popitem(last=False)
        else:
            self._shapes.move_to_end(shape)
        return known

    def clear(self) -> None:
        """Forget everything."""
        self._shapes.clear()

    def __len__(self) -> int:
        return len(self._shapes)


class Verdicts:
    """Exact verdicts of one shape by slot, each with the node version it holds for; versions are never used twice."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, Verdict]] = {}

    def on(self, slot: int, state: NodeState, judge: Callable[[NodeState], Verdict]) -> Verdict:
        """The verdict on the node in this slot as it is in `state`."""
        known = self._known.get(slot)
        if known is not None and known[0] == state.version:
            return known[1]
        verdict = judge(state)
        self._known[slot] = (state.version, verdict)
        return verdict
