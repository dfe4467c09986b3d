"""Scenario files: YAML in, frozen values out; anything not understood is an error that names file, line and key.

A scenario names its nodes and then its steps. A step is a mapping with exactly one action, perhaps a `title`, and what is expected:

    name: mutex
    title: Mutex keeps away from every tenant
    nodes:
    - {name: node-1, cards: [GPU-A, GPU-B], card: {type: NVIDIA-Tesla-T4}}
    pod: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 1000}}     # every pod of the scenario that says nothing else
    steps:
    - create: {name: plain-1}
      expect: {allocated: "GPU-B,NVIDIA,1000,0:;"}
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from lab.errors import ScenarioError
from lab.nodes import CardSpec, NodeSpec

__all__ = [
    "BurstStep",
    "ContainerForm",
    "EventForm",
    "Expect",
    "NodeChange",
    "PodForm",
    "QuotaForm",
    "QuotaUsed",
    "Scenario",
    "Scores",
    "Step",
    "UsageForm",
    "load_scenario",
    "read_scenario",
    "scenario_groups",
    "shipped_scenarios",
]

_SHIPPED: Final = Path(__file__).parent / "scenarios"


class _Form(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A mapping in the file; a key that is no field is an error."""


Quantity = str | int


class CardForm(_Form, frozen=True):
    """What differs from the usual card (T4, 15360 MiB, 10 slots, 100 percent, NUMA node 0, `hami-core`)."""

    uuid: str = ""
    type: str | None = None
    memory_mib: int | None = None
    slots: int | None = None
    cores: int | None = None
    numa: int | None = None
    mode: str | None = None
    healthy: bool | None = None


class NodeForm(_Form, frozen=True):
    """A node: its NVIDIA cards by UUID alone, or each with what is different about it; `card` counts for all of them.

    Cards of other families are written as their plugins announce them, in annotations or as capacity.
    """

    name: str
    cards: list[str | CardForm] = []
    card: CardForm = CardForm()
    annotations: dict[str, str | list[Any] | dict[str, Any]] = {}
    """What is no text stands for its JSON."""
    capacity: dict[str, Quantity] = {}
    """Resources by number, as capacity and allocatable."""
    labels: dict[str, str] = {}
    node_lock: bool = False

    def spec(self) -> NodeSpec:
        """The node as the lab builds it."""
        cards = []
        for card in self.cards:
            own = CardForm(uuid=card) if isinstance(card, str) else card
            given = {**_given(self.card), **_given(own)}
            cards.append(msgspec.convert(given, CardSpec))
        annotations = {
            key: value if isinstance(value, str) else msgspec.json.encode(value).decode()
            for key, value in self.annotations.items()
        }
        capacity = {name: str(value) for name, value in self.capacity.items()}
        return NodeSpec(self.name, tuple(cards), annotations, dict(self.labels), self.node_lock, capacity)

    @property
    def is_spelled_out(self) -> bool:
        """Whether it may have cards that only its families can name."""
        return bool(self.annotations or self.capacity)


class ContainerForm(_Form, frozen=True):
    """A container. Without `limits` and `requests` it asks for nothing."""

    name: str
    limits: dict[str, Quantity] = {}
    requests: dict[str, Quantity] = {}
    sidecar: bool = False
    """Only for init containers: restart policy Always."""
    privileged: bool = False


class PodForm(_Form, frozen=True):
    """A pod: one container named `main` with these limits, or the containers given."""

    name: str = ""
    namespace: str | None = None
    annotations: dict[str, str] = {}
    labels: dict[str, str] = {}
    limits: dict[str, Quantity] | None = None
    requests: dict[str, Quantity] | None = None
    privileged: bool = False
    containers: list[ContainerForm] | None = None
    init_containers: list[ContainerForm] = []
    scheduler: str | None = None
    hold_init: bool = False
    """Init containers run until a `finish_init` step."""
    run_seconds: float | None = None
    """The pod ends by itself after so long; absent: it runs until a step ends it."""
    fail_allocate: bool = False
    """The fake device plugin fails its Allocate."""


class EventForm(_Form, frozen=True):
    """An Event on the pod, matched word for word."""

    reason: str
    message: str
    type: str | None = None


