"""What `/webhook` changes in a pod. One small function a rule; the order of the tuple is the order they run in."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from devices.config import DeviceConfig
from devices.errors import QuantityError
from devices.keys import VGPU_NODE
from devices.quantity import Quantity, parse
from devices.requests import NO_CLUSTER, Cluster, Resources, read_resources
from webhook.advice import Advice
from webhook.config import AdmissionSettings
from webhook.errors import NotAPodError
from webhook.patch import Path, PodEdit
from webhook.wire import JsonObject

__all__ = ["MUTATORS", "ContainerAdmission", "Mutation", "Mutator"]


@dataclass(slots=True)
class Mutation:
    """A pod on its way through the mutators."""

    edit: PodEdit
    config: DeviceConfig
    settings: AdmissionSettings
    advice: Advice = field(default_factory=Advice)
    cluster: Cluster = NO_CLUSTER
    asks: bool = False
    """Set once a family has taken a container for its own."""


Mutator = Callable[[Mutation], None]


class ContainerAdmission:
    """One container as its family changes it (`devices.vendor.Admission`): every call is one targeted change of the pod."""

    def __init__(self, edit: PodEdit, path: Path, advice: Advice, cluster: Cluster = NO_CLUSTER) -> None:
        self._edit = edit
        self._path = path
        self._advice = advice
        self._cluster = cluster
        self._resources: Resources | None = None

    @property
    def resources(self) -> Resources:
        """The container's resources with all changes so far."""
        if self._resources is None:  # every family asks, and hardly any changes them
            container = self._edit.get(*self._path)
            if not isinstance(container, dict):
                raise AssertionError("the pod was decoded before, so its containers are objects")
            self._resources = read_resources(container)
        return self._resources

    @property
    def environment(self) -> frozenset[str]:
        """Names of the container's variables."""
        names = (entry.get("name") for entry in self._variables())
        return frozenset(name for name in names if isinstance(name, str))

    @property
    def annotations(self) -> Mapping[str, str]:
        """The pod's annotations with all changes so far."""
        held = self._edit.get("metadata", "annotations")
        return held if isinstance(held, dict) else {}

    @property
    def cluster(self) -> Cluster:
        """What is registered at the moment."""
        return self._cluster

    def set_limit(self, resource: str, value: Quantity) -> None:
        """Set a limit, and the request beside it where there is one, unless they have that value already.

        Written as text, as the API server stores it, which refuses a pod whose two differ.
        """
        self._set("limits", resource, value)
        if self._edit.get(*self._path, "resources", "requests", resource) is not None:
            self.set_request(resource, value)

    def set_request(self, resource: str, value: Quantity) -> None:
        """Set a request alone."""
        self._set("requests", resource, value)

    def _set(self, kind: str, resource: str, value: Quantity) -> None:
        path = (*self._path, "resources", kind, resource)
        self._resources = None
        if not _same_quantity(self._edit.get(*path), value):
            self._edit.put(path, str(value))

    def append_env(self, name: str, value: str) -> None:
        """Add a variable at the end, where it wins over a user's own, unless the last of that name says so already."""
        entry = {"name": name, "value": value}
        last = next((e for e in reversed(self._variables()) if e.get("name") == name), None)
        if last != entry:
            self._edit.append((*self._path, "env"), dict(entry))

    def _variables(self) -> list[JsonObject]:
        held = self._edit.get(*self._path, "env")
        if held is not None and not isinstance(held, list):
            raise NotAPodError("object is not a Pod: env of a container must be a list")
        return [entry for entry in held or [] if isinstance(entry, dict)]

    def set_annotation(self, key: str, value: str) -> None:
        """Set an annotation of the pod."""
        self._edit.put(("metadata", "annotations", key), value)

    def default_runtime_class(self, name: str) -> None:
        """Set the pod's runtime class where it has none."""
        if not self._edit.get("spec", "runtimeClassName"):
            self._edit.put(("spec", "runtimeClassName"), name)

    def warn(self, text: str) -> None:
        """Tell the pod's author."""
        self._advice.add(text)


def _same_quantity(held: object, value: Quantity) -> bool:
    if not isinstance(held, str | int | float):
        return False
    try:
        return parse(held) == parse(value)
    except QuantityError:
        return False


def strip_protected_keys(mutation: Mutation) -> None:
    """What only the system may write goes: a new pod has no allocation, whatever it says."""
    held = mutation.edit.get("metadata", "annotations")
    annotations = held if isinstance(held, dict) else {}
    if not mutation.config.known_annotations.isdisjoint(annotations):  # the protected ones are among them
        for key in mutation.config.protected_annotations:
            if key in annotations:
                mutation.edit.remove(("metadata", "annotations", key))
    mutation.edit.remove(("metadata", "labels", VGPU_NODE))


def apply_family_rules(mutation: Mutation) -> None:
    """The families that a container names look at it, init containers first. Raises `MalformedValue`."""
    for kind in ("initContainers", "containers"):
        containers = mutation.edit.get("spec", kind)
        for position in range(len(containers) if isinstance(containers, list) else 0):
            container = ContainerAdmission(mutation.edit, ("spec", kind, position), mutation.advice, mutation.cluster)
            for vendor in mutation.config.admitting(container.resources):
                if vendor.admit(container):
                    mutation.asks = True


def set_scheduler_name(mutation: Mutation) -> None:
    """Device pods come to our scheduler; only one that names another by choice was left alone before."""
    if mutation.asks and mutation.settings.scheduler_name:
        mutation.edit.put(("spec", "schedulerName"), mutation.settings.scheduler_name)


MUTATORS: tuple[Mutator, ...] = (strip_protected_keys, apply_family_rules, set_scheduler_name)
