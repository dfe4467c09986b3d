"""The least a caller may ask for: one small protocol an ability. `KubeClient` has them all."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

__all__ = [
    "Binder",
    "ConfigMapStore",
    "EventWriter",
    "JsonObject",
    "LeaseStore",
    "NodePatcher",
    "NodeReader",
    "PodLister",
    "PodPatcher",
    "PodReader",
    "SecretReader",
    "SecretWriter",
    "WebhookPatcher",
]

JsonObject: TypeAlias = dict[str, object]
"""A decoded JSON object as it came: unknown fields survive."""


class PodReader(Protocol):
    """Reads one pod, with quorum: never older than the call."""

    async def get_pod(self, namespace: str, name: str) -> JsonObject:
        """The pod. Raises NotFound and every other KubeError."""
        ...


class PodLister(Protocol):
    """Reads the pods of a namespace, with quorum: never older than the call."""

    async def list_pods(self, namespace: str) -> tuple[list[JsonObject], str]:
        """All pods and the list's resourceVersion. Raises KubeError."""
        ...


class PodPatcher(Protocol):
    """Merge-patches pods; preconditions are `metadata.uid` and `metadata.resourceVersion` in the body."""

    async def patch_pod(self, namespace: str, name: str, body: JsonObject) -> JsonObject:
        """The pod as stored.

        Raises Conflict (another resourceVersion), Invalid (another UID), OutcomeUnknown and every other KubeError.
        """
        ...


class NodeReader(Protocol):
    """Reads one node, with quorum: never older than the call."""

    async def get_node(self, name: str) -> JsonObject:
        """The node. Raises NotFound and every other KubeError."""
        ...


class NodePatcher(Protocol):
    """Merge-patches nodes; the precondition is `metadata.resourceVersion` in the body."""

    async def patch_node(self, name: str, body: JsonObject) -> JsonObject:
        """The node as stored. Raises Conflict (a precondition fails), OutcomeUnknown and every other KubeError."""
        ...


class Binder(Protocol):
    """Posts Bindings."""

    async def bind(
        self,
        namespace: str,
        name: str,
        body: JsonObject,
        timeout_s: float,
        *,
        before_send: Callable[[], None] | None = None,
    ) -> None:
        """Bind pod `name`; returning means bound.

        The server gives up after `timeout_s`, and so do we. `before_send` is called after every wait of ours, right
        before the request goes out; what it raises is passed on and nothing is sent.
        Raises OutcomeUnknown where the Binding may have landed; any other KubeError means that it has not.
        """
        ...


class EventWriter(Protocol):
    """Writes core/v1 Events."""

    async def create_event(self, namespace: str, body: JsonObject) -> None:
        """Raises KubeError; callers treat Events as best effort."""
        ...


class ConfigMapStore(Protocol):
    """Reads and writes ConfigMaps by compare-and-swap on resourceVersion."""

    async def get_config_map(self, namespace: str, name: str) -> JsonObject:
        """The ConfigMap, read with quorum. Raises NotFound and every other KubeError."""
        ...

    async def create_config_map(self, namespace: str, body: JsonObject) -> JsonObject:
        """The object as stored. Raises AlreadyExists, OutcomeUnknown and every other KubeError."""
        ...

    async def list_config_maps(self, namespace: str, label_selector: str) -> list[JsonObject]:
        """The ConfigMaps with these labels, read with quorum. Raises KubeError."""
        ...

    async def patch_config_map(self, namespace: str, name: str, body: JsonObject) -> JsonObject:
        """The object as stored. Raises Conflict (a precondition fails), OutcomeUnknown and every other KubeError."""
        ...


class SecretReader(Protocol):
    """Reads one Secret, with quorum: never older than the call."""

    async def get_secret(self, namespace: str, name: str) -> JsonObject:
        """The Secret. Raises NotFound and every other KubeError."""
        ...


class SecretWriter(Protocol):
    """Writes Secrets by compare-and-swap on resourceVersion."""

    async def create_secret(self, namespace: str, body: JsonObject) -> JsonObject:
        """The object as stored. Raises AlreadyExists, OutcomeUnknown and every other KubeError."""
        ...

    async def replace_secret(self, namespace: str, name: str, body: JsonObject) -> JsonObject:
        """The object as stored. Raises Conflict (another resourceVersion), OutcomeUnknown and every other KubeError."""
        ...


class LeaseStore(Protocol):
    """Reads and writes Leases by compare-and-swap on resourceVersion."""

    async def get_lease(self, namespace: str, name: str) -> JsonObject:
        """The Lease, read with quorum. Raises NotFound and every other KubeError."""
        ...

    async def create_lease(self, namespace: str, body: JsonObject) -> JsonObject:
        """The object as stored. Raises AlreadyExists, OutcomeUnknown and every other KubeError."""
        ...

    async def replace_lease(self, namespace: str, name: str, body: JsonObject) -> JsonObject:
        """The object as stored. Raises Conflict (another resourceVersion), OutcomeUnknown and every other KubeError."""
        ...


class WebhookPatcher(Protocol):
    """Changes webhook configurations by JSON Patch."""

    async def patch_mutating_webhooks(self, name: str, operations: Sequence[JsonObject]) -> JsonObject:
        """The object as stored. Raises Conflict (another resourceVersion in the patch), Invalid, OutcomeUnknown and others."""
        ...

    async def patch_validating_webhooks(self, name: str, operations: Sequence[JsonObject]) -> JsonObject:
        """As for mutating ones."""
        ...
