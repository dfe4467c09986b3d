"""The rights that the extender needs at the API server, by how it is started (`slotwise rbac-check` compares them with manifests)."""

from collections.abc import Iterator
from typing import Final

from devices.kube.access import FEED, METHODS, Access
from scheduler.config import Settings

__all__ = ["KUBE_SCHEDULER_ROLES", "accesses", "kube_scheduler_accesses"]

LEASES: Final = "leases"
_COORDINATION: Final = "coordination.k8s.io"
KUBE_SCHEDULER_ROLES: Final = frozenset(
    {"system:kube-scheduler", "system:volume-scheduler", "extension-apiserver-authentication-reader"}
)
"""What Kubernetes ships for the kube-scheduler beside the extender, which has the same account."""


def accesses(settings: Settings, namespace: str) -> frozenset[Access]:
    """Everything the extender asks for; `namespace` is the one it runs in."""
    return frozenset(_accesses(settings, namespace))


def _accesses(settings: Settings, namespace: str) -> Iterator[Access]:
    yield from FEED
    # Its own pod is touched to prove that the watch is fresh; pods that wait are touched when cards come free, and bound
    # ones labelled where the Binding did not.
    yield from METHODS["patch_pod"]
    # What a Binding whose reply was lost has done, whose lock is old, and what the node of a lock says now.
    yield from METHODS["get_pod"]
    yield from METHODS["bind"]
    yield from METHODS["create_event"]
    if settings.node_lock != "never":
        yield from METHODS["get_node"]
        yield from METHODS["patch_node"]
    elif settings.handshake != "never":
        yield from METHODS["patch_node"]
    if settings.leader_elect:
        lease = Access("", LEASES, _COORDINATION, namespace=settings.leader_elect_resource_namespace)
        for verb in ("list", "watch"):
            yield Access(verb, lease.resource, lease.group, lease.namespace, settings.leader_elect_resource_name)


def kube_scheduler_accesses(lease_name: str, namespace: str) -> frozenset[Access]:
    """What kube-scheduler needs beyond the roles that Kubernetes ships, to compete for a Lease of another name than its own."""
    named = (Access(verb, LEASES, _COORDINATION, namespace, lease_name) for verb in ("get", "update"))
    return frozenset((*named, Access("create", LEASES, _COORDINATION, namespace)))
