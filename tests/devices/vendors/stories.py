"""Short stories for the tests of families: a cluster, steps, and what came of each, played as a recorded scenario is.

And single walks over the cards of one node, for choices that are held against an enumeration of all subsets.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from devices.config import default_config, optional_families
from devices.fit import Candidates, Refusal, Walk, collect
from devices.model import Card, CardState
from devices.requests import read_resources
from devices.vendor import Vendor
from lab.replay.player import play
from lab.replay.scenario import read_scenario

CONFIG = default_config(optional_families())
ALL_FAMILIES = {f"enable-{family}": True for family in optional_families()}

Document = dict[str, Any]


def told(
    nodes: Sequence[Document],
    *steps: Document,
    config: Mapping[str, object] | None = None,
    quota: Mapping[str, object] | None = None,
) -> list[Any]:
    """What every step answered, None for steps that answer nothing; `quota` are limits of the namespace `default`."""
    hard = {f"limits.{name}": value for name, value in (quota or {}).items()}
    document = {
        "name": "story",
        "about": "a test",
        "area": "test",
        "flags": ALL_FAMILIES,
        "device_config": dict(config or {}),
        "nodes": list(nodes),
        "quotas": [{"metadata": {"name": "q"}, "spec": {"hard": hard}}] if hard else [],
        "steps": list(steps),
    }
    with asyncio.Runner() as runner:
        came = play(read_scenario(document, "story"), runner).came["steps"]
    assert isinstance(came, list)
    return [step.get("expect") for step in came]


def pod(
    name: str,
    limits: Mapping[str, object] | None = None,
    annotations: Mapping[str, str] | None = None,
    *,
    requests: Mapping[str, object] | None = None,
    more: Sequence[Mapping[str, object]] = (),
    init: Sequence[Mapping[str, object]] = (),
) -> Document:
    """A pod of one container with these limits; `more` and `init` are the limits of further ones."""

    def container(place: str, resources: Document) -> Document:
        return {"name": place, "resources": resources}

    first = {"limits": dict(limits or {}), "requests": dict(requests or {})}
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "annotations": dict(annotations or {}),
        },
        "spec": {
            "initContainers": [container(f"init{n}", {"limits": dict(given)}) for n, given in enumerate(init)],
            "containers": [
                container("main", first),
                *(container(f"more{n}", {"limits": dict(given)}) for n, given in enumerate(more)),
            ],
        },
    }


def filtered(of: Document | str, *nodes: str) -> Document:
    """Filter a pod, given in full or by name, on these nodes (`n1` unless told otherwise)."""
    given = {"ref": f"default/{of}"} if isinstance(of, str) else of
    return {"filter": {"pod": given, "nodes": list(nodes or ("n1",))}, "expect": {}}


def admitted(of: Document) -> Document:
    """Send a pod to admission."""
    return {"admit": {"pod": of, "namespace": "default"}, "expect": {"allowed": True}}


def usage(node: str = "n1") -> Document:
    """Read what is held on a node."""
    return {"usage": {"node": node}, "expect": {}}


def quota_used() -> Document:
    """Read what the namespace uses."""
    return {"quota": {"namespace": "default"}, "expect": {}}


def node(
    name: str = "n1",
    annotations: Mapping[str, object] | None = None,
    capacity: Mapping[str, object] | None = None,
    labels: Mapping[str, str] | None = None,
) -> Document:
    """A node; annotations that are no text are written as JSON."""
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in (annotations or {}).items()}
    amounts = {key: str(value) for key, value in (capacity or {}).items()}
    return {
        "metadata": {"name": name, "annotations": texts, "labels": dict(labels or {})},
        "status": {"capacity": amounts, "allocatable": amounts},
    }


def cards_of(answer: Document, vendor: str) -> list[list[str]]:
    """UUIDs by container of what a filter gave, or its refusal where that is shorter to compare."""
    given = answer["allocation"].get(vendor, [])
    return [[card["uuid"] for card in container] for container in given]


def vendor(key: str) -> Vendor:
    """A vendor of the shipped configuration."""
    found = CONFIG.vendor(key)
    assert found is not None
    return found


def state(card: Card, slots: int = 0, memory_mib: int = 0, cores: int = 0, **fields: Any) -> CardState:
    """A card and what is held of it."""
    return CardState(card, slots, memory_mib, cores, healthy=card.healthy, **fields)


def walk_over(
    states: Sequence[CardState],
    key: str,
    limits: Mapping[str, int],
    annotations: Mapping[str, str] | None = None,
    policies: Sequence[str] = (),
) -> list[str] | str:
    """UUIDs that one container gets of these cards (preferred first), or why it gets none."""
    of = vendor(key)
    asked = of.request(read_resources({"name": "main", "resources": {"limits": dict(limits)}}))
    assert asked is not None
    walk = Walk(of, asked, of.clamped(asked.cores), of.selection(annotations or {}), frozenset(policies))
    found: Candidates | Refusal = collect(states, walk)
    return found.text if isinstance(found, Refusal) else [entry.uuid for entry in found.entries]
