"""The parts of Kubernetes objects that Slotwise reads, decoded by msgspec.

Everything else in an object is skipped while decoding: 40,000 pods of 5 KB then cost a fraction of their text. `null` and a missing
key are the same here, as in Kubernetes. An object of a wrong shape raises `msgspec.ValidationError`, a subclass of `ValueError`.
"""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from devices.quantity import Quantity

__all__ = [
    "Container",
    "ContainerStatus",
    "Metadata",
    "Node",
    "Pod",
    "Quota",
    "decode_node",
    "decode_pod",
    "decode_quota",
    "node_of",
    "pod_of",
    "quota_of",
]

NOTHING: Mapping[str, str] = MappingProxyType({})
NO_QUANTITIES: Mapping[str, Quantity] = MappingProxyType({})


class Metadata(msgspec.Struct, rename="camel", frozen=True):
    """`metadata` of any object. Annotations and labels may be absent: read them through the object's properties."""

    name: str = ""
    namespace: str | None = None
    uid: str = ""
    resource_version: str = ""
    generate_name: str | None = None
    deletion_timestamp: str | None = None
    creation_timestamp: str | None = None
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None


class Resources(msgspec.Struct, frozen=True):
    """`resources` of a container."""

    limits: dict[str, Quantity] | None = None
    requests: dict[str, Quantity] | None = None


class SecurityContext(msgspec.Struct, frozen=True):
    """`securityContext` of a container."""

    privileged: bool | None = None


class Container(msgspec.Struct, rename="camel", frozen=True):
    """A container or init container."""

    name: str = ""
    resources: Resources | None = None
    security_context: SecurityContext | None = None
    restart_policy: str | None = None

    @property
    def limits(self) -> Mapping[str, Quantity]:
        """`resources.limits`, empty when absent."""
        return (self.resources.limits if self.resources else None) or NO_QUANTITIES

    @property
    def requests(self) -> Mapping[str, Quantity]:
        """`resources.requests`, empty when absent."""
        return (self.resources.requests if self.resources else None) or NO_QUANTITIES

    @property
    def is_privileged(self) -> bool:
        """True when the container's own security context says so."""
        return bool(self.security_context and self.security_context.privileged)


