"""Which rights a call to the API server needs, in RBAC's words: one table for the client's calls by name."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

__all__ = ["CERTIFICATES", "FEED", "METHODS", "Access"]


@dataclass(frozen=True, slots=True, order=True)
class Access:
    """One right: `resource` with its sub-resource as in `pods/binding`.

    `namespace` empty: in every namespace, or the resource has none; else in that namespace alone. `name`: on that object alone.
    """

    verb: str
    resource: str
    group: str = ""
    namespace: str = ""
    name: str = ""

    def within(self, namespace: str) -> "Access":
        """The same right in one namespace."""
        return replace(self, namespace=namespace)

    def on(self, name: str) -> "Access":
        """The same right on one object."""
        return replace(self, name=name)

    def __str__(self) -> str:
        group = f".{self.group}" if self.group else ""
        name = f" {self.name}" if self.name else ""
        place = f" in namespace {self.namespace}" if self.namespace else ""
        return f"{self.verb} {self.resource}{group}{name}{place}"


def _reads(resource: str, group: str = "") -> Iterable[Access]:
    return (Access("list", resource, group), Access("watch", resource, group))


_ADMISSION: Final = "admissionregistration.k8s.io"
_LEASES: Final = "coordination.k8s.io"


FEED: Final[frozenset[Access]] = frozenset((*_reads("pods"), *_reads("nodes"), *_reads("resourcequotas")))
"""What following the cluster needs (`devices.kube.feed`)."""

CERTIFICATES: Final[frozenset[Access]] = frozenset(
    (
        *_reads("secrets"),
        *_reads("mutatingwebhookconfigurations", _ADMISSION),
        *_reads("validatingwebhookconfigurations", _ADMISSION),
    )
)
"""What following a Secret with certificates and the webhook configurations needs (`certs.watched`), each by its name alone."""

METHODS: Final[Mapping[str, tuple[Access, ...]]] = MappingProxyType(
    {
        "get_pod": (Access("get", "pods"),),
        "list_pods": (Access("list", "pods"),),
        "patch_pod": (Access("patch", "pods"),),
        "get_node": (Access("get", "nodes"),),
        "patch_node": (Access("patch", "nodes"),),
        "bind": (Access("create", "pods/binding"),),
        "create_event": (Access("create", "events"),),
        "get_config_map": (Access("get", "configmaps"),),
        "create_config_map": (Access("create", "configmaps"),),
        "list_config_maps": (Access("list", "configmaps"),),
        "patch_config_map": (Access("patch", "configmaps"),),
        "patch_quota": (Access("patch", "resourcequotas"),),
        "get_secret": (Access("get", "secrets"),),
        "create_secret": (Access("create", "secrets"),),
        "replace_secret": (Access("update", "secrets"),),
        "get_lease": (Access("get", "leases", _LEASES),),
        "create_lease": (Access("create", "leases", _LEASES),),
        "replace_lease": (Access("update", "leases", _LEASES),),
        "patch_mutating_webhooks": (Access("patch", "mutatingwebhookconfigurations", _ADMISSION),),
        "patch_validating_webhooks": (Access("patch", "validatingwebhookconfigurations", _ADMISSION),),
    }
)
"""What each of `KubeClient`'s calls by name needs, before it is narrowed to a namespace or an object."""
