"""Where cards or quota came free, in order: what tells whether a pod that was refused earlier may fit by now."""

from collections import deque

__all__ = ["Room"]

_KEPT = 10_000


class Room:
    """Numbers every place where room was made; `kept` of them are remembered."""

    def __init__(self, kept: int = _KEPT) -> None:
        self.number = 0
        """Rises with every place."""
        self._made: deque[tuple[int, str | None, str]] = deque(maxlen=kept)

    def on_node(self, name: str) -> None:
        """Cards of this node came, came back or were given back."""
        self._note(name, "")

    def in_namespace(self, namespace: str) -> None:
        """Pods of this namespace may take more, wherever that is."""
        self._note(None, namespace)

    def _note(self, node: str | None, namespace: str) -> None:
        self.number += 1
        self._made.append((self.number, node, namespace))

    def since(self, number: int, namespace: str) -> tuple[str, ...] | None:
        """Nodes with more room than at `number`, each once, for pods of this namespace.

        None: any node may be one, since their quota grew, or because that is too long ago to tell.
        """
        if number + len(self._made) < self.number:
            return None
        found: dict[str, None] = {}
        for made, node, grown in reversed(self._made):
            if made <= number:
                break
            if node is not None:
                found[node] = None
            elif grown == namespace:
                return None
        return tuple(sorted(found))
