"""Nodes and their cards: what is registered, what the tenants leave of it, and what changed when."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from devices.config import DeviceConfig
from devices.errors import QuantityError, RegistrationError
from devices.keys import CORDON
from devices.ledger.room import Room
from devices.mig import is_mig
from devices.model import Card, NodeState
from devices.objects import Node
from devices.quantity import whole
from devices.registration import cordoned
from devices.score import node_score
from devices.selection import Selection
from devices.usage import CardKey, Hold, Tenancy, card_states
from devices.vendor import Vendor

__all__ = ["NodeBooks"]

_CHANGES_KEPT = 10_000


@dataclass(slots=True)
class _NodeBook:
    node: Node
    version: int
    cards: tuple[Card, ...]
    by_vendor: Mapping[str, tuple[Card, ...]]
    cordoned: frozenset[str]
    facts: Mapping[str, str]
    problems: tuple[str, ...]
    last_known: Mapping[CardKey, Card]
    """The cards of vendors whose entries cannot be read without them, as they were last registered."""
    state: NodeState | None = None


@dataclass(frozen=True, slots=True)
class _Registration:
    by_vendor: Mapping[str, tuple[Card, ...]] = field(default_factory=lambda: MappingProxyType({}))
    problems: tuple[str, ...] = ()


class NodeBooks:
    """The part of the ledger that knows nodes; tenants are entered by the part that knows pods."""

    def __init__(self, config: DeviceConfig, node_selector: Mapping[str, str]) -> None:
        self.config = config
        self._node_selector = node_selector
        self._nodes: dict[str, _NodeBook] = {}
        self._tenants: dict[str, dict[str, Tenancy]] = {}
        self._version = 0
        self.room = Room()
        """Where cards or quota came free."""
        self._changes: deque[tuple[int, str]] = deque(maxlen=_CHANGES_KEPT)
        self._kinds: dict[str, tuple[Card, ...]] = {}
        self._most: dict[str, int] = {}
        self._needing_cards = frozenset(vendor.key for vendor in config.vendors if vendor.hooks.restore is not None)

    def put_node(self, node: Node) -> None:
        """A node as it is now. Every change of its cards, cordon list or health counts at once."""
        before = self._nodes.get(node.name)
        registration = self._registration(node)
        cordon = cordoned(node.annotations.get(CORDON, ""))
        facts = {key: value for key in self._fact_keys() if (value := node.annotations.get(key)) is not None}
        if before is not None and (before.by_vendor, before.cordoned, before.facts) == (
            registration.by_vendor,
            cordon,
            facts,
        ):
            before.node, before.problems = node, registration.problems
            return
        cards = [card for cards in registration.by_vendor.values() for card in cards]
        cards.sort(key=lambda card: (card.index, card.uuid, card.vendor))
        self._nodes[node.name] = _NodeBook(
            node,
            self._next_version(node.name),
            tuple(cards),
            registration.by_vendor,
            cordon,
            MappingProxyType(facts),
            registration.problems,
            {
                **(before.last_known if before is not None else {}),
                **{(card.vendor, card.uuid): card for card in cards if card.vendor in self._needing_cards},
            },
        )
        self.room.on_node(node.name)
        self._cards_changed(node.name)

    def delete_node(self, name: str) -> None:
        """A node that is gone; its pods keep their place in the books until they are gone too."""
        if self._nodes.pop(name, None) is not None:
            self._next_version(name)
            self._cards_changed(name)

    def _cards_changed(self, node: str) -> None:
        """Cards of this node came, went or changed; the other books hook in here."""
        self._kinds.clear()
        self._most.clear()

    def _touch(self, name: str) -> None:
        """What tenants hold on the node has changed."""
        version, book = self._next_version(name), self._nodes.get(name)
        if book is not None:
            book.version, book.state = version, None

    def _last_known(self, name: str) -> Mapping[CardKey, Card]:
        """Cards of vendors whose entries cannot be read without them, as the node has or last had them."""
        book = self._nodes.get(name)
        return book.last_known if book is not None else _NO_CARDS

    def _fact_keys(self) -> Iterator[str]:
        for vendor in self.config.vendors:
            yield from vendor.node_inputs

    def _registration(self, node: Node) -> _Registration:
        if any(node.labels.get(key) != value for key, value in self._node_selector.items()):
            return _Registration()
        found: dict[str, tuple[Card, ...]] = {}
        problems: list[str] = []
        for vendor in self.config.vendors:
            if vendor.registration and not any(key in node.annotations for key in vendor.registration):
                continue
            try:
                listed = vendor.read_node(node)
                problems += listed.problems
                offered = whole(node.allocatable.get(vendor.count_resource, 1))
            except (RegistrationError, QuantityError) as error:
                problems.append(f"{vendor.key}: {error}")
                continue
            if offered > 0 and listed.cards:
                found[vendor.key] = listed.cards
        return _Registration(MappingProxyType(found), tuple(problems))

    def _next_version(self, changed: str) -> int:
        self._version += 1
        self._changes.append((self._version, changed))
        return self._version

    @property
    def version(self) -> int:
        """Rises with every change of any node or holding."""
        return self._version

    def changed_since(self, version: int) -> Iterable[str] | None:
        """Names of the nodes that came, went or changed after `version`, each once; None when that is too long ago to tell."""
        if version < 0 or version + len(self._changes) < self._version:
            return None
        found: dict[str, None] = {}
        for number, name in reversed(self._changes):
            if number <= version:
                break
            found[name] = None
        return tuple(found)

    def node_names(self) -> Iterable[str]:
        """Names of all known nodes, with cards or without."""
        return self._nodes.keys()

    def held_nodes(self) -> Iterable[str]:
        """Names of all nodes that are known or that a pod holds cards of."""
        return self._nodes.keys() | self._tenants.keys()

    def tenants(self, name: str) -> Iterable[str]:
        """UIDs of the pods that hold cards of a node, known or not."""
        return self._tenants.get(name, _NOBODY).keys()

    def node_object(self, name: str) -> Node | None:
        """The node as last seen."""
        book = self._nodes.get(name)
        return book.node if book else None

    def node_problems(self) -> Mapping[str, tuple[str, ...]]:
        """What could not be read of each node's registration."""
        return {name: book.problems for name, book in sorted(self._nodes.items()) if book.problems}

    def problems_of(self, name: str) -> tuple[str, ...]:
        """What could not be read of one node's registration."""
        book = self._nodes.get(name)
        return book.problems if book else ()

    def state(self, name: str) -> NodeState | None:
        """The node at this moment; None when it is unknown or offers no card."""
        book = self._nodes.get(name)
        if book is None or not book.cards:
            return None
        if book.state is None:
            states = card_states(book.cards, book.cordoned, self._tenants.get(name, _NOBODY).values())
            book.state = NodeState(name, book.version, states, node_score(states), book.facts)
        return book.state

    def simulated(self, node: Node) -> NodeState | None:
        """A node that may not exist, without tenants; the books do not change."""
        registration = self._registration(node)
        cards = [card for cards in registration.by_vendor.values() for card in cards]
        if not cards:
            return None
        cards.sort(key=lambda card: (card.index, card.uuid, card.vendor))
        states = card_states(cards, cordoned(node.annotations.get(CORDON, "")), ())
        facts = {key: value for key in self._fact_keys() if (value := node.annotations.get(key)) is not None}
        return NodeState(node.name, 0, states, node_score(states), MappingProxyType(facts))

    def usage(self, name: str) -> Mapping[CardKey, Hold]:
        """What all tenants hold of each card of a node."""
        state = self.state(name)
        return {
            (s.card.vendor, s.card.uuid): Hold(s.used_slots, s.used_memory_mib, s.used_cores)
            for s in (state.cards if state else ())
        }

    def cards_for(self, vendor: Vendor, selection: Selection) -> tuple[Card, ...]:
        """Registered cards (unhealthy and cordoned ones too) that a pod's rules allow; equal ones stand once unless it names UUIDs."""
        if selection.use_uuids or selection.nouse_uuids:
            cards: Iterable[Card] = (c for book in self._nodes.values() for c in book.by_vendor.get(vendor.key, ()))
        else:
            cards = self._kinds_of(vendor.key)
        return tuple(card for card in cards if vendor.selects(selection, card))

    def kinds(self, vendor: str) -> tuple[Card, ...]:
        """The registered cards of a vendor, equal ones once."""
        return self._kinds_of(vendor)

    def _kinds_of(self, vendor: str) -> tuple[Card, ...]:
        kinds = self._kinds.get(vendor)
        if kinds is None:
            seen: dict[tuple[object, ...], Card] = {}
            for book in self._nodes.values():
                for card in book.by_vendor.get(vendor, ()):
                    details = (card.mode, card.mig_profiles, repr(card.custom) if card.custom else "")
                    seen.setdefault((card.model, card.memory_mib, card.cores, *details), card)
            kinds = self._kinds[vendor] = tuple(seen.values())
        return kinds

    def largest_memory_mib(self, vendor: str) -> int:
        """The largest registered card of a vendor: no entry is charged more."""
        return max((card.memory_mib for card in self._kinds_of(vendor)), default=0)

    def most_cards(self, vendor: str) -> int:
        """The most cards of a vendor that one node has, so the most that a container can get; a MIG card counts with all its slots."""
        most = self._most.get(vendor)
        if most is None:
            counts = (
                sum(max(card.slots, 1) if is_mig(card) else 1 for card in book.by_vendor.get(vendor, ()))
                for book in self._nodes.values()
            )
            most = self._most[vendor] = max(counts, default=0)
        return most


_NOBODY: Mapping[str, Tenancy] = MappingProxyType({})
_NO_CARDS: Mapping[CardKey, Card] = MappingProxyType({})
