"""Which path of the API server a resource lives under."""

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

__all__ = [
    "ADMISSION_POLICIES",
    "ADMISSION_POLICY_BINDINGS",
    "CONFIG_MAPS",
    "EVENTS",
    "LEASES",
    "LIMIT_RANGES",
    "MUTATING_WEBHOOKS",
    "NAMESPACES",
    "NODES",
    "PODS",
    "RESOURCE_QUOTAS",
    "SECRETS",
    "VALIDATING_WEBHOOKS",
    "Resource",
]


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource of the API; `group` is empty for the core group."""

    plural: str
    group: str = ""
    version: str = "v1"
    namespaced: bool = True

    @property
    def label(self) -> str:
        """How metrics and logs name it, e.g. `pods` or `leases.coordination.k8s.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def collection(self, namespace: str | None = None) -> str:
        """The path of all objects, or of those in `namespace`.

        Raises ValueError for a namespace on a resource that has none, or a malformed one.
        """
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        if namespace is None:
            return f"{root}/{self.plural}"
        if not self.namespaced:
            raise ValueError(f"{self.label} have no namespace, got {namespace!r}")
        return f"{root}/namespaces/{_segment('namespace', namespace)}/{self.plural}"

    def item(self, name: str, namespace: str | None = None, subresource: str | None = None) -> str:
        """The path of one object.

        Raises ValueError for a missing namespace or a name that would lead to another path.
        """
        if self.namespaced and namespace is None:
            raise ValueError(f"{self.label} need a namespace to name one ({name!r})")
        path = f"{self.collection(namespace)}/{_segment('name', name)}"
        return path if subresource is None else f"{path}/{subresource}"


def _segment(what: str, text: str) -> str:
    # An empty name would address the whole collection, and a delete of that is not what anybody asked for.
    if not text or text in {".", ".."} or "/" in text or "%" in text:
        raise ValueError(f"{what} {text!r} is no name of an object: it must be non-empty, without '/' and '%'")
    return quote(text, safe=":")


PODS: Final = Resource("pods")
NODES: Final = Resource("nodes", namespaced=False)
NAMESPACES: Final = Resource("namespaces", namespaced=False)
CONFIG_MAPS: Final = Resource("configmaps")
SECRETS: Final = Resource("secrets")
EVENTS: Final = Resource("events")
RESOURCE_QUOTAS: Final = Resource("resourcequotas")
LIMIT_RANGES: Final = Resource("limitranges")
LEASES: Final = Resource("leases", "coordination.k8s.io")
MUTATING_WEBHOOKS: Final = Resource("mutatingwebhookconfigurations", "admissionregistration.k8s.io", namespaced=False)
VALIDATING_WEBHOOKS: Final = Resource(
    "validatingwebhookconfigurations", "admissionregistration.k8s.io", namespaced=False
)
ADMISSION_POLICIES: Final = Resource("validatingadmissionpolicies", "admissionregistration.k8s.io", namespaced=False)
ADMISSION_POLICY_BINDINGS: Final = Resource(
    "validatingadmissionpolicybindings", "admissionregistration.k8s.io", namespaced=False
)
