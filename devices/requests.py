"""What each container of a pod asks for, as values (HAMi v2.10 scheduling, from container to request)."""

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from math import ceil
from typing import Protocol

import msgspec

from devices.errors import MalformedValue, QuantityError
from devices.model import Card
from devices.objects import Container, Pod
from devices.quantity import Quantity, parse, whole

__all__ = [
    "NO_CLUSTER",
    "Ask",
    "Cluster",
    "ContainerRequest",
    "DeviceRequest",
    "PodRequest",
    "Resources",
    "Role",
    "limits_alone",
    "optional_rounded",
    "optional_whole",
    "pod_request",
    "read_resources",
    "roles",
]


class Role(Enum):
    """When a container runs: an init container before the others, a sidecar beside them, an app at the end."""

    INIT = "init"
    SIDECAR = "sidecar"
    APP = "app"


class DeviceRequest(msgspec.Struct, frozen=True):
    """What one container asks of one vendor, per card.

    `memory_mib` 0 means "by percentage"; `percentage` None means "by memory". `note` is the family's own detail (a template, a
    profile) and must be hashable.
    """

    vendor: str
    count: int
    memory_mib: int = 0
    percentage: int | None = None
    cores: int = 0
    note: object = None

    def memory_on(self, card_memory_mib: int) -> int:
        """MiB wanted from a card of this size: explicit memory, else the percentage rounded down (33 % of 15360 is 5068)."""
        if self.memory_mib > 0 or self.percentage is None:
            return self.memory_mib
        return card_memory_mib * self.percentage // 100

    @property
    def wants_whole_memory(self) -> bool:
        """Asked for all memory of a card, not for a size."""
        return self.memory_mib == 0 and self.percentage == 100


class ContainerRequest(msgspec.Struct, frozen=True):
    """A container's requests by vendor key (sorted), with its name and when it runs."""

    name: str
    role: Role
    devices: tuple[DeviceRequest, ...] = ()


class PodRequest(msgspec.Struct, frozen=True):
    """One entry per container position: init containers (sidecars among them), then containers."""

    containers: tuple[ContainerRequest, ...]

    @property
    def asks(self) -> bool:
        """Whether any container asks for a managed device."""
        return any(container.devices for container in self.containers)

    @property
    def vendors(self) -> tuple[str, ...]:
        """Keys of the vendors asked, sorted."""
        return tuple(sorted({device.vendor for container in self.containers for device in container.devices}))


class Resources(Protocol):
    """The resources of one container, whichever form the pod is in."""

    @property
    def name(self) -> str: ...
    @property
    def limits(self) -> Mapping[str, Quantity]: ...
    @property
    def requests(self) -> Mapping[str, Quantity]: ...


class _Plain(msgspec.Struct, frozen=True):  # made for every container: a dataclass takes four times as long to make
    name: str
    limits: Mapping[str, Quantity]
    requests: Mapping[str, Quantity]


def read_resources(container: Mapping[str, object]) -> Resources:
    """The resources of a raw container object, as the admission side has it. Wrong shapes raise `MalformedValue`."""
    name = container.get("name")
    resources = container.get("resources") or {}
    if not isinstance(resources, Mapping):
        raise MalformedValue(f"resources of container {name} must be an object")
    lists: list[Mapping[str, Quantity]] = []
    for kind in ("limits", "requests"):
        values = resources.get(kind) or {}
        if not isinstance(values, Mapping):
            raise MalformedValue(f"resources.{kind} of container {name} must be an object")
        lists.append(values)
    return _Plain(name if isinstance(name, str) else "", lists[0], lists[1])


def limits_alone(container: Resources) -> Resources:
    """The container as families see it that do not look at requests."""
    return _Plain(container.name, container.limits, {})