class Expect(_Form, frozen=True):
    """What a pod must come to. Texts are compared whole."""

    node: str | None = None
    cards: list[str] | None = None
    """UUIDs over all containers, in order, of one family after the other."""
    allocated: str | None = None
    """The whole allocation text; those of several families with a blank between them, by vendor key."""
    annotations: dict[str, str | None] = {}
    """Annotations of the pod, word for word; null: it has none of this name."""
    pending: str | None = None
    """kube-scheduler's message while the pod is not placed."""
    denied: str | None = None
    """What the admission webhook says, without the API server's words in front."""
    phase: str | None = None
    limits: dict[str, Quantity] | None = None
    """The first container's limits after admission."""
    events: list[EventForm] = []
    placed: int | None = None
    """Only for `create_together`: how many pods were placed."""
    waiting: int | None = None
    """Only for `create_together`: how many pods were refused."""
    denied_pods: int | None = None
    """Only for `flood`: how many pods were denied at admission for quota; the others are placed or wait."""

    @property
    def is_placed(self) -> bool:
        """Whether the pod is to be placed."""
        told = (self.node, self.cards, self.allocated, self.phase)
        return bool(self.annotations) or any(value is not None for value in told)


class NodeChange(_Form, frozen=True):
    """New annotations of a node; null takes one away."""

    name: str
    annotations: dict[str, str | None]


class QuotaForm(_Form, frozen=True):
    """A ResourceQuota; it replaces one of the same name."""

    namespace: str
    name: str
    hard: dict[str, Quantity]


class UsageForm(_Form, frozen=True):
    """What all tenants of a card hold together."""

    slots: int
    memory_mib: int
    cores: int = 0


class QuotaUsed(_Form, frozen=True):
    """What a namespace's pods hold."""

    namespace: str
    memory_mib: int
    cores: int
    cards: int


class Scores(_Form, frozen=True):
    """Scores of the cards before a pod was placed, as the scheduler explains its decision; compared to six decimals."""

    pod: str
    cards: dict[str, float]


class BurstStep(_Form, frozen=True):
    """Many equal pods on many equal nodes, at once, in a cluster of its own."""

    nodes: int
    cards: int
    pods: int
    placed: int
    """How many must be placed."""
    gpumem: int = 1000


class Flood(_Form, frozen=True):
    """Equal pods, all created at the same moment: `<name>-1` and so on."""

    pod: PodForm
    pods: int


class Step(_Form, frozen=True):
    """One step; exactly one of the actions is set."""

    title: str = ""
    expect: Expect | None = None
    create: PodForm | None = None
    create_together: list[PodForm] | None = None
    flood: Flood | None = None
    delete: str | None = None
    finish: str | None = None
    finish_init: str | None = None
    pod: str | None = None
    """Look at a pod of an earlier step again."""
    node: NodeChange | None = None
    quota: QuotaForm | None = None
    usage: dict[str, UsageForm] | None = None
    """By `node/card`."""
    quota_used: QuotaUsed | None = None
    scores: Scores | None = None
    fresh_cluster: bool | None = None
    burst: BurstStep | None = None

    @property
    def action(self) -> str:
        """The name of the one action."""
        return next(name for name in _ACTIONS if getattr(self, name) is not None)


class _ScenarioForm(_Form, frozen=True):
    name: str
    title: str
    steps: list[Step]
    about: str = ""
    rounds: int = 1
    webhooks: int = 1
    nodes: list[NodeForm] = []
    namespaces: list[str] = []
    pod: PodForm = PodForm()


@dataclass(frozen=True)
class Scenario:
    """A scenario that has been checked. Every round plays all steps on a fresh cluster and must take the same cards."""

    name: str
    title: str
    about: str
    rounds: int
    nodes: tuple[NodeSpec, ...]
    namespaces: tuple[str, ...]
    pod: PodForm
    steps: tuple[Step, ...]
    webhooks: int = 1
    """Replicas of the webhook."""


_ACTIONS: Final = (
    "create",
    "create_together",
    "flood",
    "delete",
    "finish",
    "finish_init",
    "pod",
    "node",
    "quota",
    "usage",
    "quota_used",
    "scores",
    "fresh_cluster",
    "burst",
)
_ON_EXISTING: Final = ("delete", "finish", "finish_init", "pod")
_OF_MANY: Final = ("placed", "waiting", "denied_pods")


def shipped_scenarios() -> dict[str, Path]:
    """The files that come with Slotwise, by name: single ones first, then the groups, each in alphabetical order."""
    grouped = (path for name in scenario_groups() for path in scenario_groups()[name].values())
    return {path.stem: path for path in (*sorted(_SHIPPED.glob("*.yaml")), *grouped)}


def scenario_groups() -> dict[str, dict[str, Path]]:
    """Scenarios that can be named together: the folders, with their files by name."""
    folders = sorted(path for path in _SHIPPED.iterdir() if path.is_dir())
    return {folder.name: {path.stem: path for path in sorted(folder.glob("*.yaml"))} for folder in folders}


def load_scenario(path: Path) -> Scenario:
    """The scenario of a file. Raises `ScenarioError`."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path}: cannot be read: {error}") from error
    return read_scenario(text, str(path))


def read_scenario(text: str, source: str) -> Scenario:
    """The scenario of a YAML text; `source` stands in front of errors. Raises `ScenarioError`."""
    reader = _Reader(text, source)
    form = reader.form()
    reader.check(form)
    try:
        nodes = tuple(node.spec() for node in form.nodes)
    except msgspec.ValidationError as error:  # the forms above accept nothing that a card does not
        raise AssertionError(f"{source}: {error}") from error
    return Scenario(
        form.name,
        form.title,
        form.about,
        form.rounds,
        nodes,
        tuple(form.namespaces),
        form.pod,
        tuple(form.steps),
        form.webhooks,
    )


class _Reader:
    """One file with the lines of its keys at hand."""

    def __init__(self, text: str, source: str) -> None:
        self._source = source
        try:
            node = yaml.compose(text, Loader=yaml.SafeLoader)
            self._lines = dict(self._walk(node, "$"))
            self._document: object = yaml.safe_load(text)
        except (yaml.YAMLError, ValueError, RecursionError) as error:  # a date that is none; endless nesting
            raise ScenarioError(f"{source}: no YAML: {' '.join(str(error).split())}") from error

    def _walk(self, node: yaml.Node | None, path: str) -> Iterator[tuple[str, int]]:
        if node is not None:
            yield path, node.start_mark.line + 1
        if isinstance(node, yaml.MappingNode):
            known: set[str] = set()
            for key, value in node.value:
                here = f"{path}.{key.value}"
                if key.value in known:
                    line = key.start_mark.line + 1
                    raise ScenarioError(f"{self._source}:{line}: {here.removeprefix('$.')}: stands twice")
                known.add(key.value)
                yield here, key.start_mark.line + 1
                yield from ((below, line) for below, line in self._walk(value, here) if below != here)
        elif isinstance(node, yaml.SequenceNode):
            for position, value in enumerate(node.value):
                yield from self._walk(value, f"{path}[{position}]")

    def error(self, path: str, text: str) -> ScenarioError:
        """An error at a key; the line is that of the nearest key the file has."""
        known = path
        while known not in self._lines and known != "$":
            known = known[: max(known.rfind("."), known.rfind("["), 1)]
        where = f"{self._source}:{self._lines.get(known, 1)}"
        key = path.removeprefix("$").removeprefix(".")
        return ScenarioError(f"{where}: {key}: {text}" if key else f"{where}: {text}")

    def form(self) -> _ScenarioForm:
        """The document as forms."""
        try:
            return msgspec.convert(self._document, _ScenarioForm)
        except msgspec.ValidationError as error:
            text, _, path = str(error).partition(" - at `")
            path = path.rstrip("`").replace("[...]", "") or "$"
            unknown = text.removeprefix("Object contains unknown field `")
            if unknown != text:
                raise self.error(f"{path}.{unknown.rstrip('`')}", "unknown key") from error
            raise self.error(path, text[:1].lower() + text[1:]) from error

    def check(self, form: _ScenarioForm) -> None:
        """What types cannot say: one action a step, expectations that fit it, names that exist."""
        if form.rounds < 1:
            raise self.error("$.rounds", f"is {form.rounds}; at least 1 is needed")
        if form.webhooks < 1:
            raise self.error("$.webhooks", f"is {form.webhooks}; at least 1 is needed")
        if not form.steps:
            raise self.error("$.steps", "a scenario needs at least one step")
        cards: set[str] = set()
        for number, node in enumerate(form.nodes):
            if not node.cards and not node.is_spelled_out:
                raise self.error(
                    f"$.nodes[{number}]", "a node needs cards, or annotations or capacity that tell of some"
                )
            if node.is_spelled_out:
                cards.add(f"{node.name}/")
            for place, card in enumerate(node.cards):
                uuid = card if isinstance(card, str) else card.uuid
                where = f"$.nodes[{number}].cards[{place}]"
                if not uuid or any(sign in uuid for sign in ",:;"):
                    raise self.error(where, f"uuid {uuid!r} must not be empty nor hold , : or ;")
                if f"{node.name}/{uuid}" in cards:
                    raise self.error(where, f"card {uuid} stands twice on node {node.name}")
                cards.add(f"{node.name}/{uuid}")
        created: set[str] = set()
        for number, step in enumerate(form.steps):
            self._check_step(f"$.steps[{number}]", step, created, cards)

    def _check_step(self, where: str, step: Step, created: set[str], cards: set[str]) -> None:
        actions = [name for name in _ACTIONS if getattr(step, name) is not None]
        if len(actions) != 1:
            has = f"has {len(actions)}: {', '.join(actions)}" if actions else "has none"
            raise self.error(where, f"a step needs exactly one of {', '.join(_ACTIONS)}; this one {has}")
        action = actions[0]
        if step.flood is not None:
            if not step.flood.pod.name or step.flood.pods < 1:
                raise self.error(f"{where}.flood", "a flood needs a pod with a name, and at least 1 of it")
            created.update(f"{step.flood.pod.name}-{number}" for number in range(1, step.flood.pods + 1))
        for number, pod in enumerate(step.create_together or ([step.create] if step.create else [])):
            place = f"{where}.{action}" + (f"[{number}]" if step.create_together else "")
            if not pod.name:
                raise self.error(place, "a pod needs a name")
            created.add(pod.name)
        named = getattr(step, action) if action in _ON_EXISTING else step.scores.pod if step.scores else None
        if named is not None and named.rpartition("/")[2] not in created:
            raise self.error(f"{where}.{action}", f"no earlier step creates a pod {named!r}")
        for card in step.usage or {}:
            if card not in cards and f"{card.partition('/')[0]}/" not in cards:
                raise self.error(f"{where}.usage.{card}", f"no such card; known are {', '.join(sorted(cards))}")
        if step.fresh_cluster is False:
            raise self.error(f"{where}.fresh_cluster", "false does nothing; true is accepted")
        if step.burst is not None and min(step.burst.nodes, step.burst.cards, step.burst.pods) < 1:
            raise self.error(f"{where}.burst", "nodes, cards and pods must be at least 1")
        self._check_expect(f"{where}.expect", step, action)

    def _check_expect(self, where: str, step: Step, action: str) -> None:
        if step.expect is None:
            if action in ("pod", "create_together", "flood"):
                raise self.error(where.removesuffix(".expect"), f"{action} needs an expect")
            return
        given = set(_given(step.expect))
        if action not in ("create", "create_together", "flood", "pod"):
            raise self.error(where, f"{action} takes no expect")
        of_many = given.intersection(_OF_MANY)
        if action == "create_together" and given - {"placed", "waiting"}:
            raise self.error(where, "create_together takes placed and waiting only")
        if action == "flood" and given != of_many:
            raise self.error(where, f"flood takes {', '.join(_OF_MANY)} only")
        if action not in ("create_together", "flood") and of_many:
            raise self.error(where, f"{' and '.join(sorted(of_many))} are for create_together")
        if action == "pod" and step.expect.denied is not None:
            raise self.error(f"{where}.denied", "a pod that exists was not denied")
        if sum([step.expect.is_placed, step.expect.pending is not None, step.expect.denied is not None]) > 1:
            raise self.error(where, "a pod is placed, pending or denied: one of these")


def _given(form: msgspec.Struct) -> dict[str, object]:
    """The fields of a card or an expectation that the file set; 0 and false are values, too."""
    values = ((field.name, getattr(form, field.name)) for field in msgspec.structs.fields(form))
    return {name: value for name, value in values if value is not None and value not in ("", [], {})}