class SchedulingGroup(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """`spec.schedulingGroup`: gang membership from Kubernetes 1.35 on."""

    pod_group_name: str | None = None


class AffinityTerm(msgspec.Struct, rename="camel", frozen=True):
    """One term of a pod affinity, as far as it reaches into other namespaces."""

    namespaces: list[str] | None = None
    namespace_selector: dict[str, object] | None = None


class WeightedAffinityTerm(msgspec.Struct, rename="camel", frozen=True):
    """A preferred term."""

    pod_affinity_term: AffinityTerm = AffinityTerm()


class PodAffinity(msgspec.Struct, rename="camel", frozen=True):
    """`podAffinity` or `podAntiAffinity`."""

    required_during_scheduling_ignored_during_execution: list[AffinityTerm] | None = None
    preferred_during_scheduling_ignored_during_execution: list[WeightedAffinityTerm] | None = None

    @property
    def terms(self) -> list[AffinityTerm]:
        """Required and preferred ones."""
        preferred = self.preferred_during_scheduling_ignored_during_execution or []
        required = self.required_during_scheduling_ignored_during_execution or []
        return [*required, *(term.pod_affinity_term for term in preferred)]


class Affinity(msgspec.Struct, rename="camel", frozen=True):
    """`spec.affinity` of a pod."""

    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class PodSpec(msgspec.Struct, rename="camel", frozen=True):
    """`spec` of a pod. Fields from `priority_class_name` on decide which quotas cover it."""

    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    node_name: str | None = None
    scheduler_name: str | None = None
    scheduling_group: SchedulingGroup | None = None
    priority_class_name: str | None = None
    active_deadline_seconds: int | None = None
    affinity: Affinity | None = None
    resources: Resources | None = None
    """Of the pod as a whole."""


class Terminated(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A container state that has ended."""

    exit_code: int = 0


class ContainerState(msgspec.Struct, frozen=True, gc=False):
    """`state` of a container status."""

    terminated: Terminated | None = None


class ContainerStatus(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """One entry of `status.initContainerStatuses`."""

    name: str = ""
    state: ContainerState | None = None


class Condition(msgspec.Struct, frozen=True, gc=False):
    """One entry of `status.conditions`."""

    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None


class PodStatus(msgspec.Struct, rename="camel", frozen=True):
    """`status` of a pod."""

    phase: str | None = None
    conditions: list[Condition] | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    qos_class: str | None = None


class Pod(msgspec.Struct, frozen=True):
    """A pod, as far as placing it needs."""

    metadata: Metadata = Metadata()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def name(self) -> str:
        """`metadata.name`."""
        return self.metadata.name

    @property
    def namespace(self) -> str:
        """`metadata.namespace`, `default` when absent."""
        return self.metadata.namespace or "default"

    @property
    def uid(self) -> str:
        """`metadata.uid`."""
        return self.metadata.uid

    @property
    def annotations(self) -> Mapping[str, str]:
        """`metadata.annotations`, empty when absent."""
        return self.metadata.annotations or NOTHING

    @property
    def labels(self) -> Mapping[str, str]:
        """`metadata.labels`, empty when absent."""
        return self.metadata.labels or NOTHING

    @property
    def init_containers(self) -> list[Container]:
        """`spec.initContainers`, sidecars included, in their order."""
        return self.spec.init_containers or []

    @property
    def containers(self) -> list[Container]:
        """`spec.containers` in their order."""
        return self.spec.containers or []

    @property
    def bound_node(self) -> str:
        """`spec.nodeName`, empty until bound."""
        return self.spec.node_name or ""

    @property
    def is_finished(self) -> bool:
        """Phase Succeeded or Failed: such a pod holds nothing."""
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def is_terminating(self) -> bool:
        """Being deleted; it keeps its cards until it is gone or finished."""
        return self.metadata.deletion_timestamp is not None

    @property
    def is_unschedulable(self) -> bool:
        """kube-scheduler has said `PodScheduled=False`."""
        scheduled = self.scheduled
        return scheduled is not None and scheduled.status == "False"

    @property
    def scheduled(self) -> Condition | None:
        """The condition `PodScheduled`, as kube-scheduler wrote it last."""
        return next((c for c in self.status.conditions or () if c.type == "PodScheduled"), None)


class NodeStatus(msgspec.Struct, frozen=True):
    """`status` of a node."""

    allocatable: dict[str, Quantity] | None = None
    capacity: dict[str, Quantity] | None = None


class Node(msgspec.Struct, frozen=True):
    """A node, as far as its cards need."""

    metadata: Metadata = Metadata()
    status: NodeStatus = NodeStatus()

    @property
    def name(self) -> str:
        """`metadata.name`."""
        return self.metadata.name

    @property
    def annotations(self) -> Mapping[str, str]:
        """`metadata.annotations`, empty when absent."""
        return self.metadata.annotations or NOTHING

    @property
    def labels(self) -> Mapping[str, str]:
        """`metadata.labels`, empty when absent."""
        return self.metadata.labels or NOTHING

    @property
    def allocatable(self) -> Mapping[str, Quantity]:
        """`status.allocatable`, empty when absent."""
        return self.status.allocatable or NO_QUANTITIES

    @property
    def capacity(self) -> Mapping[str, Quantity]:
        """`status.capacity`, empty when absent."""
        return self.status.capacity or NO_QUANTITIES


class ScopeRequirement(msgspec.Struct, rename="camel", frozen=True):
    """One expression of a quota's `scopeSelector`."""

    scope_name: str = ""
    operator: str = ""
    values: list[str] | None = None


class ScopeSelector(msgspec.Struct, rename="camel", frozen=True):
    """`scopeSelector` of a ResourceQuota."""

    match_expressions: list[ScopeRequirement] | None = None


class QuotaSpec(msgspec.Struct, rename="camel", frozen=True):
    """`spec` of a ResourceQuota."""

    hard: dict[str, Quantity] | None = None
    scopes: list[str] | None = None
    scope_selector: ScopeSelector | None = None


class Quota(msgspec.Struct, frozen=True):
    """A ResourceQuota."""

    metadata: Metadata = Metadata()
    spec: QuotaSpec = QuotaSpec()

    @property
    def name(self) -> str:
        """`metadata.name`."""
        return self.metadata.name

    @property
    def namespace(self) -> str:
        """`metadata.namespace`, `default` when absent."""
        return self.metadata.namespace or "default"

    @property
    def hard(self) -> Mapping[str, Quantity]:
        """`spec.hard`, empty when absent."""
        return self.spec.hard or NO_QUANTITIES


_POD = msgspec.json.Decoder(Pod)
_NODE = msgspec.json.Decoder(Node)
_QUOTA = msgspec.json.Decoder(Quota)


def decode_pod(text: bytes | str | msgspec.Raw) -> Pod:
    """A pod from its JSON."""
    return _POD.decode(text)


def decode_node(text: bytes | str | msgspec.Raw) -> Node:
    """A node from its JSON."""
    return _NODE.decode(text)


def decode_quota(text: bytes | str | msgspec.Raw) -> Quota:
    """A ResourceQuota from its JSON."""
    return _QUOTA.decode(text)


def pod_of(document: object) -> Pod:
    """A pod from decoded JSON."""
    return msgspec.convert(document, Pod)


def node_of(document: object) -> Node:
    """A node from decoded JSON."""
    return msgspec.convert(document, Node)


def quota_of(document: object) -> Quota:
    """A ResourceQuota from decoded JSON."""
    return msgspec.convert(document, Quota)
