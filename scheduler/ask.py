"""What a pod asks of the scheduler, read once: requests, policies, weights and the cards it allows."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from devices.config import DeviceConfig
from devices.keys import CARD_POLICY, NODE_POLICY
from devices.objects import Pod
from devices.requests import NO_CLUSTER, Cluster, PodRequest, pod_request
from devices.score import Weights, weights_of
from devices.selection import Selection
from scheduler.policies import (
    DEFAULT_CARD_POLICY,
    NODE_POLICIES,
    policy_tokens,
    unknown_tokens,
)

__all__ = ["Ask", "Defaults", "ask_of"]


@dataclass(frozen=True, slots=True)
class Defaults:
    """The cluster's policies, for pods that name none."""

    card_policy: str = DEFAULT_CARD_POLICY
    node_policy: str = "binpack"


@dataclass(frozen=True, slots=True)
class Ask:
    """Everything about a pod that a decision depends on, besides its namespace's headroom.

    `shape` is equal for pods that get the same answer from the same nodes.
    """

    request: PodRequest
    card_policy: str
    policies: frozenset[str]
    node_policy: str
    weights: Weights
    selections: Mapping[str, Selection]
    shape: Hashable
    warnings: tuple[str, ...] = ()


def _policy(annotations: Mapping[str, str], key: str, default: str) -> str:
    """The annotation, trimmed; a blank one is no word at all and leaves the cluster's default in force."""
    value = annotations.get(key, "")
    return value if value.strip() else default


def ask_of(
    pod: Pod,
    config: DeviceConfig,
    defaults: Defaults,
    cluster: Cluster = NO_CLUSTER,
    request: PodRequest | None = None,
) -> Ask:
    """Read a pod; `cluster` is what is registered at the moment, `request` the pod's where it was read already. Raises `MalformedValue` for a resource value and `WeightsError` for weights that cannot be used."""
    if request is None:
        request = pod_request(pod, config.vendors, cluster)
    written = _policy(pod.annotations, CARD_POLICY, defaults.card_policy)
    # A comma makes a chain even where only one word is left of it, so only a single word is trimmed here.
    card_policy = written if "," in written else written.strip()
    node_word = _policy(pod.annotations, NODE_POLICY, defaults.node_policy).strip()
    node_policy = node_word if node_word in NODE_POLICIES else "binpack"
    warnings = [f'unknown card policy word "{word}" acts as spread' for word in unknown_tokens(card_policy)]
    if node_word not in NODE_POLICIES:
        warnings.append(f'unknown node policy "{node_word}" acts as binpack')
    selections = {}
    relevant: list[tuple[str, str]] = []
    for key in request.vendors:
        vendor = config.vendor(key)
        if vendor is not None:
            mine = {name: value for name in vendor.pod_annotations if (value := pod.annotations.get(name)) is not None}
            # The selection sees nothing but what the family declares, so the shape below cannot miss anything.
            selections[key] = vendor.selection(mine)
            relevant += sorted(mine.items())
    weights = weights_of(pod.annotations)
    shape = (
        tuple((container.name, container.role, container.devices) for container in request.containers),
        card_policy,
        node_policy,
        weights,
        tuple(relevant),
    )
    return Ask(
        request,
        card_policy,
        frozenset(policy_tokens(card_policy)),
        node_policy,
        weights,
        MappingProxyType(selections),
        shape,
        tuple(warnings),
    )
