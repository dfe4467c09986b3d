"""Small stories told to the whole system: nodes, pods with limits, what comes back."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from devices.config import DeviceConfig
from devices.objects import Node, Pod, node_of, pod_of
from scheduler.allocate import carried
from scheduler.engine import Filtered
from tests.builders import Document
from tests.builders import pod as pod_with
from tests.devices.vendors.samples import CONFIG, asking
from tests.scheduler.builders import World
from webhook.admission import Admission, Verdict
from webhook.config import AdmissionSettings

Limits = Mapping[str, object]


def registered(
    annotations: Mapping[str, object] | None = None,
    capacity: Limits | None = None,
    name: str = "n1",
    labels: Mapping[str, str] | None = None,
) -> Node:
    """A node with these annotations (what is no text becomes JSON) and this capacity, all of it allocatable."""
    texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in (annotations or {}).items()}
    metadata = {"name": name, "annotations": texts, "labels": dict(labels or {})}
    return node_of({"metadata": metadata, "status": {"capacity": capacity, "allocatable": capacity}})


def world(*nodes: Node, config: DeviceConfig = CONFIG) -> World:
    return World(*nodes, config=config)


def pod(limits: Limits | Sequence[Limits], name: str = "a", **fields: Any) -> Pod:
    """A pod whose only container, or whose containers `c0`, `c1` …, have these limits."""
    if isinstance(limits, Mapping):
        return pod_with(asking("main", limits), name=name, **fields)
    return pod_with(*(asking(f"c{n}", each) for n, each in enumerate(limits)), name=name, **fields)


def filtered(here: World, limits: Limits | Sequence[Limits], name: str = "a", **fields: Any) -> Filtered:
    return here.filter(pod(limits, name, **fields))


def text_of(here: World, found: Filtered, key: str, of: Pod | None = None) -> str:
    """One annotation of the Binding that follows from a decision."""
    assert found.allocation is not None, found
    assert found.nodes is not None
    node = found.nodes[0]
    given = of or pod_with(*(asking(f"c{n}", {}) for n in range(len(found.allocation))))
    return carried(node, found.allocation, here.ledger.config, given, here.ledger.state(node), 7.0).annotations[key]


def refusal(found: Filtered, node: str = "n1") -> str:
    assert found.failed is not None, found
    return found.failed[node]


def restarted(here: World, pods: Sequence[Pod]) -> World:
    """A process that starts anew with what the pods carry; nodes come after pods."""
    anew = World(config=here.ledger.config)
    for one in pods:
        holding = here.ledger.holding(one.uid)
        assert holding is not None, one.name
        extra = carried(holding.node, holding.allocation, here.ledger.config, one, here.ledger.state(holding.node), 7.0)
        annotations = {**one.annotations, **extra.annotations}
        document = msgspec.to_builtins(one)
        document["metadata"] = {**document["metadata"], "annotations": annotations, "resourceVersion": "9"}
        document["spec"]["nodeName"] = holding.node
        anew.ledger.put_pod(pod_of(document), 8.0)
    for name in here.ledger.node_names():
        node = here.ledger.node_object(name)
        assert node is not None
        anew.put_node(node)
    return anew


def admitted(
    limits: Limits,
    requests: Limits | None = None,
    *,
    config: DeviceConfig = CONFIG,
    here: World | None = None,
    annotations: Mapping[str, str] | None = None,
    **container: object,
) -> Verdict:
    """What admission makes of a pod with one container."""
    resources: Document = {"limits": dict(limits)} if limits else {}
    if requests:
        resources["requests"] = dict(requests)
    metadata: Document = {"name": "a", "namespace": "default", "uid": "uid-a"}
    if annotations:
        metadata["annotations"] = dict(annotations)
    document: Document = {
        "metadata": metadata,
        "spec": {"containers": [{"name": "main", "resources": resources, **container}]},
    }
    ledger = (here or World(config=config)).ledger
    return Admission(AdmissionSettings(), config, ledger).drop_in(document, "default")


def resources_of(verdict: Verdict) -> tuple[dict[str, str], dict[str, str]]:
    """Limits and requests of the only container, as text."""
    assert verdict.allowed, verdict.message
    (container,) = pod_of(verdict.pod).containers
    return (
        {name: str(value) for name, value in container.limits.items()},
        {name: str(value) for name, value in container.requests.items()},
    )
