"""The kinds the server knows: their names on the wire and the rules that differ from kind to kind."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

__all__ = ["BINDINGS", "NAMESPACES", "NODES", "PODS", "RESOURCES", "Resource", "find"]


@dataclass(frozen=True, eq=False, slots=True)
class Resource:
    """One kind. Compared by identity: there is one object a kind."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    subresources: frozenset[str] = frozenset()
    selectable: tuple[str, ...] = ("metadata.name", "metadata.namespace")
    """Field selector labels this kind accepts."""
    unconditional_update: bool = True
    """An update without resourceVersion is taken as meant for the newest version."""
    create_on_update: bool = False
    """A PUT to a name that does not exist creates it."""
    returns_deleted: bool = False
    """DELETE answers with the object instead of a Status."""
    status_from_strategy: bool = False
    """A write to the main resource keeps the old status (create: starts without the one sent)."""
    verbs: tuple[str, ...] = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
    raw_prefix: bytes = field(init=False)
    """How every stored document of the kind begins, so that list items can leave kind and apiVersion out."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "raw_prefix", f'{{"kind":"{self.kind}","apiVersion":"{self.api_version}",'.encode())

    @property
    def api_version(self) -> str:
        """The apiVersion text: `v1` or `group/version`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """The name error texts use: `pods`, `leases.coordination.k8s.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def qualified_kind(self) -> str:
        """The kind as texts of invalid objects use it: `Pod`, `Lease.coordination.k8s.io`."""
        return f"{self.kind}.{self.group}" if self.group else self.kind

    @staticmethod
    def subresource_verbs(subresource: str) -> tuple[str, ...]:
        """Return what a subresource offers."""
        return ("create",) if subresource == "binding" else ("get", "patch", "update")

    def key(self, namespace: str, name: str) -> str:
        """Return the storage key; sorting by it gives the order of lists."""
        return f"{namespace}/{name}" if self.namespaced else name


_ADMISSION = "admissionregistration.k8s.io"
_STATUS = frozenset({"status"})

PODS = Resource(
    "",
    "v1",
    "pods",
    "Pod",
    True,
    subresources=frozenset({"status", "binding"}),
    selectable=(
        "metadata.name",
        "metadata.namespace",
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "status.phase",
        "status.podIP",
        "status.nominatedNodeName",
    ),
    returns_deleted=True,
    status_from_strategy=True,
)
BINDINGS = Resource("", "v1", "bindings", "Binding", True, verbs=("create",))
NODES = Resource(
    "", "v1", "nodes", "Node", False, subresources=_STATUS, selectable=("metadata.name", "spec.unschedulable")
)
NAMESPACES = Resource(
    "",
    "v1",
    "namespaces",
    "Namespace",
    False,
    subresources=_STATUS,
    selectable=("metadata.name", "status.phase"),
    returns_deleted=True,
    status_from_strategy=True,
    verbs=("create", "delete", "get", "list", "patch", "update", "watch"),
)
EVENTS = Resource(
    "",
    "v1",
    "events",
    "Event",
    True,
    selectable=(
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "involvedObject.apiVersion",
        "involvedObject.resourceVersion",
        "involvedObject.fieldPath",
        "reason",
        "reportingComponent",
        "source",
        "type",
        "metadata.namespace",
        "metadata.name",
    ),
    create_on_update=True,
)
LEASES = Resource(
    "coordination.k8s.io", "v1", "leases", "Lease", True, unconditional_update=False, create_on_update=True
)

RESOURCES: tuple[Resource, ...] = (
    PODS,
    BINDINGS,
    NODES,
    NAMESPACES,
    EVENTS,
    LEASES,
    Resource(
        "",
        "v1",
        "resourcequotas",
        "ResourceQuota",
        True,
        subresources=_STATUS,
        returns_deleted=True,
        status_from_strategy=True,
    ),
    Resource("", "v1", "configmaps", "ConfigMap", True),
    Resource(
        "",
        "v1",
        "secrets",
        "Secret",
        True,
        selectable=("type", "metadata.name", "metadata.namespace"),
    ),
    Resource("", "v1", "serviceaccounts", "ServiceAccount", True, returns_deleted=True),
    Resource("", "v1", "services", "Service", True, create_on_update=True, returns_deleted=True),
    Resource(
        _ADMISSION,
        "v1",
        "mutatingwebhookconfigurations",
        "MutatingWebhookConfiguration",
        False,
        unconditional_update=False,
        selectable=("metadata.name",),
    ),
    Resource(
        _ADMISSION,
        "v1",
        "validatingwebhookconfigurations",
        "ValidatingWebhookConfiguration",
        False,
        unconditional_update=False,
        selectable=("metadata.name",),
    ),
)

_BY_PATH = {(resource.group, resource.version, resource.plural): resource for resource in RESOURCES}


def find(group: str, version: str, plural: str) -> Resource | None:
    """Return the kind served at this place, or None."""
    return _BY_PATH.get((group, version, plural))


def group_versions(resources: Iterable[Resource] = RESOURCES) -> tuple[tuple[str, str], ...]:
    """Return the named API groups with their version, sorted."""
    return tuple(sorted({(resource.group, resource.version) for resource in resources if resource.group}))
