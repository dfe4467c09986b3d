"""What the doctor knows of a cluster: read once, then judged without another call."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from types import MappingProxyType
from typing import Final

from cli.doctor.objects import (
    ConfigMap,
    Container,
    EndpointSlice,
    Lease,
    Pod,
    Policy,
    PolicyBinding,
    Service,
    WebhookConfiguration,
    Workload,
)
from devices.config import DeviceConfig, default_config
from devices.config import read as read_config
from devices.errors import DeviceError
from devices.ledger import Ledger
from manifests.errors import ProcessError
from manifests.processes import environment_of, scheduler_settings, webhook_settings
from scheduler.config import Settings as SchedulerSettings
from webhook.config import Settings as WebhookSettings

__all__ = [
    "DEVICE_CONFIG",
    "EXTENDER",
    "INSTALLATION",
    "KUBE_SCHEDULER",
    "KUBE_SCHEDULER_CONFIG",
    "POLICY_PARAMETERS",
    "SCHEDULER",
    "WEBHOOK",
    "Facts",
    "Probe",
    "Unread",
]

INSTALLATION: Final = "slotwise"
"""Name of both webhook configurations, of the policy and of its binding."""
WEBHOOK: Final = "slotwise-webhook"
SCHEDULER: Final = "slotwise-scheduler"
KUBE_SCHEDULER: Final = "kube-scheduler"
EXTENDER: Final = "extender"
DEVICE_CONFIG: Final = "slotwise-device-config"
KUBE_SCHEDULER_CONFIG: Final = "slotwise-kube-scheduler"
POLICY_PARAMETERS: Final = "slotwise-policy"


@dataclass(frozen=True, slots=True)
class Unread:
    """Something that could not be read, and the API server's word on it."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Probe:
    """What the API server answered to a pod created with `dryRun=All`: the pod as it would be stored, or a refusal."""

    pod: Mapping[str, object] | None = None
    code: int = 201
    message: str = ""

    @property
    def accepted(self) -> bool:
        """Whether the pod would be there."""
        return self.pod is not None


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Everything the checks look at. What is in `unread` is missing elsewhere because nobody let us read it."""

    namespace: str
    now: datetime
    """By our own clock."""
    server_time: datetime | None = None
    """By the API server's, when `now` was taken; whole seconds."""
    version: str = ""
    """Of the API server, as in `v1.37.2`."""
    unread: Mapping[str, Unread] = field(default_factory=lambda: MappingProxyType({}))
    deployments: Mapping[str, Workload] = field(default_factory=lambda: MappingProxyType({}))
    pods: Sequence[Pod] = ()
    """Of the installation's namespace."""
    services: Mapping[str, Service] = field(default_factory=lambda: MappingProxyType({}))
    slices: Sequence[EndpointSlice] = ()
    config_maps: Mapping[str, ConfigMap] = field(default_factory=lambda: MappingProxyType({}))
    leases: Mapping[str, Lease] = field(default_factory=lambda: MappingProxyType({}))
    certificates_pem: Mapping[str, bytes] = field(default_factory=lambda: MappingProxyType({}))
    """The certificates of the webhook's Secret by key; never a private key."""
    served_pem: bytes = b""
    """What the webhook shows to whoever connects, where we can reach it; its own certificate first."""
    mutating: Sequence[WebhookConfiguration] = ()
    """All of the cluster."""
    validating: Sequence[WebhookConfiguration] = ()
    policies: Mapping[str, Policy] = field(default_factory=lambda: MappingProxyType({}))
    policy_texts: Mapping[str, Mapping[str, object]] = field(default_factory=lambda: MappingProxyType({}))
    """The same policies whole."""
    policy_bindings: Sequence[PolicyBinding] = ()
    daemon_sets: Sequence[Workload] = ()
    """All of the cluster."""
    other_deployments: Sequence[Workload] = ()
    """All of the cluster but ours."""
    waiting: Sequence[Pod] = ()
    """Pods that ask for a managed resource and have no node."""
    ledger: Ledger = field(default_factory=lambda: Ledger(default_config()))
    """Nodes and bound pods, as the services' books would have them."""
    probes: Mapping[str, Probe] = field(default_factory=lambda: MappingProxyType({}))
    reviews: Mapping[str, Mapping[str, bool]] = field(default_factory=lambda: MappingProxyType({}))
    """By service account: whether it may make each of the calls its process makes, worded as in `patch nodes`."""

    # --- what the installation was started with ---

    def container(self, deployment: str, name: str) -> Container | None:
        """A container of one of our Deployments."""
        found = self.deployments.get(deployment)
        return found.container(name) if found is not None else None

    @cached_property
    def webhook_settings(self) -> WebhookSettings | str:
        """The webhook's settings by its command line, or why that cannot be understood."""
        container = self.container(WEBHOOK, "webhook")
        if container is None:
            return f"there is no container webhook in Deployment {WEBHOOK}"
        try:
            return webhook_settings(container.line, environment_of(container.env or (), self.namespace))
        except ProcessError as error:
            return str(error)

    @cached_property
    def scheduler_settings(self) -> SchedulerSettings | str:
        """The extender's settings by its command line, or why that cannot be understood."""
        container = self.container(SCHEDULER, EXTENDER)
        if container is None:
            return f"there is no container {EXTENDER} in Deployment {SCHEDULER}"
        try:
            return scheduler_settings(container.line, environment_of(container.env or (), self.namespace))
        except ProcessError as error:
            return str(error)

    @cached_property
    def device_config(self) -> DeviceConfig | str:
        """The families as configured in the cluster, or why the file cannot be used."""
        settings = self.scheduler_settings
        enabled = frozenset() if isinstance(settings, str) else settings.enabled_families
        config_map = self.config_maps.get(DEVICE_CONFIG)
        text = config_map.text("device-config.yaml") if config_map is not None else None
        if text is None:
            return default_config(enabled)
        try:
            return read_config(text, enabled)
        except DeviceError as error:
            return str(error)

    def pods_of(self, component: str) -> Sequence[Pod]:
        """Our pods of one component that are not on their way out."""
        label = "app.kubernetes.io/component"
        return [p for p in self.pods if p.labels.get(label) == component and p.metadata.deletion_timestamp is None]