def optional_whole(container: Resources, resource: str, low: int, high: int) -> int | None:
    """The whole-number value of a resource: from limits, else from requests, None when it is in neither (or has no name).

    Raises `MalformedValue` naming container, resource, value and what is accepted, e.g.
    `invalid nvidia.com/gpumem value 16Gi in container main: must be an integer between 0 and 2147483647`.
    """
    if not resource:
        return None
    value = container.limits.get(resource)
    if value is None:
        value = container.requests.get(resource)
    if value is None:
        return None
    try:
        number = whole(value)
        inside = low <= number <= high
    except QuantityError:
        inside = False
    if not inside:
        shown = _shown(value)
        raise MalformedValue(
            f"invalid {resource} value {shown} in container {container.name}: must be an integer between {low} and {high}"
        )
    return number


def optional_rounded(container: Resources, resource: str, low: int, high: int) -> int | None:
    """As `optional_whole`, for families whose plugin rounds up: `1500m` is 2."""
    if not resource:
        return None
    value = container.limits.get(resource, container.requests.get(resource))
    if value is None:
        return None
    try:
        number = parse(value)
        inside = low <= number and ceil(number) <= high
    except QuantityError:
        inside = False
    if not inside:
        raise MalformedValue(
            f"invalid {resource} value {value} in container {container.name}: must be a number between {low} and {high}"
        )
    return ceil(number)


def _shown(value: Quantity) -> str:
    """The value as a user wrote it, whole numbers without suffix: the API server rewrites `200` but never `16Gi`."""
    try:
        number = whole(value)
    except QuantityError:
        return str(value)
    return str(number) if abs(number) < 10**6 else str(value)


def roles(pod: Pod) -> tuple[Role, ...]:
    """The role of every container position."""
    apps = [Role.APP] * len(pod.containers)
    if not pod.init_containers:
        return tuple(apps)
    return (*(Role.SIDECAR if c.restart_policy == "Always" else Role.INIT for c in pod.init_containers), *apps)


class Cluster(Protocol):
    """What a family may know of the cluster when it reads a request; `devices.ledger.Ledger` has it."""

    def kinds(self, vendor: str) -> Sequence[Card]:
        """The registered cards of a vendor, equal ones once."""
        ...


class _NoCluster:
    def kinds(self, vendor: str) -> Sequence[Card]:
        return ()


NO_CLUSTER: Cluster = _NoCluster()
"""Nothing is registered."""


class Ask(Protocol):
    """What the pod's request needs of a vendor: its key and its way to read a container."""

    @property
    def key(self) -> str: ...
    @property
    def names(self) -> frozenset[str]: ...
    def request(self, container: Resources, cluster: Cluster = ...) -> DeviceRequest | None: ...


def container_devices(
    container: Resources, vendors: Iterable[Ask], cluster: Cluster = NO_CLUSTER
) -> tuple[DeviceRequest, ...]:
    """Requests of one container by vendor key, sorted. Raises `MalformedValue`."""
    limits, requests = container.limits, container.requests
    found: list[DeviceRequest] = []
    for vendor in vendors:
        # Most containers name no vendor's resources, and the others one's: the others are not asked to read.
        if vendor.names.isdisjoint(limits) and vendor.names.isdisjoint(requests):
            continue
        request = vendor.request(_Plain(container.name, limits, requests), cluster)
        if request is not None and request.count > 0:
            found.append(request)
    return tuple(sorted(found, key=lambda request: request.vendor)) if len(found) > 1 else tuple(found)


def pod_request(pod: Pod, vendors: Iterable[Ask], cluster: Cluster = NO_CLUSTER) -> PodRequest:
    """The request of every container position; `cluster` is what is registered at the moment. Raises `MalformedValue` for a value that cannot be used."""
    known = tuple(vendors)
    containers: list[Container] = [*pod.init_containers, *pod.containers]
    return PodRequest(
        tuple(
            [
                ContainerRequest(container.name, role, container_devices(container, known, cluster))
                for container, role in zip(containers, roles(pod), strict=True)
            ]
        )
    )
