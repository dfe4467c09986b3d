"""The pods that the doctor sends with `dryRun=All`: never stored, but admitted by everybody who has a say."""

from collections.abc import Mapping

from devices.kube.protocols import JsonObject
from devices.ledger import Ledger
from devices.vendor import Vendor

__all__ = ["probe_pods"]

_IMAGE = "registry.k8s.io/pause:3.10"


def probe_pods(ledger: Ledger, namespace: str) -> Mapping[str, JsonObject]:
    """By name: `plain`, `device`, `privileged` (a device pod) and `forged` (a plain pod that brings an allocation).

    Device pods ask for one card of the first family that a node registers, by its count alone, which every family takes.
    """
    vendor = _vendor(ledger)
    limits = {vendor.count_resource: "1"}
    privileged = {"privileged": True}
    return {
        "plain": _pod("plain", namespace),
        "device": _pod("device", namespace, limits=limits),
        "privileged": _pod("privileged", namespace, limits=limits, security=privileged),
        "forged": _pod("forged", namespace, annotations={vendor.allocated: "GPU-forged,NVIDIA,1,1:;"}),
    }


def _vendor(ledger: Ledger) -> Vendor:
    for name in sorted(ledger.node_names()):
        state = ledger.state(name)
        for card in state.cards if state is not None else ():
            found = ledger.config.vendor(card.card.vendor)
            if found is not None and found.count_resource:
                return found
    return ledger.config.vendors[0]


def _pod(
    kind: str,
    namespace: str,
    *,
    limits: Mapping[str, object] | None = None,
    security: Mapping[str, object] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> JsonObject:
    container: JsonObject = {"name": "main", "image": _IMAGE}
    if limits:
        container["resources"] = {"limits": dict(limits)}
    if security:
        container["securityContext"] = dict(security)
    metadata: JsonObject = {"name": f"slotwise-doctor-{kind}", "namespace": namespace}
    if annotations:
        metadata["annotations"] = dict(annotations)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }
