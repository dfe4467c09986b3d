"""The rights that the webhook needs at the API server, by how it is started (`slotwise rbac-check` compares them with manifests)."""

from collections.abc import Iterator

from certs.settings import KeptCertificates
from devices.kube.access import CERTIFICATES, FEED, METHODS, Access
from devices.ledger import ADMITTED
from webhook.config import Settings

__all__ = ["accesses"]


def accesses(settings: Settings, namespace: str) -> frozenset[Access]:
    """Everything the webhook asks for; `namespace` is the one it runs in."""
    return frozenset(_accesses(settings, namespace))


def _accesses(settings: Settings, namespace: str) -> Iterator[Access]:
    yield from FEED
    # Its own pod is touched to prove that the watch is fresh.
    yield from (one.within(namespace) for one in METHODS["patch_pod"])
    # Warnings on ResourceQuotas that are not understood go to where the quota is.
    yield from METHODS["create_event"]
    # Whom a Binding is about, where the watch does not know.
    yield from METHODS["get_pod"]
    if settings.admission.quota_counts == ADMITTED:
        # A namespace is listed with quorum before a decision that the watch may be too old for.
        yield from METHODS["list_pods"]
        for method in ("get_config_map", "create_config_map", "list_config_maps", "patch_config_map"):
            yield from (one.within(settings.own_namespace) for one in METHODS[method])
    if settings.quota_annotation:
        yield from METHODS["patch_quota"]
    if settings.certificates is not None:
        yield from _kept(settings.certificates)


def _kept(kept: KeptCertificates) -> Iterator[Access]:
    """A certificate in a Secret: who keeps it is agreed by Lease, and its CA goes into both configurations."""
    for one in CERTIFICATES:
        if one.resource == "secrets":
            yield one.within(kept.namespace).on(kept.secret)
        else:
            yield one.on(kept.configuration)
    for methods, namespace, name in (
        (("replace_secret",), kept.namespace, kept.secret),
        (("get_lease", "replace_lease"), kept.namespace, kept.lease),
        (("patch_mutating_webhooks", "patch_validating_webhooks"), "", kept.configuration),
        (("create_secret", "create_lease"), kept.namespace, ""),
    ):
        for method in methods:
            yield from (one.within(namespace).on(name) for one in METHODS[method])
