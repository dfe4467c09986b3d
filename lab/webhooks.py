"""The webhook configurations of the manifests, for a webhook that is called by its address."""

from base64 import b64encode
from collections.abc import Iterable

from devices.admission_objects import Document, admission_documents
from devices.config import DeviceConfig
from devices.kube.resources import MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS, Resource

__all__ = ["embedded_configurations", "webhook_configurations"]

_BY_CONDITIONS_ALONE = ("changes.slotwise.io", "bindings.slotwise.io")
"""Without their conditions these would be asked about every update, and about kube-scheduler's own Bindings."""
_NOT_IN_THE_LAB = ("matchConditions", "reinvocationPolicy")


def webhook_configurations(config: DeviceConfig, url: str, ca_pem: bytes) -> tuple[tuple[Resource, Document], ...]:
    """Both configurations for a webhook at `url` (without a trailing slash) whose certificate that CA has signed."""
    documents = admission_documents(config)
    return tuple(
        (resource, {**document, "webhooks": [_addressed(hook, url, ca_pem) for hook in _hooks(document)]})
        for resource, name in ((MUTATING_WEBHOOKS, "mutating.yaml"), (VALIDATING_WEBHOOKS, "validating.yaml"))
        for document in documents[name]
    )


def embedded_configurations(config: DeviceConfig, url: str, ca_pem: bytes) -> tuple[tuple[Resource, Document], ...]:
    """The same for the embedded API server, which evaluates no conditions: what depends on them is left out, the rest sees every pod."""
    return tuple(
        (resource, {**document, "webhooks": list(_embedded(_hooks(document)))})
        for resource, document in webhook_configurations(config, url, ca_pem)
    )


def _hooks(document: Document) -> list[Document]:
    hooks = document["webhooks"]
    if not isinstance(hooks, list):
        raise AssertionError("a webhook configuration lists its webhooks")
    return hooks


def _addressed(hook: Document, url: str, ca_pem: bytes) -> Document:
    client = hook["clientConfig"]
    if not isinstance(client, dict):
        raise AssertionError("a webhook says where it is")
    address = f"{url}{client['service']['path']}"
    return {**hook, "clientConfig": {"url": address, "caBundle": b64encode(ca_pem).decode()}}


def _embedded(hooks: Iterable[Document]) -> Iterable[Document]:
    for hook in hooks:
        if hook["name"] not in _BY_CONDITIONS_ALONE:
            yield {key: value for key, value in hook.items() if key not in _NOT_IN_THE_LAB}
